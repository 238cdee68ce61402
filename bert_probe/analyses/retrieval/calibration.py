"""Calibration of similarity scores: the rank of a score among the scores of random text pairs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import pandas as pd

from bert_probe.analyses.outputs.sentence_similarity import PAIR_PROMPT_HELP, SentenceSimilarityResult
from bert_probe.analyses.vectors.pooling import (
    DIMENSIONS_HELP,
    NO_PROMPT,
    PROMPT_HELP,
    PoolingConfig,
    resolve_pooling,
)
from bert_probe.analyses.vectors.sentences import POOLED, POOLING, Sentences, SentencesResult
from bert_probe.analyses.vectors.similarity import scores, scores_of_rows
from bert_probe.core.field_types import Name, Number, Optional
from bert_probe.core.inputs import SentenceList
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress, final_progress, no_progress, step_progress
from bert_probe.model.trace import Array, read_only
from bert_probe.text.datasets import everyday_topics

MAX_PAIRS = 200_000
"""Maximum number of random pairs. If there are more pairs, a sample is drawn with a fixed seed."""
MAX_NEIGHBORS = 2_000
"""Maximum number of texts whose nearest neighbor is searched. If there are more texts, a sample is drawn."""
PERCENTILES = (0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 100)
"""Percentiles in the table."""
_SEED = 0
_BLOCK_NUMBERS = 4_000_000
"""Maximum number of vector components, or of scores, in a block that is computed at once."""
_BINS = 40
"""Number of bars of the histogram in the metadata of a calibrated result."""
_CHECKED_TEXTS = 8
"""Number of sentences that `_has_sequences` checks; it returns True only if all of them have residues."""
_HIGH_PERCENTILES = (50, 95, 99)
"""Percentiles of random pairs in the metadata of a calibrated result."""
ScoreResult = SentenceSimilarityResult | SentencesResult
"""Type of the results whose similarity scores can be calibrated."""


@question("similarity calibration", command="calibrate")
class SimilarityCalibration(Question):
    """Score percentiles of random text pairs and of nearest neighbors, with which a score can be compared.

    Most embedding models give unrelated texts a score well above 0, which differs between models. Whether
    a score is high can therefore be judged only by comparison with the scores of other pairs of texts.

    Attributes:
        pooling, prompt, dimensions: see `Sentences`.
        pair_prompt: prompt of the second text of each pair, for example if queries are compared with
            documents; by default, `prompt`.
    """

    inputs = SentenceList()

    pooling: str = param(POOLING, default="mean", about=POOLED)
    prompt: str | None = param(Optional(Name()), default=None, about=PROMPT_HELP)
    dimensions: int | None = param(Optional(Number(1)), default=None, about=DIMENSIONS_HELP)
    pair_prompt: str | None = param(Optional(Name()), default=None, about=PAIR_PROMPT_HELP)

    def of(
        self,
        checkpoint: Checkpoint,
        sentences: Sequence[str],
        truncate: bool = False,
        progress: Progress = no_progress,
    ) -> SimilarityCalibrationResult:
        """Score random pairs of the sentences, and each sentence with its nearest neighbor.

        For the arguments and further errors, see `Sentences.of`.

        Raises:
            UnavailableError: there are fewer than two sentences whose vectors are not zero.
        """
        checkpoint = checkpoint.snapshot()
        question = Sentences(self.pooling, prompt=self.prompt, dimensions=self.dimensions)
        if self.poolings(checkpoint)[0] == self.poolings(checkpoint)[1]:
            encoded = question.of(checkpoint, sentences, truncate, progress)
            return self._result(encoded, encoded, progress)
        encoded = question.of(checkpoint, sentences, truncate, step_progress(progress, 0, 2))
        second = replace(question, prompt=self.pair_prompt).of(
            checkpoint, sentences, truncate, step_progress(progress, 1, 2)
        )
        return self._result(encoded, second, progress)

    def poolings(self, checkpoint: Checkpoint) -> tuple[PoolingConfig, PoolingConfig]:
        """Return the pooling of the first and of the second text of each pair; see `resolve_pooling`."""
        first = resolve_pooling(checkpoint, self.pooling, self.prompt, self.dimensions)
        if self.pair_prompt is None:
            return first, first
        return first, resolve_pooling(checkpoint, self.pooling, self.pair_prompt, self.dimensions)

    def _result(
        self, first: SentencesResult, second: SentencesResult, progress: Progress
    ) -> SimilarityCalibrationResult:
        """Return the calibration, given the sentences encoded as first and as second texts of pairs.

        ``first`` and ``second`` are the same object if both texts have the same prompt.
        """
        similarity, count = first.recipe.similarity, len(first.sentences)
        final = final_progress(progress, count if first is second else 2 * count)
        if first is second:
            random = random_pair_scores(first.vectors, similarity, final)
            nearest = nearest_neighbors(first.vectors, similarity, final)[1]
        else:
            first_rows, second_rows = pair_indices(count, is_ordered=True)
            vectors = np.concatenate([first.vectors, second.vectors])
            random = _sorted(pair_scores(vectors, similarity, first_rows, count + second_rows, final))
            nearest = nearest_neighbors(first.vectors, similarity, final, second.vectors)[1]
        return SimilarityCalibrationResult(
            self, first.inputs, count, random, _sorted(nearest), first.recipe, second.recipe
        )


@dataclass(frozen=True, eq=False, repr=False)
class SimilarityCalibrationResult(Result):
    """Scores of random pairs and of nearest neighbors.

    Attributes:
        count: number of sentences.
        random: sorted scores of all pairs of different sentences, or of `MAX_PAIRS` random pairs.
        nearest: sorted scores of all sentences, or of `MAX_NEIGHBORS` random sentences, with their nearest
            neighbors.
        recipe, pair_recipe: the pooling of the first and of the second text of each pair.
    """

    question: SimilarityCalibration
    inputs: InputRecord
    count: int
    random: Array
    nearest: Array
    recipe: PoolingConfig
    pair_recipe: PoolingConfig

    def percentile(self, score: float) -> float:
        """Return the percentage of random pairs with a lower score, 0 to 100."""
        return percentile_of(score, self.random)

    def about(self, score: float | None = None) -> dict[str, Any]:
        """Return the score distribution of random pairs, and the percentile of a score, as JSON values.

        Args:
            score: a score that is not NaN; None for the distribution alone.
        """
        ends = [self.random[0], self.random[-1], *([] if score is None else [score])]
        low, high = histogram_range(ends)
        counts, _ = np.histogram(self.random, _BINS, (low, high))
        return {
            "sentences": self.count,
            "random_pairs": len(self.random),
            "score_name": self.recipe.score_name,
            **self._prompts,
            **({} if score is None else {"score": score, "percentile": self.percentile(score)}),
            "percentiles": {
                str(percent): float(np.percentile(self.random, percent)) for percent in _HIGH_PERCENTILES
            },
            "histogram": {
                "low": low,
                "high": high,
                "percent": (100 * counts / counts.sum()).tolist(),
            },
        }

    @property
    def _prompts(self) -> dict[str, Any]:
        """The prompts of the first and of the second text of each pair; {} if the poolings are equal."""
        if self.recipe == self.pair_recipe:
            return {}
        return {"prompts": [self.recipe.prefix, self.pair_recipe.prefix]}

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The pooling, the number of sentences, and number and mean score of random and of nearest pairs."""
        pair = {} if self.recipe == self.pair_recipe else {"pair_recipe": self.pair_recipe.about}
        return {
            "recipe": self.recipe.about,
            **pair,
            "sentences": self.count,
            "random_pairs": len(self.random),
            "neighbors": len(self.nearest),
            "mean_of_random_pairs": float(self.random.mean()),
            "mean_of_nearest_neighbors": float(self.nearest.mean()),
        }

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per percentile: percentile, random_pairs, nearest_neighbors."""
        return pd.DataFrame(
            {
                "percentile": PERCENTILES,
                "random_pairs": np.percentile(self.random, PERCENTILES),
                "nearest_neighbors": np.percentile(self.nearest, PERCENTILES),
            }
        )


def reference_sentences() -> tuple[str, ...]:
    """Return the 300 short English sentences with which scores are compared by default."""
    return tuple(row.text for row in everyday_topics().rows)


def calibration_of(result: ScoreResult, checkpoint: Checkpoint) -> SimilarityCalibration:
    """Return the question that scores `reference_sentences` with the pooling and the prompts of a result.

    Args:
        checkpoint: the model of the result.

    Raises:
        UnavailableError: the reference sentences are not comparable, because the texts of the result are
            sequences of residues, or because no prompt or task that can be selected by name encodes a text in
            the same way.
    """
    question = result.question
    if _has_sequences(result, checkpoint):
        raise UnavailableError(
            "The reference sentences are English, so scores of sequences are not compared with them. "
            "Run bert-probe calibrate to compare scores of your own sequences."
        )
    if isinstance(result, SentencesResult):
        return SimilarityCalibration(result.question.pooling, question.prompt, question.dimensions)
    calibration = SimilarityCalibration("model", question.prompt, question.dimensions)
    if result.pair_recipe == result.recipe:
        return calibration
    model = checkpoint.sentence_model
    default = NO_PROMPT if model is None or model.default_prompt is None else model.default_prompt
    prompts = question.prompt or default, result.question.pair_prompt or default
    calibration = replace(calibration, prompt=prompts[0], pair_prompt=prompts[1])
    if calibration.poolings(checkpoint) != (result.recipe, result.pair_recipe):
        raise UnavailableError(
            "The prompt or task of one of the two texts cannot be selected by name, so reference sentences "
            "cannot be encoded in the same way, and the score is not compared with them. Choose a prompt for "
            "each text."
        )
    return calibration


def _has_sequences(result: ScoreResult, checkpoint: Checkpoint) -> bool:
    """Return whether the texts of a result are sequences with one token per residue."""
    if isinstance(result, SentencesResult):
        encodings = (checkpoint.encode(text, truncate=True) for text in result.sentences[:_CHECKED_TEXTS])
        return all(any(token.residue is not None for token in encoding.tokens) for encoding in encodings)
    return any(token.residue is not None for trace in (result.a, result.b) for token in trace.tokens)


def calibrate_result(
    result: ScoreResult,
    checkpoint: Checkpoint,
    progress: Progress = no_progress,
    calibrations: dict[Hashable, SimilarityCalibrationResult] | None = None,
) -> ScoreResult:
    """Return the result with metadata that compare its scores with random pairs of `reference_sentences`.

    The result is returned unchanged if its score is undefined or the sentences are not comparable; see
    `calibration_of`.

    Args:
        checkpoint: the model of the result.
        calibrations: a cache of calibrations, to which this function adds the calibration for this result.

    Raises:
        UnavailableError: see `SimilarityCalibration.of`.
    """
    score = result.score if isinstance(result, SentenceSimilarityResult) else None
    if score is not None and np.isnan(score):
        return result
    try:
        question = calibration_of(result, checkpoint)
    except UnavailableError:
        return result
    calibrations = {} if calibrations is None else calibrations
    description = checkpoint.description
    key = question, description.weights_sha256, description.dtype
    if key not in calibrations:
        calibrations[key] = question.of(checkpoint, reference_sentences(), True, progress)
    return replace(result, calibration=calibrations[key].about(score))


def random_pair_scores(vectors: Array, similarity: str, progress: Progress = no_progress) -> Array:
    """Return the sorted scores of random pairs of vectors, float64; undefined scores are left out.

    Args:
        vectors: vectors of shape [text, size].
        similarity: a name in `SIMILARITIES`.
        progress: called with the number of pairs done and the total.

    Returns:
        Scores of all pairs, or of `MAX_PAIRS` pairs.

    Raises:
        UnavailableError: there is no pair with a defined score.
    """
    return _sorted(pair_scores(vectors, similarity, *pair_indices(len(vectors)), progress))


def pair_indices(count: int, is_ordered: bool = False) -> tuple[Array, Array]:
    """Return the row indices of all pairs of different rows, or of `MAX_PAIRS` random pairs.

    The result is two arrays of shape [pair], the first and the second index of each pair.

    Args:
        count: number of rows.
        is_ordered: whether (1, 2) and (2, 1) are two pairs.
    """
    if count * (count - 1) // (1 if is_ordered else 2) <= MAX_PAIRS:
        first, second = np.nonzero(~np.eye(count, dtype=bool)) if is_ordered else np.triu_indices(count, k=1)
        return first, second
    random = np.random.default_rng(_SEED)
    first, second = random.integers(count, size=MAX_PAIRS), random.integers(count - 1, size=MAX_PAIRS)
    return first, second + (second >= first)


class IndexableRows(Protocol):
    """An array, or a file whose rows are read when they are indexed."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Numbers of rows and columns."""

    def __getitem__(self, rows: Array, /) -> Array:
        """Return the rows with the given indices."""


def pair_scores(
    vectors: IndexableRows, similarity: str, first: Array, second: Array, progress: Progress = no_progress
) -> Array:
    """Return the score of each pair of rows, float64 [pair]; NaN for an undefined score.

    Args:
        vectors: vectors of shape [row, size].
        similarity: a name in `SIMILARITIES`.
        first, second: indices of the rows of each pair.
        progress: called with the number of pairs done and the total.
    """
    size = _block(vectors)
    values = np.empty(len(first))
    for start in range(0, len(first), size):
        progress(start, len(first))
        pairs = slice(start, start + size)
        values[pairs] = scores_of_rows(vectors[first[pairs]], vectors[second[pairs]], similarity)
    return values


def histogram_range(values: Sequence[float] | Array) -> tuple[float, float]:
    """Return the range of a histogram: the smallest value, and the largest or a slightly larger value.

    numpy.histogram raises ValueError if the edges of the bins are not distinct in float64. Therefore, the
    width is at least 1e-6 of the largest absolute value, and at least 1 if all values are equal.
    """
    low, high = float(min(values)), float(max(values))
    width = 1e-6 * max(abs(low), abs(high))
    if high == low:
        width = max(1.0, width)
    return low, max(high, low + width)


def percentile_of(score: float, sorted_scores: Array) -> float:
    """Return the percentage of ``sorted_scores`` below a score, 0 to 100; NaN for an undefined score."""
    if np.isnan(score):
        return float("nan")
    return float(100 * np.searchsorted(sorted_scores, score, side="left") / len(sorted_scores))


def nearest_neighbors(
    vectors: Array, similarity: str, progress: Progress = no_progress, candidates: Array | None = None
) -> tuple[Array, Array]:
    """Return the index of the nearest neighbor of each row, [row], and the score, float64 [row].

    If there are more than `MAX_NEIGHBORS` rows, a sample is drawn with a fixed seed. If several rows have the
    highest score, the first is returned. The score of a row without any defined score is NaN.

    Args:
        vectors: vectors of shape [row, size].
        similarity: a name in `SIMILARITIES`.
        progress: called with the number of rows done and the total.
        candidates: the vectors of the possible neighbors, by default ``vectors``; the row with the same index
            is never a neighbor.
    """
    candidates = vectors if candidates is None else candidates
    count = len(vectors)
    rows = np.arange(count)
    if count > MAX_NEIGHBORS:
        rows = np.sort(np.random.default_rng(_SEED).choice(count, MAX_NEIGHBORS, replace=False))
    block = max(1, min(_block(vectors), _BLOCK_NUMBERS // count))
    neighbors, best = [], []
    for i in range(0, len(rows), block):
        progress(i, len(rows))
        part = rows[i : i + block]
        values = scores(vectors[part], candidates, similarity).astype(np.float64)
        values[np.arange(len(part)), part] = np.nan
        nearest = np.where(np.isnan(values), -np.inf, values).argmax(axis=1)
        neighbors.append(nearest)
        best.append(values[np.arange(len(part)), nearest])
    return np.concatenate(neighbors), np.concatenate(best)


def _block(vectors: IndexableRows) -> int:
    return max(1, _BLOCK_NUMBERS // max(1, int(vectors.shape[1])))


def _sorted(values: Array) -> Array:
    defined = values[~np.isnan(values)]
    if not len(defined):
        raise UnavailableError("There is no pair of texts with a score. Use at least two texts.")
    return read_only(np.sort(defined))
