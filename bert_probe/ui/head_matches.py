"""The head matches section of the Changes page: which heads of models A and B have similar attention.

The models may have different tokenizers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from bert_probe.analyses.comparison.model_change import check_encodings, check_tokenizers
from bert_probe.analyses.comparison.model_similarity import HeadMatches, HeadMatchesResult
from bert_probe.core import files
from bert_probe.errors import SelectionError
from bert_probe.model.trace import Trace
from bert_probe.text.alignment import CommonSpans, common_spans
from bert_probe.text.words import truncate_text
from bert_probe.ui import blocks, figures, jobs, second_model, state
from bert_probe.ui.components import heatmap
from bert_probe.ui.export import ExtraDownload, export, table_zip
from bert_probe.ui.figures import ACCENT, GRAY, as_text, ink
from bert_probe.views.heatmaps import head_matches_heatmap, matched_head_heatmaps
from bert_probe.views.text import shorten

_PATIENCE = 4.0
"""Number of seconds that the page waits for the result before it shows progress."""
_MAX_SPANS = 200
"""Maximum number of spans for which the figure is drawn. The table always contains all spans."""
_MAX_LETTERS, _LETTER_WIDTH, _PADDING, _SPAN_GAP = 24, 8.0, 14.0, 6.0
"""Maximum number of characters drawn of a token; width in pixels of a character, of the padding of a token,
and of the gap between spans."""


def token_difference(a: Trace, b: Trace) -> SelectionError | None:
    """Return an error that explains how the tokens of two models differ, or None if they are equal."""
    try:
        check_tokenizers(a.checkpoint, b.checkpoint)
        check_encodings(a.encoding, b.encoding)
    except SelectionError as error:
        return error
    return None


def only_matches(reason: SelectionError, a: Trace, b: Trace) -> None:
    """Draw the comparison of two models that split the text into different tokens: only heads are compared.

    Args:
        reason: error that explains how the tokens differ; see `token_difference`.
        a, b: traces of the text by models A and B.

    Raises:
        SelectionError: one of the models truncated the text.
    """
    common_spans(a.encoding, b.encoding)  # raises SelectionError before anything is drawn
    st.info(
        "A and B split the text into different tokens, so their tokens and attention rows cannot be "
        "matched one to one. The heads are compared on the smallest spans that start and end at a token "
        f"boundary of both models.  \n{state.escape(str(reason), 600)}"
    )
    part(a, b, start=True)


def part(a: Trace, b: Trace, start: bool) -> None:
    """Draw the comparison of each head of A with each head of B.

    Args:
        a, b: traces of the text by models A and B.
        start: whether to start the computation without a click.

    Raises:
        SelectionError: one of the models truncated the text.
    """
    corner = second_model.part_title("Which heads have similar attention?")
    result = jobs.answer(
        "head matches",
        HeadMatches().of,
        a,
        b,
        label="Compare all heads",
        unit="layer pairs",
        activity="Comparing the heads",
        note="This analysis compares each head of A with each head of B on this text.",
        start=start,
        patience=_PATIENCE,
    )
    if result is None:
        return
    with st.container(key="matches_finding"):
        st.markdown(state.escape(result.finding, 1000))
    if a.encoding.ids != b.encoding.ids:
        _tokens(result, a, b)
    row, column = _heads(result, a, b)

    def maps(csv_safe: bool) -> bytes:
        return files.to_bytes(result.maps_frame(a, b, row, column), "csv", csv_safe)

    with corner:
        pairs = partial(table_zip, result.showing(show="all"), "diff-pairs")
        more: list[ExtraDownload] = [
            ("All pairs (CSV + provenance)", "diff-pairs.zip", pairs),
            ("The two heads side by side (CSV)", "diff-maps.csv", maps),
        ]
        export(result, "diff-matches", more, label="Export matches")


def _tokens(result: HeadMatchesResult, a: Trace, b: Trace) -> None:
    """Draw which tokens of A and B cover the same characters, as a figure and as a table."""
    spans = result.spans.spans
    table = pd.DataFrame(
        {
            "span": [span.text for span in spans],
            "tokens of A": [" ".join(a.tokens[position].display for position in span.a) for span in spans],
            "tokens of B": [" ".join(b.tokens[position].display for position in span.b) for span in spans],
        }
    )
    if len(spans) <= _MAX_SPANS:
        with st.container(key="aligned"):
            figure = aligned_tokens(result.spans, a, b, blocks.is_dark())
            with st.container(width=int(figure.layout.width)):
                blocks.chart(figure, "The tokens of A above the tokens of B, aligned by characters")
    blocks.caveat(
        f"A has {len(a.tokens):,} tokens, B has {len(b.tokens):,}, and they share "
        f"{len(result.spans.rows):,} spans. Special tokens are aligned by their role. Attention is summed "
        "over the tokens of a key and averaged over the tokens of a query, as for whole words."
    )
    with st.expander("Spans as a table"):
        blocks.table(table, "Spans of the text with their tokens in A and in B")


def _heads(result: HeadMatchesResult, a: Trace, b: Trace) -> tuple[int, int]:
    """Draw the similarity of all heads of A and B, and the attention of the selected pair of heads.

    Return the row and the column of the selected pair in the similarity matrix.
    """
    with st.container(key="judged_matches"):
        left, right = st.columns([1, 1], gap="large")
    with left:
        cell = heatmap(head_matches_heatmap(result), key="matched_heads")
    with right:
        blocks.table(
            result.frame().sort_values("similarity", ascending=False, kind="stable"),
            "The most similar head of B for each head of A, highest similarity first",
            max_height=560,
            column_config={
                "similarity": st.column_config.NumberColumn("similarity", format="%.4f"),
                "mutual": st.column_config.CheckboxColumn(
                    "mutual", help="The two heads are each other's best match."
                ),
            },
        )
    blocks.caveat(
        "Similarity is 1 − total variation: the share of attention that a query puts on the same keys "
        "in both heads, averaged over the queries. The similarity is 1 for identical attention. Any two "
        "heads that attend to [SEP] or to the token itself are similar, so compare the similarity of a "
        "match with the similarity of arbitrary heads. Matches may differ between texts, and heads with "
        "similar attention need not have the same function."
    )
    row, column = (cell.row, cell.column) if cell is not None else result.strongest
    st.subheader("The two heads side by side", anchor=False)
    if cell is None:
        st.caption("These are the two most similar heads. Pin a cell to see another pair.")
    second_model.head_pair_buttons(
        *((layer + 1, head + 1) for layer, head in (result.place(row, 0), result.place(column, 1)))
    )
    with st.container(key="judged_maps"):
        sides = st.columns([1, 1], gap="large")
    for side, matched_map, name in zip(
        sides, matched_head_heatmaps(result, a, b, row, column), "ab", strict=True
    ):
        with side:
            heatmap(matched_map, key=f"matched_{name}")
    return row, column


def aligned_tokens(spans: CommonSpans, a: Trace, b: Trace, dark: bool) -> Any:
    """Return a figure of the tokens of A above those of B, with one column per span."""
    rows = [[_names(a, span.a) for span in spans.spans], [_names(b, span.b) for span in spans.spans]]
    widths = [max(sum(map(_width, names)) for names in pair) for pair in zip(*rows, strict=True)]
    *starts, end = accumulate((width + _SPAN_GAP for width in widths), initial=0.0)
    figure, boxes = go.Figure(), []
    for height, side, row in ((1, "A", rows[0]), (0, "B", rows[1])):
        middles: list[float] = []
        for span, names, start, width in zip(spans.spans, row, starts, widths, strict=True):
            colour = GRAY if len(span.a) == len(span.b) == 1 else ACCENT
            spare = (width - sum(map(_width, names))) / max(len(names), 1)
            for name in names:
                box_width = _width(name) + spare
                boxes.append(_box(start, start + box_width, height, colour))
                middles.append(start + box_width / 2)
                start += box_width
        figure.add_scatter(
            x=middles,
            y=[height] * len(middles),
            mode="text",
            text=[as_text(name) for names in row for name in names],
            textfont={"color": ink(dark)},
            hovertemplate=f"%{{text}}<extra>{side}</extra>",
        )
        figure.add_annotation(x=-8, y=height, text=side, showarrow=False, xanchor="right")
    hidden = {"visible": False, "fixedrange": True}
    figures.apply_layout(
        figure,
        112,
        margin={"l": 0, "r": 8, "t": 4, "b": 4},
        width=max(320, round(end) + 40),
        xaxis={**hidden, "range": [-24, end]},
        yaxis={**hidden, "range": [-0.5, 1.5]},
        shapes=boxes,
        dragmode=False,
    )
    return figure


def _names(trace: Trace, positions: Sequence[int]) -> list[str]:
    return [truncate_text(shorten(trace.tokens[position].display), _MAX_LETTERS) for position in positions]


def _width(name: str) -> float:
    return _LETTER_WIDTH * len(name) + _PADDING


def _box(left: float, right: float, row: int, colour: str) -> dict[str, Any]:
    return {
        "type": "rect",
        "x0": left + 1,
        "x1": right - 1,
        "y0": row - 0.36,
        "y1": row + 0.36,
        "line": {"width": 0},
        "fillcolor": colour,
        "opacity": 0.22,
        "layer": "below",
    }
