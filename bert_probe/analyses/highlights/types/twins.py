"""Two tokens: different ones whose vectors end up most alike, and one that comes twice and ends up unlike."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from bert_probe.analyses.highlights.thumbnails import Grid
from bert_probe.analyses.highlights.types import HighlightCandidate, HighlightContext, HighlightType, quoted
from bert_probe.analyses.vectors.cosine import cosine, cosine_of_rows
from bert_probe.analyses.vectors.similarity import Similarity


def _of(seen: HighlightContext) -> HighlightCandidate | None:
    """Of different entries of the vocabulary, and not of one word: those are alike anyway.

    Of a pair of texts, one token of each, as their page compares them.
    """
    own, trace = seen.own, seen.trace
    if not own or not trace.states or not seen.is_short:
        return None
    ids = np.array([token.id for token in own])
    words = np.array([(token.segment, -1 if token.word is None else token.word) for token in own])
    apart = np.triu(ids[:, None] != ids, k=1) & (words[:, None] != words).any(axis=-1)
    if trace.encoding.pair is not None:
        apart &= words[:, None, 0] != words[:, 0]
    cosines = cosine(*2 * [seen.vectors(-1)]).astype(np.float64)
    apart &= ~np.isnan(cosines)
    if not apart.any():
        return None
    one, other = map(int, np.unravel_index(np.where(apart, cosines, -2.0).argmax(), cosines.shape))
    value = float(cosines[one, other])
    return HighlightCandidate(
        value,
        f"After layer {trace.layers} {quoted(own[one], own)} and {quoted(own[other], own)} are most alike of "
        f"all different tokens: cosine {value:.2f}, where two of them have {cosines[apart].mean():.2f} on "
        "average.",
        "similarity",
        Similarity().address(),
        lambda: Grid.of(cosines, mark=(one, other)),
    )


def _twice(seen: HighlightContext) -> HighlightCandidate | None:
    """Of a pair of texts, one token of each, as their page compares them."""
    own, trace = seen.own, seen.trace
    if not trace.states or not seen.is_short:
        return None
    apart = trace.encoding.pair is not None
    pairs = [
        (one, other)
        for one, other in combinations(range(len(own)), 2)
        if own[one].id == own[other].id and not (apart and own[one].segment == own[other].segment)
    ]
    if not pairs:
        return None
    ends = seen.vectors(-1)
    cosines = cosine_of_rows(*(ends[[pair[side] for pair in pairs]] for side in (0, 1)))
    if np.isnan(cosines).any():
        return None
    place = int(cosines.argmin())
    one, other = pairs[place]
    value = float(cosines[place])
    mean = f", where such pairs have {cosines.mean():.2f} on average" if len(pairs) > 1 else ""
    return HighlightCandidate(
        1 - value,
        f"{quoted(own[one], own)} and {quoted(own[other], own)}, one entry of the vocabulary, have a cosine "
        f"of {value:.2f} after layer {trace.layers}{mean}.",
        "similarity",
        Similarity().address(),
        lambda: Grid.of(cosine(ends, ends), mark=(one, other)),
    )


KINDS = (
    HighlightType(
        "one token twice",
        "1 − cosine of two places of one token after the last layer, largest of all",
        7,
        _twice,
        alone=True,
    ),
    HighlightType(
        "two tokens alike",
        "cosine of two different tokens after the last layer, largest of all",
        4,
        _of,
        alone=True,
    ),
)
