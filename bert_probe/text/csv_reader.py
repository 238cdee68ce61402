"""Reading CSV whose cells are as long as a text may be."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from typing import Protocol

from bert_probe.model.lengths import MOST_CHARACTERS


class CsvReader(Protocol):
    """What `csv.reader` returns."""

    line_num: int

    def __iter__(self) -> Iterator[list[str]]: ...

    def __next__(self) -> list[str]: ...


def csv_reader(lines: Iterable[str], separator: str) -> CsvReader:
    """Return a strict reader of rows, which takes cells of up to `MOST_CHARACTERS`."""
    # The limit holds for the whole process, so that it is raised and never lowered.
    csv.field_size_limit(max(csv.field_size_limit(), MOST_CHARACTERS))
    return csv.reader(lines, delimiter=separator, strict=True)


def describe(error: csv.Error) -> str:
    """Return what is wrong with a row, without the full stop."""
    if "field limit" not in str(error):
        return str(error)
    return f"a cell has more than {MOST_CHARACTERS:,} characters, or its quotation mark is not closed"
