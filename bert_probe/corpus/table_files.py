"""Check the files of a store's tables, by their metadata or byte by byte."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bert_probe.corpus.schema import TableSchema
from bert_probe.errors import ProbeError, StoreError

UNCHECKED_BYTES = 2**30
"""Decoded size of a Parquet file, in bytes, up to which its compression ratio is not limited."""
MAX_RATIO = 100
"""Maximum ratio of decoded to stored bytes above `UNCHECKED_BYTES`, against decompression bombs."""


@dataclass(frozen=True)
class TableFile:
    """The expected properties of one table's file in one shard.

    Attributes:
        path: path of the file.
        schema: schema of its table.
        rows: expected number of rows; None if unknown.
        size: expected size in bytes.
        sha256: expected SHA-256 of the file.
        completed_ns: time at which the shard was completed, in nanoseconds. If the file was modified later,
            its content may have changed.
    """

    path: Path
    schema: TableSchema
    rows: int | None
    size: int
    sha256: str
    completed_ns: int

    def problem(self, every_byte: bool = False, on_bytes: Callable[[int], None] = lambda _: None) -> str:
        """Return a phrase that describes what is wrong with the file, such as "has grown"; "" if it is valid.

        Args:
            every_byte: always compare the digest. By default, it is compared only if the file was modified
                after the shard was completed, for example because the store was copied.
            on_bytes: called after each block that is hashed, with the number of bytes in the block.
        """
        try:
            stat = self.path.stat()
            if not self.path.is_file() or stat.st_size != self.size:
                return "is missing or truncated" if stat.st_size < self.size else "has grown"
            compares_digest = every_byte or stat.st_mtime_ns > self.completed_ns
            if compares_digest and self._digest(on_bytes) != self.sha256:
                return "was changed: its SHA-256 differs"
            schema, rows, decoded = _metadata(self.path, self.schema.ending)
        except FileNotFoundError:
            return "is missing or truncated"
        except (OSError, ValueError, pa.ArrowException) as error:
            return f"cannot be read: {str(error).splitlines()[0][:200]}"
        if not schema.equals(self.schema.schema):
            return f"has other columns: {_difference(schema, self.schema.schema)}"
        if decoded > max(UNCHECKED_BYTES, MAX_RATIO * self.size):
            return f"would take {decoded:,} bytes of memory, but the file has only {self.size:,} bytes"
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
    """Return the schema, the number of rows and the decoded size of a file without reading its columns.

    The decoded size is a lower bound on the memory that the rows take. For an Arrow file, which is not
    compressed, it is the size of the file.
    """
    if ending == "parquet":
        metadata = pq.read_metadata(path)
        schema = metadata.schema.to_arrow_schema()
        groups = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
        return schema, metadata.num_rows, max(groups, metadata.num_rows * sum(map(_width, schema.types)))
    with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as reader:
        rows = sum(reader.get_batch(i).num_rows for i in range(reader.num_record_batches))
        return reader.schema, rows, path.stat().st_size


def _width(data_type: pa.DataType) -> int:
    """Return the memory that one value of a type takes, in bytes; for a text, the size of its offset."""
    try:
        return max(1, int(data_type.bit_width) // 8)
    except ValueError:  # texts have no fixed width
        return 4


def _difference(actual: pa.Schema, expected: pa.Schema) -> str:
    """Describe the first difference between the columns of a file and the expected columns."""
    for field in expected:
        if field.name not in actual.names:
            return f"there is no {field.name}"
        types = [column.type for column in actual if column.name == field.name]
        if types != [field.type]:
            return f"{field.name} is {str(types[0])[:60]} instead of {field.type}"
    return f"{', '.join(actual.names)[:200]} instead of {', '.join(expected.names)}"


@contextmanager
def store_errors(name: str) -> Iterator[None]:
    """Turn errors that invalid tables cause into a `StoreError`.

    Opening a store checks the columns of its tables but not their values, which are untrusted.

    Args:
        name: name of the store, for the error message.
    """
    try:
        yield
    except ProbeError:
        raise
    except (OSError, pa.ArrowException, LookupError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(
            f"The tables of {name} contradict each other, or have a null where a value is needed "
            f"({type(error).__name__}: {str(error)[:100]}). Run bert-probe corpus verify, then copy the "
            "store again from its original location, or run the corpus again."
        ) from None
