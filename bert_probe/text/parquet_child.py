"""Child process that reads a Parquet file from standard input, to find out whether the reader crashes.

Damaged files can crash the Parquet library. `parquet.check_readable` starts this process.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

MAX_BYTES = 1 << 29
"""Maximum memory in bytes that the process may allocate in addition to its memory at the start."""


def reader_limits(size: int) -> dict[str, int]:
    """Return arguments for `pyarrow.parquet.ParquetFile` that limit the memory for a file's metadata.

    A list in the metadata needs at least one byte for each element. Without limits, a footer of a few bytes
    that states a million columns takes a gigabyte.

    Args:
        size: size of the file in bytes.
    """
    return {
        "thrift_string_size_limit": max(size, 1),
        "thrift_container_size_limit": min(max(size, 1), 100_000),
    }


def main() -> None:
    """Read all columns of the file in batches. Suppress exceptions: the parent reads the file again."""
    import pyarrow.parquet

    content = sys.stdin.buffer.read()
    limits = reader_limits(len(content))
    _limit_memory()
    try:
        file = pyarrow.parquet.ParquetFile(io.BytesIO(content), **limits)
        for group in range(file.metadata.num_row_groups):
            for column in range(file.metadata.num_columns):
                file.metadata.row_group(group).column(column).to_dict()
    except Exception:  # Only crashes matter, because the parent process reports exceptions.
        pass
    try:
        # Repeated strings stay dictionary-encoded, so that a short file does not expand to many long texts.
        names = [file.schema.column(index).path for index in range(len(file.schema))]
        file = pyarrow.parquet.ParquetFile(io.BytesIO(content), read_dictionary=names, **limits)
        for _ in file.iter_batches(1024, use_threads=False):
            pass
    except Exception:  # Only crashes matter, because the parent process reports exceptions.
        return


def _limit_memory() -> None:
    try:
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):  # The resource module is not available on this system.
        return
    resource.setrlimit(resource.RLIMIT_AS, (used + MAX_BYTES, used + MAX_BYTES))


if __name__ == "__main__":
    try:
        main()
    finally:
        os._exit(0)  # Skip the cleanup, in which threads of pyarrow may crash the process.
