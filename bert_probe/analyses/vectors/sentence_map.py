"""Sentences on a plane: those that say alike things lie near each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bert_probe.analyses.vectors.layouts import METHODS, PointLayout
from bert_probe.analyses.vectors.sentences import POOLED, POOLING, Sentences, SentencesResult
from bert_probe.core.field_types import Choice
from bert_probe.core.inputs import SentenceList
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress, no_progress


@question("sentence map", command="sentence-map")
class SentenceMap(Question):
    """Sentences laid out on a plane, each by one vector of its own.

    Attributes:
        method: "pca", "tsne" or "umap", which is an extra; see `layouts`.
        pooling: as in `Sentences`.
    """

    inputs = SentenceList()

    method: str = param(Choice(METHODS), default="pca", key="sentences_map", about="The projection.")
    pooling: str = param(POOLING, default="mean", about=POOLED)

    def of(
        self,
        checkpoint: Checkpoint,
        sentences: Sequence[str],
        truncate: bool = False,
        report: Progress = no_progress,
    ) -> SentenceMapResult:
        """The plane, from the vectors on.

        Args:
            truncate, report: as in `Sentences.of`; laying out is told as all sentences done.

        Raises:
            ProbeError: as `Sentences.of` and `of_vectors`.
        """
        vectors = Sentences(self.pooling).of(checkpoint, sentences, truncate, report)
        count = len(vectors.sentences)
        return self.of_vectors(vectors, lambda _done, _total: report(count, count))

    def of_vectors(self, vectors: SentencesResult, report: Progress = no_progress) -> SentenceMapResult:
        """The plane of vectors that are there already.

        Args:
            report: see the method in `layouts`.

        Raises:
            SelectionError: they were pooled in another way.
            UnavailableError: too few or too equal vectors, or UMAP is not installed.
        """
        if vectors.question.pooling != self.pooling:
            raise SelectionError(
                f"These vectors are pooled by {vectors.question.pooling}, not by {self.pooling}. "
                "Ask for a map of these."
            )
        layout = METHODS[self.method](vectors.vectors, report)
        return SentenceMapResult(self, vectors.inputs, vectors.sentences, layout, vectors.metadata)


@dataclass(frozen=True, eq=False, repr=False)
class SentenceMapResult(Result):
    """Sentences as points of a plane, in the order given.

    Attributes:
        sentences: as written.
        layout: their points, float32 [sentence, 2], and what the method says of these.
        pooled: facts of the vectors.
    """

    question: SentenceMap
    sentences: tuple[str, ...]
    layout: PointLayout
    pooled: Mapping[str, Any]

    def __post_init__(self) -> None:
        if len(self.layout.points) != len(self.sentences):
            raise ShapeError(f"{len(self.sentences)} sentences do not fit {len(self.layout.points)} points.")

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the pooling did, what the method was told, and the variance along the axes."""
        explained = self.layout.explained
        shares = {} if explained is None else {"explained_variance": list(explained)}
        return {**self.pooled, **self.layout.settings, **shares}

    def frame(self) -> pd.DataFrame:
        """A row for each sentence: number from 1, x, y, sentence."""
        return pd.DataFrame(
            {
                "number": range(1, len(self.sentences) + 1),
                "x": self.layout.points[:, 0],
                "y": self.layout.points[:, 1],
                "sentence": list(self.sentences),
            }
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the points."""
        return self.layout.points.nbytes
