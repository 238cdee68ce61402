"""Late interaction: one vector per token, and MaxSim as the score of a query and a document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.retrieval.scorers import QUERY_PROMPTS, search_pooling
from bert_probe.analyses.vectors.pooling import DOCUMENT_PROMPTS, NO_PROMPT, lowercasing, model_text
from bert_probe.analyses.vectors.sentences import BATCH_TOKENS, encode_inputs, name_text_errors
from bert_probe.core import frames
from bert_probe.errors import SelectionError, TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding, ModelInputs, Token
from bert_probe.model.forward import forward, group_by_length
from bert_probe.model.late_interaction import MAXSIM, MEAN_MAXSIM, TokenSelection
from bert_probe.model.lengths import check_task_bytes
from bert_probe.model.preflight import reserved_memory
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.sentence_networks import SentenceModule, token_states
from bert_probe.model.trace import Array, read_only

UNTRAINED = (
    "This model was not trained for late interaction. Its token vectors are the L2-normalized last "
    "hidden states, without special tokens and without the prompt."
)
SCORE_NAMES = {MAXSIM: "MaxSim", MEAN_MAXSIM: "mean MaxSim over the query tokens"}
_BLOCK_NUMBERS = 4_000_000
"""Maximum number of similarities that are computed at once."""


@dataclass(frozen=True)
class MultiVectorConfig:
    """The configuration that maps queries or documents to one vector per token.

    Attributes:
        selection: how a text is truncated and expanded, and which tokens have a vector.
        token_modules: modules applied to the last hidden state of each token.
        size: number of dimensions of a vector.
        similarity: the score, `MAXSIM` or `MEAN_MAXSIM`.
        prefix: prompt before each text.
        lower_case: whether texts are lowercased first.
        special: special tokens that are not lowercased in texts.
        is_trained: whether the checkpoint is a late-interaction model. Otherwise, the tokens of the prompt
            have no vectors.
    """

    selection: TokenSelection
    token_modules: tuple[SentenceModule, ...]
    size: int
    similarity: str = MAXSIM
    prefix: str = ""
    lower_case: bool = False
    special: tuple[str, ...] = field(default=(), repr=False)
    is_trained: bool = True

    def text(self, sentence: str) -> str:
        """Return the text that is passed to the tokenizer for a query or a document."""
        return model_text(self.prefix, sentence, self.lower_case, self.special)

    def mask(self, encoding: Encoding | ModelInputs) -> Array:
        """Return whether each token has a vector, of shape [token].

        Args:
            encoding: the encoded text; its tokens are required only if `needs_tokens`.
        """
        values: Array = self.selection.mask(encoding.inputs["input_ids"])
        if self.needs_tokens and isinstance(encoding, Encoding):
            end = len(self.text(""))
            in_prompt = [token.end is not None and token.end <= end for token in encoding.tokens]
            values = values & ~np.array(in_prompt)
        return values

    @property
    def needs_tokens(self) -> bool:
        """Whether `mask` needs the token positions, in order to leave out the prompt."""
        return bool(self.prefix) and not self.is_trained

    @property
    def score_name(self) -> str:
        """Readable name of the score."""
        return SCORE_NAMES[self.similarity]

    def __str__(self) -> str:
        """Return a readable description, such as “Dense to 128, normalized, expanded to 32 tokens”."""
        selection, expansion = self.selection, self.selection.expansion
        parts = [str(module) for module in self.token_modules] or ["last hidden states"]
        parts += [f"“{self.prefix}” prepended to each text"] if self.prefix else []
        parts += ["lowercased"] if self.lower_case else []
        if expansion is not None:
            attended = ", which are attended to" if expansion.is_attended else ""
            parts += [f"expanded to {expansion.length:,} tokens{attended}"]
        parts += [f"truncated to {selection.max_tokens:,} tokens"] if selection.max_tokens else []
        parts += (
            [f"{len(selection.skipped):,} tokens of the vocabulary are skipped"] if selection.skipped else []
        )
        parts += [f"only {len(selection.only):,} tokens of the vocabulary are used"] if selection.only else []
        return ", ".join(parts)

    @property
    def about(self) -> dict[str, Any]:
        """The configuration as JSON values, for provenance."""
        return {
            "is_trained": self.is_trained,
            "token_modules": [module.about for module in self.token_modules],
            "dimensions": self.size,
            "similarity": self.similarity,
            "prefix": self.prefix,
            "lower_case": self.lower_case,
            **self.selection.about,
        }


def query_config(checkpoint: Checkpoint, prompt: str | None = None) -> MultiVectorConfig:
    """Return the configuration that maps queries to one vector per token; see `document_config`."""
    model = checkpoint.multi_vector_model
    selection = None if model is None else model.query
    return _config(checkpoint, "query", prompt, QUERY_PROMPTS, selection)


def document_config(checkpoint: Checkpoint, prompt: str | None = None) -> MultiVectorConfig:
    """Return the configuration that maps documents to one vector per token.

    A late-interaction model has its own configuration. For other models, the vectors are the last hidden
    states, L2-normalized, without special tokens and without the tokens of the prompt.

    Args:
        prompt: name of a prompt, or `NO_PROMPT`. By default, the prompt for documents.

    Raises:
        UnavailableError, CheckpointError: the files of the late-interaction model are not supported.
        SelectionError: the checkpoint has no prompt with this name.
    """
    model = checkpoint.multi_vector_model
    return _config(
        checkpoint, "document", prompt, DOCUMENT_PROMPTS, None if model is None else model.document
    )


def _config(
    checkpoint: Checkpoint,
    side: str,
    prompt: str | None,
    defaults: Sequence[str],
    selection: TokenSelection | None,
) -> MultiVectorConfig:
    error, model = checkpoint.multi_vector_error, checkpoint.multi_vector_model
    if error is not None:
        raise type(error)(*error.args)
    if model is None or selection is None:
        return _untrained(checkpoint, prompt, defaults)
    prompts = {NO_PROMPT: ""} | dict(model.prompts)
    name = side if prompt is None else prompt
    if name not in prompts:
        names = ", ".join(prompt for prompt in prompts if prompt != NO_PROMPT)
        raise SelectionError(
            f"{checkpoint.description.name} has no prompt {name!r}. Its prompts: {names}. Use {NO_PROMPT} "
            "for no prompt."
        )
    casing = lowercasing(checkpoint.tokenizer, model.lower_case)
    return MultiVectorConfig(
        selection, model.token_modules, model.size, model.similarity, prompts[name], *casing
    )


def _untrained(checkpoint: Checkpoint, prompt: str | None, defaults: Sequence[str]) -> MultiVectorConfig:
    pooling = search_pooling(checkpoint, prompt, defaults, None)
    specials = {token.id for token in checkpoint.encode("a").tokens if token.special}
    return MultiVectorConfig(
        TokenSelection(pooling.max_tokens, tuple(sorted(specials))),
        (SentenceModule("Normalize"),),
        checkpoint.description.hidden_size,
        prefix=pooling.prefix,
        lower_case=pooling.lower_case,
        special=pooling.special,
        is_trained=False,
    )


@dataclass(frozen=True, eq=False)
class TextTokens:
    """One text with the vectors of its tokens.

    Attributes:
        encoding: the text as the model reads it, with the prompt and the expansion tokens of queries.
        positions: positions of the tokens that have a vector.
        vectors: the vectors, of shape [position, size].
    """

    encoding: Encoding
    positions: Array
    vectors: Array

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The tokens that have a vector."""
        return tuple(self.encoding.tokens[position] for position in self.positions)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The word of each token that has a vector; "" for a special token."""
        words = {position: word.text for word in self.encoding.words for position in word.positions}
        return tuple(words.get(int(position), "") for position in self.positions)


def encode_tokens(
    checkpoint: Checkpoint, config: MultiVectorConfig, text: str, truncate: bool = False
) -> TextTokens:
    """Return the tokens of one query or document and their vectors.

    Args:
        truncate: truncate a text that is too long instead of raising an error. A configuration with a maximum
            length always truncates.

    Raises:
        TextError, EmptyTextError, TooLongError: the text cannot be encoded.
    """
    limit = config.selection.max_tokens
    encoding = checkpoint.encoder.encode(config.text(text), None, truncate or limit is not None, limit)
    if config.selection.expansion is not None:
        encoding = config.selection.expansion.expand(encoding, checkpoint.tokenizer)
    mask = config.mask(encoding)
    states = _token_vectors(checkpoint, config, [encoding])[0][: len(encoding)]
    return TextTokens(encoding, read_only(np.flatnonzero(mask)), read_only(states[mask]))


def _token_vectors(
    checkpoint: Checkpoint, config: MultiVectorConfig, batch: Sequence[Encoding | ModelInputs]
) -> Array:
    """Return the vectors of all tokens of a batch, padding included, of shape [text, token, size]."""
    output, _ = forward(checkpoint, batch)
    with torch.inference_mode():
        vectors: Array = token_states(output.last_hidden_state, config.token_modules).cpu().numpy()
    return vectors


@dataclass(frozen=True, eq=False)
class TokenVectors:
    """The vectors of the tokens of many texts.

    Attributes:
        vectors: all vectors, of shape [vector, size], float32, or float64 for a float64 model.
        spans: row range of each text, `vectors[start:end]`, of shape [text, 2]. Equal texts have the same
            rows.
        dropped: number of tokens truncated from each text.
    """

    vectors: Array
    spans: Array
    dropped: tuple[int, ...]


def encode_documents(
    checkpoint: Checkpoint,
    config: MultiVectorConfig,
    texts: Sequence[str],
    truncate: bool,
    name: Callable[[int], str],
    progress: Progress = no_progress,
) -> TokenVectors:
    """Return the vectors of the tokens of each text.

    For the arguments and further errors, see `sentences.encode_texts`.

    Raises:
        OutOfMemoryError: the vectors need more memory than is available, which is checked before the
            vectors are allocated.
    """
    inputs, masks = [], []
    for number, text in enumerate(texts, 1):
        encoding = _document(checkpoint, config, text, truncate, name(number))
        masks.append(config.mask(encoding))
        inputs.append(ModelInputs(encoding.inputs, encoding.dropped))
    keys = [tuple(text.inputs["input_ids"].tolist()) for text in inputs]
    # Encode equal texts only once, and sort them, so that rounding does not depend on their order.
    rows = dict(sorted(zip(keys, range(len(keys)), strict=True), key=lambda pair: (len(pair[0]), pair[0])))
    counts = [int(masks[row].sum()) for row in rows.values()]
    ends = np.cumsum(counts, dtype=np.int64)
    span_of = {key: (end - count, end) for key, end, count in zip(rows, ends, counts, strict=True)}
    dtype = np.dtype(np.float64 if checkpoint.description.dtype == "float64" else np.float32)
    size = sum(counts) * config.size * dtype.itemsize
    remedy = "Use fewer documents, another scorer, or the command line."
    check_task_bytes(size, f"{sum(counts):,} tokens", remedy)
    with reserved_memory(size, f"Storing the vectors of {sum(counts):,} tokens", "Use fewer documents."):
        vectors = np.empty((sum(counts), config.size), dtype)
        done, distinct = 0, list(rows)
        progress(0, len(distinct))
        for batch in group_by_length([len(key) for key in distinct], BATCH_TOKENS, checkpoint.pads):
            batch_rows = [rows[distinct[index]] for index in batch]
            states = _token_vectors(checkpoint, config, [inputs[row] for row in batch_rows])
            for index, row, text_states in zip(batch, batch_rows, states, strict=True):
                first, last = span_of[distinct[index]]
                vectors[first:last] = text_states[: len(masks[row])][masks[row]]
            done += len(batch)
            progress(done, len(distinct))
    spans = np.array([span_of[key] for key in keys], np.int64).reshape(-1, 2)
    return TokenVectors(read_only(vectors), read_only(spans), tuple(text.dropped for text in inputs))


def _document(
    checkpoint: Checkpoint, config: MultiVectorConfig, text: str, truncate: bool, name: str
) -> Encoding | ModelInputs:
    limit = config.selection.max_tokens
    truncate = truncate or limit is not None
    if not config.needs_tokens:
        return encode_inputs(checkpoint, config.text(text), limit, truncate, name)
    with name_text_errors(name):
        return checkpoint.encoder.encode(config.text(text), None, truncate, limit)


def maxsim(query: Array, documents: TokenVectors, similarity: str = MAXSIM) -> Array:
    """Return the sum, over the vectors of a query, of the largest dot product with a vector of each document.

    Args:
        query: vectors of the query, of shape [token, size].
        similarity: `MAXSIM`, or `MEAN_MAXSIM` for the sum divided by the number of vectors of the query.

    Returns:
        Scores of shape [document], in the dtype of the documents; NaN for a document without a vector.

    Raises:
        TextError: the query has no vector.
    """
    if not len(query):
        raise TextError("No token of the query has a vector. Write another query.")
    spans, inverse = np.unique(documents.spans, axis=0, return_inverse=True)
    values = np.full(len(spans), np.nan)
    filled = np.flatnonzero(spans[:, 1] > spans[:, 0])
    limit = max(1, _BLOCK_NUMBERS // len(query))
    start = 0
    while start < len(filled):
        first = spans[filled[start], 0]
        inside = np.searchsorted(spans[filled, 1], first + limit, side="right")
        block = filled[start : max(inside, start + 1)]
        products = query @ documents.vectors[first : spans[block[-1], 1]].T
        largest = np.maximum.reduceat(products, spans[block, 0] - first, axis=1)
        values[block] = largest.sum(axis=0, dtype=np.float64)
        start += len(block)
    if similarity == MEAN_MAXSIM:
        values /= len(query)
    scores: Array = values[inverse.reshape(-1)].astype(documents.vectors.dtype)
    return scores


@dataclass(frozen=True, eq=False)
class TokenMatches:
    """The contributions to a MaxSim score, one for each query token that has a vector.

    Attributes:
        query, document: the tokens with their vectors.
        similarities: dot product of each token of the query and each token of the document, float64, shape
            [query token, document token].
        score: the score, float64.
        similarity: the score that was computed, `MAXSIM` or `MEAN_MAXSIM`.
    """

    query: TextTokens
    document: TextTokens
    similarities: Array
    score: float
    similarity: str

    @classmethod
    def of(cls, query: TextTokens, document: TextTokens, similarity: str) -> TokenMatches:
        """Compare the tokens of a query and a document.

        Raises:
            TextError: no token of the query, or no token of the document, has a vector.
        """
        if not len(document.vectors):
            raise TextError(
                "No token of the document has a vector, so it has no score. Choose another document."
            )
        first, second = (text.vectors.astype(np.float64) for text in (query, document))
        spans = np.array([[0, len(second)]])
        score = maxsim(first, TokenVectors(second, spans, (0,)), similarity)[0]
        return cls(query, document, read_only(first @ second.T), float(score), similarity)

    @cached_property
    def best(self) -> Array:
        """Index of the most similar document token for each query token, [query token]."""
        return read_only(self.similarities.argmax(axis=1))

    @cached_property
    def contributions(self) -> Array:
        """Contribution of each query token to the score, of shape [query token]."""
        largest = self.similarities.max(axis=1)
        return read_only(largest / len(largest) if self.similarity == MEAN_MAXSIM else largest)

    @property
    def score_name(self) -> str:
        """Readable name of the score."""
        return SCORE_NAMES[self.similarity]

    @property
    def of_document(self) -> Array:
        """Sum of the contributions of the query tokens whose best match is each document token."""
        count = self.similarities.shape[1]
        return read_only(np.bincount(self.best, weights=self.contributions, minlength=count))

    @property
    def off(self) -> float:
        """The absolute difference between the sum of the contributions and the score."""
        return abs(float(self.contributions.sum()) - self.score)

    def by_query(self) -> pd.DataFrame:
        """Return the match of each token of the query: columns term, match (a word), contribution."""
        tokens, words = self.document.tokens, self.document.words
        return pd.DataFrame(
            {
                "term": frames.plain_strings([token.display for token in self.query.tokens]),
                "match": frames.plain_strings([words[index] or tokens[index].display for index in self.best]),
                "contribution": self.contributions,
            }
        )

    def frame(self) -> pd.DataFrame:
        """Return a table with one row for each token of the query.

        Columns: query_token, query_position, token, position, word, similarity, contribution.
        """
        tokens = [self.document.tokens[index] for index in self.best]
        return pd.DataFrame(
            {
                "query_token": frames.plain_strings([token.display for token in self.query.tokens]),
                "query_position": self.query.positions,
                "token": frames.plain_strings([token.display for token in tokens]),
                "position": self.document.positions[self.best],
                "word": frames.plain_strings([self.document.words[index] for index in self.best]),
                "similarity": self.similarities.max(axis=1),
                "contribution": self.contributions,
            }
        )
