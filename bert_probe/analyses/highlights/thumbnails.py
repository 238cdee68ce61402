"""Contents of the thumbnails of highlights, as numbers; `views` draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from bert_probe.analyses.attention.thumbnails import largest_in_blocks
from bert_probe.model.trace import Array

SIDE = 48
"""Maximum number of rows and of columns of a grid."""


@dataclass(frozen=True, eq=False)
class Grid:
    """A small matrix, drawn as a heatmap.

    Attributes:
        cells: [row, column]; cells that are not above 0 are empty.
        most: the value of the darkest color; larger values have the same color.
        mark: row and column of the cell to emphasize.
    """

    cells: Array
    most: float = 1.0
    mark: tuple[int, int] | None = None

    @classmethod
    def of(cls, matrix: Array, most: float = 1.0, mark: tuple[int, int] | None = None) -> Grid:
        """Return a grid of at most `SIDE` cells a side, each the maximum of a block of the matrix."""
        block = -(-max(matrix.shape) // SIDE)
        cell = None if mark is None else (mark[0] // block, mark[1] // block)
        return cls(largest_in_blocks(matrix[None], block)[0], most, cell)


@dataclass(frozen=True)
class Curves:
    """A value per layer, and a second curve for comparison.

    Attributes:
        values, others: the two curves, from layer 0 on, in the range -1 to 1.
        mark: the layer to emphasize.
    """

    values: Sequence[float]
    others: Sequence[float]
    mark: int


@dataclass(frozen=True)
class Bars:
    """A bar chart.

    Attributes:
        values: the signed lengths of the bars; the longest fills the picture.
        mark: index of the bar to emphasize.
    """

    values: Sequence[float]
    mark: int


@dataclass(frozen=True)
class TextSegments:
    """Segments of a text, in order."""

    texts: Sequence[str]


Picture: TypeAlias = Grid | Curves | Bars | TextSegments
