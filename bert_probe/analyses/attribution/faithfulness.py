"""Faithfulness of attributions: the effect of removing the words that a method ranks highest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.attribution.attribution import (
    BASELINE_HELP,
    REMOVAL_HELP,
    Attribution,
    AttributionResult,
    TargetQuestion,
    attribution_result,
    input_record,
)
from bert_probe.analyses.attribution.methods import (
    BASELINES,
    AttributionTarget,
    attribution_target,
    methods,
    positions,
)
from bert_probe.analyses.outputs.sentence_similarity import SentencePairQuestion
from bert_probe.analyses.outputs.target import REMOVALS, TextVariant, remove_tokens
from bert_probe.core.field_types import Choice, FieldType, Flag, Number, Optional
from bert_probe.core.inputs import OneOrTwoTraces, SentenceList
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import param, question
from bert_probe.core.result import Result
from bert_probe.errors import ProbeError, SelectionError, UnavailableError
from bert_probe.model.checkpoint import SENTENCE_SIMILARITY, TASKS, Checkpoint
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace, read_only
from bert_probe.text.sentence_files import with_line_numbers

REMOVED_SHARES = (0.1, 0.2, 0.5)
"""Shares of the words with the highest scores that are removed (comprehensiveness) or kept (sufficiency).

Comprehensiveness and sufficiency are averaged over the shares. Each share is rounded to at least one word.
"""
RANDOM = "random order"
INTERVAL = (2.5, 97.5)
"""Percentiles of the random orders that are the bounds of a 95% interval."""


@question("attribution faithfulness", command="faithfulness")
class AttributionFaithfulness(TargetQuestion):
    """Faithfulness of attribution methods: how well they predict the effect of removing words.

    The measures, comprehensiveness and sufficiency, are those of DeYoung et al. 2020.

    Attributes:
        words: score whole words instead of tokens.
        removal, baseline: as in `Attribution`.
        orders: number of random removal orders to compare with.
        seed: seed of the random orders.
        rows: "methods" for a table of the methods and their faithfulness, or "words" for a table of the words
            and their scores by each method.
    """

    inputs = OneOrTwoTraces("--pair")

    words: bool = param(Flag(), default=False, about="Score whole words instead of tokens.")
    removal: str | None = param(Optional(Choice(REMOVALS)), default=None, about=REMOVAL_HELP)
    baseline: str | None = param(Optional(Choice(BASELINES)), default=None, about=BASELINE_HELP)
    orders: int = param(
        Number(1, 1000), default=20, about="Number of random removal orders to compare with.  [default: 20]"
    )
    seed: int = param(Number(0), default=0, about="Seed of the random removal orders.  [default: 0]")
    rows: str = param(
        Choice(("methods", "words")),
        default="methods",
        key="faithfulness_rows",
        display_only=True,
        about="With --check: whether the table has a row for each method or for each word.",
    )

    def of(
        self, trace: Trace, other: Trace | None = None, progress: Progress = no_progress
    ) -> AttributionFaithfulnessResult:
        """Run all attribution methods on a text and measure their faithfulness.

        Args:
            progress: called with the number of steps done and the total.

        Raises:
            UnavailableError, SelectionError, TextError, OutOfMemoryError: see `Attribution.of`. Methods that
                the architecture does not support are listed in the result instead.
            SelectionError: also raised if no word can be removed.
        """
        number = self.number(trace, other)
        target = attribution_target(number, self.words, self.removal, self.baseline)
        if not target.free:
            raise SelectionError(
                "The text has no word that can be removed. Use a text with at least two words."
            )
        resolved = self.about(number, trace)
        inputs = input_record(trace, other)
        value = float(number.of([number.untouched])[0])
        explanations: dict[str, AttributionResult] = {}
        refused: dict[str, str] = {}
        steps = len(methods()) + 1
        for done, (name, method) in enumerate(methods().items()):
            progress(done, steps)
            attribution = Attribution(
                task=resolved.task,
                target=resolved.target,
                at=resolved.at,
                method=name,
                words=self.words,
                removal=self.removal,
                baseline=self.baseline,
                prompt=self.prompt,
                pair_prompt=self.pair_prompt,
                dimensions=self.dimensions,
            )
            try:
                scores = method.of(target, lambda *_, done=done: progress(done, steps))
            except UnavailableError as error:
                refused[name] = str(error)
            else:
                explanations[name] = attribution_result(attribution, inputs, target, value, scores)
        removable = np.array(target.free)
        orders = {
            name: removable[np.argsort(-np.nan_to_num(attribution.scores[removable]), kind="stable")]
            for name, attribution in explanations.items()
        }
        random = np.random.default_rng(self.seed)
        orders |= {f"{RANDOM} {index}": random.permutation(target.free) for index in range(self.orders)}
        effects = _effects(target, value, orders, lambda *_: progress(steps - 1, steps))
        progress(steps, steps)
        return AttributionFaithfulnessResult(resolved, inputs, explanations, refused, effects)


def _effects(
    target: AttributionTarget, value: float, orders: Mapping[str, Array], progress: Progress
) -> Mapping[str, tuple[float, float]]:
    """Return the comprehensiveness and the sufficiency of each order of the words.

    The model runs only once for a set of words that is removed in several orders.

    Args:
        target: the output value to explain.
        value: the target value for the unchanged text.
        orders: mapping from the name of each method or random order to word indices, in that order.
        progress: called with the number of texts done and the total.
    """
    unit_count = len(target.free)
    counts = [max(1, round(share * unit_count)) for share in REMOVED_SHARES]
    indices: dict[frozenset[int], int] = {}
    for order in orders.values():
        for count in counts:
            for removed in (order[:count], order[count:]):
                indices.setdefault(frozenset(map(int, removed)), len(indices))
    values = target.number.of([_remove(target, removed) for removed in indices], progress)

    def mean(order: Array, first: bool) -> float:
        sets = [frozenset(map(int, order[:count] if first else order[count:])) for count in counts]
        return float(np.mean([value - values[indices[units]] for units in sets]))

    return {name: (mean(order, True), mean(order, False)) for name, order in orders.items()}


def _remove(target: AttributionTarget, removed: frozenset[int]) -> TextVariant:
    return remove_tokens(
        target.number,
        [position for unit in removed for position in positions(target.units[unit])],
        target.removal,
    )


@dataclass(frozen=True, eq=False, repr=False)
class AttributionFaithfulnessResult(Result):
    """Faithfulness of all methods for one target output.

    Attributes:
        explanations: mapping from the name of each supported method to its scores.
        refused: mapping from the name of each unsupported method to the reason.
        effects: mapping from the name of each method or random order to its comprehensiveness and
            sufficiency.
    """

    question: AttributionFaithfulness
    explanations: Mapping[str, AttributionResult]
    refused: Mapping[str, str]
    effects: Mapping[str, tuple[float, float]]

    @property
    def random(self) -> Array:
        """Comprehensiveness and sufficiency of each random order, float64 of shape [order, 2]."""
        effects: Array = np.array(
            [effect for name, effect in self.effects.items() if name.startswith(RANDOM)]
        )
        return effects

    def loo_correlation(self, method: str) -> float:
        """Return Spearman's rank correlation of a method's scores with the leave-one-out scores, -1 to 1.

        The correlation is NaN for fewer than three words, or if all scores of either method are equal.
        """
        from scipy.stats import spearmanr  # imported here because the import is slow

        effects, scores = (self.explanations[name].scores for name in ("leave-one-out", method))
        is_measured = ~np.isnan(effects)
        if is_measured.sum() < 3 or np.ptp(effects[is_measured]) == 0 or np.ptp(scores[is_measured]) == 0:
            return float("nan")
        return float(spearmanr(effects[is_measured], scores[is_measured]).statistic)

    @property
    def best(self) -> str:
        """Name of the method with the highest comprehensiveness, leave-one-out excluded."""
        candidates = [name for name in self.explanations if name != "leave-one-out"]
        return max(candidates or self.explanations, key=lambda name: self.effects[name][0])

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Description and value of the target output, and the methods that are not available."""
        first = next(iter(self.explanations.values()))
        return {"number": first.number, "value": first.value, "not_available": dict(self.refused)}

    def frame(self) -> pd.DataFrame:
        """Return a table of the methods or of the words, depending on ``rows`` of the question.

        "words" gives one row per token or word. Columns: position, token, and the score of each method.

        "methods" gives one row per method, and a last row for the mean of the random orders. Columns: method,
        comprehensiveness (how much the target value decreases without the highest-ranked words; higher is
        better), sufficiency (how much it decreases with only these words; lower is better), loo_correlation
        (rank correlation with the leave-one-out scores). The last row also has the bounds of the middle 95%
        of the random orders (``_low`` and ``_high``).
        """
        if self.question.rows == "words":
            return self._by_word()
        rows: list[dict[str, Any]] = [
            {
                "method": name,
                "comprehensiveness": self.effects[name][0],
                "sufficiency": self.effects[name][1],
                "loo_correlation": self.loo_correlation(name),
            }
            for name in self.explanations
        ]
        mean, ends = self.random.mean(axis=0), np.percentile(self.random, INTERVAL, axis=0)
        rows.append(
            {
                "method": "random",
                "comprehensiveness": mean[0],
                "sufficiency": mean[1],
                "comprehensiveness_low": ends[0, 0],
                "comprehensiveness_high": ends[1, 0],
                "sufficiency_low": ends[0, 1],
                "sufficiency_high": ends[1, 1],
            }
        )
        return pd.DataFrame(rows)

    def _by_word(self) -> pd.DataFrame:
        first, *more = (
            result.frame().rename(columns={"score": name}) for name, result in self.explanations.items()
        )
        return first.join([table.iloc[:, 2:] for table in more])


MEASURES = ("comprehensiveness", "sufficiency", "loo_correlation")
RANDOM_ROW = "random"
PAIR_SEPARATOR = "\t"
"""Character between a text and an optional second text on the same line."""


@question("faithfulness summary", command="faithfulness-summary")
class FaithfulnessSummary(SentencePairQuestion):
    """Faithfulness of each attribution method, averaged over texts; see `AttributionFaithfulness`.

    By default, the most probable prediction for each text is explained.

    Attributes:
        task, target, words, removal, baseline, orders, seed, prompt, pair_prompt, dimensions: as in
            `AttributionFaithfulness`.
    """

    inputs = SentenceList()

    task: str | None = param(
        Optional(Choice(TASKS)),
        default=None,
        about="The task to predict, if the model has several task heads.",
    )
    target: str | None = param(
        Optional(FieldType()),
        default=None,
        about="The class, label or word to explain; for answer spans, the rank.",
    )
    words: bool = param(Flag(), default=False, about="Score whole words instead of tokens.")
    removal: str | None = param(Optional(Choice(REMOVALS)), default=None, about=REMOVAL_HELP)
    baseline: str | None = param(Optional(Choice(BASELINES)), default=None, about=BASELINE_HELP)
    orders: int = param(
        Number(1, 1000), default=20, about="Number of random removal orders to compare with.  [default: 20]"
    )
    seed: int = param(Number(0), default=0, about="Seed of the random removal orders.  [default: 0]")

    def of(
        self,
        checkpoint: Checkpoint,
        sentences: Sequence[str],
        truncate: bool = False,
        progress: Progress = no_progress,
    ) -> FaithfulnessSummaryResult:
        """Return the measures of each method for each text.

        Args:
            sentences: the texts, each optionally followed by a tab and a second text.
            truncate: truncate texts that are too long instead of raising an error.
            progress: called with the number of texts done and the total.

        Raises:
            EmptyTextError, TooLongError, TextError, SelectionError: there are no texts, or the prediction for
                a text cannot be explained. The message states the line number of the text.
            UnavailableError, OutOfMemoryError: see `AttributionFaithfulness.of`.
        """
        lines = with_line_numbers(sentences, "text")
        checkpoint = checkpoint.snapshot()
        check = AttributionFaithfulness(
            task=self.task,
            target=self.target,
            words=self.words,
            removal=self.removal,
            baseline=self.baseline,
            orders=self.orders,
            seed=self.seed,
            prompt=self.prompt,
            pair_prompt=self.pair_prompt,
            dimensions=self.dimensions,
        )
        rows: list[Mapping[str, tuple[float, ...]]] = []
        dropped = 0
        for number, line in lines:
            progress(len(rows), len(lines))
            try:
                measures, truncated_tokens = self._measures(check, checkpoint, line, truncate)
            except ProbeError as error:
                raise type(error)(f"Line {number}: {error}") from None
            rows.append(measures)
            dropped += truncated_tokens
        progress(len(lines), len(lines))
        values = np.array(
            [[row.get(name, (np.nan,) * len(MEASURES)) for name in _row_names()] for row in rows]
        )
        inputs = InputRecord.of_sentences(checkpoint, [line for _, line in lines], dropped)
        return FaithfulnessSummaryResult(self, inputs, read_only(values))

    def _measures(
        self, check: AttributionFaithfulness, checkpoint: Checkpoint, line: str, truncate: bool
    ) -> tuple[Mapping[str, tuple[float, ...]], int]:
        """Return the measures of each method on one line of text, and the number of truncated tokens."""
        first, tab, second = line.partition(PAIR_SEPARATOR)
        is_similarity = (self.task or next(iter(checkpoint.tasks), None)) == SENTENCE_SIMILARITY
        pair = second if tab else None
        if is_similarity and pair is not None:
            traces = [checkpoint.trace(text, truncate=truncate) for text in (first, pair)]
        else:
            traces = [checkpoint.trace(first, pair, truncate)]
        result = check.of(traces[0], traces[1] if is_similarity and tab else None)
        measures = {
            name: (*result.effects[name], result.loo_correlation(name)) for name in result.explanations
        }
        measures[RANDOM_ROW] = (*result.random.mean(axis=0), np.nan)
        return measures, sum(trace.encoding.dropped for trace in traces)


def _row_names() -> tuple[str, ...]:
    return (*methods(), RANDOM_ROW)


@dataclass(frozen=True, eq=False, repr=False)
class FaithfulnessSummaryResult(Result):
    """Faithfulness of each method over many texts.

    Attributes:
        values: measures of each method on each text, float64 of shape [text, method, measure]. The methods
            are in the order of `methods`, followed by the mean of the random orders; the measures are in the
            order of `MEASURES`. A value is NaN if the method or its rank correlation is not available.
    """

    question: FaithfulnessSummary
    values: Array

    @property
    def means(self) -> Array:
        """Mean of each measure over the texts, shape [method, measure].

        NaN values are ignored; the mean is NaN if all values are NaN.
        """
        counts = (~np.isnan(self.values)).sum(axis=0)
        means: Array = np.divide(
            np.nansum(self.values, axis=0), counts, out=np.full(counts.shape, np.nan), where=counts > 0
        )
        return means

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per method, with the random orders in the last row.

        The columns are the method, the `MEASURES` and the number of texts.
        """
        table: dict[str, Any] = {"method": _row_names()}
        table |= dict(zip(MEASURES, self.means.T, strict=True))
        return pd.DataFrame(table | {"texts": (~np.isnan(self.values[..., 0])).sum(axis=0)})
