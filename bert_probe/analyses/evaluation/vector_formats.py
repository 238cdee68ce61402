"""Shorter sentence vectors: fewer dimensions, one byte or one bit per dimension."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bert_probe.analyses.vectors.pooling import offered_dimensions
from bert_probe.model.sentence_modules import SentenceModel
from bert_probe.model.trace import Array

FLOAT32, INT8, BINARY = "float32", "int8", "binary"


@dataclass(frozen=True)
class VectorFormat:
    """A storage format for vectors.

    Attributes:
        dimensions: number of dimensions; the first ones are kept.
        precision: "float32", "int8" or "binary".
    """

    dimensions: int
    precision: str = FLOAT32

    @property
    def bytes_per_vector(self) -> int:
        """Size of a vector in bytes."""
        bits = {FLOAT32: 32, INT8: 8, BINARY: 1}[self.precision]
        return -(-self.dimensions * bits // 8)

    def similarity(self, similarity: str) -> str:
        """Return the score of vectors in this format; see `convert` for binary vectors."""
        return "cosine" if self.precision == BINARY else similarity

    def convert(self, vectors: Array, reference: Array | None = None) -> Array:
        """Return vectors, [text, dimension], as they are read back from this format, [text, dimensions].

        - int8: each dimension is rounded to one of 256 levels between the smallest and the largest value of
          the reference, as `quantize_embeddings` of sentence-transformers does, and read back as the middle
          of its level; values outside are clipped.
        - binary: the sign, 1 for values above 0 and −1 otherwise. The cosine of two sign vectors is
          1 − 2 · Hamming distance ÷ dimensions.

        Args:
            reference: vectors whose range defines the levels of int8; by default, the vectors themselves.
        """
        shortened = vectors[:, : self.dimensions]
        if self.precision == BINARY:
            return np.where(shortened > 0, np.float32(1), np.float32(-1))
        if self.precision == FLOAT32:
            return shortened
        base = (vectors if reference is None else reference)[:, : self.dimensions]
        low, high = base.min(axis=0), base.max(axis=0)
        steps = (high - low) / 255
        divisors = np.where(steps > 0, steps, 1)
        codes = np.clip(np.floor((shortened - low) / divisors), 0, 255)
        decoded: Array = ((codes + 0.5) * steps + low).astype(vectors.dtype)
        return decoded


def vector_formats(size: int, model: SentenceModel | None) -> Iterator[VectorFormat]:
    """Yield the formats to compare: several numbers of dimensions, and all dimensions in int8 and binary.

    Args:
        size: number of dimensions of the full vectors.
        model: the pooling with which a checkpoint was trained, whose Matryoshka dimensions are included.
    """
    trained: Sequence[int] = () if model is None else model.trained_dimensions
    for dimensions in offered_dimensions(size, None, [number for number in trained if number <= size]):
        yield VectorFormat(dimensions)
    yield from (VectorFormat(size, precision) for precision in (INT8, BINARY))
