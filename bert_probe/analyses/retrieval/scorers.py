"""Scorers of a search: pooled vectors of queries and documents, BM25, and cross-encoders."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.vectors.pooling import (
    DIMENSIONS_HELP,
    DOCUMENT_PROMPTS,
    NO_PROMPT,
    PoolingConfig,
    resolve_pooling,
)
from bert_probe.analyses.vectors.sentences import BATCH_TOKENS, name_text_errors
from bert_probe.core.extras import explain_missing
from bert_probe.core.field_types import Name, Number, Optional
from bert_probe.core.question import Question, param
from bert_probe.errors import UnavailableError
from bert_probe.model.checkpoint import TEXT_CLASSIFICATION, Checkpoint
from bert_probe.model.encoding import ModelInputs
from bert_probe.model.forward import as_array, batch, forward, group_by_length
from bert_probe.model.outputs import OutputHead, read_cross_encoder
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array

K1, B = 1.2, 0.75
"""Parameters of BM25: k1 for term frequency saturation, and b for document length normalization."""
_WORD = re.compile(r"\w+")
NOT_A_SUM = (
    "A cross-encoder encodes query and document together, so its score is not a sum over their tokens. "
    "Compute attributions of the pair instead, on the Answer page or with bert-probe why."
)
QUERY_PROMPTS = ("query",)


@dataclass(frozen=True, repr=False, kw_only=True)
class PromptedSearch(Question):
    """Base class of questions that compare the vectors of a query and of documents.

    Attributes:
        prompt: name of the query's prompt, or "none". By default, the prompt named "query" if there is one.
            It also selects the task "query" of a Router.
        document_prompt: name of the documents' prompt, or "none". By default, the prompt named "document",
            "passage" or "corpus" if there is one. It also selects the task "document" of a Router.
        dimensions: number of dimensions to which the vectors are truncated.
    """

    # Type checkers read kw_only from the decorator, but the dataclass reads it from each field.
    prompt: str | None = param(
        Optional(Name()),
        default=None,
        about="Name of the checkpoint's prompt that is prepended to the query; none for no prompt.",
        kw_only=True,
    )
    document_prompt: str | None = param(
        Optional(Name()),
        default=None,
        about="Name of the checkpoint's prompt that is prepended to each document.",
        kw_only=True,
    )
    dimensions: int | None = param(Optional(Number(1)), default=None, about=DIMENSIONS_HELP, kw_only=True)

    def query_pooling(self, checkpoint: Checkpoint) -> PoolingConfig:
        """Return the pooling of the query; see `search_pooling`."""
        return search_pooling(checkpoint, self.prompt, QUERY_PROMPTS, self.dimensions)

    def document_pooling(self, checkpoint: Checkpoint) -> PoolingConfig:
        """Return the pooling of the documents; see `search_pooling`."""
        return search_pooling(checkpoint, self.document_prompt, DOCUMENT_PROMPTS, self.dimensions)


def search_pooling(
    checkpoint: Checkpoint, prompt: str | None, defaults: Iterable[str], dimensions: int | None
) -> PoolingConfig:
    """Return the pooling of queries or documents: the checkpoint's own, or the mean if it has none.

    Args:
        prompt: name of a prompt. None selects the first name in ``defaults`` that is a prompt of the
            checkpoint, otherwise the first that is a task, otherwise no prompt. As in `encode_query` and
            `encode_document` of sentence-transformers, the checkpoint's default prompt is never used.

    Raises:
        UnavailableError, CheckpointError, SelectionError: see `resolve_pooling`.
    """
    model = checkpoint.sentence_model
    if prompt is None and model is not None:
        names = [name for own in (dict(model.prompts), model.tasks) for name in defaults if name in own]
        prompt = names[0] if names else NO_PROMPT
    is_own = model is not None or checkpoint.sentence_model_error is not None
    return resolve_pooling(checkpoint, "model" if is_own else "mean", prompt, dimensions)


class BM25:
    """Okapi BM25 in the variant of Lucene, with `K1` and `B` (Robertson and Zaragoza 2009).

    A word is a sequence of letters, digits and underscores in lower case.
    """

    def __init__(self, documents: Sequence[str]) -> None:
        with explain_missing():
            import bm25s
        words = [words_of(document) for document in documents]
        self._count, self._has_words = len(words), any(words)
        self._words = words
        self._mean_length = sum(map(len, words)) / len(words)
        self._frequencies = Counter(word for document in words for word in set(document))
        self._index = bm25s.BM25(k1=K1, b=B, method="lucene")
        if self._has_words:
            self._index.index(words, show_progress=False)

    def score(self, query: str) -> Array:
        """Return the score of each document, float32; 0 for a document without a word of the query."""
        words = words_of(query)
        if not words or not self._has_words:
            return np.zeros(self._count, np.float32)
        values: Array = self._index.get_scores(words)
        return values.astype(np.float32)

    def terms(self, query: str, document: int) -> pd.DataFrame:
        """Return the contribution of each query word to the score of a document, float64.

        Columns: term, query_count and count (occurrences in the query and in the document), documents (number
        of documents with the term), idf, contribution. The contributions add up to the score and are sorted
        in descending order.

        Args:
            document: index of the document, from 0.
        """
        length, counts = len(self._words[document]), Counter(self._words[document])
        rows = []
        for term, query_count in Counter(words_of(query)).items():
            count, frequency = counts[term], self._frequencies[term]
            idf = math.log1p((self._count - frequency + 0.5) / (frequency + 0.5))
            saturation = count / (count + K1 * (1 - B + B * length / self._mean_length)) if count else 0.0
            rows.append((term, query_count, count, frequency, idf, query_count * idf * saturation))
        return (
            pd.DataFrame(rows, columns=["term", "query_count", "count", "documents", "idf", "contribution"])
            .astype({"idf": float, "contribution": float})
            .sort_values("contribution", ascending=False, kind="stable", ignore_index=True)
        )


def words_of(text: str) -> list[str]:
    """Return the words that BM25 counts in a text: runs of letters, digits and underscores, in lower case."""
    return _WORD.findall(text.lower())


def cross_encoder_head(checkpoint: Checkpoint) -> OutputHead:
    """Return the task head that scores a pair of texts.

    Raises:
        UnavailableError: the checkpoint has no head with one label, or it has an activation function, a
            default prompt or another setting that is not supported.
        CheckpointError: a file of the checkpoint is broken.
    """
    head = checkpoint.outputs.get(TEXT_CLASSIFICATION)
    name = checkpoint.description.name
    if head is None or len(head.labels) != 1:
        labels = "no text-classification head" if head is None else f"{len(head.labels)} labels"
        raise UnavailableError(
            f"{name} is not a cross-encoder: it has {labels}, but a cross-encoder has one label. Open a "
            "cross-encoder, or use other scorers."
        )
    if problem := _score_problem(checkpoint):
        raise UnavailableError(problem)
    if checkpoint.folder is not None:
        read_cross_encoder(checkpoint.folder)
    return head


def _score_problem(checkpoint: Checkpoint) -> str:
    """Return why the score is not supported; "" if it is supported."""
    notes = checkpoint.description.notes
    return next(
        (note for note in notes if note.startswith("The score of the cross-encoder is not shown.")), ""
    )


def pair_scores(
    checkpoint: Checkpoint,
    query: str,
    documents: Sequence[str],
    names: Sequence[str],
    progress: Progress = no_progress,
) -> tuple[Array, tuple[int, ...]]:
    """Return the score of the query with each document, as `CrossEncoder.predict` computes it.

    A pair that is too long is truncated. If the checkpoint does not specify an activation function, Sigmoid
    is used, the default of sentence-transformers for one label.

    Args:
        names: names of the documents in error messages.
        progress: called with the number of pairs done and the total.

    Returns:
        The scores of shape [document], and the number of tokens truncated from each pair.

    Raises:
        UnavailableError: the model is not a cross-encoder, or a score is not a finite number.
        TextError, EmptyTextError: a text cannot be encoded.
        OutOfMemoryError: a batch needs more memory than is available.
    """
    head = cross_encoder_head(checkpoint)
    limit = head.score_limit(checkpoint)
    inputs: list[ModelInputs] = []
    for document, name in zip(documents, names, strict=True):
        with name_text_errors(name):
            inputs.append(checkpoint.encoder.inputs(query, limit, True, str(document)))
    activation = head.activation or torch.nn.Sigmoid()
    values = np.empty(len(inputs), np.float64)
    done = 0
    progress(0, len(inputs))
    for group in group_by_length([len(pair) for pair in inputs], BATCH_TOKENS, checkpoint.pads):
        pairs = [inputs[index] for index in group]
        output, _ = forward(checkpoint, pairs)
        with torch.inference_mode(), checkpoint.running():
            pooled = getattr(output, "pooler_output", None)
            logits = head.answer(batch(checkpoint, pairs), output.last_hidden_state, pooled)
            values[group] = as_array(activation(logits))[:, 0]
        done += len(group)
        progress(done, len(inputs))
    if not np.isfinite(values).all():
        raise UnavailableError("The cross-encoder returns scores that are not finite numbers. Use float32.")
    dtype = np.float64 if checkpoint.description.dtype == "float64" else np.float32
    return values.astype(dtype), tuple(pair.dropped for pair in inputs)
