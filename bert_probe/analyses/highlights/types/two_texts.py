"""Two separate texts: how similar they are, and how much a shared token differs between them."""

from __future__ import annotations

import numpy as np

from bert_probe.analyses.highlights.thumbnails import Bars, Curves, Grid, Picture
from bert_probe.analyses.highlights.types import HighlightCandidate, HighlightContext, HighlightType, quote
from bert_probe.analyses.highlights.types.token_pairs import repeated_token_sentence
from bert_probe.analyses.outputs.sentence_similarity import SentenceSimilarity, SentenceSimilarityResult
from bert_probe.analyses.vectors.similarity import Similarity, cosine_of_rows
from bert_probe.errors import CheckpointError, UnavailableError
from bert_probe.model.checkpoint import SENTENCE_SIMILARITY

_NAMES = {"cosine": "cosine similarity"}


def _find_similarity(a: HighlightContext, b: HighlightContext) -> HighlightCandidate | None:
    if a.trace.made_by is None or not a.trace.made_by.has_pooling:
        return None
    try:
        result = SentenceSimilarity("contributions").of(a.trace, b.trace)
    except (CheckpointError, UnavailableError):
        return None
    if np.isnan(result.score):
        return None
    contribution, picture = _largest_contribution(result)
    return HighlightCandidate(
        result.score,
        f"The {_NAMES.get(result.recipe.similarity, result.recipe.score_name)} of A and B is "
        f"{result.score:.2f}.{contribution}",
        "answer",
        {} if a.trace.made_by.tasks[0] == SENTENCE_SIMILARITY else {"task": SENTENCE_SIMILARITY},
        lambda: picture,
    )


def _largest_contribution(result: SentenceSimilarityResult) -> tuple[str, Picture]:
    """Return a sentence and a thumbnail for the token pair that contributes most to the score.

    If the score is not a sum over pairs, the sentence is "" and the thumbnail shows the score.
    """
    if result.not_a_sum:
        return "", Bars([result.score], 0)
    rows, columns = ([token for token in text.tokens if not token.special] for text in (result.a, result.b))
    positions = [[token.position for token in tokens] for tokens in (rows, columns)]
    cells = result.contributions[np.ix_(*positions)]
    row, column = map(int, np.unravel_index(cells.argmax(), cells.shape))
    largest = float(cells[row, column])
    return (
        f" {quote(rows[row], rows)} of A and {quote(columns[column], columns)} of B contribute most to it: "
        f"{largest:.3f} (special tokens excluded).",
        Grid.of(cells, max(largest, np.finfo(np.float64).tiny), (row, column)),
    )


def _find_shared(a: HighlightContext, b: HighlightContext) -> HighlightCandidate | None:
    """Find the token shared by both texts whose two vectors are least similar after the last layer."""
    last = a.trace.layers
    pairs = [
        (row, column)
        for row, first in enumerate(a.content_tokens)
        for column, second in enumerate(b.content_tokens)
        if first.id == second.id
    ]
    if not pairs or not a.trace.states:
        return None
    left, right = ([pair[side] for pair in pairs] for side in (0, 1))
    cosines = cosine_of_rows(a.vectors(last)[left], b.vectors(last)[right])
    if np.isnan(cosines).any():
        return None
    index = int(cosines.argmin())
    row, column = pairs[index]
    value = float(cosines[index])
    first = quote(a.content_tokens[row], a.content_tokens)
    second = quote(b.content_tokens[column], b.content_tokens)

    def picture() -> Picture:
        curves = [
            cosine_of_rows(a.vectors(layer)[left], b.vectors(layer)[right]) for layer in range(last + 1)
        ]
        return Curves(
            [float(curve[index]) for curve in curves], [float(curve.mean()) for curve in curves], last
        )

    return HighlightCandidate(
        1 - value,
        repeated_token_sentence(
            f"{first} of A and {second} of B", value, last, float(cosines.mean()), len(pairs)
        ),
        "similarity",
        Similarity().address(),
        picture,
    )


HIGHLIGHT_TYPES = (
    HighlightType("text similarity", "similarity score of the two texts", 0, _find_similarity, texts=2),
    HighlightType(
        "shared token",
        "cosine distance between a token's vectors in the two texts after the last layer (maximum over "
        "shared tokens)",
        1,
        _find_shared,
        texts=2,
    ),
)
