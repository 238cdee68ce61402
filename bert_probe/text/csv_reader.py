"""CSV reading with cells as long as a text may be."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from typing import Protocol

from bert_probe.model.lengths import MAX_CHARACTERS


class CsvReader(Protocol):
    """The type that `csv.reader` returns."""

    line_num: int

    def __iter__(self) -> Iterator[list[str]]: ...

    def __next__(self) -> list[str]: ...


def csv_reader(lines: Iterable[str], separator: str) -> CsvReader:
    """Return a strict CSV reader that accepts cells of up to `MAX_CHARACTERS` characters."""
    # The limit is process-wide, so it is only ever raised.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_CHARACTERS))
    return csv.reader(lines, delimiter=separator, strict=True)


def describe_csv_error(error: csv.Error) -> str:
    """Return the error message of a row, without the final period."""
    if "field limit" not in str(error):
        return str(error)
    return f"a cell has more than {MAX_CHARACTERS:,} characters, or its quotation mark is not closed"
