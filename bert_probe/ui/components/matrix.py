"""The heatmap in a page."""

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
    """Draw `values` [row, column] and return the cell that the reader pinned, if any.

    NaN means "no value" and is drawn hatched. A pin survives reruns as long as the labels stay the same.
    Raises ValueError if the shapes do not fit together.
    """
    revision, report = choices.latest(key, "cell", digest(rows, columns))
    pinned = pinned_cell(report, (len(rows), len(columns)))
    data = payload(values, rows, columns, key=key, pinned=pinned, revision=revision, **drawing)
    _component(key=key, data=data, on_cell_change=_ignore)
    return pinned


def heatmap(drawn: Heatmap, *, key: str) -> Cell | None:
    """The same of a heatmap."""
    return matrix(drawn.values, drawn.rows, drawn.columns, key=key, **drawn.drawing)


def _ignore() -> None:
    """Streamlit lists a state value in the result only if it has a callback."""


_component = mounted("matrix", '<section class="matrix"></section>')
