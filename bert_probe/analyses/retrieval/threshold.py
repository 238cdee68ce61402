"""The threshold of a similarity score that separates text pairs that match from pairs that do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.evaluation.measures import RESAMPLES, interval, resample_weights
from bert_probe.analyses.vectors.pooling import DIMENSIONS_HELP, PROMPT_HELP, PoolingConfig, resolve_pooling
from bert_probe.analyses.vectors.sentences import POOLED, POOLING, encode_texts
from bert_probe.analyses.vectors.similarity import scores_of_rows
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, Name, Number, Optional
from bert_probe.core.inputs import TABLE, FileInput, Files
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import EmptyTextError, SelectionError, ShapeError, TextError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress, final_progress, no_progress, step_progress
from bert_probe.model.trace import Array, read_only
from bert_probe.text.formats import ValidationErrors
from bert_probe.text.labeled_texts import MULTI_LABEL, LabeledTexts, parse_number

MEASURES = ("threshold", "precision", "recall", "f1", "average_precision")
"""Names of the measures in the summary, in the order of its rows."""


@question("score threshold", command="threshold")
class ScoreThreshold(Question):
    """The threshold of the similarity score that separates text pairs that match from pairs that do not.

    A pair is predicted to match if its score is at least the threshold. The candidate thresholds are the
    scores of the pairs. By default, the lowest threshold with the largest F1 is chosen. If a precision is
    required, the lowest threshold that reaches this precision is chosen.

    Attributes:
        precision: required precision, above 0 and at most 1. By default, the threshold maximizes F1.
        positive_from: smallest label of a pair that matches, for graded labels. By default, the labels must
            be 0 and 1.
        pooling, dimensions: see `Sentences`.
        prompt, pair_prompt: name of the checkpoint's prompt before the first and the second text of a pair,
            or "none"; see `resolve_pooling` for the default.
        show: the table to return: the "summary" with intervals, the measures at each threshold ("curve"), or
            the "pairs" with their scores.
    """

    inputs = Files(
        {
            "pairs": FileInput(
                formats=(TABLE,), help="A table with the columns text_a, text_b, and label or score."
            )
        }
    )

    precision: float | None = param(
        Optional(Number(0, 1, integer=False)),
        default=None,
        about="Minimum precision of the threshold; by default, the threshold with the highest F1 is used.",
    )
    positive_from: float | None = param(
        Optional(Number(-1e12, integer=False)),
        default=None,
        about="Smallest label of a pair that matches; required if the labels are not 0 and 1.",
    )
    pooling: str = param(POOLING, default="mean", about=POOLED)
    prompt: str | None = param(Optional(Name()), default=None, about=PROMPT_HELP)
    pair_prompt: str | None = param(
        Optional(Name()),
        default=None,
        about="Name of the checkpoint's prompt that is prepended to the second text of each pair.",
    )
    dimensions: int | None = param(Optional(Number(1)), default=None, about=DIMENSIONS_HELP)
    show: str = param(
        Choice(("summary", "curve", "pairs")),
        default="summary",
        display_only=True,
        about="Table: summary, measures at each threshold, or pairs with their scores.",
    )

    def of(
        self,
        checkpoint: Checkpoint,
        pairs: LabeledTexts,
        truncate: bool = False,
        progress: Progress = no_progress,
    ) -> ScoreThresholdResult:
        """Score the pairs, and choose the threshold.

        Args:
            checkpoint: the model.
            pairs: text pairs from `read_labeled_texts`, with labels that are numbers.
            truncate: truncate texts that are too long instead of raising an error.
            progress: called with the number of texts done and the total; during the bootstrap, all texts are
                reported as done.

        Raises:
            TextError, EmptyTextError, TooLongError: there are no pairs, a label is not a number, or a text
                cannot be encoded; the message names its line.
            SelectionError: the labels are graded and `positive_from` is missing; see also `resolve_pooling`.
            UnavailableError: all pairs match, no pair matches, a score is undefined, or no threshold reaches
                the required precision; see also `resolve_pooling`.
        """
        labels = pair_labels(pairs)
        positive = self._positive(labels)
        checkpoint = checkpoint.snapshot()
        recipes = [
            resolve_pooling(checkpoint, self.pooling, prompt, self.dimensions)
            for prompt in (self.prompt, self.pair_prompt)
        ]
        sides = [[row.text for row in pairs.rows], [row.pair or "" for row in pairs.rows]]
        names = [f"Line {row.line:,}" for row in pairs.rows]
        first, second = (
            encode_texts(
                checkpoint,
                recipe,
                texts,
                truncate,
                lambda number: names[number - 1],
                step_progress(progress, side, len(recipes)),
            )
            for side, (recipe, texts) in enumerate(zip(recipes, sides, strict=True))
        )
        scores = scores_of_rows(first.vectors, second.vectors, recipes[0].similarity)
        if np.isnan(scores).any():
            line = pairs.rows[int(np.isnan(scores).argmax())].line
            raise UnavailableError(
                f"The score of line {line:,} is undefined, because one of its texts has a zero vector. "
                "Remove this line."
            )
        curve = ThresholdCurve.of(scores, positive)
        dropped = sum(first.dropped) + sum(second.dropped)
        count = len(sides) * len(scores)
        bootstrap = _bootstrap(scores, positive, self.precision, final_progress(progress, count))
        return ScoreThresholdResult(
            self,
            InputRecord.of_tagged(checkpoint, {"pairs": pairs}, dropped),
            pairs,
            read_only(scores),
            read_only(positive),
            curve,
            _choose(curve, self.precision),
            bootstrap,
            recipes[0],
        )

    def _positive(self, labels: Array) -> Array:
        """Return whether each pair matches according to its label, bool of shape [pair]."""
        start = self.positive_from
        if start is None:
            if not np.isin(labels, (0, 1)).all():
                raise SelectionError(
                    f"The labels are graded, from {labels.min():g} to {labels.max():g}. Pass positive_from "
                    "(--positive-from), the smallest label of a pair that matches."
                )
            start = 1
        positive: Array = labels >= start
        if positive.all() or not positive.any():
            kind = "match" if positive.all() else "do not match"
            raise UnavailableError(
                f"All {len(labels):,} pairs {kind}: their labels are {labels.min():g} to "
                f"{labels.max():g}, and a pair matches if its label is at least {start:g}. Use both "
                "pairs that match and pairs that do not."
            )
        return positive


def pair_labels(pairs: LabeledTexts) -> Array:
    """Return the labels as numbers, float64 of shape [pair].

    Raises:
        TextError, EmptyTextError: there are no pairs, or a label is not a number.
    """
    if not isinstance(pairs, LabeledTexts):
        raise TextError("Pass text pairs from read_labeled_texts.")
    if not pairs.rows:
        raise EmptyTextError("There are no text pairs. Pass at least two text pairs.")
    if any(row.pair is None for row in pairs.rows):
        raise TextError("The table has single texts. Use text pairs, in columns named text_a and text_b.")
    if pairs.kind == MULTI_LABEL:
        raise TextError("Each pair has several labels. Use one number per pair, in a column named label.")
    errors, labels = ValidationErrors("The table"), []
    for row in pairs.rows:
        number, problem = parse_number(str(row.label))
        labels.append(number)
        if problem:
            errors.add(row.line, f"the label {str(row.label)[:40]!r} is not a number")
    errors.check()
    return np.array(labels)


@dataclass(frozen=True, eq=False)
class ThresholdCurve:
    """Precision and recall at each possible threshold.

    Attributes:
        thresholds: the distinct scores, descending, of shape [threshold].
        true_positives: number of matching pairs whose score reaches the threshold, of shape [threshold].
        predicted: number of pairs whose score reaches the threshold, of shape [threshold].
    """

    thresholds: Array
    true_positives: Array
    predicted: Array

    @classmethod
    def of(cls, scores: Array, positive: Array) -> ThresholdCurve:
        """Compute the curve from the score of each pair and whether the pair matches, both [pair]."""
        order, ends = _descending(scores)
        counts = np.cumsum(positive[order])
        return cls(scores[order][ends], counts[ends], ends + 1)

    @property
    def precision(self) -> Array:
        """Share of the pairs predicted to match that do match, of shape [threshold]."""
        precision: Array = self.true_positives / self.predicted
        return precision

    @property
    def recall(self) -> Array:
        """Share of the matching pairs that are predicted to match, of shape [threshold]."""
        recall: Array = self.true_positives / self.true_positives[-1]
        return recall

    @property
    def f1(self) -> Array:
        """Harmonic mean of precision and recall, 2 TP / (predicted + matching), of shape [threshold]."""
        f1: Array = 2 * self.true_positives / (self.predicted + self.true_positives[-1])
        return f1

    @property
    def average_precision(self) -> float:
        """Sum over the thresholds of the precision, weighted by the increase of the recall."""
        return float((np.diff(self.recall, prepend=0) * self.precision).sum())

    def measures(self, index: int) -> dict[str, float]:
        """Return the `MEASURES` at the threshold with this index."""
        values = (self.thresholds, self.precision, self.recall, self.f1)
        numbers = (float(array[index]) for array in values)
        return dict(zip(MEASURES, (*numbers, self.average_precision), strict=True))


def _descending(scores: Array) -> tuple[Array, Array]:
    """Return the indices that sort scores in descending order.

    The second array is the last position of each distinct score in this order.
    """
    order = np.argsort(-scores, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))
    return order, ends


def _choose(curve: ThresholdCurve, precision: float | None) -> int:
    """Return the index of the best threshold; of several equally good thresholds, the lowest.

    Raises:
        UnavailableError: no threshold reaches the required precision.
    """
    if precision is None:
        return len(curve.f1) - 1 - int(curve.f1[::-1].argmax())
    reached = np.flatnonzero(curve.precision >= precision)
    if not len(reached):
        best = int(curve.precision.argmax())
        raise UnavailableError(
            f"No threshold reaches a precision of {precision:g}: the highest is {curve.precision[best]:.4f}, "
            f"at {curve.thresholds[best]:.4f}. Require a lower precision."
        )
    return int(reached[-1])


@dataclass(frozen=True, eq=False)
class BootstrapMeasures:
    """The measures of bootstrap resamples, for each of which a threshold was chosen.

    Attributes:
        values: measures of the resamples that have a threshold, of shape [resample, measure], in the order of
            `MEASURES`.
        undefined: number of resamples that have no threshold, because they have no matching pairs or do not
            reach the required precision.
    """

    values: Array
    undefined: int

    def interval(self, measure: str) -> tuple[float, float]:
        """Return the bounds of the 95% interval of a measure; NaN if no resample has a threshold."""
        return interval(self.values[:, MEASURES.index(measure)])


def _bootstrap(
    scores: Array, positive: Array, precision: float | None, progress: Progress = no_progress
) -> BootstrapMeasures:
    """Choose a threshold for each of `RESAMPLES` resamples of the pairs, drawn with a fixed seed.

    Args:
        progress: called with the number of resamples done and the total.
    """
    order, ends = _descending(scores)
    sorted_positive, thresholds = positive[order], scores[order][ends]
    parts, done = [], 0
    for weights in resample_weights(len(scores), RESAMPLES):
        parts.append(_resampled(weights[:, order], sorted_positive, ends, thresholds, precision))
        done += len(weights)
        progress(done, RESAMPLES)
    values = np.concatenate(parts)
    return BootstrapMeasures(read_only(values), RESAMPLES - len(values))


def _resampled(
    weights: Array, positive: Array, ends: Array, thresholds: Array, precision: float | None
) -> Array:
    """Choose the threshold of each resample, and return the measures at this threshold.

    Args:
        weights: number of occurrences of each pair in each resample, [resample, pair], by descending score.
        positive: whether each pair matches, [pair], by descending score.
        ends: position of the last pair whose score reaches each threshold, [threshold].
        thresholds: the distinct scores in descending order, [threshold].
        precision: the required precision; None to choose the threshold with the highest F1.

    Returns:
        Measures of shape [resample, measure], in the order of `MEASURES`. Resamples without a threshold are
        left out; see `BootstrapMeasures`.
    """
    predicted = np.cumsum(weights, axis=1)[:, ends]
    true_positives = np.cumsum(weights * positive, axis=1)[:, ends]
    occurs = (
        np.diff(predicted, axis=1, prepend=0) > 0
    )  # The scores of pairs that were not drawn are not thresholds of the resample.
    matching = true_positives[:, -1:]
    with np.errstate(invalid="ignore", divide="ignore"):
        precisions, recalls = true_positives / predicted, true_positives / matching
        f1 = 2 * true_positives / (predicted + matching)
    steps = np.diff(recalls, axis=1, prepend=0)
    average = np.where(occurs, steps * precisions, 0).sum(axis=1)
    quality = f1 if precision is None else (precisions >= precision).astype(float)
    quality = np.where(occurs, quality, -1.0)
    best = quality.shape[1] - 1 - quality[:, ::-1].argmax(axis=1)
    rows = np.arange(len(weights))
    is_defined = (matching[:, 0] > 0) & (quality[rows, best] > 0)
    measures = [array[rows, best] for array in (precisions, recalls, f1)]
    values: Array = np.stack([thresholds[best], *measures, average], axis=1)[is_defined]
    return values


@dataclass(frozen=True, eq=False, repr=False)
class ScoreThresholdResult(Result):
    """The chosen threshold, and the precision and recall of the predictions at each threshold.

    Attributes:
        pairs: the text pairs.
        scores: score of each pair, float64 of shape [pair].
        positive: whether each pair matches, of shape [pair].
        curve: precision and recall at each threshold.
        chosen_index: index of the chosen threshold in the curve.
        bootstrap: the measures of resamples of the pairs.
        recipe: the pooling configuration of the first texts.
    """

    question: ScoreThreshold
    pairs: LabeledTexts
    scores: Array
    positive: Array
    curve: ThresholdCurve
    chosen_index: int
    bootstrap: BootstrapMeasures
    recipe: PoolingConfig

    def __post_init__(self) -> None:
        if not len(self.pairs.rows) == len(self.scores) == len(self.positive):
            raise ShapeError(
                f"scores must have {len(self.pairs.rows)} entries, one per pair, not {len(self.scores)}."
            )

    @property
    def measures(self) -> dict[str, float]:
        """The `MEASURES` at the chosen threshold."""
        return self.curve.measures(self.chosen_index)

    @property
    def threshold(self) -> float:
        """The chosen threshold: pairs with at least this score are predicted to match."""
        return self.measures["threshold"]

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The pooling, the numbers of pairs and of matching pairs, and the number of resamples."""
        return {
            "recipe": self.recipe.about,
            "pairs": len(self.scores),
            "matching_pairs": int(self.positive.sum()),
            "resamples": RESAMPLES,
            "resamples_without_threshold": self.bootstrap.undefined,
        }

    def frame(self) -> pd.DataFrame:
        """Return the summary, the curve or the pairs, depending on the question.

        Columns of the summary: measure, value, low and high, the bounds of the 95% interval. Columns of the
        curve: threshold, precision, recall, f1, predicted, from the highest threshold. Columns of the pairs:
        line, text_a, text_b, label, matches, score, predicted.
        """
        if self.question.show == "pairs":
            return self._pairs()
        if self.question.show == "curve":
            names = ("thresholds", "precision", "recall", "f1", "predicted")
            columns = {name.removesuffix("s"): getattr(self.curve, name) for name in names}
            return pd.DataFrame(columns)
        bounds = [self.bootstrap.interval(name) for name in MEASURES]
        return pd.DataFrame(
            {
                "measure": list(MEASURES),
                "value": [self.measures[name] for name in MEASURES],
                "low": [low for low, _ in bounds],
                "high": [high for _, high in bounds],
            }
        )

    def _pairs(self) -> pd.DataFrame:
        rows = self.pairs.rows
        return pd.DataFrame(
            {
                "line": [row.line for row in rows],
                "text_a": frames.plain_strings([row.text for row in rows]),
                "text_b": frames.plain_strings([row.pair or "" for row in rows]),
                "label": pair_labels(self.pairs),
                "matches": self.positive,
                "score": self.scores,
                "predicted": self.scores >= self.threshold,
            }
        )

    @property
    def nbytes(self) -> int:
        """Size of the scores, the curve, the resamples and the texts in bytes."""
        texts = sum(len(row.text) + len(row.pair or "") for row in self.pairs.rows)
        return 5 * self.scores.nbytes + self.bootstrap.values.nbytes + texts
