"""Leaving one out: how much the number falls when a token or word is taken away."""

from __future__ import annotations

import numpy as np

from bert_probe.analyses.attribution.methods import (
    AttributionMethod,
    AttributionScores,
    AttributionTarget,
    positions,
)
from bert_probe.analyses.outputs.target import without
from bert_probe.model.progress import Progress


def _of(asked: AttributionTarget, report: Progress) -> AttributionScores:
    number, free = asked.number, asked.free
    variants = [without(number, positions(asked.units[index]), asked.removal) for index in free]
    values = number.of([number.untouched, *variants], report)
    scores = np.full(len(asked.units), np.nan)
    scores[list(free)] = values[0] - values[1:]
    return AttributionScores(scores, {"removal": asked.removal})


METHOD = AttributionMethod(
    name="leave-one-out",
    label="Leave one out",
    meaning="How much the number falls when this word alone is taken away and the model runs again: an "
    "effect, not a guess at one. Two words that say the same can both look unimportant.",
    order=1,
    of=_of,
)
