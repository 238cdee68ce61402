"""Which heads of two models attend alike on one text, whatever tokens either reads it in."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pandas as pd
import streamlit as st

from bert_probe.analyses.comparison.head_matches import HeadMatches, HeadMatchesResult
from bert_probe.analyses.comparison.model_change import check_encodings, check_tokenizers
from bert_probe.core import files
from bert_probe.errors import SelectionError
from bert_probe.model.trace import Trace
from bert_probe.text.common_spans import common_spans
from bert_probe.ui import blocks, figures, jobs, state
from bert_probe.ui.changes import parts, second
from bert_probe.ui.changes.figures import MOST_SPANS, cuts
from bert_probe.ui.components.matrix import heatmap
from bert_probe.ui.export import export, zipped
from bert_probe.views.changes import of_matched_heads, of_matched_maps

_PATIENCE = 4.0
"""Seconds that the page waits where it shows nothing else."""


def apart(a: Trace, b: Trace) -> SelectionError | None:
    """Why the two models do not read the text in the same tokens; None where they do."""
    try:
        check_tokenizers(a.checkpoint, b.checkpoint)
        check_encodings(a.encoding, b.encoding)
    except SelectionError as error:
        return error
    return None


def instead(why: SelectionError, a: Trace, b: Trace) -> None:
    """What can be said of two models that read the text in different tokens.

    Raises:
        SelectionError: one of them has not read all of it.
    """
    common_spans(a.encoding, b.encoding)  # which refuses before anything is drawn
    st.info(
        "A and B read the text in different tokens, so that no token and no row of attention of the one has "
        "a counterpart in the other. Their heads are compared on the smallest parts of the text at whose "
        f"ends both cut it.  \n{state.plain(str(why), 600)}"
    )
    part(a, b, start=True)


def part(a: Trace, b: Trace, start: bool) -> None:
    """Each head of A with each head of B.

    Args:
        start: without being asked to.

    Raises:
        SelectionError: one of them has not read all of the text.
    """
    corner = parts.title("Which heads attend alike?")
    found = jobs.answered(
        "matches of heads",
        HeadMatches().of,
        a,
        b,
        label="Compare all heads",
        unit="pairs of layers",
        note="Each head of A with each head of B, on this text.",
        start=start,
        patience=_PATIENCE,
    )
    if found is None:
        return
    with st.container(key="matches_finding"):
        st.markdown(state.plain(found.finding, 1000))
    if a.encoding.ids != b.encoding.ids:
        _tokens(found, a, b)
    row, column = _heads(found, a, b)
    with corner:
        pairs = partial(zipped, found.showing(show="all"), "diff-pairs")
        maps = partial(_maps, partial(found.maps_frame, a, b, row, column))
        more = [
            ("All pairs, CSV + provenance", "diff-pairs.zip", pairs),
            ("The two heads side by side, CSV", "diff-maps.csv", maps),
        ]
        export(found, "diff-matches", more, label="Export matches")


def _maps(frame: Callable[[], pd.DataFrame], csv_safe: bool) -> bytes:
    return files.to_bytes(frame(), "csv", csv_safe)


def _tokens(found: HeadMatchesResult, a: Trace, b: Trace) -> None:
    """The tokens of both, one above the other where they are of the same characters."""
    spans = found.spans.spans
    table = pd.DataFrame(
        {
            "part of the text": [span.text for span in spans],
            "tokens of A": [" ".join(a.tokens[place].display for place in span.a) for span in spans],
            "tokens of B": [" ".join(b.tokens[place].display for place in span.b) for span in spans],
        }
    )
    if len(spans) <= MOST_SPANS:
        with st.container(key="aligned"):
            figure = cuts(found.spans, a, b, blocks.dark())
            with st.container(width=int(figure.layout.width)):
                st.plotly_chart(
                    figure,
                    width="stretch",
                    config=figures.CONFIG,
                    alt="The tokens of A above those of B, by the characters that they stand for",
                )
    blocks.caveat(
        f"{len(a.tokens):,} tokens of A and {len(b.tokens):,} of B; {len(found.spans.rows):,} parts at whose "
        "ends both cut, special tokens by their role. Attention is summed over the tokens of a key and "
        "averaged over those of a query, as the pieces of a word are merged."
    )
    with st.expander("The parts as a table"):
        st.dataframe(
            table,
            hide_index=True,
            width="stretch",
            height=min(38 + 35 * len(table), 420),
            alt="Parts of the text, with the tokens that they are in A and in B",
        )


def _heads(found: HeadMatchesResult, a: Trace, b: Trace) -> tuple[int, int]:
    """All heads against all, and the two that are chosen, whose row and column it returns."""
    with st.container(key="judged_matches"):
        left, right = st.columns([1, 1], gap="large")
    with left:
        cell = heatmap(of_matched_heads(found), key="matched_heads")
    with right:
        st.dataframe(
            found.frame().sort_values("similarity", ascending=False, kind="stable"),
            hide_index=True,
            width="stretch",
            height=560,
            column_config={
                "similarity": st.column_config.NumberColumn("similarity", format="%.4f"),
                "mutual": st.column_config.CheckboxColumn("mutual", help="Each is the other's best match."),
            },
            alt="For each head of A the head of B that is most like it, the most alike first",
        )
    blocks.caveat(
        "Similarity: 1 − total variation, the share of its attention that a query gives to the same keys in "
        "both, averaged over the queries; 1 for the same attention. Heads that both look at [SEP], or at the "
        "token itself, are alike whatever else they do: judge a match by what any two heads have. On another "
        "text other heads may match, and heads that attend alike need not do the same."
    )
    row, column = (cell.row, cell.column) if cell is not None else found.strongest
    st.subheader("The two side by side", anchor=False)
    if cell is None:
        st.caption("The most alike; click a cell, or press Enter on it, to see two others.")
    second.lead_to_both(
        *((layer + 1, head + 1) for layer, head in (found.place(row, 0), found.place(column, 1)))
    )
    with st.container(key="judged_maps"):
        sides = st.columns([1, 1], gap="large")
    for side, matched_map, name in zip(sides, of_matched_maps(found, a, b, row, column), "ab", strict=True):
        with side:
            heatmap(matched_map, key=f"matched_{name}")
    return row, column
