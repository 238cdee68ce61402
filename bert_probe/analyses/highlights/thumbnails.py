"""Data of the thumbnails of highlights, which the package `views` draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from bert_probe.analyses.attention.attention import largest_in_blocks
from bert_probe.model.trace import Array

SIDE = 48
"""Maximum number of rows and of columns of a thumbnail grid."""


@dataclass(frozen=True, eq=False)
class Grid:
    """A small matrix, drawn as a heatmap.

    Attributes:
        cells: values of the cells, shape [row, column]. Cells with values of 0 or less are drawn empty.
        most: value that has the darkest color; larger values have the same color.
        mark: row and column of the cell to emphasize.
    """

    cells: Array
    most: float = 1.0
    mark: tuple[int, int] | None = None

    @classmethod
    def of(cls, matrix: Array, most: float = 1.0, mark: tuple[int, int] | None = None) -> Grid:
        """Return a grid of at most `SIDE` cells per side, each with the maximum of a block of the matrix."""
        block = -(-max(matrix.shape) // SIDE)
        cell = None if mark is None else (mark[0] // block, mark[1] // block)
        return cls(largest_in_blocks(matrix[None], block)[0], most, cell)


@dataclass(frozen=True)
class Curves:
    """A curve with one value per layer, and a second curve for comparison.

    Attributes:
        values, others: values of the curve and of the second curve, shape [layer + 1], -1 to 1.
        mark: the layer to emphasize.
    """

    values: Sequence[float]
    others: Sequence[float]
    mark: int


@dataclass(frozen=True)
class Bars:
    """A bar chart with signed values.

    Attributes:
        values: signed lengths of the bars; the chart is scaled to the longest bar.
        mark: index of the bar to emphasize.
    """

    values: Sequence[float]
    mark: int


@dataclass(frozen=True)
class TextSegments:
    """Segments into which a text is split, in the order of the text."""

    texts: Sequence[str]


Picture: TypeAlias = Grid | Curves | Bars | TextSegments
