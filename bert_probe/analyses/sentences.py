"""Many sentences: a vector each, how similar they are, and which belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from bert_probe.analyses.cosine import cosine
from bert_probe.analyses.pooling import Pooling, Recipe, pool, recipe
from bert_probe.analyses.projection import Map, pca_map
from bert_probe.errors import (
    EmptyTextError,
    SelectionError,
    ShapeError,
    TextError,
    UnavailableError,
    memory_errors,
)
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Inputs
from bert_probe.model.forward import batches, forward
from bert_probe.model.progress import Report, ignore
from bert_probe.model.trace import Array, read_only

MAX_TURNED = 1000

BATCH_TOKENS = 1024
"""Padded tokens in one pass: larger batches leave the cache of a processor, and pad more."""


@dataclass(frozen=True)
class NearPair:
    """Two sentences, by their index from 0, and their cosine, -1 to 1."""

    first: int
    second: int
    cosine: float


@dataclass(frozen=True, eq=False)
class SentenceVectors:
    """A vector for each sentence, in the order given.

    Attributes:
        sentences: as written.
        vectors: float32 [sentence, hidden], read-only; wider where a checkpoint joins several poolings.
        pooling, recipe: how a sentence's tokens became one vector.
        tokens, dropped: tokens read of each sentence, special ones included, and those cut off.
        provenance: model, weights and libraries.
    """

    sentences: tuple[str, ...]
    vectors: Array
    pooling: Pooling
    recipe: Recipe
    tokens: tuple[int, ...]
    dropped: tuple[int, ...]
    provenance: Mapping[str, Any]

    def __post_init__(self) -> None:
        count = len(self.sentences)
        if self.vectors.ndim != 2 or {len(self.vectors), len(self.tokens), len(self.dropped)} != {count}:
            raise ShapeError(f"{count} sentences do not fit vectors of shape {self.vectors.shape}.")

    @cached_property
    def cosines(self) -> Array:
        """Cosine of every sentence with every one, float32 [sentence, sentence], -1 to 1.

        Raises:
            OutOfMemoryError: the machine is too small for so many.
        """
        count = len(self.sentences)
        need = f"need {12 * count**2 / 1e9:,.1f} GB while they are made"  # in float64, then in float32
        with memory_errors(f"The cosines of {count:,} sentences {need}, more than is free. Give fewer."):
            return read_only(cosine(self.vectors, self.vectors))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Indices that put alike sentences beside each other.

        The leaves of a tree made by average linkage of 1 − cosine (Sokal and Michener 1958), turned so
        that neighbours are as near as the tree allows (Bar-Joseph et al. 2001). That takes seconds for
        a thousand; beyond `MAX_TURNED` the tree's branches stay as they were made.

        Raises:
            UnavailableError: fewer than two sentences, or one whose vector is all zeros.
        """
        if len(self.sentences) < 2:
            raise UnavailableError("One sentence has no order. Give two or more.")
        if not np.isfinite(self.cosines).all():
            raise UnavailableError("A sentence's vector is all zeros, so it is similar to nothing.")
        distances = 1 - self.cosines.astype(np.float64)
        np.fill_diagonal(distances, 0)
        tree = linkage(
            squareform(distances, checks=False), "average", optimal_ordering=len(distances) <= MAX_TURNED
        )
        return tuple(int(leaf) for leaf in leaves_list(tree))

    def nearest(self, count: int = 50) -> tuple[NearPair, ...]:
        """The pairs of largest cosine, largest first, each once; equal ones as they stand in the text.

        Raises:
            SelectionError: a count below 1.
            UnavailableError: fewer than two sentences.
        """
        if count < 1:
            raise SelectionError(f"{count} pairs cannot be listed. Ask for 1 or more.")
        if len(self.sentences) < 2:
            raise UnavailableError("One sentence has no pair. Give two or more.")
        first, second = np.triu_indices(len(self.sentences), k=1)
        cosines = self.cosines[first, second]
        # Only what can be among the best is sorted: two thousand sentences have two million pairs.
        least = -np.inf if count >= len(cosines) else np.partition(cosines, -count)[-count]
        best = np.flatnonzero(~(cosines < least))
        best = best[np.argsort(-cosines[best], kind="stable")][:count]
        return tuple(NearPair(int(first[i]), int(second[i]), float(cosines[i])) for i in best)

    @cached_property
    def plane(self) -> Map:
        """The sentences on a plane, by their principal components; see `pca_map`."""
        return pca_map(self.vectors)

    @property
    def cut(self) -> tuple[int, ...]:
        """Indices of the sentences that were cut."""
        return tuple(index for index, dropped in enumerate(self.dropped) if dropped)

    @property
    def nbytes(self) -> int:
        """Bytes of the vectors and of all cosines."""
        return self.vectors.nbytes + 4 * len(self.sentences) ** 2


def sentence_vectors(
    checkpoint: Checkpoint,
    sentences: Sequence[str],
    pooling: Pooling = "mean",
    *,
    truncate: bool = False,
    report: Report = ignore,
) -> SentenceVectors:
    """A vector for each sentence, in batches by length; nothing but the vectors is kept.

    Args:
        pooling: see `pooling.POOLINGS`. With "model" the checkpoint's own limit cuts longer sentences,
            as sentence-transformers does; otherwise ``truncate`` must ask for it.
        report: told how many different sentences are done, and of how many.

    Raises:
        TextError, EmptyTextError, TooLongError: no sentences, or one that cannot be read.
        SelectionError, UnavailableError, CheckpointError: see `pooling.recipe`.
        OutOfMemoryError: the machine is too small for one batch.
    """
    if isinstance(sentences, str):
        raise TextError("Give a list of sentences, not a single string.")
    if not sentences:
        raise EmptyTextError("There are no sentences. Give one a line.")
    how = recipe(checkpoint, pooling)
    inputs = [_inputs(checkpoint, how, number, one, truncate) for number, one in enumerate(sentences, 1)]
    ids = [tuple(one.inputs["input_ids"].tolist()) for one in inputs]
    # Equal sentences are read once, and the batches do not depend on the order given: nor does a digit.
    distinct = dict(sorted(zip(ids, inputs, strict=True), key=lambda pair: (len(pair[0]), pair[0])))
    found = dict(zip(distinct, _vectors(checkpoint, list(distinct.values()), how, report), strict=True))
    vectors = np.stack([found[one] for one in ids])
    return SentenceVectors(
        tuple(sentences),
        read_only(vectors),
        pooling,
        how,
        tuple(len(one) for one in inputs),
        tuple(one.dropped for one in inputs),
        checkpoint.provenance(),
    )


def _vectors(checkpoint: Checkpoint, inputs: list[Inputs], how: Recipe, report: Report) -> Array:
    """Vectors of texts, [text, hidden]."""
    vectors = np.empty((len(inputs), 0), np.float32)
    done = 0
    report(0, len(inputs))
    for group in batches([len(one) for one in inputs], BATCH_TOKENS, checkpoint.pads):
        output, mask = forward(checkpoint, [inputs[i] for i in group])
        pooled = pool(output, mask, how).cpu().numpy()
        if not done:
            vectors = np.empty((len(inputs), pooled.shape[1]), np.float32)
        vectors[group] = pooled
        done += len(group)
        report(done, len(inputs))
    return vectors


def _inputs(checkpoint: Checkpoint, how: Recipe, number: int, sentence: str, truncate: bool) -> Inputs:
    try:
        return checkpoint.encoder.inputs(
            how.text(sentence), how.max_tokens, truncate or how.max_tokens is not None
        )
    except TextError as error:
        raise type(error)(f"Sentence {number:,}: {error}") from None
