"""Vectors as strips of colour, and as numbers."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from bert_probe.model.trace import Array
from bert_probe.ui.components.matrix import heatmap
from bert_probe.views import steps
from bert_probe.views.scale import Scale


def strips(
    values: Array | Sequence[Array],
    rows: Sequence[str],
    scale: Scale,
    key: str,
    caption: str,
    row_axis: str = "step",
) -> None:
    """Vectors, a row each and a cell for each dimension.

    Args:
        values: [vector, dimension].
        key: of the picture, and name of the file that it is saved in.
    """
    heatmap(steps.strips(values, rows, scale, key, caption, row_axis), key=key)


def numbers(frame: pd.DataFrame, title: str = "Numbers") -> None:
    """A table, closed until somebody wants it."""
    shown = frame.reset_index() if frame.index.name else frame
    decimals = st.column_config.NumberColumn(format="%.4f")
    columns = {str(name): decimals for name in shown if shown[name].dtype.kind == "f"}
    with st.expander(title):
        st.dataframe(
            shown,
            hide_index=True,
            width="stretch",
            column_config=columns,
            alt=title,
        )
