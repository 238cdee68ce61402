"""Search by the vectors of document chunks, compared with search by the vectors of whole documents."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, combinations, islice
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.retrieval.scorers import PromptedSearch
from bert_probe.analyses.retrieval.search import Agreement, rank_documents
from bert_probe.analyses.vectors.pooling import (
    PoolingConfig,
    pool_unpadded,
)
from bert_probe.analyses.vectors.sentences import (
    BATCH_TOKENS,
    TextVectors,
    encode_texts,
    name_text_errors,
)
from bert_probe.analyses.vectors.similarity import scores
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, Number, Text
from bert_probe.core.inputs import Documents
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import param, question
from bert_probe.core.result import Result
from bert_probe.errors import EmptyTextError, SelectionError, ShapeError, memory_errors
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding, Token, trim_span
from bert_probe.model.forward import forward, group_by_length
from bert_probe.model.lengths import MAX_TOKENS, max_input_tokens
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, read_only
from bert_probe.text.documents import Document, DocumentList, as_documents

METHODS: Mapping[str, str] = {
    "whole": "Score of the whole document, truncated to the model's maximum length.",
    "chunk": "Maximum score of the document's chunks, each of which is encoded separately.",
    "chunk_mean": "Mean score of the document's chunks, each of which is encoded separately.",
    "late": (
        "Maximum score of the document's chunks with late chunking: the document is encoded as a whole, then "
        "each chunk is pooled."
    ),
    "late_mean": "Mean score of the document's chunks with late chunking.",
}
"""Mapping from the name of each method that scores a document to its description."""
MAX_CHUNKS = 100_000
"""Maximum number of chunks, each of which has two vectors."""
_LATE_MODES = {"mean", "max", "mean_sqrt_len_tokens"}
"""Pooling modes that can be applied to the tokens of a chunk."""
Span = tuple[int, int]
"""Start and end of a substring: indices of the first character and of the character after the last."""

# A period after a single letter belongs to initials or to an abbreviation such as "e.g.".
# Lookbehinds and possessive quantifiers keep the time linear for long runs of spaces and marks.
_BOUNDARY = re.compile(
    r"(?<!\b[^\W\d_])[.][\"'”’»)\]]*+\s++|(?<![!?…])[!?…]++[\"'”’»)\]]*+\s++"
    r"|[。！？]++[」』”’）]*+\s*+|(?<!\s)[^\S\r\n]*+[\r\n]\s*+"
)
_WORD = re.compile(r"\w")


@question("chunked search", command="chunked-search")
class ChunkedSearch(PromptedSearch):
    """Rankings of documents by the vectors of their chunks and by the vectors of whole documents.

    Chunks are consecutive sentences. Late chunking (Günther et al. 2024) pools the tokens of a chunk from a
    forward pass over the whole document, so that the chunk's vector depends on its context.

    Attributes:
        query: the query.
        size: maximum number of tokens of a chunk, without special tokens and prompt. Tokens that share a
            character are never separated, even if there are more.
        by: the score in `METHODS` by which the table is sorted.
        count: number of documents in the table.
        prompt, document_prompt, dimensions: see `PromptedSearch`.
    """

    inputs = Documents()

    query: str = param(Text(), positional=True, about="The query.")
    size: int = param(Number(1, MAX_TOKENS), default=64, about="Maximum number of tokens per chunk.")
    by: str = param(
        Choice(METHODS),
        default="chunk",
        display_only=True,
        key="chunks_by",
        about="Score by which the documents are ranked.",
    )
    count: int = param(
        Number(1),
        default=10,
        display_only=True,
        key="chunks_count",
        about="Number of documents in the table.",
    )

    def of(
        self,
        checkpoint: Checkpoint,
        documents: Sequence[str],
        truncate: bool = False,
        progress: Progress = no_progress,
    ) -> ChunkedSearchResult:
        """Score every document as a whole and by its chunks.

        Args:
            checkpoint: the model.
            documents: the documents.
            truncate: truncate documents that are too long, for the vectors of whole documents and for late
                chunking, instead of raising an error. A checkpoint that defines a maximum length always
                truncates.
            progress: called with the number of texts done and the total.

        Raises:
            TextError, EmptyTextError, TooLongError: a text cannot be encoded, there are no documents, or two
                documents have the same ID.
            SelectionError: a chunk of ``size`` tokens does not fit into the model's input, or there are more
                than `MAX_CHUNKS` chunks; see also `resolve_pooling`.
            UnavailableError, CheckpointError: see `resolve_pooling`.
            OutOfMemoryError: a batch or the vectors need more memory than is available.
        """
        checkpoint, texts = checkpoint.snapshot(), as_documents(documents)
        recipe = self.document_pooling(checkpoint)
        query_recipe = self.query_pooling(checkpoint)
        check_chunk_size(
            self.size, added_tokens(checkpoint, recipe, texts[0]), read_limit(checkpoint, recipe)
        )
        query = encode_texts(checkpoint, query_recipe, [self.query], truncate, lambda _: "The query")
        spans = self._spans(checkpoint, replace(recipe, prefix="", excluded=0), texts, progress)
        with memory_errors(
            "The vectors of these documents need more memory than is available. Use fewer documents."
        ):
            whole, chunks, late = _encode(checkpoint, recipe, texts, spans, truncate, progress)

            def score(vectors: Array) -> Array:
                return read_only(scores(query.vectors, vectors, query_recipe.similarity)[0])

            whole_scores, chunk_scores = score(whole.vectors), score(chunks)
            late_scores = None if late is None else score(late)
        return ChunkedSearchResult(
            self,
            InputRecord.of_documents(checkpoint, texts, sum(whole.dropped)),
            texts,
            spans,
            whole_scores,
            chunk_scores,
            late_scores,
            recipe,
            whole.dropped,
        )

    def _spans(
        self, checkpoint: Checkpoint, plain: PoolingConfig, texts: Sequence[Document], progress: Progress
    ) -> tuple[tuple[Span, ...], ...]:
        """Return the character spans of each document's chunks."""
        spans: list[tuple[Span, ...]] = []
        count = 0
        for number, document in enumerate(texts, 1):
            progress(0, len(texts))
            with name_text_errors(f"Document {number:,}"):
                chunks = separate_chunks(checkpoint, plain.text(document), self.size)
                spans.append(tuple(islice(chunks, MAX_CHUNKS - count + 1)))
                if not spans[-1]:
                    raise EmptyTextError("No chunk has tokens. Use larger chunks, or another document.")
            count += len(spans[-1])
            if count > MAX_CHUNKS:
                raise SelectionError(
                    f"The first {number:,} of {len(texts):,} documents have more than {MAX_CHUNKS:,} chunks, "
                    "which is the maximum. Use larger chunks, or fewer documents."
                )
        return tuple(spans)


def _encode(
    checkpoint: Checkpoint,
    recipe: PoolingConfig,
    texts: DocumentList,
    spans: Sequence[Sequence[Span]],
    truncate: bool,
    progress: Progress,
) -> tuple[TextVectors, Array, Array | None]:
    """Return the vectors of documents, of chunks, and of chunks with late chunking (None if unavailable)."""
    plain = replace(recipe, prefix="", excluded=0)
    parts = [
        plain.text(text)[start:end]
        for text, chunks in zip(texts, spans, strict=True)
        for start, end in chunks
    ]
    total = len(parts) + 2 * len(texts)

    def part_progress(first: int) -> Progress:
        return lambda done, _: progress(first + done, total)

    whole = encode_texts(checkpoint, recipe, texts, truncate, "Document {:,}".format, part_progress(0))
    vectors = encode_texts(
        checkpoint, recipe, parts, False, "Chunk {:,}".format, part_progress(len(texts))
    ).vectors
    late = _late_vectors(checkpoint, recipe, texts, spans, vectors, part_progress(len(texts) + len(parts)))
    return whole, vectors, late


def _late_vectors(
    checkpoint: Checkpoint,
    recipe: PoolingConfig,
    texts: Sequence[Document],
    spans: Sequence[Sequence[Span]],
    chunk_vectors: Array,
    progress: Progress,
) -> Array | None:
    """Return the vector of each chunk, [chunk, size], pooled from the hidden states of its document.

    The vector of a chunk beyond the model's limit is NaN. None is returned if the pooling cannot be applied
    to a subset of the tokens.

    Args:
        checkpoint: the model.
        recipe: the pooling configuration of the documents.
        texts: the documents.
        spans: character spans of each document's chunks.
        chunk_vectors: vectors of the separately encoded chunks; the result has the same shape and dtype.
        progress: called with the number of documents done and the total.
    """
    if not set(recipe.modes) <= _LATE_MODES:
        return None
    first = np.cumsum([0, *map(len, spans)])
    vectors = np.full_like(chunk_vectors, np.nan)
    # Encodings with tokens need much more memory than model inputs, so they are created batch by batch.
    inputs = [
        checkpoint.encoder.inputs(recipe.text(text), truncate=True, max_tokens=recipe.max_tokens)
        for text in texts
    ]
    done = 0
    for batch in group_by_length([len(item) for item in inputs], BATCH_TOKENS, checkpoint.pads):
        output, _ = forward(checkpoint, [inputs[index] for index in batch])
        for row, index in enumerate(batch):
            encoding = checkpoint.encoder.encode(
                recipe.text(texts[index]), truncate=True, max_tokens=recipe.max_tokens
            )
            states = output.last_hidden_state[row]
            for number, (start, end) in enumerate(_token_ranges(encoding, recipe, spans[index])):
                if start < end:
                    pooled = pool_unpadded(states[None, start:end], replace(recipe, excluded=0))
                    vectors[first[index] + number] = pooled[0].cpu().numpy()
        done += len(batch)
        progress(done, len(texts))
    return vectors


def _token_ranges(encoding: Encoding, recipe: PoolingConfig, spans: Sequence[Span]) -> list[tuple[int, int]]:
    """Return the token range of each chunk, end excluded. The range of a truncated chunk is empty."""
    prompt = len(replace(recipe, prefix="").text(recipe.prefix))
    tokens = [token for token in encoding.tokens if token.start is not None]
    starts = [(token.start or 0) - prompt for token in tokens]
    ranges = []
    for start, end in spans:
        low, high = (int(place) for place in np.searchsorted(starts, (start, end)))
        ranges.append((tokens[low].position, tokens[high - 1].position + 1) if low < high else (0, 0))
    return ranges


@dataclass(frozen=True, eq=False, repr=False)
class ChunkedSearchResult(Result):
    """Scores of documents and of their chunks.

    Attributes:
        documents: the documents, in their original order.
        spans: character spans of each document's chunks, in the order of the text.
        whole: score of each document, of shape [document].
        chunks: score of each chunk, of shape [chunk], in the order of the documents.
        late: score of each chunk by late chunking, of shape [chunk]; NaN for a chunk beyond the model's
            limit. None if the pooling cannot be applied to the tokens of a chunk.
        recipe: the pooling configuration of the documents.
        dropped: number of tokens truncated from each document for `whole` and `late`.
    """

    question: ChunkedSearch
    documents: DocumentList
    spans: tuple[tuple[Span, ...], ...]
    whole: Array
    chunks: Array
    late: Array | None
    recipe: PoolingConfig
    dropped: tuple[int, ...]

    def __post_init__(self) -> None:
        count = sum(map(len, self.spans))
        if self.chunks.shape != (count,) or len(self.whole) != len(self.documents):
            raise ShapeError(
                f"chunks must have shape ({count},), one score per chunk, not {self.chunks.shape}."
            )

    @cached_property
    def scores(self) -> Mapping[str, Array]:
        """Mapping from each available method in `METHODS` to the score of each document, [document].

        The score is NaN if no chunk has a score, for example because the vector of the query is zero.
        """
        values = {"whole": self.whole, **self._by_document("chunk", self.chunks)}
        return values if self.late is None else values | self._by_document("late", self.late)

    def _by_document(self, name: str, values: Array) -> dict[str, Array]:
        parts = [part[~np.isnan(part)] for part in self._split(values)]
        undefined = values.dtype.type(np.nan)
        return {
            name: np.array([part.max() if len(part) else undefined for part in parts]),
            f"{name}_mean": np.array([part.mean() if len(part) else undefined for part in parts]),
        }

    def _split(self, values: Array) -> list[Array]:
        """Split an array, [chunk], into an array for each document."""
        return np.split(values, np.cumsum([len(chunks) for chunks in self.spans])[:-1])

    @cached_property
    def best(self) -> Mapping[str, tuple[int | None, ...]]:
        """Mapping from "chunk" and, if available, "late" to the best chunk's index, from 0, per document.

        The index is None for a document without a score.
        """
        values = {"chunk": self.chunks} | ({} if self.late is None else {"late": self.late})
        return {
            name: tuple(
                None if np.isnan(part).all() else int(np.nanargmax(part)) for part in self._split(scores)
            )
            for name, scores in values.items()
        }

    @cached_property
    def ranks(self) -> Mapping[str, Array]:
        """Mapping from each method in `scores` to the rank of each document, from 1, [document].

        Tied documents keep their original order, and documents without a score come last.
        """
        return {name: rank_documents(values) for name, values in self.scores.items()}

    @cached_property
    def agreement(self) -> tuple[Agreement, ...]:
        """Rank agreement of each pair of methods in `scores`."""
        return tuple(Agreement.of(a, b, self.ranks, self.scores) for a, b in combinations(self.scores, 2))

    @property
    def by(self) -> str:
        """The score by which the table is sorted: `question.by`, or "chunk" if this score is unavailable."""
        return self.question.by if self.question.by in self.scores else "chunk"

    def chunk(self, document: int, method: str = "chunk") -> str:
        """Return the text of a document's best chunk, or of the first chunk if the document has no score.

        Args:
            document: index of the document, from 0.
            method: "chunk" or "late".
        """
        plain = replace(self.recipe, prefix="")
        start, end = self.spans[document][self.best[method][document] or 0]
        return plain.text(self.documents[document])[start:end]

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The pooling, the number of chunks, the agreement, and a reason if late chunking is unavailable."""
        reason = {
            "late_chunking": "unavailable, because the pooling is not a mean of token vectors "
            f"({self.recipe})"
        }
        return {
            "recipe": self.recipe.about,
            "chunks": len(self.chunks),
            "agreement": [pair.about for pair in self.agreement],
            **(reason if self.late is None else {}),
            **self.documents.about_skipped,
        }

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per document: the first documents by descending score.

        Columns: rank, document (ID), chunks (number); the score and the rank of the document by each method
        in `METHODS`, such as late_score and late_rank; best_chunk and best_late (numbers from 1);
        tokens_dropped (from the whole document), title, text (of the best chunk).
        """
        order = np.argsort(self.ranks[self.by])[: self.question.count]
        columns: dict[str, Any] = {}
        for name, values in self.scores.items():
            columns |= {f"{name}_score": values[order], f"{name}_rank": self.ranks[name][order]}
        for name, numbers in self.best.items():
            best = [numbers[index] for index in order]
            columns[f"best_{name}"] = frames.nullable_integers(
                [None if number is None else number + 1 for number in best]
            )
        method = "late" if self.by.startswith("late") else "chunk"
        return pd.DataFrame(
            {
                "rank": np.arange(1, len(order) + 1),
                "document": frames.plain_strings([self.documents[index].id for index in order]),
                "chunks": [len(self.spans[index]) for index in order],
                **columns,
                "tokens_dropped": [self.dropped[index] for index in order],
                "title": frames.plain_strings([self.documents[index].title for index in order]),
                "text": [self.chunk(index, method) for index in order],
            }
        )

    @property
    def sentences(self) -> tuple[str, ...]:
        """The documents as JSON lines, the form in which view files store them."""
        return tuple(document.line for document in self.documents)

    @property
    def nbytes(self) -> int:
        """Size of the scores and the documents in bytes."""
        arrays = [self.whole, self.chunks, *([] if self.late is None else [self.late])]
        return sum(values.nbytes for values in arrays) + 2 * sum(map(len, self.documents))


def sentence_spans(text: str) -> list[Span]:
    """Return the spans of the sentences of a text, without the white space between them.

    A sentence ends with ``.``, ``!``, ``?`` or ``…`` and white space, with a full-width mark, or at the end
    of a line. Characters between two such boundaries belong to the sentence before them if there is no letter
    or digit among them; at the start of the text, they belong to the first sentence. A text without letters
    and digits is one sentence.
    """
    ends = [match.end() for match in _BOUNDARY.finditer(text)]
    spans: list[Span] = []
    start = 0
    for end in dict.fromkeys([*ends, len(text)]):
        part = text[start:end]
        if _WORD.search(part):
            first = start + len(part) - len(part.lstrip())
            spans.append((first, first + len(part.strip())))
        elif spans and part.strip():
            spans[-1] = (spans[-1][0], start + len(part.rstrip()))
        start = end
    if not text.strip():
        return []
    first, last = trim_span(text, 0, len(text))
    return [(first, spans[0][1] if spans else last), *spans[1:]]


def separate_chunks(checkpoint: Checkpoint, text: str, size: int) -> Iterator[Span]:
    """Yield the spans of the chunks of a text, each of which is encoded separately.

    A chunk that has more than ``size`` tokens without the text around it is split again. Chunks without
    tokens are left out.

    Raises:
        TextError, EmptyTextError: the text cannot be encoded.
    """
    encoding = checkpoint.encoder.encode(text, truncate=True, max_tokens=MAX_TOKENS)
    spans = chunk_spans(text, encoding.tokens, size)
    if spans == [(0, len(text))]:
        yield from spans
        return
    for start, end in spans:
        with suppress(EmptyTextError):
            for first, last in separate_chunks(checkpoint, text[start:end], size):
                yield start + first, start + last


def chunk_spans(text: str, tokens: Sequence[Token], size: int) -> list[Span]:
    """Return the spans of the chunks of a text. A chunk has as many complete sentences as fit.

    A sentence with more than ``size`` tokens is split into chunks of similar length, between two words, or
    between two characters of a long word. No chunk begins or ends with white space.

    Args:
        text: the text.
        tokens: its tokens; special tokens are ignored.
        size: maximum number of tokens of a chunk. Tokens that share a character are never separated, even if
            there are more.
    """
    chunks: list[Span] = []
    count = 0  # number of tokens in the last chunk
    positions = [
        (token.start, token.end, token.word)
        for token in tokens
        if token.start is not None and token.end is not None
    ]
    starts = [start for start, _, _ in positions]
    index = 0
    for start, end in sentence_spans(text):
        # Byte-level tokenizers have tokens of white space, also between two sentences.
        first, last = bisect_left(starts, start, index), bisect_left(starts, end, index)
        if chunks and count + last - index <= size:
            chunks[-1] = (chunks[-1][0], end)
            count += last - index
        else:
            for part_start, part_end, part_length in _split(positions[first:last], start, end, size):
                chunks.append((part_start, part_end))
                count = part_length
        index = last
    return [trim_span(text, start, end) for start, end in chunks if text[start:end].strip()]


def _split(
    tokens: Sequence[tuple[int, int, int | None]], start: int, end: int, size: int
) -> list[tuple[int, int, int]]:
    """Split a sentence into spans of similar length with at most ``size`` tokens.

    Args:
        tokens: start, end and word index of each token of the sentence.
        start, end: character offsets of the sentence.
        size: maximum number of tokens of a span, unless they share a character.

    Returns:
        The start, the end and the number of tokens of each span.
    """
    parts = []
    while len(tokens) > size:
        # Distribute the remaining tokens evenly, because a last chunk of one token would be meaningless.
        length = math.ceil(len(tokens) / math.ceil(len(tokens) / size))
        cut = _cut(tokens, length)
        if cut == len(tokens):
            break
        # Characters without tokens, such as those that a tokenizer removes, belong to the part before them.
        parts.append((start, tokens[cut][0], cut))
        start, tokens = tokens[cut][0], tokens[cut:]
    return [*parts, (start, end, len(tokens))]


def _cut(tokens: Sequence[tuple[int, int, int | None]], length: int) -> int:
    """Return the number of tokens before a cut at the end of a word, or else of a character.

    The number is at most ``length``, unless the first ``length`` tokens share a character with the next one.
    """

    def is_between_characters(cut: int) -> bool:
        return tokens[cut][0] >= tokens[cut - 1][1]

    words = (cut for cut in range(length, 1, -1) if tokens[cut][2] != tokens[cut - 1][2])
    cuts = chain(words, range(length, 0, -1), range(length + 1, len(tokens)))
    return next(filter(is_between_characters, cuts), len(tokens))


def read_limit(checkpoint: Checkpoint, recipe: PoolingConfig) -> int:
    """Return the maximum number of tokens that the checkpoint reads of a text, special tokens included."""
    limit = max_input_tokens(checkpoint.encoder.max_tokens)
    return limit if recipe.max_tokens is None else min(limit, recipe.max_tokens)


def added_tokens(checkpoint: Checkpoint, recipe: PoolingConfig, text: str) -> int:
    """Return the number of tokens that are not part of a text: special tokens and prompt tokens."""
    encoding = checkpoint.encoder.encode(recipe.text(text), truncate=True, max_tokens=MAX_TOKENS)
    return sum(token.end is None or token.end <= len(recipe.prefix) for token in encoding.tokens)


def check_chunk_size(size: int, added: int, limit: int) -> None:
    """Raise an error if a chunk of ``size`` tokens does not fit into the model's input.

    Raises:
        SelectionError: ``size`` plus the number of tokens added to each chunk exceeds the limit.
    """
    if size + added > limit:
        raise SelectionError(
            f"size is {size:,}, but this checkpoint reads at most {limit - added:,} tokens of a chunk. Use "
            "a smaller size."
        )
