"""Similarity of two models: linear CKA between their layers (Kornblith et al. 2019), and matching heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.attention.head_means import BATCH_TOKENS
from bert_probe.analyses.comparison.model_change import (
    align_spans,
    are_same_model,
    check_encodings,
    check_tokenizers,
)
from bert_probe.core.field_types import Choice, Number
from bert_probe.core.inputs import TwoModelSentences, TwoModelTraces
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError, TextError, memory_errors
from bert_probe.model.checkpoint import Checkpoint, encode_texts
from bert_probe.model.encoding import Encoding
from bert_probe.model.forward import group_by_length
from bert_probe.model.lengths import check_attention_bytes, check_task_bytes
from bert_probe.model.preflight import reserved_memory
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace, read_only
from bert_probe.text.alignment import CommonSpans
from bert_probe.text.sentence_files import with_line_numbers

TABLES = ("best", "all")
CHUNK_BYTES = 128_000_000
"""Maximum size, in bytes, of the attention weights of model A that are in memory at a time.

The attention of model B is recomputed for each chunk of A's layers.
"""


@question("layer similarity", command="diff layers")
class LayerSimilarity(Question):
    """Linear CKA of every layer of A with every layer of B, over the tokens of many texts.

    CKA measures whether tokens that are similar in one layer are also similar in the other layer. CKA is
    invariant to rotating or scaling a layer's vectors, and the models may have different hidden sizes.

    Attributes:
        examples: maximum number of tokens to compare, special tokens excluded. If the texts have more tokens,
            a random sample is drawn.
        seed: seed of the random sample.
    """

    inputs = TwoModelSentences()

    examples: int = param(
        Number(2, 20_000), default=2000, about="Maximum number of tokens to compare.  [default: 2000]"
    )
    seed: int = param(Number(0), default=0, about="Seed of the token sample.")

    def of(
        self,
        a: Checkpoint,
        b: Checkpoint,
        sentences: Sequence[str],
        truncate: bool = False,
        progress: Progress = no_progress,
    ) -> LayerSimilarityResult:
        """Return the CKA of all pairs of layers of two models, over the tokens of the given sentences.

        Args:
            sentences: the sentences; blank ones are skipped.
            truncate: truncate sentences that are too long instead of raising an error.
            progress: called with the number of steps done and the total. A step is one sentence in one model
                or one pair of layers.

        Raises:
            SelectionError: the models have different tokenizers.
            EmptyTextError, TooLongError, TextError: there are no sentences, a sentence cannot be encoded, or
                there are fewer than two tokens to compare.
            OutOfMemoryError: there is not enough memory.
            UnavailableError: the vectors are too large for a public server.
        """
        a, b = a.snapshot(), b.snapshot()
        check_tokenizers(a, b)
        lines = [(line, text, None) for line, text in with_line_numbers(sentences, "sentence")]
        encodings = [encode_texts(checkpoint, lines, truncate, progress) for checkpoint in (a, b)]
        for number, (encoding_a, encoding_b) in enumerate(zip(*encodings, strict=True), start=1):
            check_encodings(encoding_a, encoding_b, f"sentence {number:,}")
        texts, dropped = (
            [encoding.text for encoding in encodings[0]],
            sum(encoding.dropped for encoding in encodings[0]),
        )
        inputs = InputRecord.of_sentences(a, texts, dropped).with_other_model(InputRecord.of_model(b))
        positions = self._sample(encodings[0])
        is_same_model = are_same_model(inputs, a, b)
        steps = _PairCounter(
            progress,
            len(texts) * (1 if is_same_model else 2)
            + (a.description.layers + 1) * (b.description.layers + 1),
        )
        with self._memory(len(positions), (a,) if is_same_model else (a, b)):
            vectors_a = _vectors(a, encodings[0], positions, steps)
            vectors_b = vectors_a if is_same_model else _vectors(b, encodings[1], positions, steps)
            return LayerSimilarityResult(
                self, inputs, len(positions), read_only(_cka_matrix(vectors_a, vectors_b, steps))
            )

    @contextmanager
    def _memory(self, examples: int, checkpoints: Sequence[Checkpoint]) -> Iterator[None]:
        """Reserve memory for the float64 vectors of all layers within the context.

        Raises:
            OutOfMemoryError: there is not enough memory.
            UnavailableError: the vectors are too large for a public server.
        """
        shapes = [checkpoint.description for checkpoint in checkpoints]
        size = 8 * examples * sum((shape.layers + 1) * shape.hidden_size for shape in shapes)
        check_task_bytes(size, f"{examples:,} tokens", "Use fewer examples, or the command line.")
        remedy = "Use fewer examples."
        with (
            memory_errors(f"The vectors of these tokens do not fit in memory. {remedy}"),
            reserved_memory(size, f"Comparing {examples:,} tokens", remedy),
        ):
            yield

    def _sample(self, encodings: Sequence[Encoding]) -> Array:
        """Return the sentence index and position of each compared token, shape [token, 2], in text order."""
        positions = np.array(
            [
                (number, token.position)
                for number, encoding in enumerate(encodings)
                for token in encoding.tokens
                if not token.special
            ]
        )
        if len(positions) < 2:
            raise TextError("CKA needs at least two tokens, but the texts have only one. Use longer texts.")
        if len(positions) <= self.examples:
            return positions
        rows = np.random.default_rng(self.seed).choice(len(positions), self.examples, replace=False)
        sample: Array = positions[np.sort(rows)]
        return sample


class _PairCounter:
    """Counter of completed steps that calls the progress callback at each increment."""

    def __init__(self, progress: Progress, total: int) -> None:
        self.progress, self.done, self.total = progress, 0, total

    def __call__(self, count: int = 1) -> None:
        self.done += count
        self.progress(self.done, self.total)


@dataclass(frozen=True, eq=False, repr=False)
class LayerSimilarityResult(Result):
    """The similarity between the layers of two models.

    Attributes:
        examples: number of compared tokens.
        cka: CKA of each pair of layers, float64 of shape [layer of A + 1, layer of B + 1], 0 to 1. Row and
            column 0 are the embeddings. NaN if all vectors of a layer are equal.
    """

    question: LayerSimilarity
    examples: int
    cka: Array

    def __post_init__(self) -> None:
        if self.cka.ndim != 2:
            raise ShapeError(f"cka must have shape [layer, layer], not {self.cka.shape}.")

    @property
    def finding(self) -> str:
        """A sentence that names the layer that changed most, with its CKA.

        If the models have different numbers of layers, the sentence names the layer of B that is most similar
        to A's last layer.
        """
        if self.cka.shape[0] == self.cka.shape[1]:
            diagonal = np.diagonal(self.cka)
            if np.isnan(diagonal).all():
                return "CKA is undefined, because all vectors of each layer are equal."
            layer = int(np.nanargmin(diagonal))
            if diagonal[layer] == 1:
                return "No layer changed: CKA is 1 for all layers."
            return f"Layer {layer} changed most: its CKA is {diagonal[layer]:.3f}."
        last_layer = self.cka[-1]
        if np.isnan(last_layer).all():
            return "CKA is undefined, because all vectors of A's last layer are equal."
        layer = int(np.nanargmax(last_layer))
        return f"The last layer of A is most similar to layer {layer} of B: CKA {last_layer[layer]:.3f}."

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per pair of layers: layer_a, layer_b, cka.

        Layer 0 is the embeddings.
        """
        first, second = np.indices(self.cka.shape)
        return pd.DataFrame({"layer_a": first.ravel(), "layer_b": second.ravel(), "cka": self.cka.ravel()})


def linear_cka(x: Array, y: Array) -> float:
    """Return the linear CKA of two matrices (Kornblith et al. 2019, section 3).

    For matrices with centered columns, CKA is ‖Yᵀ X‖²_F ÷ (‖Xᵀ X‖_F ‖Yᵀ Y‖_F).

    Args:
        x: vectors, shape [example, dimension].
        y: other vectors of the same examples, shape [example, dimension]; their dimension may differ from
            that of x.

    Returns:
        The CKA, 0 to 1. It is exactly 1 if y is x, and NaN if all rows of x or of y are equal.

    Raises:
        ShapeError: x or y is not a matrix, or the matrices have different numbers of rows.
    """
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y):
        raise ShapeError(
            f"x and y must be matrices with the same number of rows, not arrays of shapes {x.shape} and "
            f"{y.shape}."
        )
    centered_x = _center(x)
    centered_y = centered_x if y is x else _center(y)
    return float(_cka_matrix([centered_x], [centered_y])[0, 0])


def _cka_matrix(a: Sequence[Array], b: Sequence[Array], steps: _PairCounter | None = None) -> Array:
    """Return the CKA of every layer of A with every layer of B, shape [layer of A, layer of B].

    Args:
        a, b: centered vectors of each layer, shape [example, dimension].
        steps: called after each pair of layers.
    """
    norms_a = [_squared_norm(x, x) for x in a]
    norms_b = norms_a if b is a else [_squared_norm(y, y) for y in b]
    cka = np.full((len(a), len(b)), np.nan)
    for index in np.ndindex(cka.shape):
        x, y = a[index[0]], b[index[1]]
        norm = norms_a[index[0]] * norms_b[index[1]]
        shared = norms_a[index[0]] if y is x else _squared_norm(x, y)
        if norm > 0:
            cka[index] = min(shared / np.sqrt(norm), 1.0)
        if steps is not None:
            steps()
    return cka


def _squared_norm(x: Array, y: Array) -> float:
    """Return the squared Frobenius norm ‖Yᵀ X‖²_F of the product of two matrices."""
    product = x.T @ y
    return float(np.vdot(product, product))


def _center(x: Array) -> Array:
    """Return a matrix in float64 with centered columns, scaled to unit Frobenius norm to avoid overflow."""
    centered = x.astype(np.float64)
    centered -= centered.mean(axis=0)
    norm = np.linalg.norm(centered)
    # If all rows are equal, rounding may leave small values after centering, so return zeros.
    if norm <= len(x) * np.finfo(np.float64).eps * np.linalg.norm(x.astype(np.float64)):
        return np.zeros_like(centered)
    centered /= norm
    return centered


def _vectors(
    checkpoint: Checkpoint, encodings: Sequence[Encoding], positions: Array, steps: _PairCounter
) -> list[Array]:
    """Return the centered vectors of the sampled tokens after each layer, each of shape [token, hidden].

    Args:
        positions: sentence index and position of each sampled token; see `LayerSimilarity._sample`.
        steps: called with the number of sentences of each batch.
    """
    vectors: list[Array] = []
    for group in group_by_length([len(encoding) for encoding in encodings], BATCH_TOKENS, checkpoint.pads):
        traces = checkpoint.trace_encodings([encodings[index] for index in group])
        for index, trace in zip(group, traces, strict=True):
            if not vectors:
                widths = [trace.vectors(layer).shape[1] for layer in range(trace.layers + 1)]
                vectors = [np.empty((len(positions), width), trace.dtype) for width in widths]
            rows = np.flatnonzero(positions[:, 0] == index)
            for layer, array in enumerate(vectors):
                array[rows] = trace.vectors(layer)[positions[rows, 1]]
        steps(len(group))
    vectors.reverse()
    return [_center(vectors.pop()) for _ in range(len(vectors))]  # frees each array before the next copy


@question("head matches", command="diff matches")
class HeadMatches(Question):
    """Similarity of each head of A to each head of B: 1 − total variation between their attention.

    The similarity is averaged over the queries. The tokenizers may differ: attention is first merged into the
    text spans that both tokenizers share, summed over keys and averaged over queries.

    Attributes:
        show: "best" for each head of A with the most similar head of B, or "all" for every pair of heads.
    """

    inputs = TwoModelTraces()

    show: str = param(
        Choice(TABLES),
        default="best",
        about="Table: the best match of each head, or all pairs of heads.",
        display_only=True,
    )

    def of(self, a: Trace, b: Trace, progress: Progress = no_progress) -> HeadMatchesResult:
        """Compare all pairs of heads of two models.

        At a time, one layer of B's attention is in memory, and as many layers of A's attention as fit into
        `CHUNK_BYTES`.

        Args:
            progress: called with the number of layer pairs done and the total.

        Raises:
            SelectionError: the traces come from different texts, or the text was truncated.
            UnavailableError: a trace has no model, or the attention exceeds the limit of a public server; see
                `check_attention_bytes`.
        """
        from scipy.spatial.distance import cdist  # imported here because the import is slow

        inputs, trace_a, trace_b, spans = align_spans(a, b)
        for trace in (trace_a, trace_b):
            check_attention_bytes(len(trace.tokens), trace.heads, arrays=2)  # the merged one is float64
        similarity = np.empty((trace_a.layers, trace_a.heads, trace_b.layers, trace_b.heads))
        with memory_errors(
            "The attention of one layer of both models does not fit in memory. Shorten the text."
        ):
            chunk = max(CHUNK_BYTES // (8 * trace_a.heads * len(spans.rows) * len(spans.spans)), 1)
            for first in range(0, trace_a.layers, chunk):
                layers_a = range(first, min(first + chunk, trace_a.layers))
                p = [_flat(spans.merged(trace_a.attention(layer), 0)) for layer in layers_a]
                for layer_b in range(trace_b.layers):
                    is_shared = trace_a is trace_b and layer_b in layers_a
                    q = (
                        p[layer_b - first]
                        if is_shared
                        else _flat(spans.merged(trace_b.attention(layer_b), 1))
                    )
                    for layer, weights in zip(layers_a, p, strict=True):
                        # The cityblock distance is the sum of absolute differences over queries and keys.
                        similarity[layer, :, layer_b] = 1 - cdist(weights, q, "cityblock") / (
                            2 * len(spans.rows)
                        )
                    progress(
                        first * trace_b.layers + (layer_b + 1) * len(layers_a),
                        trace_a.layers * trace_b.layers,
                    )
        # Rounding may make the similarity slightly negative.
        return HeadMatchesResult(self, inputs, spans, read_only(np.maximum(similarity, 0.0)))


@dataclass(frozen=True, eq=False, repr=False)
class HeadMatchesResult(Result):
    """The similarity between the heads of two models.

    Attributes:
        spans: text spans that the tokenizers of both models share.
        similarity: similarity of each pair of heads, 0 to 1, where 1 is equal attention; float64 of shape
            [layer of A, head of A, layer of B, head of B].
    """

    question: HeadMatches
    spans: CommonSpans
    similarity: Array

    def __post_init__(self) -> None:
        if self.similarity.ndim != 4:
            raise ShapeError(
                f"similarity must have shape [layer, head, layer, head], not {self.similarity.shape}."
            )

    @property
    def metadata(self) -> dict[str, Any]:
        """The number of text spans that both tokenizers share."""
        return {"spans": len(self.spans.rows)}

    @property
    def matrix(self) -> Array:
        """Similarity of each pair of heads, shape [head of A, head of B], with heads ordered by layer."""
        layers, heads = self.similarity.shape[:2]
        return self.similarity.reshape(layers * heads, -1)

    @property
    def best(self) -> Array:
        """Column index of the largest value in each row of `matrix`, [head of A]; in a tie, the first."""
        columns: Array = self.matrix.argmax(axis=1)
        return columns

    @property
    def mutual(self) -> Array:
        """Whether each head of A and its best match in B are best matches of each other, bool [head of A]."""
        is_mutual: Array = self.matrix.argmax(axis=0)[self.best] == np.arange(len(self.matrix))
        return is_mutual

    def place(self, head: int, side: int) -> tuple[int, int]:
        """Return the layer index and head index, from 0, of a row or column of `matrix`.

        Args:
            head: index of the row or column.
            side: 0 for a row (a head of A), 1 for a column (a head of B).
        """
        layer, index = divmod(int(head), self.similarity.shape[1 + 2 * side])
        return layer, index

    def maps(self, a: Trace, b: Trace, row: int, column: int) -> tuple[Array, Array]:
        """Return the attention matrices of two heads, merged into text spans, each of shape [query, key].

        Args:
            a, b: the compared traces.
            row, column: indices of the two heads in `matrix`.
        """
        head_a, head_b = self.place(row, 0), self.place(column, 1)
        return self.spans.merged(a.attention(*head_a), 0), self.spans.merged(b.attention(*head_b), 1)

    def maps_frame(self, a: Trace, b: Trace, row: int, column: int) -> pd.DataFrame:
        """Return a table of the matrices of `maps` in long format.

        Each row has the index and text of the query span and of the key span, and the weights of both heads.
        """
        texts = np.array([span.text for span in self.spans.spans], dtype=object)
        keys = np.tile(np.arange(len(texts)), len(self.spans.rows))
        queries = np.repeat(self.spans.rows, len(texts))
        weights_a, weights_b = self.maps(a, b, row, column)
        return pd.DataFrame(
            {
                "query": queries,
                "query_text": texts[queries],
                "key": keys,
                "key_text": texts[keys],
                f"weight_a_{self.name(row, 0)}": weights_a.ravel(),
                f"weight_b_{self.name(column, 1)}": weights_b.ravel(),
            }
        )

    @property
    def strongest(self) -> tuple[int, int]:
        """Row and column index of the largest similarity in `matrix`; in a tie, the first."""
        row = int(self.matrix.max(axis=1).argmax())
        return row, int(self.best[row])

    @property
    def finding(self) -> str:
        """A sentence that names the best match and gives median similarities; heads are counted from 1."""
        row, column = self.strongest
        best = self.matrix.max(axis=1)
        return (
            f"The best match is head {self.name(row, 0)} of A and head {self.name(column, 1)} of B: "
            f"similarity {self.matrix[row, column]:.3g}. The median similarity of each head of A to its "
            f"best match is {float(np.median(best)):.3g}; the median over all pairs of heads is "
            f"{float(np.median(self.matrix)):.3g}."
        )

    def name(self, head: int, side: int) -> str:
        """Return the name of the head of a row (side 0) or column (side 1) of `matrix`.

        For example, the name of head 5 of layer 3 is "3.5".
        """
        return ".".join(str(index + 1) for index in self.place(head, side))

    def frame(self) -> pd.DataFrame:
        """Return a table with a row per head of A and its best match, or with a row per pair of heads.

        Columns: layer_a, head_a, layer_b, head_b, similarity, and, for best matches, mutual. Layers and heads
        count from 1.
        """
        rows, columns = self.matrix.shape
        if self.question.show == "all":
            a, b = (indices.ravel() for indices in np.indices((rows, columns)))
        else:
            a, b = np.arange(rows), self.best
        heads = [self.similarity.shape[1], self.similarity.shape[3]]
        columns_ = {
            f"{unit}_{side}": 1 + (indices // count if unit == "layer" else indices % count)
            for side, indices, count in zip("ab", (a, b), heads, strict=True)
            for unit in ("layer", "head")
        }
        more = {"mutual": self.mutual} if self.question.show == "best" else {}
        return pd.DataFrame({**columns_, "similarity": self.matrix[a, b], **more})


def _flat(weights: Array) -> Array:
    """Return the attention of each head as one row, float64 of shape [head, query × key]."""
    return weights.reshape(len(weights), -1).astype(np.float64)
