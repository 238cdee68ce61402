"""How truncating sentence vectors to fewer dimensions changes similarity scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from bert_probe.analyses.retrieval.calibration import nearest_neighbors, pair_indices, pair_scores
from bert_probe.analyses.vectors.pooling import PROMPT_HELP, PoolingConfig, offered_dimensions, sentence_model
from bert_probe.analyses.vectors.sentences import POOLED, POOLING, Sentences
from bert_probe.core.field_types import Name, Optional
from bert_probe.core.inputs import SentenceList
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress, final_progress, no_progress
from bert_probe.model.trace import Array, read_only

MIN_SENTENCES = 3
"""With fewer sentences, there are fewer than two pairs to correlate."""


@question("dimensions", command="dimensions")
class DimensionCurve(Question):
    """How similarity scores change when vectors are truncated to their first dimensions.

    Models that were trained with Matryoshka representation learning (Kusupati et al. 2022) lose little. The
    cost is measured on the given sentences, by comparison with the scores of the full vectors, because there
    are no judgments. With judged data, the option curve of `SimilarityEvaluation`, `RetrievalEvaluation` and
    `LabelEvaluation` measures the quality itself, also of int8 and binary vectors.

    Attributes:
        pooling, prompt: see `Sentences`.
    """

    inputs = SentenceList()

    pooling: str = param(POOLING, default="mean", about=POOLED)
    prompt: str | None = param(Optional(Name()), default=None, about=PROMPT_HELP)

    def of(
        self,
        checkpoint: Checkpoint,
        sentences: Sequence[str],
        truncate: bool = False,
        progress: Progress = no_progress,
    ) -> DimensionCurveResult:
        """Compare the scores of all pairs of sentences at several numbers of dimensions.

        The arguments and errors are those of `Sentences.of`; also:

        Raises:
            UnavailableError: there are fewer than three sentences, or the dimensions of the vectors are the
                words of the vocabulary (a sparse encoder).
        """
        is_own = self.pooling == "model"
        model = sentence_model(checkpoint) if is_own else None
        if model is not None and model.is_sparse:
            raise UnavailableError(
                "The dimensions of this SparseEncoder are the words of the vocabulary, so vectors cannot be "
                "truncated. Choose another pooling."
            )
        if len(sentences) < MIN_SENTENCES:
            raise UnavailableError(
                f"{len(sentences)} sentences have too few pairs. Use at least {MIN_SENTENCES} sentences."
            )
        full = None if model is None else model.size
        encoded = Sentences(self.pooling, prompt=self.prompt, dimensions=full).of(
            checkpoint, sentences, truncate, progress
        )
        selected, trained = (None, ()) if model is None else (model.dimensions, model.trained_dimensions)
        sizes = offered_dimensions(encoded.vectors.shape[1], selected, trained)
        final = final_progress(progress, len(sentences))
        costs = _costs(encoded.vectors, encoded.recipe.similarity, sizes, final)
        return DimensionCurveResult(
            self, encoded.inputs, len(sentences), sizes, trained, encoded.recipe, *map(read_only, costs)
        )


def _costs(
    vectors: Array, similarity: str, sizes: Sequence[int], progress: Progress = no_progress
) -> tuple[Array, Array, Array]:
    """Return Pearson's and Spearman's correlation, and the share of unchanged neighbors, for each size."""
    first, second = pair_indices(len(vectors))
    full = pair_scores(vectors, similarity, first, second, progress)
    neighbors, best = nearest_neighbors(vectors, similarity, progress)
    rows = []
    for size in sizes:
        part = vectors[:, :size]
        values = pair_scores(part, similarity, first, second, progress)
        is_defined = ~(np.isnan(full) | np.isnan(values))
        a, b = full[is_defined], values[is_defined]
        # The correlation with a constant is undefined.
        is_varied = len(a) > 1 and np.ptp(a) > 0 and np.ptp(b) > 0
        pearson = np.corrcoef(a, b)[0, 1] if is_varied else np.nan
        spearman = spearmanr(a, b).statistic if is_varied else np.nan
        same = nearest_neighbors(part, similarity, progress)[0] == neighbors
        rows.append((pearson, spearman, same[~np.isnan(best)].mean() if not np.isnan(best).all() else np.nan))
    pearsons, spearmans, shares = np.array(rows).T
    return pearsons, spearmans, shares


@dataclass(frozen=True, eq=False, repr=False)
class DimensionCurveResult(Result):
    """Agreement of the scores at several numbers of dimensions with those of the full vectors.

    Attributes:
        count: number of sentences.
        sizes: numbers of dimensions, ascending; the last is that of the full vectors.
        trained: numbers of dimensions for which the model was trained, if its files list any.
        recipe: the pooling configuration of the full vectors.
        pearson, spearman: correlation of the scores of pairs of sentences, of shape [size], −1 to 1; NaN if
            it is undefined.
        same_neighbor: share of the sentences with the same nearest neighbor as for the full vectors, 0 to 1.
    """

    question: DimensionCurve
    inputs: InputRecord
    count: int
    sizes: tuple[int, ...]
    trained: tuple[int, ...]
    recipe: PoolingConfig
    pearson: Array
    spearman: Array
    same_neighbor: Array

    def __post_init__(self) -> None:
        for values in (self.pearson, self.spearman, self.same_neighbor):
            if values.shape != (len(self.sizes),):
                raise ShapeError(f"{len(self.sizes)} sizes do not fit values of shape {values.shape}.")

    @property
    def finding(self) -> str:
        """A sentence about the largest size that is at most half of the dimensions."""
        half = max(
            (index for index, size in enumerate(self.sizes[:-1]) if size <= self.sizes[-1] / 2), default=0
        )
        return (
            f"With {self.sizes[half]:,} of {self.sizes[-1]:,} dimensions, Spearman's correlation with the "
            f"{self.recipe.score_name} of the full vectors is {self.spearman[half]:.3f}, and "
            f"{self.same_neighbor[half]:.0%} of the {self.count:,} sentences have the same nearest neighbor."
        )

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The pooling, and the numbers of dimensions for which the model was trained."""
        return {"recipe": self.recipe.about, "trained_dimensions": list(self.trained)}

    def frame(self) -> pd.DataFrame:
        """Return one row per number of dimensions: dimensions, pearson, spearman, same_neighbor."""
        return pd.DataFrame(
            {
                "dimensions": self.sizes,
                "pearson": self.pearson,
                "spearman": self.spearman,
                "same_neighbor": self.same_neighbor,
            }
        )

    @property
    def nbytes(self) -> int:
        """Size of the table in bytes."""
        return 4 * 8 * len(self.sizes)
