"""The word whose removal changes the prediction most, and whether attention ranks the same word first."""

from __future__ import annotations

import numpy as np

from bert_probe.analyses.highlights.types import (
    Bars,
    HighlightCandidate,
    HighlightContext,
    HighlightType,
    quote,
)
from bert_probe.errors import SelectionError, TextError, UnavailableError
from bert_probe.model.checkpoint import SENTENCE_SIMILARITY

_MAX_WORDS = 32
"""Maximum number of words of a text, because the model runs once for each removed word."""
_SENTENCES = 10


def _find(context: HighlightContext, other: HighlightContext | None = None) -> HighlightCandidate | None:
    checkpoint = context.trace.made_by
    if checkpoint is None or len(context.lens.units) > _MAX_WORDS:
        return None
    task = SENTENCE_SIMILARITY
    if other is None:
        task = next((task for task in checkpoint.tasks if task != SENTENCE_SIMILARITY), "")
    if task not in checkpoint.tasks:
        return None
    # Imported here, because checkpoints without a task head do not need this module.
    from bert_probe.analyses.attribution.attribution import Attribution

    second = None if other is None else other.trace
    try:
        left_out = Attribution(task, words=True).of(context.trace, second)
        attention = Attribution(task, words=True, method="attention").of(context.trace, second)
    except (UnavailableError, SelectionError, TextError):
        return None
    units, shares = left_out.units, left_out.shares
    if np.isnan(shares).all() or not np.nanmax(np.abs(shares)) > 0:
        return None
    index = int(np.nanargmax(np.abs(shares)))
    decrease = float(left_out.scores[index])
    attended = int(np.nanargmax(attention.shares))
    first = "the same word" if attended == index else quote(units[attended], units)
    of_text = "" if other is None else " of A"
    direction = "decreases" if decrease > 0 else "increases"
    return HighlightCandidate(
        float(np.abs(shares[index])),
        f"Removing {quote(units[index], units)}{of_text} changes the {left_out.number} most: it {direction} "
        f"by {abs(decrease):.2g} from {left_out.value:.2f}. Attention ranks {first} first.",
        "answer",
        {} if task == checkpoint.tasks[0] else {"task": task},
        lambda: Bars(np.nan_to_num(left_out.scores).tolist(), index),
    )


HIGHLIGHT_TYPES = tuple(
    HighlightType(
        "influential word",
        f"change of the {output} when a word is left out, as a share of the changes of all words (maximum)",
        3,
        _find,
        texts,
        sentences=_SENTENCES,
    )
    for texts, output in ((1, "answer"), (2, "cosine similarity of two texts"))
)
