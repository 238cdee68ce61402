"""What a small picture shows, as numbers: beside a sentence, to be taken in at a glance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from bert_probe.analyses.attention.thumbnails import largest_in_blocks
from bert_probe.model.trace import Array

SIDE = 48
"""The most cells a side of a grid."""


@dataclass(frozen=True, eq=False)
class Grid:
    """A matrix, small.

    Attributes:
        cells: [row, column]; nothing is drawn for what is not above 0, and ``most`` or more is darkest.
        most: what the darkest colour stands for.
        mark: the cell that the sentence is about, if it is about one.
    """

    cells: Array
    most: float = 1.0
    mark: tuple[int, int] | None = None

    @classmethod
    def of(cls, matrix: Array, most: float = 1.0, mark: tuple[int, int] | None = None) -> Grid:
        """Of a matrix of any size; a cell is the largest number of a block of a large one."""
        block = -(-max(matrix.shape) // SIDE)
        place = None if mark is None else (mark[0] // block, mark[1] // block)
        return cls(largest_in_blocks(matrix[None], block)[0], most, place)


@dataclass(frozen=True)
class Curves:
    """A number after each layer, from 0 on, and beneath it what it is to be compared with.

    Attributes:
        values, others: -1 to 1, one a layer.
        mark: the layer that the sentence is about.
    """

    values: Sequence[float]
    others: Sequence[float]
    mark: int


@dataclass(frozen=True)
class Bars:
    """A bar for each of several things in their order.

    Attributes:
        values: any numbers; bars begin at 0, and the longest fills the picture.
        mark: the one that the sentence is about.
    """

    values: Sequence[float]
    mark: int


@dataclass(frozen=True)
class TextSegments:
    """Parts of a text, one after the other."""

    texts: Sequence[str]


Picture: TypeAlias = Grid | Curves | Bars | TextSegments
