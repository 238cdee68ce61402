"""What the model's answer depends on most, by leaving out each word, and whether attention says the same."""

from __future__ import annotations

import numpy as np

from bert_probe.analyses.highlights.thumbnails import Bars
from bert_probe.analyses.highlights.types import HighlightCandidate, HighlightContext, HighlightType, quoted
from bert_probe.errors import SelectionError, TextError, UnavailableError
from bert_probe.model.checkpoint import COMPARING

MOST_WORDS = 32
"""Of a text: each is left out once, and the model runs again."""
_SENTENCES = 10


def _of(seen: HighlightContext, other: HighlightContext | None = None) -> HighlightCandidate | None:
    checkpoint = seen.trace.made_by
    if checkpoint is None or len(seen.lens.units) > MOST_WORDS:
        return None
    task = (
        COMPARING if other is not None else next((task for task in checkpoint.tasks if task != COMPARING), "")
    )
    if task not in checkpoint.tasks:
        return None
    # Not above: a text without an answer needs none of the ways to explain one.
    from bert_probe.analyses.attribution.attribution import Attribution

    second = None if other is None else other.trace
    try:
        left_out = Attribution(task, words=True).of(seen.trace, second)
        attention = Attribution(task, words=True, method="attention").of(seen.trace, second)
    except (UnavailableError, SelectionError, TextError):
        return None
    units, shares = left_out.units, left_out.shares
    if np.isnan(shares).all() or not np.nanmax(np.abs(shares)) > 0:
        return None
    place = int(np.nanargmax(np.abs(shares)))
    fall = float(left_out.scores[place])
    looked_at = int(np.nanargmax(attention.shares))
    agrees = (
        "Attention alone puts the same word first."
        if looked_at == place
        else f"Attention alone puts {quoted(units[looked_at], units)} first."
    )
    whose = "" if other is None else "of A "
    moves = f"{'falls' if fall > 0 else 'rises'} by {abs(fall):.2g} from {left_out.value:.2f}"
    return HighlightCandidate(
        float(np.abs(shares[place])),
        f"Without {quoted(units[place], units)} {whose}the {left_out.number} {moves}, more than without any "
        f"other word. {agrees}",
        "answer",
        {} if task == checkpoint.tasks[0] else {"task": task},
        lambda: Bars(np.nan_to_num(left_out.scores).tolist(), place),
    )


KINDS = tuple(
    HighlightType(
        "what the answer depends on",
        f"change of the {what} without a word, as a share of those of all words; the largest",
        3,
        _of,
        texts,
        sentences=_SENTENCES,
    )
    for texts, what in ((1, "answer"), (2, "cosine of two texts"))
)
