"""Measure the available memory, and reserve memory for running jobs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from bert_probe.errors import OutOfMemoryError

_CGROUP = Path("/sys/fs/cgroup")

_lock = threading.Lock()
_reserved_bytes = 0


def free() -> int:
    """Return the number of bytes that this process can still allocate on this machine and in its cgroup."""
    available = int(psutil.virtual_memory().available)
    container = _free_in_container()
    return available if container is None else min(available, container)


def _free_in_container() -> int | None:
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = (_CGROUP / "memory.current").read_text()
        statistics = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    # The kernel frees cached file pages on demand.
    cached = int(statistics.get("inactive_file", 0))
    return None if limit == "max" else max(0, int(limit) - int(used) + cached)


@contextmanager
def reserved_memory(size: int, purpose: str, remedy: str) -> Iterator[None]:
    """Reserve memory for the block, so that concurrent work takes it into account.

    Args:
        size: bytes that the block will allocate.
        purpose: name of the work that needs the memory; the error message starts with it.
        remedy: a sentence with advice for the user.

    Raises:
        OutOfMemoryError: fewer than `size` bytes are available.
    """
    global _reserved_bytes
    with _lock:
        available = free() - _reserved_bytes
        if size > available:
            raise OutOfMemoryError(
                f"{purpose} needs about {format_bytes(size)} of memory, but only "
                f"{format_bytes(max(0, available))} are free. "
                f"{remedy}"
            )
        _reserved_bytes += size
    try:
        yield
    finally:
        with _lock:
            _reserved_bytes -= size


def format_bytes(size: int) -> str:
    """Format a number of bytes as MB or GB."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"
