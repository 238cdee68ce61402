"""Map of sentences: a two-dimensional layout of their vectors."""

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
    """A two-dimensional layout of sentence vectors.

    Attributes:
        method: "pca", "tsne" or "umap" (an optional dependency); see `layouts`.
        pooling: see `Sentences`.
    """

    inputs = SentenceList()

    method: str = param(Choice(METHODS), default="pca", key="sentences_map", about="Layout method.")
    pooling: str = param(POOLING, default="mean", about=POOLED)

    def of(
        self,
        checkpoint: Checkpoint,
        sentences: Sequence[str],
        truncate: bool = False,
        progress: Progress = no_progress,
    ) -> SentenceMapResult:
        """Return the map of sentences.

        Args:
            checkpoint, sentences, truncate: see `Sentences.of`.
            progress: see `Sentences.of`; during the layout, all sentences are reported as done.

        Raises:
            ProbeError: see `Sentences.of` and `of_vectors`.
        """
        vectors = Sentences(self.pooling).of(checkpoint, sentences, truncate, progress)
        count = len(vectors.sentences)
        return self.of_vectors(vectors, lambda _done, _total: progress(count, count))

    def of_vectors(self, vectors: SentencesResult, progress: Progress = no_progress) -> SentenceMapResult:
        """Return the map of existing sentence vectors.

        Args:
            vectors: sentence vectors with the pooling of this question.
            progress: see the method in `layouts`.

        Raises:
            SelectionError: the vectors were pooled differently.
            UnavailableError: there are too few different vectors, or UMAP is not installed.
        """
        if vectors.question.pooling != self.pooling:
            raise SelectionError(
                f"These vectors are pooled by {vectors.question.pooling}, not by {self.pooling}. "
                "Use the same pooling for the map."
            )
        layout = METHODS[self.method](vectors.vectors, progress)
        return SentenceMapResult(self, vectors.inputs, vectors.sentences, layout, vectors.metadata)


@dataclass(frozen=True, eq=False, repr=False)
class SentenceMapResult(Result):
    """Sentences as points in a plane, in their original order.

    Attributes:
        sentences: the sentences.
        layout: points of the sentences, float32 [sentence, 2], and the parameters of the method.
        pooled: metadata of the sentence vectors.
    """

    question: SentenceMap
    sentences: tuple[str, ...]
    layout: PointLayout
    pooled: Mapping[str, Any]

    def __post_init__(self) -> None:
        if len(self.layout.points) != len(self.sentences):
            raise ShapeError(
                f"{len(self.sentences)} sentences do not match {len(self.layout.points)} points."
            )

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Metadata of the pooling, parameters of the method, and explained variance."""
        explained = self.layout.explained
        shares = {} if explained is None else {"explained_variance": list(explained)}
        return {**self.pooled, **self.layout.settings, **shares}

    def frame(self) -> pd.DataFrame:
        """Return a row for each sentence: number (from 1), x, y, sentence."""
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
        """Size of the points in bytes."""
        return self.layout.points.nbytes
