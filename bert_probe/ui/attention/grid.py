"""Attention as a heatmap, and as a table."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from bert_probe.analyses.attention.attention import AttentionResult
from bert_probe.core import files
from bert_probe.model.trace import Trace
from bert_probe.runtime import shared_cache
from bert_probe.ui import blocks
from bert_probe.ui.attention import shared
from bert_probe.ui.attention.shared import ALL, ViewModel
from bert_probe.ui.components.matrix import heatmap
from bert_probe.ui.export import export
from bert_probe.views import heatmaps
from bert_probe.views.page import CAVEAT
from bert_probe.views.toolbar import ToolbarOptions


def part(trace: Trace, as_table: bool) -> None:
    """Draw one matrix with its controls."""
    drawn = ViewModel.now(trace)
    more = ("renormalise",) if as_table else ("renormalise", "root")
    shared.choose(drawn, ToolbarOptions.of(trace, drawn.view, more, ALL, words=True))
    if not shared.computed(drawn, [drawn.view.layer - 1]):
        return
    found = shared_cache.answers.of(drawn.one(drawn.view.head).of, trace)
    title = heatmaps.attention_title(found)
    if as_table:
        _table(found)
    else:
        heatmap(heatmaps.of_attention(found, drawn.view.options.root), key="attention_matrix")
    # The picture bears its title itself.
    named = f"{title}. " if as_table else ""
    with shared.foot(drawn, f"{named}{_row_sums(drawn, found)} {CAVEAT}"):
        _exports(drawn, found)


def _exports(drawn: ViewModel, shown: AttentionResult) -> None:
    layer, head = shown.question.layer + 1, shown.question.head
    number = "mean" if head == "mean" else str(int(head) + 1)

    def zipped(csv_safe: bool) -> bytes:
        return files.parts_zip(drawn.all().of(drawn.trace).parts(), "attention", csv_safe)

    export(
        shown,
        f"attention-layer{layer}-head{number}",
        [("All layers and heads, long CSV", "attention-all.zip", zipped)],
        ready=lambda: shared.computed(drawn, range(drawn.trace.layers), start=False),
    )


def _table(shown: AttentionResult) -> None:
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


def _row_sums(drawn: ViewModel, shown: AttentionResult) -> str:
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
