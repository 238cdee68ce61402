"""Which format a file has: its name's ending says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from bert_probe.corpus.formats import json_lines, parquet, table, tagged, text
from bert_probe.corpus.formats.row import FileRow
from bert_probe.corpus.lines import PACKED, InputLine, lines_of, opened

Reader = Callable[[Iterator[InputLine], str, str | None], Iterator[FileRow]]
"""Rows of lines, the file's name, a column; a header that cannot be read is an error before any row."""

PARQUET = ".parquet"
LINES: Mapping[str, Reader] = MappingProxyType(
    {
        ".txt": text.rows,
        ".text": text.rows,
        ".csv": table.rows,
        ".tsv": table.rows,
        ".jsonl": json_lines.rows,
        ".ndjson": json_lines.rows,
        ".conllu": tagged.treebank_rows,
        ".conll": tagged.column_rows,
    }
)
WITHOUT_COLUMNS = (".txt", ".text", ".conllu", ".conll")


def ending_of(path: Path) -> str:
    """That of the format, whether the file is packed or not; "" where it is none of ours."""
    name = path.name.lower()
    plain = name.removesuffix(path.suffix.lower()) if path.suffix.lower() in PACKED else name
    ending = Path(plain).suffix
    return ending if ending in LINES or (ending == PARQUET and plain == name) else ""


@contextmanager
def rows_of(path: Path, name: str, column: str | None) -> Iterator[Iterator[FileRow]]:
    """The rows of a file; one whose ending is unknown has a sentence a line.

    Args:
        name: that errors call it by.
        column: of a table; None takes the only one, or the one called sentence or text.

    Raises:
        TextError: it cannot be opened, or has no header that can be read.
        SelectionError: no such column, or several and none named.
    """
    if ending_of(path) == PARQUET:
        with opened(path) as stream:
            yield parquet.rows(stream, name, column)
    else:
        with lines_of(path) as lines:
            yield LINES.get(ending_of(path), text.rows)(lines, name, column)


@contextmanager
def places_of(path: Path, name: str, column: str | None) -> Iterator[Iterator[object]]:
    """Something for each of `rows_of`, found without reading what tagged sentences say."""
    ending = ending_of(path)
    if ending in (".conllu", ".conll"):
        with lines_of(path) as lines:
            yield tagged.places(lines, treebank=ending == ".conllu")
    else:
        with rows_of(path, name, column) as rows:
            yield rows
