"""Elements that the parts of the page Heads share: choice of measure, heatmap and table of heads."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from bert_probe.server import callbacks, paths
from bert_probe.ui import blocks, state
from bert_probe.ui.attention import view_state
from bert_probe.ui.components.matrix import heatmap
from bert_probe.views.matrix import Heatmap
from bert_probe.views.measures import MEASURES, HeadMeasure

ATTENTION = paths.page_script("attention")
CLICK_HINT = "Click a cell, or press Enter on it, to select a head."
WORDS_HELP = "Merge subword tokens into words before measuring."


def choose_measure() -> tuple[str, HeadMeasure]:
    """Draw a select box of the measures; return the name and the description of the selected one."""
    with st.container(width=340):
        name = state.selectbox(
            "measure",
            "Measure",
            {name: f"{measure.group}: {measure.name}" for name, measure in MEASURES.items()},
            "previous",
        )
    return name, MEASURES[name]


def head_heatmap(data: Heatmap, key: str) -> tuple[int, int] | None:
    """Draw a heatmap of layers × heads; return layer and head of the pinned cell, from 1."""
    cell = heatmap(data, key=key)
    return None if cell is None else (cell.row + 1, cell.column + 1)


def head_table(table: pd.DataFrame, numbers: dict[str, str], alt: str, height: int = 430) -> None:
    """Draw a sortable table of heads.

    Args:
        numbers: column → heading, for columns with four decimals; the other columns keep their names.
    """
    config: dict[str, Any] = {
        column: st.column_config.NumberColumn(heading, format="%.4f") for column, heading in numbers.items()
    }
    config |= {
        "label": st.column_config.TextColumn(width=130),
        "rank_in_row": st.column_config.NumberColumn("rank in row"),
    }
    blocks.table(table, alt, max_height=height, column_config=config)


def open_in_attention(layer: int, head: int, label: str | None = None) -> None:
    """Draw the label of a head, and a button that shows the head on the page Attention."""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        if label is not None:
            st.markdown(f"Layer {layer}, head {head}: **{label or 'nothing stands out'}**", width="content")
        if st.button("Show its attention" if label is not None else f"Show layer {layer}, head {head}"):
            with callbacks.uninterrupted():
                view_state.show_head(layer, (head - 1,))
                st.switch_page(ATTENTION)
