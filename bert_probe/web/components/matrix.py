"""A heatmap of token against token, drawn on a canvas, that stays exact at any size.

The numbers travel to the browser as float32 and are formatted there, so hovering costs no server trip.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import streamlit as st
from numpy.typing import ArrayLike, NDArray
from streamlit.components.v2 import component

from bert_probe.web import palette

Matrix: TypeAlias = NDArray[np.float32]

_FOLDER: Final = Path(__file__).parent
# One ES module in several files: the browser gets them joined, with a single `export default` at the end.
_SCRIPTS: Final = (
    "visible_text.js",
    "matrix_model.js",
    "matrix_layout.js",
    "matrix_paint.js",
    "matrix_save.js",
    "matrix_parts.js",
    "matrix.js",
)


@dataclass(frozen=True)
class Scale:
    """The fixed range that colours stand for, stated to the reader beside the picture.

    A diverging scale is centred on 0 and so needs `low == -high`. With the curve `sqrt` small values get
    more of the colours; the legend's ticks move accordingly. Raises ValueError for a range that cannot be
    drawn.
    """

    kind: Literal["sequential", "diverging"]
    low: float
    high: float
    curve: Literal["linear", "sqrt"] = "linear"

    def __post_init__(self) -> None:
        if self.kind not in ("sequential", "diverging"):
            raise ValueError(f"kind is {self.kind!r}; it must be 'sequential' or 'diverging'.")
        if self.curve not in ("linear", "sqrt"):
            raise ValueError(f"curve is {self.curve!r}; it must be 'linear' or 'sqrt'.")
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(
                f"The range {self.low} to {self.high} needs two finite ends, the lower one first."
            )
        if self.kind == "diverging" and self.low != -self.high:
            raise ValueError(
                f"The range {self.low} to {self.high} is not centred on 0, as a diverging scale must be."
            )


@dataclass(frozen=True)
class Cell:
    """One cell of a matrix; row and column count from 0."""

    row: int
    column: int


def matrix(
    values: ArrayLike,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    key: str,
    scale: Scale,
    row_axis: str,
    column_axis: str,
    value_name: str,
    caption: str,
    decimals: int = 4,
    square: bool = True,
    row_positions: Sequence[int | None] | None = None,
    column_positions: Sequence[int | None] | None = None,
    file_name: str = "matrix",
) -> Cell | None:
    """Draw `values` [row, column] and return the cell that the reader pinned, if any.

    NaN means "no value" and is drawn hatched. Values outside the scale keep the colour of its end, and the
    legend says so. `rows` and `columns` may be any text; the positions tell repeated tokens apart, None
    standing for what has no position. With `square=False` the columns are as narrow as the width asks for, as
    for vectors. A pin survives reruns as long as the labels stay the same. Raises ValueError if the shapes do
    not fit together.
    """
    array = _checked(values, len(rows), len(columns), decimals)
    labels = _digest(rows, columns)
    header = {
        "key": key,
        "labels": labels,
        "rows": list(rows),
        "columns": list(columns),
        "rowPositions": _positions(row_positions, len(rows), "row_positions"),
        "columnPositions": _positions(column_positions, len(columns), "column_positions"),
        "rowAxis": row_axis,
        "columnAxis": column_axis,
        "valueName": value_name,
        "caption": caption,
        "decimals": decimals,
        "square": square,
        "fileName": file_name,
        "scale": {"kind": scale.kind, "low": scale.low, "high": scale.high, "curve": scale.curve},
        "pinned": _as_list(_pinned(st.session_state.get(key), labels, array.shape)),
        **_extent(array, scale),
    }
    result = _component(key=key, data=_packed(header, array, scale), on_cell_change=_ignore)
    return _pinned(result, labels, array.shape)


def _checked(values: ArrayLike, rows: int, columns: int, decimals: int) -> Matrix:
    array = np.ascontiguousarray(values, dtype=np.dtype("<f4"))
    if array.ndim != 2 or array.shape != (rows, columns):
        raise ValueError(
            f"The values have the shape {list(array.shape)} for {rows} row and {columns} column labels."
        )
    if not rows or not columns:
        raise ValueError("A matrix needs at least one row and one column.")
    if np.isinf(array).any():
        raise ValueError(
            "The values contain an infinity, which has no colour. Give NaN where there is no value."
        )
    if not 0 <= decimals <= 9:
        raise ValueError(f"decimals is {decimals}; it must be between 0 and 9.")
    return array


def _positions(positions: Sequence[int | None] | None, count: int, name: str) -> list[int | None] | None:
    if positions is None:
        return None
    if len(positions) != count:
        raise ValueError(f"{name} has {len(positions)} entries for {count} labels.")
    return [None if position is None else int(position) for position in positions]


def _extent(array: Matrix, scale: Scale) -> dict[str, float | bool]:
    """What the legend must admit: values beyond the scale's ends, and cells without a value."""
    missing = bool(np.isnan(array).any())
    present = array[~np.isnan(array)] if missing else array
    least, most = (float(present.min()), float(present.max())) if present.size else (0.0, 0.0)
    # float32 puts exact ends a hair off, e.g. a cosine of 1.0000001: that is rounding, not a value outside.
    slack = 1e-6 * (scale.high - scale.low)
    return {
        "least": least,
        "most": most,
        "below": least < scale.low - slack,
        "above": most > scale.high + slack,
        "missing": missing,
    }


def _digest(rows: Sequence[str], columns: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps([list(rows), list(columns)]).encode()).hexdigest()[:16]


def _packed(header: Mapping[str, object], array: Matrix, scale: Scale) -> bytes:
    """Header length, header, both themes' colour tables, values: one piece, as Streamlit wants raw bytes."""
    text = json.dumps(header).encode("ascii")
    text += b" " * (-len(text) % 4)
    tables = palette.lut_bytes(scale.kind, dark=False) + palette.lut_bytes(scale.kind, dark=True)
    return len(text).to_bytes(4, "little") + text + tables + array.tobytes()


def _pinned(state: Any, labels: str, shape: tuple[int, ...]) -> Cell | None:
    """The pinned cell in a component's state; None if it belongs to other labels or is not one at all."""
    held = state.get("cell") if isinstance(state, Mapping) else None
    if not isinstance(held, Mapping) or held.get("labels") != labels:
        return None
    row, column = held.get("row"), held.get("column")
    if type(row) is not int or type(column) is not int:
        return None
    return Cell(row, column) if 0 <= row < shape[0] and 0 <= column < shape[1] else None


def _as_list(cell: Cell | None) -> list[int] | None:
    return None if cell is None else [cell.row, cell.column]


def _ignore() -> None:
    """Streamlit lists a state value in the result only if it has a callback."""


_component = component(
    "bert_probe.matrix",
    html='<section class="matrix"></section>',
    css=(_FOLDER / "matrix.css").read_text(encoding="utf-8"),
    js="\n".join((_FOLDER / name).read_text(encoding="utf-8") for name in _SCRIPTS),
)
