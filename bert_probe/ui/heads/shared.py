"""What the parts of the heads page have in common: the measures, a picture of all heads, their tables."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from bert_probe.server import callbacks, paths
from bert_probe.ui import state
from bert_probe.ui.attention import shown
from bert_probe.ui.components.matrix import heatmap
from bert_probe.views.matrix import Heatmap
from bert_probe.views.measures import MEASURES, HeadMeasure

ATTENTION = paths.page("attention")


def choose_measure() -> tuple[str, HeadMeasure]:
    """A list of the measures, what is chosen explained beneath."""
    with st.container(width=340):
        chosen = state.choose(
            "measure",
            "Measure",
            {key: f"{one.group}: {one.name}" for key, one in MEASURES.items()},
            "previous",
        )
    return chosen, MEASURES[chosen]


def head_heatmap(drawn: Heatmap, key: str) -> tuple[int, int] | None:
    """Layers × heads as a picture; the head that was clicked, from 1."""
    cell = heatmap(drawn, key=key)
    return None if cell is None else (cell.row + 1, cell.column + 1)


def head_table(table: pd.DataFrame, numbers: dict[str, str], alt: str, height: int = 430) -> None:
    """Rows of heads to read and sort.

    Args:
        numbers: column → heading, for those with four decimals; others keep their own.
    """
    config: dict[str, Any] = {
        column: st.column_config.NumberColumn(heading, format="%.4f") for column, heading in numbers.items()
    }
    config |= {
        "label": st.column_config.TextColumn(width=130),
        "rank_in_row": st.column_config.NumberColumn("rank in row"),
    }
    st.dataframe(table, hide_index=True, width="stretch", height=height, column_config=config, alt=alt)


def open_in_attention(layer: int, head: int, label: str | None = None) -> None:
    """What stands out in a head, and a button that shows it on the attention page."""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        if label is not None:
            st.markdown(f"Layer {layer}, head {head}: **{label or 'nothing stands out'}**", width="content")
        if st.button("Show its attention" if label is not None else f"Show layer {layer}, head {head}"):
            with callbacks.to_the_end():
                shown.look_at(layer, (head - 1,))
                st.switch_page(ATTENTION)
