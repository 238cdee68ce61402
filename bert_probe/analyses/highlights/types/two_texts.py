"""Two texts that were read by themselves: how alike they are, and a token that both have."""

from __future__ import annotations

import numpy as np

from bert_probe.analyses.highlights.thumbnails import Bars, Curves, Grid, Picture
from bert_probe.analyses.highlights.types import HighlightCandidate, HighlightContext, HighlightType, quoted
from bert_probe.analyses.outputs.sentence_similarity import SentenceSimilarity, SentenceSimilarityResult
from bert_probe.analyses.vectors.cosine import cosine_of_rows
from bert_probe.analyses.vectors.similarity import Similarity
from bert_probe.errors import UnavailableError
from bert_probe.model.checkpoint import COMPARING


def _alike(a: HighlightContext, b: HighlightContext) -> HighlightCandidate | None:
    if a.trace.made_by is None or not a.trace.made_by.pools:
        return None
    try:
        found = SentenceSimilarity("contributions").of(a.trace, b.trace)
    except UnavailableError:
        return None
    if np.isnan(found.cosine):
        return None
    said, picture = _pairs(found)
    return HighlightCandidate(
        found.cosine,
        f"A and B have a cosine of {found.cosine:.2f}.{said}",
        "answer",
        {} if a.trace.made_by.tasks[0] == COMPARING else {"task": COMPARING},
        lambda: picture,
    )


def _pairs(found: SentenceSimilarityResult) -> tuple[str, Picture]:
    """The pair of tokens that adds most, where the cosine is a sum over pairs."""
    if not found.adds_up:
        return "", Bars([found.cosine], 0)
    rows, columns = ([token for token in one.tokens if not token.special] for one in (found.a, found.b))
    places = [[token.position for token in tokens] for tokens in (rows, columns)]
    cells = found.contributions[np.ix_(*places)]
    row, column = map(int, np.unravel_index(cells.argmax(), cells.shape))
    most = float(cells[row, column])
    return (
        f" Of all pairs of tokens, special ones aside, {quoted(rows[row], rows)} of A and "
        f"{quoted(columns[column], columns)} of B add most to it: {most:.3f}.",
        Grid.of(cells, max(most, np.finfo(np.float64).tiny), (row, column)),
    )


def _shared(a: HighlightContext, b: HighlightContext) -> HighlightCandidate | None:
    """Of the tokens that both have, the one whose vectors are least alike in the end."""
    last = a.trace.layers
    pairs = [
        (one, other)
        for one, first in enumerate(a.own)
        for other, second in enumerate(b.own)
        if first.id == second.id
    ]
    if not pairs or not a.trace.states:
        return None
    left, right = ([pair[side] for pair in pairs] for side in (0, 1))
    cosines = cosine_of_rows(*(seen.vectors(last)[rows] for seen, rows in ((a, left), (b, right))))
    if np.isnan(cosines).any():
        return None
    place = int(cosines.argmin())
    one, other = pairs[place]
    value = float(cosines[place])
    mean = f", where such tokens have {cosines.mean():.2f} on average" if len(pairs) > 1 else ""

    def picture() -> Picture:
        curves = [
            cosine_of_rows(a.vectors(layer)[left], b.vectors(layer)[right]) for layer in range(last + 1)
        ]
        return Curves(
            [float(curve[place]) for curve in curves], [float(curve.mean()) for curve in curves], last
        )

    return HighlightCandidate(
        1 - value,
        f"{quoted(a.own[one], a.own)} of A and {quoted(b.own[other], b.own)} of B, one entry of the "
        f"vocabulary, have a cosine of {value:.2f} after layer {last}{mean}.",
        "similarity",
        Similarity().address(),
        picture,
    )


KINDS = (
    HighlightType("two texts alike", "cosine of the vectors of two texts", 0, _alike, texts=2),
    HighlightType(
        "one token in two texts",
        "1 − cosine of a token's vectors in two texts after the last layer, largest of all that both have",
        1,
        _shared,
        texts=2,
    ),
)
