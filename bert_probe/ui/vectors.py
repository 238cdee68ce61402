"""Drawing vectors as strips of color and as numbers. This module, unlike `blocks`, imports pandas."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from bert_probe.model.trace import Array
from bert_probe.ui import blocks
from bert_probe.ui.components import heatmap
from bert_probe.views import steps
from bert_probe.views.palette import Scale


def strips(
    values: Array | Sequence[Array],
    rows: Sequence[str],
    scale: Scale,
    key: str,
    caption: str,
    row_axis: str = "step",
) -> None:
    """Draw vectors as rows of colored cells, one cell per dimension.

    Args:
        values: the vectors, one per row.
        key: key of the component, and name of its image file.
    """
    heatmap(steps.strips(values, rows, scale, key, caption, row_axis), key=key)


def numbers(frame: pd.DataFrame, title: str = "Numbers") -> None:
    """Draw a table of numbers in an expander that is initially closed."""
    rows = frame.reset_index() if frame.index.name else frame
    decimals = st.column_config.NumberColumn(format="%.4f")
    columns = {str(name): decimals for name in rows if rows[name].dtype.kind == "f"}
    with st.expander(title):
        blocks.table(rows, title, column_config=columns)
