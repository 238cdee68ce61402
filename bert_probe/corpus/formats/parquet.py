"""Parquet: a sentence in a column of each row, read one row group after another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from bert_probe.corpus.formats.row import FileRow, refused, row_of
from bert_probe.corpus.lines import broken_off, reason_of
from bert_probe.errors import SelectionError, TextError
from bert_probe.text.sentence_files import column_of

_BATCH = 256
_BUFFER = 1 << 20
_BROKEN = (OSError, pa.ArrowException)


def rows(stream: BinaryIO, name: str, column: str | None) -> Iterator[FileRow]:
    """The rows of a table.

    Raises:
        TextError: it is no Parquet; SelectionError: no such column, or none named, or not one of texts.
    """
    try:
        # By itself it would fetch all row groups at once.
        table = pq.ParquetFile(stream, buffer_size=_BUFFER, pre_buffer=False)
        schema = table.schema_arrow
    except _BROKEN as error:
        raise TextError(f"{name} cannot be read: {reason_of(error)}. Save it as Parquet again.") from None
    taken = schema.field(column_of(schema.names, column, name))
    if not _is_text(taken.type):
        raise SelectionError(f"Column {taken.name} of {name} holds {taken.type}, no texts. Name another.")
    return _rows(table, taken.name)


def _is_text(kind: Any) -> bool:
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(
        pa.types.is_string(plain) or pa.types.is_large_string(plain) or pa.types.is_string_view(plain)
    )


def _rows(table: Any, column: str) -> Iterator[FileRow]:
    number = 0
    try:
        for group in range(table.num_row_groups):
            for batch in table.iter_batches(_BATCH, [group], [column], use_threads=False):
                for cell in batch.column(0):
                    number += 1
                    yield _row(number, cell)
    except _BROKEN as error:
        yield refused(number + 1, broken_off(error))


def _row(number: int, cell: Any) -> FileRow:
    try:
        return row_of(number, cell.as_py())
    except UnicodeDecodeError:
        return refused(number, "The text is not UTF-8.")
