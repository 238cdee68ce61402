"""Faithfulness of attributions: the effect of removing the words that a method ranks highest."""

from __future__ import annotations

from collections.abc import Mapping
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
from bert_probe.analyses.outputs.target import REMOVALS, TextVariant, remove_tokens
from bert_probe.core.field_types import Choice, Flag, Number, Optional
from bert_probe.core.inputs import OneOrTwoTraces
from bert_probe.core.question import param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, UnavailableError
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace

REMOVED_SHARES = (0.1, 0.2, 0.5)
"""Shares of the words that are removed, or kept alone; at least one word each."""
RANDOM = "random order"
INTERVAL = (2.5, 97.5)


@question("why checked", command="faithfulness")
class AttributionFaithfulness(TargetQuestion):
    """How well each method predicts the effect of removing words on the number; DeYoung et al. 2020.

    Attributes:
        words: score whole words.
        removal, baseline: as in `Attribution`.
        orders: number of random orders to compare with.
        seed: random seed of these orders.
        rows: the table: "methods" with their faithfulness, or "words" with the scores by each method.
    """

    inputs = OneOrTwoTraces("--pair")

    words: bool = param(Flag(), default=False, about="Score whole words instead of tokens.")
    removal: str | None = param(Optional(Choice(REMOVALS)), default=None, about=REMOVAL_HELP)
    baseline: str | None = param(Optional(Choice(BASELINES)), default=None, about=BASELINE_HELP)
    orders: int = param(Number(1, 1000), default=20, about="Number of random orders.  [default: 20]")
    seed: int = param(Number(0), default=0, about="Seed of the random orders.  [default: 0]")
    rows: str = param(
        Choice(("methods", "words")),
        default="methods",
        key="why_rows",
        display_only=True,
        about="With --check: the table.",
    )

    def of(
        self, trace: Trace, other: Trace | None = None, progress: Progress = no_progress
    ) -> AttributionFaithfulnessResult:
        """Run all methods and measure their faithfulness.

        Args:
            progress: called with the work done and the total.

        Raises:
            UnavailableError, SelectionError, TextError, OutOfMemoryError: as `Attribution.of`. Methods that
                the architecture does not support are listed in the result instead.
            SelectionError: no word can be removed.
        """
        number = self.number(trace, other)
        target = attribution_target(number, self.words, self.removal, self.baseline)
        if not target.free:
            raise SelectionError("The text has no word that can be removed. Give at least two words.")
        resolved = self.about(number, trace)
        inputs = input_record(trace, other)
        value = float(number.of([number.untouched])[0])
        explanations: dict[str, AttributionResult] = {}
        refused: dict[str, str] = {}
        steps = len(methods()) + 1
        for done, (name, method) in enumerate(methods().items()):
            progress(done, steps)
            attribution = Attribution(
                resolved.task, resolved.target, resolved.at, name, self.words, self.removal, self.baseline
            )
            try:
                scores = method.of(target, lambda *_, done=done: progress(done, steps))
            except UnavailableError as error:
                refused[name] = str(error)
            else:
                explanations[name] = attribution_result(attribution, inputs, target, value, scores)
        orders = {name: _rank_units(target, attribution.scores) for name, attribution in explanations.items()}
        random = np.random.default_rng(self.seed)
        orders |= {f"{RANDOM} {index}": random.permutation(target.free) for index in range(self.orders)}
        effects = _effects(target, value, orders, lambda *_: progress(steps - 1, steps))
        progress(steps, steps)
        return AttributionFaithfulnessResult(resolved, inputs, explanations, refused, effects)


def _rank_units(target: AttributionTarget, scores: Array) -> Array:
    """Return the removable units, highest score first."""
    removable = np.array(target.free)
    return removable[np.argsort(-np.nan_to_num(scores[removable]), kind="stable")]


def _effects(
    target: AttributionTarget, value: float, orders: Mapping[str, Array], progress: Progress
) -> Mapping[str, tuple[float, float]]:
    """Return comprehensiveness and sufficiency of each order; each set of words is removed only once."""
    unit_count = len(target.free)
    counts = sorted({max(1, round(share * unit_count)) for share in REMOVED_SHARES})
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
    """Faithfulness of all methods on one number.

    Attributes:
        explanations: method → its scores.
        refused: method → why the architecture does not support it.
        effects: method or random order → comprehensiveness and sufficiency.
    """

    question: AttributionFaithfulness
    explanations: Mapping[str, AttributionResult]
    refused: Mapping[str, str]
    effects: Mapping[str, tuple[float, float]]

    @property
    def random(self) -> Array:
        """Effects of the random orders, float64 [order, comprehensiveness or sufficiency]."""
        effects: Array = np.array(
            [effect for name, effect in self.effects.items() if name.startswith(RANDOM)]
        )
        return effects

    def loo_correlation(self, method: str) -> float:
        """Return Spearman's rank correlation of a method's scores with the leave-one-out effects.

        -1 to 1; NaN for fewer than three words, or if all scores or effects are equal.
        """
        from scipy.stats import spearmanr  # slow to import

        effects, scores = (self.explanations[name].scores for name in ("leave-one-out", method))
        is_measured = ~np.isnan(effects)
        if is_measured.sum() < 3 or np.ptp(effects[is_measured]) == 0 or np.ptp(scores[is_measured]) == 0:
            return float("nan")
        return float(spearmanr(effects[is_measured], scores[is_measured]).statistic)

    @property
    def best(self) -> str:
        """The method with the highest comprehensiveness, other than leave-one-out."""
        candidates = [name for name in self.explanations if name != "leave-one-out"]
        return max(candidates or self.explanations, key=lambda name: self.effects[name][0])

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Description and value of the number, and the methods that are not available."""
        first = next(iter(self.explanations.values()))
        return {"number": first.number, "value": first.value, "not_available": dict(self.refused)}

    def frame(self) -> pd.DataFrame:
        """Return the table that the question selects.

        "words": a row per token or word: position, token, and its score by each method. "methods": a row per
        method, and one for the mean of the random orders: method, comprehensiveness (how much the number
        falls without the highest-ranked words; higher is better), sufficiency (how much it falls with only
        these words; lower is better), foretold (rank correlation with leave-one-out effects), and for the
        random orders the bounds of the middle 95 % of both.
        """
        if self.question.rows == "words":
            return self._by_word()
        rows: list[dict[str, Any]] = [
            {
                "method": name,
                "comprehensiveness": self.effects[name][0],
                "sufficiency": self.effects[name][1],
                "foretold": self.loo_correlation(name),
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
