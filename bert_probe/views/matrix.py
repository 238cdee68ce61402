"""A heatmap of token against token, that stays exact at any size.

The numbers travel to the browser as float32 and are formatted there, so hovering costs no server trip.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NotRequired, TypeAlias, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bert_probe.views.page import Page
from bert_probe.views.payload import packed
from bert_probe.views.scale import Scale

Matrix: TypeAlias = NDArray[np.float32]


class Cell(NamedTuple):
    """One cell of a matrix; row and column count from 0."""

    row: int
    column: int


class HeatmapSpec(TypedDict):
    """What a heatmap says, and how it is drawn.

    Attributes:
        scale: what the colours stand for. Values beyond it keep its end's, and the legend says so.
        row_axis, column_axis, value_name, caption: their names.
        decimals: of a value that is pointed at; 4 unless told.
        square: whether cells are as wide as high, as usual, or as narrow as the width asks for.
        whole: whether all cells are shown at first, however small; else at a size that can be read.
        row_positions, column_positions: tell repeated tokens apart; None stands for what has no position.
        file_name: of saved pictures, without its ending.
    """

    scale: Scale
    row_axis: str
    column_axis: str
    value_name: str
    caption: str
    decimals: NotRequired[int]
    square: NotRequired[bool]
    whole: NotRequired[bool]
    row_positions: NotRequired[Sequence[int | None] | None]
    column_positions: NotRequired[Sequence[int | None] | None]
    file_name: NotRequired[str]


class Heatmap(NamedTuple):
    """A heatmap as a value: numbers [row, column], their labels, and how they are drawn."""

    values: NDArray[Any]
    rows: Sequence[str]
    columns: Sequence[str]
    drawing: HeatmapSpec


def page(heatmaps: Sequence[Heatmap], title: str, caveat: str = "") -> Page:
    """A web page of heatmaps, one beneath the other, which opens from a disk without a network."""
    drawn = [
        payload(heatmap.values, heatmap.rows, heatmap.columns, key=f"page-{number}", **heatmap.drawing)
        for number, heatmap in enumerate(heatmaps)
    ]
    return Page("matrix", drawn, title, caveat)


def payload(
    values: ArrayLike,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    key: str,
    pinned: Cell | None = None,
    revision: int = 0,
    **drawing: Unpack[HeatmapSpec],
) -> bytes:
    """What the browser draws of `values` [row, column]; NaN means "no value" and is drawn hatched.

    `rows` and `columns` may be any text. Raises ValueError if the shapes do not fit together.
    """
    scale, decimals = drawing["scale"], drawing.get("decimals", 4)
    array = _checked(values, len(rows), len(columns), decimals)
    described = {
        "key": key,
        "labels": digest(rows, columns),
        "rows": list(rows),
        # Token against token: the same labels are not sent twice.
        "columns": None if list(columns) == list(rows) else list(columns),
        "rowPositions": _positions(drawing.get("row_positions"), len(rows), "row_positions"),
        "columnPositions": _positions(drawing.get("column_positions"), len(columns), "column_positions"),
        "rowAxis": drawing["row_axis"],
        "columnAxis": drawing["column_axis"],
        "valueName": drawing["value_name"],
        "caption": drawing["caption"],
        "decimals": decimals,
        "square": drawing.get("square", True),
        "whole": drawing.get("whole", False),
        "fileName": drawing.get("file_name", "matrix"),
        "scale": scale.described(),
        "pinned": pinned,
        "revision": revision,
        **_extent(array, scale),
    }
    return packed(described, {**scale.tables(), "values": array})


def digest(rows: Sequence[str], columns: Sequence[str]) -> str:
    """Return a name of the labels, so that a pin on others is dropped."""
    return hashlib.sha256(json.dumps([list(rows), list(columns)]).encode()).hexdigest()[:16]


def pinned_cell(report: Mapping[str, Any] | None, shape: tuple[int, int]) -> Cell | None:
    """Return the pinned cell that a browser reports; None if there is none, or none of this shape."""
    row, column = (None, None) if report is None else (report.get("row"), report.get("column"))
    if type(row) is not int or type(column) is not int:
        return None
    return Cell(row, column) if 0 <= row < shape[0] and 0 <= column < shape[1] else None


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
    return {
        "least": least,
        "most": most,
        "below": least < scale.low - scale.slack,
        "above": most > scale.high + scale.slack,
        "missing": missing,
    }
