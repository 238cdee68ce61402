"""Two words that meet in a head, where neither their distance nor the one of them alone says why."""

from __future__ import annotations

import numpy as np

from bert_probe.analyses.attention.attention import Attention
from bert_probe.analyses.attention.head_measures import is_punctuation
from bert_probe.analyses.highlights.thumbnails import Grid
from bert_probe.analyses.highlights.types import HighlightCandidate, HighlightContext, HighlightType, quoted


def _of(seen: HighlightContext) -> HighlightCandidate | None:
    """The largest weight from word to word less what explains it.

    Explained is as much as other words give at the same distance, or as others give to the same word, on
    average, whichever is more. Special tokens take no part, and no word is compared with itself.
    """
    if not seen.attends:
        return None
    units = seen.lens.units
    count = len(units)
    words = np.array([not unit.special for unit in units])
    named = np.array([not unit.special and not is_punctuation(unit) for unit in units])
    distance = np.arange(count) - np.arange(count)[:, None] + count - 1  # [query, key]
    pairs = words & words[:, None] & (distance != count - 1)
    alike = np.bincount(distance[pairs], minlength=2 * count - 1)[distance]  # as far apart as this pair
    askers = np.broadcast_to(pairs.sum(axis=0), pairs.shape)
    possible = pairs & named & named[:, None] & (alike > 1) & (askers > 1)
    if not possible.any():
        return None
    best: tuple[tuple[float, ...], tuple[int, ...]] = ((-np.inf,), ())
    for layer in range(seen.trace.layers):
        weights = np.where(pairs, seen.lens.merge(seen.trace.attention(layer)), 0.0)  # [head, query, key]
        sums = np.stack([np.bincount(distance.ravel(), weight.ravel(), 2 * count - 1) for weight in weights])
        as_far = (sums[:, distance] - weights) / np.maximum(alike - 1, 1)
        as_wanted = (weights.sum(axis=1, keepdims=True) - weights) / np.maximum(askers - 1, 1)
        beyond = np.where(possible, weights - np.maximum(as_far, as_wanted), -np.inf)
        place = tuple(map(int, np.unravel_index(beyond.argmax(), beyond.shape)))
        best = max(
            best, (tuple(float(one[place]) for one in (beyond, weights, as_far, as_wanted)), (layer, *place))
        )
    value, weight, elsewhere, by_others = best[0]
    layer, head, query, key = best[1]
    asking, wanted = quoted(units[query], units), quoted(units[key], units)
    return HighlightCandidate(
        value,
        f"Layer {layer + 1}, head {head + 1}: {asking} gives {weight:.2f} of its attention to {wanted}. "
        f"Words as far apart get {elsewhere:.2f} on average, and other words give it {by_others:.2f}.",
        "attention",
        Attention(layer, head, words=True).address() | {"pins": f"query.{query}"},
        lambda: Grid.of(seen.lens.merge(seen.trace.attention(layer, head)), mark=(query, key)),
    )


KINDS = (
    HighlightType(
        "two words meet",
        "attention from word to word beyond what their distance, or other words, explain; the largest",
        1,
        _of,
    ),
)
