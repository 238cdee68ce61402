"""Heatmaps of any size with exact values.

The browser receives the values as float32 and formats them, so that tooltips need no request.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NotRequired, TypeAlias, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bert_probe.views.page import Page
from bert_probe.views.palette import Scale
from bert_probe.views.payload import pack
from bert_probe.views.text import ResidueNumbers

Matrix: TypeAlias = NDArray[np.float32]


class Cell(NamedTuple):
    """The row and column of a cell, counted from 0."""

    row: int
    column: int


class HeatmapSpec(TypedDict):
    """Titles and drawing options of a heatmap."""

    scale: Scale  # values outside the scale get the color of its nearest end, as the legend states
    row_axis: str
    column_axis: str
    value_name: str
    caption: str
    decimals: NotRequired[int]  # number of decimals in the tooltip; default 4
    square: NotRequired[bool]  # whether cells are square (default) or fit the width
    whole: NotRequired[bool]  # whether all cells are initially visible, even if very small; default False
    # token positions, which distinguish equal labels; with `ResidueNumbers`, the axis is drawn as a ruler
    row_positions: NotRequired[Sequence[int | None] | None]
    column_positions: NotRequired[Sequence[int | None] | None]
    marked: NotRequired[Sequence[tuple[int, int]]]  # (row, column) of each outlined cell
    file_name: NotRequired[str]  # name of saved files, without extension


class Heatmap(NamedTuple):
    """The values of a heatmap, the labels of its rows and columns, and drawing options."""

    values: NDArray[Any]  # shape [row, column]
    rows: Sequence[str]
    columns: Sequence[str]
    drawing: HeatmapSpec


def page(heatmaps: Sequence[Heatmap], title: str, caveat: str = "") -> Page:
    """Return a self-contained HTML page with one or more heatmaps, stacked vertically."""
    payloads = [
        payload(heatmap.values, heatmap.rows, heatmap.columns, key=f"page-{number}", **heatmap.drawing)
        for number, heatmap in enumerate(heatmaps)
    ]
    return Page("matrix", payloads, title, caveat)


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
    """Return a heatmap in the binary format that the browser reads; see `pack`.

    Args:
        values: Values, shape [row, column]; NaN means "no value" and is drawn hatched.
        rows: Labels of the rows.
        columns: Labels of the columns.
        key: Key of the component.
        pinned: The pinned cell, if there is one.
        revision: Number of changes of the pinned cell so far.
        **drawing: See `HeatmapSpec`.

    Raises:
        ValueError: The shapes do not match, or a value is infinite.
    """
    scale, decimals = drawing["scale"], drawing.get("decimals", 4)
    array = _checked(values, len(rows), len(columns), decimals)
    header = {
        "key": key,
        "labels": digest(rows, columns),
        "rows": list(rows),
        # If rows and columns have the same labels, the labels are sent once.
        "columns": None if list(columns) == list(rows) else list(columns),
        "rowPositions": _positions(drawing.get("row_positions"), len(rows), "row_positions"),
        "rowRuler": isinstance(drawing.get("row_positions"), ResidueNumbers),
        "columnRuler": isinstance(drawing.get("column_positions"), ResidueNumbers),
        "columnPositions": _positions(drawing.get("column_positions"), len(columns), "column_positions"),
        "rowAxis": drawing["row_axis"],
        "columnAxis": drawing["column_axis"],
        "valueName": drawing["value_name"],
        "caption": drawing["caption"],
        "decimals": decimals,
        "square": drawing.get("square", True),
        "whole": drawing.get("whole", False),
        "marked": [[int(row), int(column)] for row, column in drawing.get("marked", ())],
        "fileName": drawing.get("file_name", "matrix"),
        "scale": scale.to_json(),
        "pinned": pinned,
        "revision": revision,
        **_extent(array, scale),
    }
    return pack(header, {**scale.tables(), "values": array})


def digest(rows: Sequence[str], columns: Sequence[str]) -> str:
    """Return a hash of the labels. A pinned cell that the browser reports with another hash is stale."""
    return hashlib.sha256(json.dumps([list(rows), list(columns)]).encode()).hexdigest()[:16]


def pinned_cell(report: Mapping[str, Any] | None, shape: tuple[int, int]) -> Cell | None:
    """Return the pinned cell that the browser reports, or None if there is none or it is out of range."""
    row, column = (None, None) if report is None else (report.get("row"), report.get("column"))
    if type(row) is not int or type(column) is not int:
        return None
    return Cell(row, column) if 0 <= row < shape[0] and 0 <= column < shape[1] else None


def _checked(values: ArrayLike, rows: int, columns: int, decimals: int) -> Matrix:
    array = np.ascontiguousarray(values, dtype=np.dtype("<f4"))
    if array.ndim != 2 or array.shape != (rows, columns):
        raise ValueError(
            f"The values have shape {list(array.shape)}, but there are {rows} row labels and {columns} "
            "column labels. Give one label for each row and each column."
        )
    if not rows or not columns:
        raise ValueError("A matrix needs at least one row and one column.")
    if np.isinf(array).any():
        raise ValueError("The values contain infinity, which has no color. Use NaN for missing values.")
    if not 0 <= decimals <= 9:
        raise ValueError(f"decimals must be between 0 and 9, not {decimals}.")
    return array


def _positions(positions: Sequence[int | None] | None, count: int, name: str) -> list[int | None] | None:
    if positions is None:
        return None
    if len(positions) != count:
        raise ValueError(f"{name} has {len(positions)} entries for {count} labels. Pass one entry per label.")
    return [None if position is None else int(position) for position in positions]


def _extent(array: Matrix, scale: Scale) -> dict[str, float | bool]:
    """Return the range of the values, and whether any values are missing or outside the scale."""
    missing = bool(np.isnan(array).any())
    present = array[~np.isnan(array)] if missing else array
    low, high = (float(present.min()), float(present.max())) if present.size else (0.0, 0.0)
    return {
        "min": low,
        "max": high,
        "below": low < scale.low - scale.slack,
        "above": high > scale.high + scale.slack,
        "missing": missing,
    }
