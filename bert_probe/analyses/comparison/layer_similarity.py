"""Layer similarity: linear CKA between the layers of two models (Kornblith et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bert_probe.analyses.attention.head_means import BATCH_TOKENS
from bert_probe.analyses.comparison.model_change import (
    are_same_model,
    check_encodings,
    check_tokenizers,
)
from bert_probe.core.field_types import Number
from bert_probe.core.inputs import TwoModelSentences
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError, TextError, memory_errors
from bert_probe.model.checkpoint import Checkpoint, encode_texts
from bert_probe.model.encoding import Encoding
from bert_probe.model.forward import group_by_length
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, read_only
from bert_probe.text.sentence_files import with_line_numbers


@question("layer similarity", command="diff layers")
class LayerSimilarity(Question):
    """Linear CKA of every layer of A with every layer of B, over the tokens of many texts.

    CKA measures whether tokens that are similar in one layer are also similar in the other. It is invariant
    to rotating or scaling a layer's vectors, so the models may have different hidden sizes.

    Attributes:
        examples: maximum number of tokens to compare. If the texts have more tokens, a random sample is
            drawn. Special tokens are skipped.
        seed: random seed of the sample.
    """

    inputs = TwoModelSentences()

    examples: int = param(
        Number(2, 20_000), default=2000, about="Maximum number of tokens to compare.  [default: 2000]"
    )
    seed: int = param(Number(0), default=0, about="Seed of the sample.")

    def of(
        self,
        a: Checkpoint,
        b: Checkpoint,
        sentences: Sequence[str],
        truncate: bool = False,
        progress: Progress = no_progress,
    ) -> LayerSimilarityResult:
        """Compare the layers of two models on the tokens of sentences.

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
        with memory_errors("The vectors of these tokens do not fit in memory. Use fewer examples."):
            vectors_a = _vectors(a, encodings[0], positions, steps)
            vectors_b = vectors_a if is_same_model else _vectors(b, encodings[1], positions, steps)
            return LayerSimilarityResult(
                self, inputs, len(positions), read_only(_cka_matrix(vectors_a, vectors_b, steps))
            )

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
    """Counter of completed steps that reports the progress."""

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
        """A sentence about the layer that changed most.

        If the models have different numbers of layers, the sentence is about the layer of B that is most
        similar to A's last layer.
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
        y: other vectors of the same examples, shape [example, dimension]; their dimension may differ.

    Returns:
        The CKA, 0 to 1. It is exactly 1 if y is x, and NaN if all rows of x or of y are equal.

    Raises:
        ShapeError: the matrices have different numbers of rows.
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
    """Return the CKA of every layer in ``a`` with every layer in ``b``, given as centered matrices."""
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
    """Return the squared Frobenius norm ‖Yᵀ X‖²_F."""
    product = x.T @ y
    return float(np.vdot(product, product))


def _center(x: Array) -> Array:
    """Center the columns in float64 and scale the matrix to unit Frobenius norm to avoid overflow."""
    centered = x.astype(np.float64)
    centered -= centered.mean(axis=0)
    norm = np.linalg.norm(centered)
    # Equal rows may differ slightly from their mean because of rounding.
    if norm <= len(x) * np.finfo(np.float64).eps * np.linalg.norm(x.astype(np.float64)):
        return np.zeros_like(centered)
    centered /= norm
    return centered


def _vectors(
    checkpoint: Checkpoint, encodings: Sequence[Encoding], positions: Array, steps: _PairCounter
) -> list[Array]:
    """Return the centered vectors of the sampled tokens after each layer, shape [token, hidden]."""
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
    return [_center(array) for array in vectors]
