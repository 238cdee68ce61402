"""Leave-one-out: how much the target value falls when one token or word is removed."""

from __future__ import annotations

import numpy as np

from bert_probe.analyses.attribution.methods import (
    AttributionMethod,
    AttributionScores,
    AttributionTarget,
    positions,
)
from bert_probe.analyses.outputs.target import remove_tokens
from bert_probe.model.progress import Progress


def _scores(target: AttributionTarget, progress: Progress) -> AttributionScores:
    number, removable = target.number, target.free
    variants = [remove_tokens(number, positions(target.units[index]), target.removal) for index in removable]
    values = number.of([number.untouched, *variants], progress)
    scores = np.full(len(target.units), np.nan)
    scores[list(removable)] = values[0] - values[1:]
    return AttributionScores(scores, {"removal": target.removal})


METHOD = AttributionMethod(
    name="leave-one-out",
    label="Leave one out",
    meaning="How much the explained output decreases when only this word is removed and the model runs "
    "again: a measured effect, not an estimate. Words that are redundant may each seem "
    "unimportant.",
    order=1,
    of=_scores,
)
