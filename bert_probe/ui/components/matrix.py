"""The heatmap as a Streamlit component."""

from collections.abc import Sequence
from typing import Unpack

from numpy.typing import ArrayLike

from bert_probe.ui.components import choices
from bert_probe.ui.components.mounting import mounted
from bert_probe.views.matrix import Cell, Heatmap, HeatmapSpec, digest, payload, pinned_cell


def matrix(
    values: ArrayLike,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    key: str,
    **drawing: Unpack[HeatmapSpec],
) -> Cell | None:
    """Draw a matrix as a heatmap and return the cell that the user pinned, if any.

    NaN means "no value" and is hatched. A pin survives reruns as long as the labels stay the same.
    Raises ValueError if the shapes do not match.
    """
    revision, report = choices.latest(key, "cell", digest(rows, columns))
    pinned = pinned_cell(report, (len(rows), len(columns)))
    data = payload(values, rows, columns, key=key, pinned=pinned, revision=revision, **drawing)
    _component(key=key, data=data, on_cell_change=_ignore)
    return pinned


def heatmap(data: Heatmap, *, key: str) -> Cell | None:
    """Draw a `Heatmap` and return the pinned cell, if any; see `matrix`."""
    return matrix(data.values, data.rows, data.columns, key=key, **data.drawing)


def _ignore() -> None:
    """Do nothing. Streamlit returns a state value only if a callback is registered for it."""


_component = mounted("matrix")
