"""Truncation audit: the documents that a model does not read completely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.retrieval.chunked_search import read_limit, sentence_spans
from bert_probe.analyses.retrieval.scorers import search_pooling
from bert_probe.analyses.vectors.pooling import DOCUMENT_PROMPTS, PoolingConfig
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, Name, Number, Optional
from bert_probe.core.inputs import DocumentFile
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError, TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.lengths import MAX_TOKENS
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, read_only
from bert_probe.text.documents import DocumentList, as_documents

_SMALLEST_LIMIT = 32
"""Smallest limit in the table of limits, unless the limit of the audit is smaller."""


@question("truncation audit", command="audit")
class TruncationAudit(Question):
    """Numbers of documents that are truncated, and of tokens that are lost, at the model's maximum length.

    Documents are tokenized with the prompt and the limit of a search; the model does not run.

    Attributes:
        limit: maximum number of tokens, special tokens and prompt included; by default, the checkpoint's
            maximum.
        document_prompt: see `Search`.
        show: the table to return: "documents" with the length of each document, "lost" with the text that is
            not read, or "limits" with the losses for other limits.
    """

    inputs = DocumentFile()

    limit: int | None = param(
        Optional(Number(1, MAX_TOKENS)),
        default=None,
        key="audit_limit",
        about="Maximum number of tokens; by default, the checkpoint's maximum.",
    )
    document_prompt: str | None = param(
        Optional(Name()),
        default=None,
        about="Name of the checkpoint's prompt that is prepended to each document.",
    )
    show: str = param(
        Choice(("documents", "lost", "limits")),
        default="documents",
        display_only=True,
        key="audit_show",
        about="Table: document lengths, truncated text, or loss by limit.",
    )

    def of(
        self, checkpoint: Checkpoint, documents: Sequence[str], progress: Progress = no_progress
    ) -> TruncationAuditResult:
        """Count the tokens of every document.

        Args:
            checkpoint: the model; only its tokenizer and its maximum length are used.
            documents: the documents.
            progress: called with the number of documents done and the total.

        Raises:
            TextError, EmptyTextError: there are no documents, two documents have the same ID, or a document
                has no tokens or more than 250,000 characters.
            SelectionError: the limit leaves no room for a token of a document, or the checkpoint has no
                prompt with this name.
        """
        checkpoint, texts = checkpoint.snapshot(), as_documents(documents)
        recipe = search_pooling(checkpoint, self.document_prompt, DOCUMENT_PROMPTS, None)
        limit = read_limit(checkpoint, recipe) if self.limit is None else self.limit
        lengths = np.empty(len(texts), np.int64)
        lost: dict[int, LostText] = {}
        for index, text in enumerate(texts):
            progress(index, len(texts))
            try:
                lengths[index], unread = _read(checkpoint, recipe, text, limit)
            except TextError as error:
                raise type(error)(f"Document {index + 1:,}: {error}") from None
            if unread is not None:
                lost[index] = unread
        progress(len(texts), len(texts))
        return TruncationAuditResult(
            self,
            InputRecord.of_documents(checkpoint, texts, 0),
            texts,
            read_only(lengths),
            limit,
            lost,
            recipe,
        )


@dataclass(frozen=True)
class LostText:
    """The part of a document that a model does not read.

    Attributes:
        text: the text that is not read.
        characters_read: number of characters that are read.
        sentences: number of sentences of the document.
        sentences_lost: number of sentences that are not read completely.
    """

    text: str
    characters_read: int
    sentences: int
    sentences_lost: int


def _read(
    checkpoint: Checkpoint, recipe: PoolingConfig, document: str, limit: int
) -> tuple[int, LostText | None]:
    """Return the number of tokens of a document, and the text after the limit (None for a short document)."""
    text = recipe.text(document)
    inputs = checkpoint.encoder.inputs(text, max_tokens=MAX_TOKENS, truncate=True)
    length = len(inputs) + inputs.dropped
    if length <= limit:
        return length, None
    encoding = checkpoint.encoder.encode(text, truncate=True, max_tokens=limit)
    prompt = len(replace(recipe, prefix="").text(recipe.prefix))
    spans = [
        (token.start, token.end)
        for token in encoding.tokens
        if token.start is not None and token.end is not None and token.end > prompt
    ]
    if not spans:
        raise SelectionError(
            f"limit is {limit:,}, which leaves no token for the document. Use a larger limit."
        )
    first, last = (prompt if spans[0][0] <= prompt else spans[0][0]), spans[-1][1]
    is_left = checkpoint.tokenizer.truncation_side == "left"
    start, end = (prompt, first) if is_left else (last, len(text))
    sentences = sentence_spans(text[prompt:])
    cut = sum((prompt + low < end) if is_left else (prompt + high > start) for low, high in sentences)
    return length, LostText(text[start:end].strip(), len(text) - prompt - (end - start), len(sentences), cut)


@dataclass(frozen=True, eq=False, repr=False)
class TruncationAuditResult(Result):
    """The lengths of documents, and the text that is not read.

    Attributes:
        documents: the documents, in their original order.
        lengths: number of tokens of each document, special tokens and prompt included, of shape [document].
        limit: maximum number of tokens that are read.
        lost: the text that is not read, for each truncated document, by index.
        recipe: the pooling configuration of the documents.
    """

    question: TruncationAudit
    documents: DocumentList
    lengths: Array
    limit: int
    lost: Mapping[int, LostText]
    recipe: PoolingConfig

    def __post_init__(self) -> None:
        if self.lengths.shape != (len(self.documents),):
            raise ShapeError(
                f"lengths must have {len(self.documents)} entries, one per document, not {len(self.lengths)}."
            )

    @cached_property
    def dropped(self) -> Array:
        """Number of tokens of each document that are not read, of shape [document]."""
        return read_only(np.maximum(0, self.lengths - self.limit))

    @property
    def truncated(self) -> tuple[int, ...]:
        """Indices of the documents that are not read completely, from 0."""
        return tuple(self.lost)

    @property
    def finding(self) -> str:
        """A sentence that states how many documents and tokens are lost."""
        count, total = len(self.lost), len(self.documents)
        if not count:
            return (
                f"All {total:,} documents are read completely: the longest has {self.lengths.max():,} of at "
                f"most {self.limit:,} tokens."
            )
        share = 100 * self.dropped.sum() / self.lengths.sum()
        return (
            f"{count:,} of {total:,} documents are longer than the {self.limit:,} tokens that are read; "
            f"{share:.1f}% of all tokens are lost."
        )

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The limit, the pooling, and the numbers of documents and tokens that are read and lost."""
        return {
            "limit": self.limit,
            "recipe": self.recipe.about,
            "documents": len(self.documents),
            "documents_truncated": len(self.lost),
            "tokens": int(self.lengths.sum()),
            "tokens_dropped": int(self.dropped.sum()),
            **self.documents.about_skipped,
        }

    def frame(self) -> pd.DataFrame:
        """Return the table that the question selects.

        Columns of "documents", the most truncated first: document (ID), tokens, tokens_dropped,
        percent_dropped (0 to 100), title. Columns of "lost": document, tokens_dropped, characters_read,
        sentences, sentences_lost (not read completely), title, lost (the text that is not read). Columns of
        "limits": limit, documents_truncated, percent_of_documents, tokens_dropped, percent_of_tokens.
        """
        if self.question.show == "limits":
            return self.limits
        return self._lost() if self.question.show == "lost" else self._documents()

    def _documents(self) -> pd.DataFrame:
        order = np.argsort(-self.dropped, kind="stable")
        return pd.DataFrame(
            {
                "document": frames.plain_strings([self.documents[index].id for index in order]),
                "tokens": self.lengths[order],
                "tokens_dropped": self.dropped[order],
                "percent_dropped": 100 * self.dropped[order] / self.lengths[order],
                "title": frames.plain_strings([self.documents[index].title for index in order]),
            }
        )

    def _lost(self) -> pd.DataFrame:
        order = sorted(self.lost, key=lambda index: -self.dropped[index])
        parts = [self.lost[index] for index in order]
        return pd.DataFrame(
            {
                "document": frames.plain_strings([self.documents[index].id for index in order]),
                "tokens_dropped": self.dropped[order],
                "characters_read": np.array([part.characters_read for part in parts], np.int64),
                "sentences": np.array([part.sentences for part in parts], np.int64),
                "sentences_lost": np.array([part.sentences_lost for part in parts], np.int64),
                "title": frames.plain_strings([self.documents[index].title for index in order]),
                "lost": frames.plain_strings([part.text for part in parts]),
            }
        )

    @cached_property
    def limits(self) -> pd.DataFrame:
        """Losses for several limits: the audit's limit, powers of 2, and the longest document's length."""
        longest = int(self.lengths.max())
        powers = [2**power for power in range(longest.bit_length()) if 2**power >= _SMALLEST_LIMIT]
        limits = np.unique([self.limit, *(power for power in powers if power < longest), longest])
        dropped = np.maximum(0, self.lengths - limits[:, None])
        return pd.DataFrame(
            {
                "limit": limits,
                "documents_truncated": (dropped > 0).sum(axis=1),
                "percent_of_documents": 100 * (dropped > 0).mean(axis=1),
                "tokens_dropped": dropped.sum(axis=1),
                "percent_of_tokens": 100 * dropped.sum(axis=1) / self.lengths.sum(),
            }
        )

    @property
    def sentences(self) -> tuple[str, ...]:
        """The documents as JSON lines, the form in which view files store them."""
        return tuple(document.line for document in self.documents)

    @property
    def nbytes(self) -> int:
        """Size of the lengths and the documents in bytes."""
        return self.lengths.nbytes + 2 * sum(map(len, self.documents))
