"""Many sentences: a vector each, how similar they are, and which belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from bert_probe.analyses.vectors.cosine import cosine
from bert_probe.analyses.vectors.pooling import POOLINGS, PoolingConfig, pool, recipe
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, Dimensions, Number
from bert_probe.core.inputs import SentenceList
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import (
    EmptyTextError,
    SelectionError,
    ShapeError,
    TextError,
    UnavailableError,
    memory_errors,
)
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import ModelInputs
from bert_probe.model.forward import batches, forward
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, read_only

MAX_TURNED = 1000

BATCH_TOKENS = 1024
"""Padded tokens in one pass: larger batches leave the cache of a processor, and pad more."""

POOLING = Choice(POOLINGS)
POOLED = "How a sentence's tokens become one vector; model: as the checkpoint was made to be used."
ORDERED = "Sentences as given, or alike ones beside each other, by a tree."


class SentencesTable(Choice):
    """Which table; the page has two pictures of the cosines, with a word each in its address."""

    def read(self, name: str, text: str, sizes: Dimensions) -> Any:
        """What `write` wrote, or a word of the page."""
        return super().read(name, "cosines" if text in ("heatmap", "table") else text, sizes)


@question("sentences")
class Sentences(Question):
    """How alike many sentences are, each by one vector of its own.

    Attributes:
        pooling: how a sentence's tokens become one vector; see `pooling.POOLINGS`. With "model" the
            checkpoint's own limit cuts longer sentences, as sentence-transformers does.
        show: "cosines" of all with all, their "vectors", or the pairs that are "nearest".
        order: of the rows: as "given", or by a "tree", see `PairwiseCosines.order`; pairs have their own.
        count: how many pairs, for "nearest".
    """

    inputs = SentenceList()

    pooling: str = param(POOLING, default="mean", about=POOLED)
    show: str = param(
        SentencesTable(("cosines", "vectors", "nearest")),
        default="cosines",
        display_only=True,
        key="sentences_part",
    )
    order: str = param(
        Choice(("given", "tree")), default="given", display_only=True, key="sentences_order", about=ORDERED
    )
    count: int = param(
        Number(1),
        default=50,
        display_only=True,
        key="sentences_count",
        about="Pairs to list with --show nearest.",
    )

    def of(
        self,
        checkpoint: Checkpoint,
        sentences: Sequence[str],
        truncate: bool = False,
        report: Progress = no_progress,
    ) -> SentencesResult:
        """A vector for each sentence, in batches by length; nothing but the vectors is kept.

        Args:
            truncate: cut sentences that are too long instead of refusing them.
            report: told how many different sentences are done, and of how many.

        Raises:
            TextError, EmptyTextError, TooLongError: no sentences, or one that cannot be read.
            UnavailableError, CheckpointError: see `pooling.recipe`; a model in memory that changes meanwhile.
            OutOfMemoryError: the machine is too small for one batch.
        """
        if isinstance(sentences, str):
            raise TextError("Give a list of sentences, not a single string.")
        if not sentences:
            raise EmptyTextError("There are no sentences. Give one a line.")
        checkpoint = checkpoint.now()
        how = recipe(checkpoint, self.pooling)
        inputs = [
            _inputs(checkpoint, how, number, sentence, truncate)
            for number, sentence in enumerate(sentences, 1)
        ]
        ids = [tuple(one.inputs["input_ids"].tolist()) for one in inputs]
        # Equal sentences are read once, and the batches do not depend on the order given: nor does a digit.
        distinct = dict(sorted(zip(ids, inputs, strict=True), key=lambda pair: (len(pair[0]), pair[0])))
        found = dict(zip(distinct, _vectors(checkpoint, list(distinct.values()), how, report), strict=True))
        dropped = tuple(one.dropped for one in inputs)
        return SentencesResult(
            self,
            InputRecord.of_sentences(checkpoint, sentences, sum(dropped)),
            tuple(frames.names(sentences)),
            PairwiseCosines(read_only(np.stack([found[one] for one in ids]))),
            how,
            tuple(len(one) for one in inputs),
            dropped,
        )

    def to_json(self) -> dict[str, Any]:
        """A number of pairs is said where pairs are shown."""
        said = super().to_json()
        return said if self.show == "nearest" else {name: said[name] for name in said if name != "count"}


@dataclass(frozen=True)
class SentencePair:
    """Two sentences, by their index from 0, and their cosine, -1 to 1."""

    first: int
    second: int
    cosine: float


@dataclass(frozen=True, eq=False)
class PairwiseCosines:
    """Vectors among themselves; what is worked out serves all tables of an answer.

    Attributes:
        vectors: [sentence, hidden], read-only, in float32, or float64 where the model computes in it; wider
            where a checkpoint joins several poolings.
    """

    vectors: Array

    @cached_property
    def cosines(self) -> Array:
        """Cosine of every sentence with every one, [sentence, sentence], -1 to 1.

        Raises:
            OutOfMemoryError: the machine is too small for so many.
        """
        count = len(self.vectors)
        each = 8 + self.vectors.itemsize  # in float64, then in the vectors' own type
        need = f"need {each * count**2 / 1e9:,.1f} GB while they are made"
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
        if len(self.vectors) < 2:
            raise UnavailableError("One sentence has no order. Give two or more.")
        if not np.isfinite(self.cosines).all():
            raise UnavailableError("A sentence's vector is all zeros, so it is similar to nothing.")
        distances = 1 - self.cosines.astype(np.float64)
        np.fill_diagonal(distances, 0)
        tree = linkage(
            squareform(distances, checks=False), "average", optimal_ordering=len(distances) <= MAX_TURNED
        )
        return tuple(int(leaf) for leaf in leaves_list(tree))

    def nearest(self, count: int = 50) -> tuple[SentencePair, ...]:
        """The pairs of largest cosine, largest first, each once; equal ones as they stand in the text.

        Raises:
            SelectionError: a count below 1.
            UnavailableError: fewer than two sentences.
        """
        if count < 1:
            raise SelectionError(f"{count} pairs cannot be listed. Ask for 1 or more.")
        if len(self.vectors) < 2:
            raise UnavailableError("One sentence has no pair. Give two or more.")
        first, second = np.triu_indices(len(self.vectors), k=1)
        cosines = self.cosines[first, second]
        # Only what can be among the best is sorted: two thousand sentences have two million pairs.
        least = -np.inf if count >= len(cosines) else np.partition(cosines, -count)[-count]
        best = np.flatnonzero(~(cosines < least))
        best = best[np.argsort(-cosines[best], kind="stable")][:count]
        return tuple(SentencePair(int(first[i]), int(second[i]), float(cosines[i])) for i in best)


@dataclass(frozen=True, eq=False, repr=False)
class SentencesResult(Result):
    """A vector for each sentence, in the order given.

    Attributes:
        sentences: as written.
        compared: their vectors, and what follows from these.
        recipe: how a sentence's tokens became one vector.
        tokens, dropped: tokens read of each sentence, special ones included, and those cut off.
    """

    question: Sentences
    sentences: tuple[str, ...]
    compared: PairwiseCosines
    recipe: PoolingConfig
    tokens: tuple[int, ...]
    dropped: tuple[int, ...]

    def __post_init__(self) -> None:
        count = len(self.sentences)
        if self.vectors.ndim != 2 or {len(self.vectors), len(self.tokens), len(self.dropped)} != {count}:
            raise ShapeError(f"{count} sentences do not fit vectors of shape {self.vectors.shape}.")

    @property
    def vectors(self) -> Array:
        """[sentence, hidden]; see `PairwiseCosines`."""
        return self.compared.vectors

    @property
    def order(self) -> tuple[int, ...]:
        """Indices of the sentences in the order asked for; see `PairwiseCosines.order`."""
        return self.compared.order if self.question.order == "tree" else tuple(range(len(self.sentences)))

    @property
    def cosines(self) -> Array:
        """Cosine of every sentence with every one, [sentence, sentence], in `order`."""
        whole = self.compared.cosines
        return whole[np.ix_(self.order, self.order)] if self.question.order == "tree" else whole

    @property
    def cut(self) -> tuple[int, ...]:
        """Indices of the sentences that were cut."""
        return tuple(index for index, dropped in enumerate(self.dropped) if dropped)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the pooling did, and what was cut of which sentence, counted from 1."""
        cut = {str(index + 1): self.dropped[index] for index in self.cut}
        return {"recipe": self.recipe.about, "tokens_dropped_of_sentence": cut}

    def frame(self) -> pd.DataFrame:
        """Cosines, a row and a column for each sentence; or vectors, a row each; or pairs, a row each.

        Columns of pairs: cosine, a, b, sentence_a, sentence_b; sentences count from 1.
        """
        if self.question.show == "nearest":
            return self._pairs()
        names = [self.sentences[index] for index in self.order]
        if self.question.show == "vectors":
            return frames.vectors(self.vectors[list(self.order)], names, "sentence")
        return frames.matrix(self.cosines, names, names, "sentence")

    def _pairs(self) -> pd.DataFrame:
        pairs = self.compared.nearest(self.question.count)
        return pd.DataFrame(
            {
                "cosine": np.array([pair.cosine for pair in pairs], dtype=self.vectors.dtype),
                "a": [pair.first + 1 for pair in pairs],
                "b": [pair.second + 1 for pair in pairs],
                "sentence_a": [self.sentences[pair.first] for pair in pairs],
                "sentence_b": [self.sentences[pair.second] for pair in pairs],
            }
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the vectors and of all cosines, which come to be when they are asked for."""
        return self.vectors.nbytes + self.vectors.itemsize * len(self.sentences) ** 2


def _vectors(
    checkpoint: Checkpoint, inputs: list[ModelInputs], how: PoolingConfig, report: Progress
) -> Array:
    """Vectors of texts, [text, hidden]."""
    vectors = np.empty((len(inputs), 0), np.float32)
    done = 0
    report(0, len(inputs))
    for group in batches([len(one) for one in inputs], BATCH_TOKENS, checkpoint.pads):
        output, mask = forward(checkpoint, [inputs[i] for i in group])
        pooled = pool(output, mask, how).cpu().numpy()
        if not done:
            vectors = np.empty((len(inputs), pooled.shape[1]), pooled.dtype)
        vectors[group] = pooled
        done += len(group)
        report(done, len(inputs))
    return vectors


def _inputs(
    checkpoint: Checkpoint, how: PoolingConfig, number: int, sentence: str, truncate: bool
) -> ModelInputs:
    try:
        return checkpoint.encoder.inputs(
            how.text(sentence), how.max_tokens, truncate or how.max_tokens is not None
        )
    except TextError as error:
        raise type(error)(f"Sentence {number:,}: {error}") from None
