"""Files of a store's tables: whether they are what the store says, cheaply or byte by byte."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bert_probe.corpus.tables import TableSchema
from bert_probe.errors import ProbeError, StoreError

LARGE, RATIO = 2**30, 100
"""Decoded bytes from which a Parquet file is compared with its size, and the most times as many as in it."""


@dataclass(frozen=True)
class TableFile:
    """A file of a shard.

    Attributes:
        path: where it lies.
        layout: of its table.
        rows: how many it must have; None where that is not known.
        size, sha256: of its bytes.
        written: time at which its shard was complete, in nanoseconds; the file was written before.
    """

    path: Path
    layout: TableSchema
    rows: int | None
    size: int
    sha256: str
    written: int

    def problem(self, every_byte: bool = False, on_bytes: Callable[[int], None] = lambda _: None) -> str:
        """Return what is wrong with the file; "" if nothing is.

        Size, columns and number of rows are read from its metadata. The digest is compared only where the
        file was modified after its shard was complete, as a copy may be, unless ``every_byte``.
        """
        try:
            stat = self.path.stat()
            if not self.path.is_file() or stat.st_size != self.size:
                return "is gone or was cut" if stat.st_size < self.size else "has grown"
            compares = every_byte or stat.st_mtime_ns > self.written
            if compares and self._digest(on_bytes) != self.sha256:
                return "was changed: its SHA-256 is another"
            schema, rows, decoded = _metadata(self.path, self.layout.ending)
        except FileNotFoundError:
            return "is gone or was cut"
        except (OSError, ValueError, pa.ArrowException) as error:
            return f"cannot be read: {str(error).splitlines()[0][:200]}"
        if not schema.equals(self.layout.schema):
            return f"has other columns: {_difference(schema, self.layout.schema)}"
        if decoded > max(LARGE, RATIO * self.size):
            return f"would take {decoded:,} bytes of memory, for {self.size:,} in the file"
        if self.rows is not None and rows != self.rows:
            return f"has {rows:,} rows instead of {self.rows:,}"
        return ""

    def _digest(self, on_bytes: Callable[[int], None]) -> str:
        digest = hashlib.sha256()
        with self.path.open("rb") as stream:
            while block := stream.read(1 << 22):
                digest.update(block)
                on_bytes(len(block))
        return digest.hexdigest()


def _metadata(path: Path, ending: str) -> tuple[pa.Schema, int, int]:
    """Return the columns and the number of rows of a file, of which no column is read, and its decoded size.

    The size is the least that its rows take in memory; a file of Arrow is not compressed.
    """
    if ending == "parquet":
        metadata = pq.read_metadata(path)
        schema = metadata.schema.to_arrow_schema()
        groups = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
        return schema, metadata.num_rows, max(groups, metadata.num_rows * sum(map(_width, schema.types)))
    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
        rows = sum(reader.get_batch(i).num_rows for i in range(reader.num_record_batches))
        return reader.schema, rows, path.stat().st_size


def _width(kind: pa.DataType) -> int:
    """Return the bytes of a value in memory, without the characters of a text."""
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:  # text
        return 4


def _difference(actual: pa.Schema, expected: pa.Schema) -> str:
    """Return the first column that differs, in words."""
    for field in expected:
        if field.name not in actual.names:
            return f"there is no {field.name}"
        kinds = [
            schema.field(name).type for schema in (actual,) for name in schema.names if name == field.name
        ]
        if kinds != [field.type]:
            return f"{field.name} is {str(kinds[0])[:60]} instead of {field.type}"
    return f"{', '.join(actual.names)[:200]} instead of {', '.join(expected.names)}"


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn every way in which tables of a store can contradict each other into a sentence.

    Their columns are checked when the store is opened, and their values are not: these may be a stranger's.

    Raises:
        StoreError: in the place of what reading them raised.
    """
    try:
        yield
    except ProbeError:
        raise
    except (OSError, pa.ArrowException, LookupError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(
            f"The tables of {name} contradict each other, or hold nothing where a value is needed "
            f"({type(error).__name__}: {str(error)[:100]}). See what bert-probe corpus verify finds, and "
            "copy the store again from where it was made, or run the corpus again."
        ) from None
