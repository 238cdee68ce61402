"""Evaluation of sentence vectors on text pairs that are labeled with similarity scores (STS)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import pearsonr, rankdata, spearmanr

from bert_probe.analyses.evaluation.measures import RESAMPLES, bootstrap_correlations, interval
from bert_probe.analyses.evaluation.vector_comparison import VectorComparison, compare_vectors, vector_formats
from bert_probe.analyses.retrieval.threshold import pair_labels
from bert_probe.analyses.vectors.pooling import DIMENSIONS_HELP, PROMPT_HELP, PoolingConfig, resolve_pooling
from bert_probe.analyses.vectors.sentences import POOLED, POOLING, encode_texts
from bert_probe.analyses.vectors.similarity import scores_of_rows
from bert_probe.core import frames
from bert_probe.core.evaluation_inputs import EvaluationFiles
from bert_probe.core.field_types import Choice, Flag, Name, Number, Optional
from bert_probe.core.inputs import TABLE, FileInput
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result, SortOrder
from bert_probe.errors import ShapeError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress, final_progress, no_progress, step_progress
from bert_probe.model.trace import Array, read_only
from bert_probe.text.labeled_texts import LabeledTexts

MEASURES = ("cosine_spearman", "cosine_pearson", "model_spearman", "model_pearson")
"""Correlations of the labels with the cosine, and with the similarity function that the model declares."""
MIN_PAIRS = 3
MAX_GROUPS = 200
"""Maximum number of groups of pairs, which are named in the column group of the table."""
ALL = "all"
"""Default group name of the summary rows for all pairs; see `SimilarityEvaluationResult.total_name`."""
CURVE_HELP = (
    "Also evaluate vectors with fewer dimensions, and int8 and binary vectors. For texts without labels, use "
    "bert-probe dimensions."
)
NO_CURVE = "The curve was not computed. Evaluate with curve=True (--curve)."
NO_OTHER = "There is no second model to compare with. Pass other (--other MODEL)."
_MAIN = MEASURES.index("model_spearman")
_TABLES = ("summary", "pairs", "moved", "vectors", "neighbors", "curve")


@question("similarity evaluation", command="evaluate-sts")
class SimilarityEvaluation(Question):
    """Correlation of sentence-vector similarity with the similarity labels of text pairs (STS).

    The labels are correlated (Spearman, Pearson) with the cosine and with the similarity function that the
    model declares, as in `EmbeddingSimilarityEvaluator` of sentence-transformers. The 95% bootstrap intervals
    resample the pairs. With a second model, the result also has the differences between the models, computed
    on the same resamples.

    Attributes:
        pooling: pooling of token vectors. If None, the checkpoint's own pooling if it has one, otherwise the
            mean.
        prompt, pair_prompt: name of the checkpoint's prompt that is prepended to the first and to the second
            text of a pair, or "none"; see `resolve_pooling` for the default.
        dimensions: number of dimensions to which the vectors are truncated.
        curve: also evaluate vectors with fewer dimensions, int8 vectors and binary vectors.
        show: the table to return. "summary" has the correlations with intervals, also for each group if the
            table has a column group; "pairs" has the pairs by descending error; "curve" has the correlation
            for each vector format. With a second model, "moved" has the pairs whose error changed most,
            "vectors" has the agreement on nearest neighbors, and "neighbors" has the neighbors that changed.
    """

    inputs = EvaluationFiles(
        {
            "pairs": FileInput(
                formats=(TABLE,),
                help="A table with the columns text_a, text_b and score, and optionally group.",
            )
        }
    )

    pooling: str | None = param(Optional(POOLING), default=None, about=POOLED)
    prompt: str | None = param(Optional(Name()), default=None, about=PROMPT_HELP)
    pair_prompt: str | None = param(
        Optional(Name()),
        default=None,
        about="Name of the checkpoint's prompt that is prepended to the second text of each pair.",
    )
    dimensions: int | None = param(Optional(Number(1)), default=None, about=DIMENSIONS_HELP)
    curve: bool = param(Flag(), default=False, about=CURVE_HELP)
    show: str = param(
        Choice(_TABLES),
        default="summary",
        display_only=True,
        key="sts_table",
        about="Table: summary, pairs by error, pairs whose error changed, agreement of the two models' "
        "vectors, changed nearest neighbors, or curve.",
    )

    def of(
        self,
        checkpoint: Checkpoint,
        pairs: LabeledTexts,
        truncate: bool = False,
        other: Checkpoint | None = None,
        progress: Progress = no_progress,
    ) -> SimilarityEvaluationResult:
        """Compute the similarity of the texts of each pair, and its correlation with the labels.

        Args:
            checkpoint: the model.
            pairs: text pairs from `read_labeled_texts`, with labels that are numbers.
            truncate: truncate texts that are too long instead of raising an error.
            other: a model to compare with.
            progress: called with the number of distinct texts encoded so far and their total, for all
                models; afterwards, all texts are reported as done.

        Raises:
            TextError, EmptyTextError, TooLongError: there are no pairs, a label is not a number, or a text
                cannot be encoded. The message states the line number.
            UnavailableError: there are fewer than three pairs, the column "group" has more than `MAX_GROUPS`
                different values, all labels are equal, or a score is undefined; see also `resolve_pooling`.
            SelectionError, CheckpointError: see `resolve_pooling`.
        """
        labels = pair_labels(pairs)
        _check_labels(labels)
        groups = _groups(pairs)
        checkpoints = [checkpoint.snapshot(), *([] if other is None else [other.snapshot()])]
        evaluated = [
            self._score(model, pairs, truncate, step_progress(progress, index, len(checkpoints)))
            for index, model in enumerate(checkpoints)
        ]
        record = InputRecord.of_tagged(
            checkpoints[0], {"pairs": pairs}, sum(model.dropped for model in evaluated)
        )
        if other is not None:
            record = record.with_other_model(InputRecord.of_model(checkpoints[1]))
        last = final_progress(progress, 2 * len(labels) * len(checkpoints))
        total = _summarize(labels, [model.values for model in evaluated], last)
        summaries = {
            name: _summarize(labels[rows], [model.values[:, rows] for model in evaluated], last)
            for name, rows in groups.items()
        }
        curve = self._curve(checkpoints[0], evaluated[0], labels, last) if self.curve else None
        comparison = None if other is None else _compare(pairs, evaluated[0], evaluated[1], last)
        return SimilarityEvaluationResult(
            self, record, pairs, read_only(labels), tuple(evaluated), total, summaries, curve, comparison
        )

    def _pooling(self, checkpoint: Checkpoint, prompt: str | None) -> PoolingConfig:
        is_own = checkpoint.sentence_model is not None or checkpoint.sentence_model_error is not None
        return resolve_pooling(
            checkpoint, self.pooling or ("model" if is_own else "mean"), prompt, self.dimensions
        )

    def _score(
        self, checkpoint: Checkpoint, pairs: LabeledTexts, truncate: bool, progress: Progress
    ) -> ScoredPairs:
        recipes = [self._pooling(checkpoint, prompt) for prompt in (self.prompt, self.pair_prompt)]
        count = len(pairs.rows)
        names = [f"Line {row.line:,}" for row in pairs.rows]
        sides = [[row.text for row in pairs.rows], [row.pair or "" for row in pairs.rows]]
        # With the same pooling, encode the first and second texts in one call, which encodes repeated texts
        # only once.
        if recipes[0] == recipes[1]:
            encoded = encode_texts(
                checkpoint,
                recipes[0],
                sides[0] + sides[1],
                truncate,
                lambda number: names[(number - 1) % count],
                progress,
            )
            first, second = encoded.vectors[:count], encoded.vectors[count:]
            dropped = sum(encoded.dropped)
        else:
            parts = [
                encode_texts(
                    checkpoint,
                    recipe,
                    texts,
                    truncate,
                    lambda number: names[number - 1],
                    step_progress(progress, side, 2),
                )
                for side, (recipe, texts) in enumerate(zip(recipes, sides, strict=True))
            ]
            first, second = (part.vectors for part in parts)
            dropped = sum(sum(part.dropped) for part in parts)
        values = _pair_values(first, second, recipes[0].similarity)
        if np.isnan(values).any():
            line = pairs.rows[int(np.isnan(values).any(axis=0).argmax())].line
            raise UnavailableError(
                f"The score of line {line:,} is undefined, because one of its texts has a zero vector. "
                "Remove this line."
            )
        return ScoredPairs(recipes[0], recipes[1], first, second, read_only(values), dropped)

    def _curve(
        self, checkpoint: Checkpoint, model: ScoredPairs, labels: Array, progress: Progress
    ) -> pd.DataFrame:
        """Return a table with Spearman's correlation of the labels with the score for each vector format."""
        rows = []
        size = model.first.shape[1]
        is_own = self.pooling in (None, "model")
        reference = np.concatenate([model.first, model.second])
        for form in vector_formats(size, checkpoint.sentence_model if is_own else None):
            first, second = (form.convert(vectors, reference) for vectors in (model.first, model.second))
            values = scores_of_rows(first, second, form.similarity(model.recipe.similarity))[None]
            summary = _summarize(labels, [values], progress)
            correlation, bounds = float(summary.values[0, 0]), summary.intervals[0, 0]
            rows.append((form.dimensions, form.precision, form.bytes_per_vector, correlation, *bounds))
        names = ["dimensions", "precision", "bytes_per_vector", "spearman", "low", "high"]
        return pd.DataFrame(rows, columns=names)


@dataclass(frozen=True, eq=False)
class ScoredPairs:
    """One model's similarity scores of the text pairs.

    Attributes:
        recipe, pair_recipe: the pooling configurations for the first and for the second text of a pair.
        first, second: sentence vectors of the first and of the second texts, [pair, dimension].
        values: cosine (row 0) and the similarity that the model declares (row 1) of each pair, float64 of
            shape [2, pair].
        dropped: number of tokens removed by truncation.
    """

    recipe: PoolingConfig
    pair_recipe: PoolingConfig
    first: Array
    second: Array
    values: Array
    dropped: int

    @property
    def cosine(self) -> Array:
        """Cosine similarity of each pair, [pair]."""
        cosine: Array = self.values[0]
        return cosine

    @property
    def percentiles(self) -> Array:
        """Percentile rank of each pair by the similarity function of the model, [pair], from 0 to 1."""
        return _percentiles(self.values[1])


@dataclass(frozen=True, eq=False)
class CorrelationSummary:
    """Correlations of the scores of each model with the labels, for all pairs or for one group of pairs.

    Attributes:
        values: the `MEASURES` of each model, [model, measure]; NaN where a correlation is undefined.
        intervals: bounds of the 95% intervals of the values, [model, measure, bound].
        change_intervals: bounds of the 95% intervals of the difference from the first model, computed on the
            same resamples, [model, measure, bound].
        count: number of pairs.
    """

    values: Array
    intervals: Array
    change_intervals: Array
    count: int


def _check_labels(labels: Array) -> None:
    if len(labels) < MIN_PAIRS:
        raise UnavailableError(
            f"{len(labels)} pairs are too few for a correlation. Use at least {MIN_PAIRS} pairs."
        )
    if np.ptp(labels) == 0:
        raise UnavailableError(
            f"All {len(labels):,} pairs have the same score, {labels[0]:g}, so their correlation is "
            "undefined. Use pairs with different scores."
        )


def _groups(pairs: LabeledTexts) -> dict[str, Array]:
    """Return a mapping from each group name to the indices of its pairs; empty without a column group.

    Raises:
        UnavailableError: there are more than `MAX_GROUPS` groups.
    """
    rows: dict[str, list[int]] = {}
    for index, row in enumerate(pairs.rows):
        rows.setdefault(row.group, []).append(index)
    names = sorted(name for name in rows if name)
    if len(names) > MAX_GROUPS:
        raise UnavailableError(
            f'The column "group" has {len(names):,} different values, but at most {MAX_GROUPS} groups are '
            "evaluated. Use fewer groups, or omit the column."
        )
    return {name: np.array(rows[name]) for name in names}


def _pair_values(first: Array, second: Array, similarity: str) -> Array:
    """Return the cosine and the similarity that the model declares for each pair, float64 [2, pair]."""
    cosine = scores_of_rows(first, second, "cosine")
    return np.stack([cosine, cosine if similarity == "cosine" else scores_of_rows(first, second, similarity)])


def _summarize(labels: Array, values: list[Array], progress: Progress) -> CorrelationSummary:
    """Return the correlations of the labels with the scores of each model.

    Args:
        labels: label of each pair, [pair].
        values: for each model, its scores, [score, pair].
        progress: called with the number of resamples done and the total.
    """
    scores = np.concatenate(values)
    shape = (len(values), 2 * len(values[0]))
    if len(labels) < MIN_PAIRS or np.ptp(labels) == 0:
        undefined = np.full((*shape, 2), np.nan)
        return CorrelationSummary(undefined[..., 0], undefined, undefined, len(labels))
    correlations = [[_correlation(f, labels, row) for f in (spearmanr, pearsonr)] for row in scores]
    resamples = bootstrap_correlations(labels, scores, progress).reshape(-1, *shape)
    changes = resamples - resamples[:, :1]
    bounds = (np.apply_along_axis(interval, 0, samples) for samples in (resamples, changes))
    intervals, change_intervals = (np.moveaxis(values, 0, -1) for values in bounds)
    return CorrelationSummary(np.array(correlations).reshape(shape), intervals, change_intervals, len(labels))


def _correlation(function: Any, labels: Array, scores: Array) -> float:
    """Return the correlation of labels with scores by a function of SciPy; NaN for constant scores."""
    return float(function(labels, scores).statistic) if np.ptp(scores) > 0 else float("nan")


def _percentiles(values: Array) -> Array:
    ranks: Array = (rankdata(values) - 1) / (len(values) - 1)
    return ranks


def _compare(
    pairs: LabeledTexts, a: ScoredPairs, b: ScoredPairs, progress: Progress
) -> VectorComparison | None:
    """Return the agreement of two models on the nearest neighbors of the distinct texts of all pairs.

    None is returned for fewer than `MIN_PAIRS` distinct texts.
    """
    texts = [row.text for row in pairs.rows] + [row.pair or "" for row in pairs.rows]
    rows = list({text: row for row, text in reversed(list(enumerate(texts)))}.values())[::-1]
    if len(rows) < MIN_PAIRS:
        return None
    first, second = (np.concatenate([model.first, model.second])[rows] for model in (a, b))
    similarities = a.recipe.similarity, b.recipe.similarity
    return compare_vectors(first, second, *similarities, [texts[row] for row in rows], progress)


@dataclass(frozen=True, eq=False, repr=False)
class SimilarityEvaluationResult(Result):
    """Correlations of the similarity of text pairs with their labels.

    Attributes:
        pairs: the text pairs.
        labels: similarity label of each pair, [pair].
        models: the scores of the model, and of the other model if there is one.
        total: the correlations for all pairs.
        groups: mapping from each group name to the correlations for its pairs; empty without a column group.
        curve: table of the correlation for each vector format; None if it was not computed.
        comparison: agreement of two models on nearest neighbors; None without a second model, or for fewer
            than `MIN_PAIRS` different texts.
    """

    question: SimilarityEvaluation
    pairs: LabeledTexts
    labels: Array
    models: tuple[ScoredPairs, ...]
    total: CorrelationSummary
    groups: Mapping[str, CorrelationSummary]
    curve: pd.DataFrame | None
    comparison: VectorComparison | None

    def __post_init__(self) -> None:
        for model in self.models:
            if model.values.shape != (2, len(self.pairs.rows)):
                raise ShapeError(
                    f"values must have shape (2, {len(self.pairs.rows)}), one column per pair, not "
                    f"{model.values.shape}."
                )

    @property
    def has_other(self) -> bool:
        """Whether two models are compared."""
        return len(self.models) > 1

    @cached_property
    def errors(self) -> tuple[Array, ...]:
        """Error of each pair, one array of shape [pair] per model.

        The error is the percentile rank by the model's score minus the percentile rank by the label, −1 to 1.
        """
        truth = _percentiles(self.labels)
        return tuple(model.percentiles - truth for model in self.models)

    @property
    def wins(self) -> tuple[int, int, int]:
        """Numbers of pairs for which the other model's absolute error is smaller, equal, and larger.

        Raises:
            UnavailableError: there is only one model.
        """
        self._require_other()
        change = np.abs(self.errors[1]) - np.abs(self.errors[0])
        return int((change < 0).sum()), int((change == 0).sum()), int((change > 0).sum())

    @property
    def finding(self) -> str:
        """A sentence that gives Spearman's correlation of the labels with the score, and its 95% interval.

        With a second model, the sentence also gives the difference.
        """
        values, measure = self.total.values[:, _MAIN], self.models[0].recipe.score_name
        sentence = (
            f"Spearman's correlation of the {measure} with the labels of {self.total.count:,} pairs is "
        )
        if np.isnan(values[0]):
            sentence += "undefined, because the model gives all pairs the same score"
        else:
            low, high = self.total.intervals[0, _MAIN]
            sentence += f"{values[0]:.4f} (95% interval {low:.4f} to {high:.4f})"
        return f"{sentence}{self._difference(values)}."

    def _difference(self, values: Array) -> str:
        """Return the clause of `finding` about the second model; "" if only one model is evaluated."""
        if not self.has_other:
            return ""
        if np.isnan(values[1]):
            return (
                "; the correlation of the other model is undefined, because it gives all pairs the same score"
            )
        if np.isnan(values[0]):
            low, high = self.total.intervals[1, _MAIN]
            return f"; the correlation of the other model is {values[1]:.4f} ({low:.4f} to {high:.4f})"
        low, high = self.total.change_intervals[1, _MAIN]
        change = values[1] - values[0]
        return f"; the correlation of the other model differs by {change:+.4f} ({low:+.4f} to {high:+.4f})"

    @property
    def total_name(self) -> str:
        """Group name of the summary rows for all pairs: "all", or "all pairs" if a group is named "all"."""
        name = ALL
        while name in self.groups:
            name += " pairs"
        return name

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence that names the groups whose correlation is undefined; empty if there are none."""
        summaries = {self.total_name: self.total, **self.groups}
        missing = [name for name, summary in summaries.items() if np.isnan(summary.values).all()]
        if not missing:
            return ()
        return (
            f"The correlation is undefined for {', '.join(missing[:5])}"
            f"{' and others' if len(missing) > 5 else ''}: fewer than {MIN_PAIRS} pairs, or equal scores.",
        )

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The poolings, the numbers of pairs and resamples, the notes, and the numbers in `wins`."""
        recipes = [model.recipe.about for model in self.models]
        values: dict[str, Any] = {
            "recipe": recipes[0],
            "pairs": len(self.labels),
            "resamples": RESAMPLES,
            **({"notes": list(self.notes)} if self.notes else {}),
        }
        if self.has_other:
            better, equal, worse = self.wins
            values |= {"other_recipe": recipes[1], "better": better, "equal": equal, "worse": worse}
        return values

    def _require_other(self) -> None:
        if not self.has_other:
            raise UnavailableError(NO_OTHER)

    @property
    def sort_order(self) -> SortOrder | None:
        """The order of the tables "pairs" and "moved"; None for the other tables."""
        names = {"pairs": "error", "moved": "moved"}
        name = names.get(self.question.show)
        return None if name is None else SortOrder(name, by_magnitude=True)

    def frame(self) -> pd.DataFrame:
        """Return the table that ``show`` of the question selects.

        "summary": group (`total_name` for all pairs), pairs, measure, value, low, high (the bounds of the 95%
        interval) and, with a second model, other, other_low, other_high, difference, difference_low,
        difference_high. The measures are the correlations of the labels with the cosine (cosine_spearman,
        cosine_pearson) and with the similarity function that the model declares (model_spearman,
        model_pearson).

        "pairs" and "moved": line, group, text_a, text_b, label, cosine, score, error (see `errors`). With a
        second model also other_score, other_error and moved, the change of the error.

        "curve": dimensions, precision, bytes_per_vector, spearman, low, high. "vectors" and "neighbors": see
        `VectorComparison.frame` and `VectorComparison.changed_neighbors`.
        """
        show = self.question.show
        if show == "curve":
            if self.curve is None:
                raise UnavailableError(NO_CURVE)
            return self.curve.copy()
        if show in ("vectors", "neighbors"):
            self._require_other()
            if self.comparison is None:
                raise UnavailableError(
                    "The pairs have fewer than three different texts, so neighbors cannot be "
                    "compared. Use more pairs."
                )
            return self.comparison.frame() if show == "vectors" else self.comparison.changed_neighbors()
        if show in ("pairs", "moved"):
            return self._pairs(show)
        summaries = {self.total_name: self.total, **self.groups}
        return pd.concat(
            [self._summary(name, summary) for name, summary in summaries.items()], ignore_index=True
        )

    def _summary(self, name: str, summary: CorrelationSummary) -> pd.DataFrame:
        columns: dict[str, Any] = {
            "group": frames.plain_strings([name] * len(MEASURES)),
            "pairs": summary.count,
            "measure": list(MEASURES),
        }
        parts = [("value", "low", "high", summary.values[0], summary.intervals[0])]
        if self.has_other:
            parts.append(("other", "other_low", "other_high", summary.values[1], summary.intervals[1]))
            difference = summary.values[1] - summary.values[0]
            names = ("difference", "difference_low", "difference_high")
            parts.append((*names, difference, summary.change_intervals[1]))
        for value, low, high, values, bounds in parts:
            columns |= {value: values, low: bounds[:, 0], high: bounds[:, 1]}
        return pd.DataFrame(columns)

    def _pairs(self, show: str) -> pd.DataFrame:
        if show == "moved":
            self._require_other()
        rows = self.pairs.rows
        has_groups = bool(self.groups)
        columns: dict[str, Any] = {
            "line": [row.line for row in rows],
            **({"group": frames.plain_strings([row.group for row in rows])} if has_groups else {}),
            "text_a": frames.plain_strings([row.text for row in rows]),
            "text_b": frames.plain_strings([row.pair or "" for row in rows]),
            "label": self.labels,
            "cosine": self.models[0].cosine,
            "score": self.models[0].values[1],
            "error": self.errors[0],
        }
        if self.has_other:
            columns |= {
                "other_score": self.models[1].values[1],
                "other_error": self.errors[1],
                "moved": self.errors[1] - self.errors[0],
            }
        key = np.abs(columns["moved" if show == "moved" else "error"])
        return pd.DataFrame(columns).iloc[np.argsort(-key, kind="stable")].reset_index(drop=True)

    @property
    def nbytes(self) -> int:
        """Approximate size in bytes of the scores, vectors and texts; a character counts as one byte."""
        texts = sum(len(row.text) + len(row.pair or "") for row in self.pairs.rows)
        models = sum(m.first.nbytes + m.second.nbytes + m.values.nbytes for m in self.models)
        return texts + models
