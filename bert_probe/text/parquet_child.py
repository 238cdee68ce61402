"""Child process that reads a Parquet file from standard input with limited memory.

Damaged files can crash the Parquet library, and forged sizes make it allocate gigabytes. Without arguments,
the process finds out whether the reader crashes (`parquet.check_readable`). With a maximum size and names of
columns as JSON, it writes these columns to standard output as an Arrow stream (`parquet.decode`). With the
name of a column, it writes this column in small batches (`parquet.column_batches`).
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

MAX_BYTES = 1 << 29
"""Maximum memory in bytes that the process may allocate in addition to its memory at the start."""
NO_MEMORY, INVALID, TOO_LARGE = 3, 4, 5
"""Exit statuses: the process needs more than `MAX_BYTES`; the file is invalid, and standard error has the
reason; the decoded columns are larger than the maximum size.
"""
CPU_SECONDS = 8
"""Maximum CPU time in seconds of a process that finds out whether the reader crashes. A short file can take
hours if its columns refer to the same pages again and again.
"""
_MAX_METADATA_BYTES = 1_000_000
"""Size of the metadata in bytes up to which any file may have them; they take 230 times as much memory."""
_MAX_METADATA_SHARE = 1 / 50
"""Maximum size of larger metadata, as a share of the size of the file."""
_MAX_LIST_LENGTH = 100_000
"""Maximum number of elements of a list in the metadata."""
MAX_FILE_BYTES = 64_000_000
"""Size of a file in bytes up to which the process reads the columns, not only the metadata."""


def open_parquet(stream: BinaryIO, **options: Any) -> Any:
    """Open an untrusted Parquet file with limited memory for its metadata.

    Without limits, a footer of a few bytes that states a million columns takes a gigabyte.

    Args:
        stream: the file, which must be seekable.
        options: further arguments for `pyarrow.parquet.ParquetFile`.

    Raises:
        ValueError, OSError, pyarrow.ArrowException: the file is broken, or its metadata are too large.
    """
    import pyarrow.parquet

    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - 8))
    metadata_size = int.from_bytes(stream.read(4), "little")
    stream.seek(0)
    limit = max(_MAX_METADATA_BYTES, int(_MAX_METADATA_SHARE * size))
    if limit < metadata_size <= size:
        raise ValueError(
            f"its metadata have {metadata_size / 1e6:,.1f} MB, but at most {limit / 1e6:,.1f} MB are allowed"
        )
    return pyarrow.parquet.ParquetFile(
        stream,
        thrift_string_size_limit=max(size, 1),
        thrift_container_size_limit=min(max(size, 1), _MAX_LIST_LENGTH),
        **options,
    )


def decode(stream: BinaryIO, max_bytes: int, columns: list[str]) -> int:
    """Write columns of a file to standard output as an Arrow stream, and return the exit status."""
    import pyarrow

    size = 0
    file = open_parquet(stream, pre_buffer=False)
    schema = _plain_schema(file, columns)
    with pyarrow.ipc.new_stream(sys.stdout.buffer, schema) as writer:
        for batch in file.iter_batches(1024, columns=columns, use_threads=False):
            arrays = [batch.column(field.name).cast(field.type) for field in schema]
            size += sum(array.nbytes for array in arrays)
            if size > max_bytes:
                return TOO_LARGE
            writer.write_batch(pyarrow.record_batch(arrays, schema=schema))
    return 0


def _plain_schema(file: Any, columns: list[str]) -> Any:
    """Return the schema of columns, with the type of the values in place of each dictionary type."""
    import pyarrow

    types = [file.schema_arrow.field(name).type for name in columns]
    plain = [kind.value_type if pyarrow.types.is_dictionary(kind) else kind for kind in types]
    return pyarrow.schema([*zip(columns, plain, strict=True)])


_BATCH_ROWS = 16
_BUFFER_BYTES = 1 << 20


def write_batches(stream: BinaryIO, column: str) -> int:
    """Write a column of texts to standard output as an Arrow stream of small batches, and return 0."""
    import pyarrow

    # With pre_buffer, Arrow would read all row groups at once.
    file = open_parquet(stream, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    schema = _plain_schema(file, [column])
    with pyarrow.ipc.new_stream(sys.stdout.buffer, schema) as writer:
        for group in range(file.metadata.num_row_groups):
            for batch in file.iter_batches(_BATCH_ROWS, [group], [column], use_threads=False):
                texts = batch.column(0).cast(schema[0].type)
                writer.write_batch(pyarrow.record_batch([texts], schema=schema))
    return 0


def _status_of(write: Callable[[BinaryIO], int]) -> int:
    """Call a function with the file and limited memory; return its exit status, or that of its error."""
    import pyarrow.parquet  # noqa: F401  (loaded first, because its memory does not count)

    stream = _input()
    _limit_memory()
    try:
        status = write(stream)
        sys.stdout.buffer.flush()
    except MemoryError:
        return NO_MEMORY
    except Exception as error:
        sys.stderr.write(str(error).partition("\n")[0])
        sys.stderr.flush()
        return INVALID
    return status


def main() -> int:
    """Read all columns of the file in batches, and return the exit status: 0 or `NO_MEMORY`.

    Other exceptions are suppressed, because the parent process reads the file again and reports them.
    """
    stream = _input()
    _limit_memory()
    _limit_cpu_time()
    try:
        file = open_parquet(stream)
        for group in range(file.metadata.num_row_groups):
            for column in range(file.metadata.num_columns):
                file.metadata.row_group(group).column(column).to_dict()
    except MemoryError:
        return NO_MEMORY
    except Exception:
        pass
    try:
        if stream.seek(0, os.SEEK_END) > MAX_FILE_BYTES:
            return 0
        # Repeated strings stay dictionary-encoded, so that a short file does not expand to many long texts.
        names = [file.schema.column(index).path for index in range(len(file.schema))]
        file = open_parquet(stream, read_dictionary=names)
        for _ in file.iter_batches(1024, use_threads=False):
            pass
    except MemoryError:
        return NO_MEMORY
    except Exception:
        pass
    return 0


def _input() -> BinaryIO:
    """Return standard input as a seekable stream; through a pipe, the parent sends an uploaded file."""
    stream = sys.stdin.buffer
    return stream if stream.seekable() else io.BytesIO(stream.read())


def _limit_memory() -> None:
    try:
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):  # The resource module is not available on this system.
        return
    resource.setrlimit(resource.RLIMIT_AS, (used + MAX_BYTES, used + MAX_BYTES))


def _limit_cpu_time() -> None:
    """Let the system end this process with SIGXCPU after `CPU_SECONDS`."""
    try:
        import resource
    except ImportError:  # The resource module is not available on this system.
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))


if __name__ == "__main__":
    status = 0
    try:
        match sys.argv[1:]:
            case [max_bytes, columns]:
                status = _status_of(lambda stream: decode(stream, int(max_bytes), json.loads(columns)))
            case [column]:
                status = _status_of(lambda stream: write_batches(stream, column))
            case _:
                status = main()
    finally:
        os._exit(status)  # Skip the cleanup, in which threads of pyarrow may crash the process.
