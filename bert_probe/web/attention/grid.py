"""Attention as a heatmap, and as a table."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from bert_probe.analyses.attention import AttentionLong, AttentionMap, Head
from bert_probe.results import files
from bert_probe.views import heatmaps
from bert_probe.views.page import CAVEAT
from bert_probe.web import blocks, state, store
from bert_probe.web.attention import shared
from bert_probe.web.attention.shared import Drawn
from bert_probe.web.components.matrix import heatmap
from bert_probe.web.export import export


def part(drawn: Drawn, as_table: bool) -> None:
    """Draw one matrix with its controls."""
    layer, head = _controls(drawn)
    if not shared.computed(drawn, [layer - 1]):
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        specials, renormalise, root = _switches(drawn, as_table)
        asked = drawn.one(layer - 1, head, specials=specials, renormalise=renormalise)
        shown = store.answers.of(asked.of, drawn.trace)
        everything = drawn.all(specials=specials, renormalise=renormalise)
        st.space("stretch")
        _exports(drawn, shown, everything)
    title = heatmaps.attention_title(shown)
    if as_table:
        _table(shown)
    else:
        heatmap(heatmaps.of_attention(shown, root), key="attention_matrix")
    # The picture bears its title itself.
    named = f"{title}. " if as_table else ""
    blocks.caveat(f"{named}{_row_sums(drawn, shown)} {CAVEAT}")


def _controls(drawn: Drawn) -> tuple[int, Head]:
    """Layer from 1 and head from 0; some measures have no heads to choose from."""
    left, right = st.columns([1, 3], gap="medium")
    with left:
        layer = shared.layer_slider(drawn.trace)
    with right:
        if drawn.what.of_heads is None:
            return layer, "mean"
        chosen = state.head("head", drawn.trace.heads)
        return layer, "mean" if chosen == "mean" else int(chosen) - 1


def _switches(drawn: Drawn, as_table: bool) -> tuple[bool, bool, bool]:
    """Special tokens, rows that sum to 1 again, root colours."""
    shares = drawn.what.shared_out(drawn.trace)
    specials = state.switch(
        "specials",
        "Special tokens",
        True,
        "[CLS] and [SEP] often draw most of the attention. Without them the rest is easier to see.",
    )
    renormalise = state.switch(
        "renormalise",
        "Rows sum to 1 again" if shares else "Rows sum to 1",
        False,
        "Divides each row by what is left of it once special tokens are hidden. Turn those off first."
        if shares
        else "Divides each row by its sum, so that rows can be compared.",
        disabled=specials and shares,
    )
    root = not as_table and state.switch(
        "root",
        "Root colours",
        True,
        "Colour runs over the same range either way. With root colours small weights can be seen; without, "
        "colour is proportional to the weight.",
    )
    return specials, renormalise and not (specials and shares), root


def _exports(drawn: Drawn, shown: AttentionMap, everything: AttentionLong) -> None:
    layer, head = shown.question.layer + 1, shown.question.head
    number = "mean" if head == "mean" else str(int(head) + 1)

    def zipped(csv_safe: bool) -> bytes:
        return files.parts_zip(everything.of(drawn.trace).parts(), "attention", csv_safe)

    export(
        shown,
        f"attention-layer{layer}-head{number}",
        [("All layers and heads, long CSV", "attention-all.zip", zipped)],
        ready=lambda: shared.computed(drawn, range(drawn.trace.layers), start=False),
    )


def _table(shown: AttentionMap) -> None:
    """The matrix as numbers, with what each row adds up to."""
    frame = pd.DataFrame(
        shown.weights,
        index=pd.Index(blocks.named(shown.queries), name="query ↓ · key →"),
        columns=blocks.named(shown.keys),
    )
    frame.insert(0, "row sum", shown.row_sums)
    st.dataframe(
        frame,
        width="stretch",
        height=min(38 + 35 * len(frame), 640),
        column_config={str(name): _column(str(name)) for name in frame},
        alt="Attention, a row for each query token",
    )


def _column(name: str) -> Any:
    """Four decimals; a long word must not fill the page with the head of its column."""
    return st.column_config.NumberColumn(format="%.4f", width="medium" if len(name) > 24 else None)


def _row_sums(drawn: Drawn, shown: AttentionMap) -> str:
    """What the rows add up to."""
    if not drawn.what.shared_out(drawn.trace) and not shown.question.renormalise:
        return "These are no shares: rows do not sum to 1."
    if shown.question.specials and not shown.question.renormalise:
        return "Each row sums to 1; columns need not."
    if shown.question.specials:
        return "Each row was divided by its sum, so rows sum to 1."
    if shown.question.renormalise:
        return "Special tokens are hidden and each row was divided by the rest, so rows sum to 1 again."
    sums = shown.row_sums
    return (
        f"Special tokens are hidden: rows now sum to between {sums.min():.2f} and {sums.max():.2f}, "
        "and the rest went to the special tokens."
    )
