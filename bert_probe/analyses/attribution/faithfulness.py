"""Whether explanations are right: what removing the words does that a method names, against random orders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.attribution.attribution import (
    BASELINE,
    REMOVAL,
    Attribution,
    AttributionResult,
    TargetQuestion,
    explanation,
    subject_of,
)
from bert_probe.analyses.attribution.methods import (
    BASELINES,
    AttributionTarget,
    explained,
    methods,
    positions,
)
from bert_probe.analyses.outputs.target import WITHOUT, Variant, without
from bert_probe.core.field_types import Choice, Flag, Number, Optional
from bert_probe.core.inputs import OneOrTwoTraces
from bert_probe.core.question import param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, UnavailableError
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace

SHARES = (0.1, 0.2, 0.5)
"""Of the words that are taken away first, or kept alone, one after the other; at least one word each."""
RANDOM = "random order"
INTERVAL = (2.5, 97.5)


@question("why checked", command="faithfulness")
class AttributionFaithfulness(TargetQuestion):
    """How well each method foretells what taking words away does to the number; DeYoung et al. 2020.

    Attributes:
        words: score words as a whole.
        removal, baseline: as in `Attribution`.
        orders: random orders to compare with.
        seed: of these.
        rows: the table: the "methods" with their check, or the "words" with what each method says of them.
    """

    inputs = OneOrTwoTraces("--pair")

    words: bool = param(Flag(), default=False, about="Score whole words instead of pieces.")
    removal: str | None = param(Optional(Choice(WITHOUT)), default=None, about=REMOVAL)
    baseline: str | None = param(Optional(Choice(BASELINES)), default=None, about=BASELINE)
    orders: int = param(Number(1, 1000), default=20, about="Number of random orders.  [default: 20]")
    seed: int = param(Number(0), default=0, about="Seed of the random orders.  [default: 0]")
    rows: str = param(
        Choice(("methods", "words")),
        default="methods",
        key="why_rows",
        display_only=True,
        about="Table.",
    )

    def of(
        self, trace: Trace, other: Trace | None = None, report: Progress = no_progress
    ) -> AttributionFaithfulnessResult:
        """All methods, and their check.

        Args:
            report: told how much is done, and of how much.

        Raises:
            UnavailableError, SelectionError, TextError, OutOfMemoryError: as `Attribution.of`; a method that
                the architecture does not support is left out and the result says why.
            SelectionError: no word can be taken away.
        """
        number = self.number(trace, other)
        what = explained(number, self.words, self.removal, self.baseline)
        if not what.free:
            raise SelectionError("There is no word that can be taken away. Write more than one.")
        asked_for = self.about(number, trace)
        subject = subject_of(trace, other)
        value = float(number.of([number.untouched])[0])
        found: dict[str, AttributionResult] = {}
        refused: dict[str, str] = {}
        parts = len(methods()) + 1
        for done, (name, method) in enumerate(methods().items()):
            report(done, parts)
            one = Attribution(
                asked_for.task, asked_for.target, asked_for.at, name, self.words, self.removal, self.baseline
            )
            try:
                scores = method.of(what, lambda *_, done=done: report(done, parts))
            except UnavailableError as error:
                refused[name] = str(error)
            else:
                found[name] = explanation(one, subject, what, value, scores)
        orders = {name: _order(what, one.scores) for name, one in found.items()}
        random = np.random.default_rng(self.seed)
        orders |= {f"{RANDOM} {index}": random.permutation(what.free) for index in range(self.orders)}
        effects = _effects(what, value, orders, lambda *_: report(parts - 1, parts))
        report(parts, parts)
        return AttributionFaithfulnessResult(asked_for, subject, found, refused, effects)


def _order(what: AttributionTarget, scores: Array) -> Array:
    """The units that can be taken away, those that speak most for the number first."""
    free = np.array(what.free)
    return free[np.argsort(-np.nan_to_num(scores[free]), kind="stable")]


def _effects(
    what: AttributionTarget, value: float, orders: Mapping[str, Array], report: Progress
) -> Mapping[str, tuple[float, float]]:
    """Comprehensiveness and sufficiency of each order; each set of words is taken away once."""
    free = len(what.free)
    counts = sorted({max(1, round(share * free)) for share in SHARES})
    wanted: dict[frozenset[int], int] = {}
    for order in orders.values():
        for count in counts:
            for gone in (order[:count], order[count:]):
                wanted.setdefault(frozenset(map(int, gone)), len(wanted))
    values = what.number.of([_taken(what, gone) for gone in wanted], report)

    def mean(order: Array, first: bool) -> float:
        sets = [frozenset(map(int, order[:count] if first else order[count:])) for count in counts]
        return float(np.mean([value - values[wanted[one]] for one in sets]))

    return {name: (mean(order, True), mean(order, False)) for name, order in orders.items()}


def _taken(what: AttributionTarget, gone: frozenset[int]) -> Variant:
    return without(
        what.number, [place for unit in gone for place in positions(what.units[unit])], what.removal
    )


@dataclass(frozen=True, eq=False, repr=False)
class AttributionFaithfulnessResult(Result):
    """All methods on one number, and what taking away the words does that they name.

    Attributes:
        explanations: by method.
        refused: method → why this architecture does not allow it.
        effects: method, or a random order → comprehensiveness and sufficiency.
    """

    question: AttributionFaithfulness
    explanations: Mapping[str, AttributionResult]
    refused: Mapping[str, str]
    effects: Mapping[str, tuple[float, float]]

    @property
    def random(self) -> Array:
        """Of the random orders, float64 [order, comprehensiveness or sufficiency]."""
        found: Array = np.array([both for name, both in self.effects.items() if name.startswith(RANDOM)])
        return found

    def foretold(self, method: str) -> float:
        """Spearman's rank correlation of a method's scores with what taking away each word alone does.

        -1 to 1; NaN for fewer than three words, or where all are alike.
        """
        from scipy.stats import spearmanr  # which takes long to import

        measured, scores = (self.explanations[name].scores for name in ("leave-one-out", method))
        there = ~np.isnan(measured)
        if there.sum() < 3 or np.ptp(measured[there]) == 0 or np.ptp(scores[there]) == 0:
            return float("nan")
        return float(spearmanr(measured[there], scores[there]).statistic)

    @property
    def best(self) -> str:
        """The method whose words change the number most, of those that foretell; leaving out is measured."""
        foretelling = [name for name in self.explanations if name != "leave-one-out"]
        return max(foretelling or self.explanations, key=lambda name: self.effects[name][0])

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The number, and the methods that there are not."""
        first = next(iter(self.explanations.values()))
        return {"number": first.number, "value": first.value, "not_available": dict(self.refused)}

    def frame(self) -> pd.DataFrame:
        """The table that the question shows.

        "words": a row for each token or word: position, token, and its score by each method. "methods": a row
        for each, and one for the random orders with their interval: method, comprehensiveness (how much the
        number falls without the words named first; more is better), sufficiency (how much it falls with these
        alone; less is better), foretold, and for random orders the ends of the middle 95 % of both.
        """
        if self.question.rows == "words":
            return self._by_word()
        rows: list[dict[str, Any]] = [
            {
                "method": name,
                "comprehensiveness": self.effects[name][0],
                "sufficiency": self.effects[name][1],
                "foretold": self.foretold(name),
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
        first, *others = (
            one.frame().rename(columns={"score": name}) for name, one in self.explanations.items()
        )
        return first.join([other.iloc[:, 2:] for other in others])
