"""Heatmaps of token pair contributions and of residue contacts, and texts with shaded tokens."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from bert_probe.analyses.attention.contacts import ContactsResult
from bert_probe.analyses.attribution.attribution import SimilarityAttributionResult
from bert_probe.analyses.outputs.sentence_similarity import SentenceSimilarityResult
from bert_probe.analyses.retrieval.late_interaction import TokenMatches
from bert_probe.analyses.retrieval.search_explanation import TokenContributions
from bert_probe.analyses.vectors.pooling import SCORES
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Array
from bert_probe.views.heatmaps import COSINES, mark_prompt, token_pair_heatmap
from bert_probe.views.matrix import Heatmap, HeatmapSpec
from bert_probe.views.palette import Scale
from bert_probe.views.text import labels, positions

_POSITIVE, _NEGATIVE = "99,91,228", "194,96,26"
"""RGB colors of positive and negative values, readable on light and dark backgrounds."""
_STRONGEST: Final = 0.75
"""Opacity of the span with the largest absolute value."""


@dataclass(frozen=True)
class ShadedSpan:
    """A span of characters, and the value that determines its color and opacity."""

    start: int
    end: int
    value: float


def shaded_text(text: str, spans: Sequence[ShadedSpan], largest: float) -> str:
    """Return the text as HTML. Each span has a background color and its value as a tooltip.

    Args:
        spans: spans in any order; empty and overlapping spans are skipped.
        largest: absolute value with the highest opacity.
    """
    parts, end = [], 0

    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        if span.start < end or span.end <= span.start:
            # Byte-level tokenizers may split one character into several tokens with the same span.
            continue
        parts.append(html.escape(text[end : span.start]))
        opacity = _STRONGEST * min(abs(span.value) / largest, 1.0) if largest else 0.0
        color = _POSITIVE if span.value >= 0 else _NEGATIVE
        parts.append(
            f'<span style="background-color:rgba({color},{opacity:.3f})" title="{span.value:+.4f}">'
            f"{html.escape(text[span.start : span.end])}</span>"
        )
        end = span.end
    parts.append(html.escape(text[end:]))
    return f'<p class="shaded-text" style="white-space:pre-wrap; overflow-wrap:anywhere">{"".join(parts)}</p>'


def sentence_similarity_heatmap(result: SentenceSimilarityResult) -> Heatmap:
    """Return a heatmap of the contribution of each token pair to the score of two sentences."""
    pairs = f"pair of tokens to the {result.recipe.score_name}"
    heatmap = _contributions(result.percent, result.a.tokens, result.b.tokens, pairs, "contributions")
    rows, columns = map(mark_prompt, (heatmap.rows, heatmap.columns), result.prompt_positions)
    return heatmap._replace(rows=rows, columns=columns)


def search_explanation_heatmap(part: TokenContributions) -> Heatmap:
    """Return a heatmap with the contribution of each pair of a query token and a document token."""
    tokens, pairs = (part.query.tokens, part.document.tokens), f"pair of tokens to the {part.score_name}"
    heatmap = _contributions(part.percent, *tokens, pairs, "search-contributions", ("query", "document"))
    rows, columns = map(mark_prompt, (heatmap.rows, heatmap.columns), part.prompt_positions)
    return heatmap._replace(rows=rows, columns=columns)


def token_matches_heatmap(part: TokenMatches) -> Heatmap:
    """Return a heatmap with the similarity of each query token to each document token.

    The best match of each token of the query is outlined.
    """
    is_cosine = float(np.abs(part.similarities).max()) <= 1 + 1e-6
    heatmap = token_pair_heatmap(
        part.similarities,
        part.query.tokens,
        part.document.tokens,
        ("query", "document"),
        COSINES if is_cosine else Scale.around_zero(part.similarities, coverage=1),
        "similarity",
        "Similarity between each query token and each document token; the best match of each row is outlined",
        "token-matches",
    )
    marked = [(row, int(column)) for row, column in enumerate(part.best)]
    return heatmap._replace(drawing={**heatmap.drawing, "marked": marked})


def similarity_attribution_heatmap(result: SimilarityAttributionResult) -> Heatmap:
    """Return a heatmap with the contribution of each pair of input tokens to the score of two sentences."""
    name = f"pair of input tokens to the {SCORES[result.similarity]}"
    heatmap = _contributions(result.percent, result.tokens_a, result.tokens_b, name, "contributions-input")
    rows, columns = map(mark_prompt, (heatmap.rows, heatmap.columns), result.prompt_positions)
    return heatmap._replace(rows=rows, columns=columns)


def _contributions(
    percent: Array,
    a: Sequence[Token],
    b: Sequence[Token],
    pairs: str,
    file: str,
    axes: tuple[str, str] = ("A", "B"),
) -> Heatmap:
    title, scale = f"Contribution of each {pairs}, in hundredths", Scale.around_zero(percent, coverage=1)
    return token_pair_heatmap(percent, a, b, axes, scale, "hundredths", title, file)


def contacts_title(result: ContactsResult) -> str:
    """Return the title of a contact map: predicted contacts, or APC-corrected attention."""
    if result.is_prediction:
        return "Predicted contacts"
    layer, head = result.question.layer, result.question.head
    if layer is None:
        place = "mean over all heads"
    else:
        place = f"layer {layer + 1}, " + (
            "mean over the heads" if head == "mean" else f"head {int(head) + 1}"
        )
    return f"APC-corrected attention ({place}), which is not a contact prediction"


def contacts_heatmap(result: ContactsResult) -> Heatmap:
    """Return a heatmap with the contact values of all residue pairs.

    For attention, the color scale is determined by residue pairs with the required separation, because
    neighboring residues have much larger values.
    """
    numbers = result.numbers
    is_far = np.abs(numbers[:, None] - numbers) >= result.question.separation
    far = result.values[is_far & np.isfinite(result.values)]
    scale = Scale("sequential", 0, 1)
    if not result.is_prediction:
        scale = Scale.around_zero(far if far.size else np.ones(1))
    drawing = HeatmapSpec(
        scale=scale,
        row_axis="residue",
        column_axis="residue",
        value_name=result.value_name,
        caption=contacts_title(result),
        whole=True,
        row_positions=positions(result.residues),
        column_positions=positions(result.residues),
        file_name="contacts",
    )
    return Heatmap(result.values, labels(result.residues), labels(result.residues), drawing)
