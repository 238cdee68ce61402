"""How much memory is free, and who has been promised how much of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from bert_probe.errors import OutOfMemoryError

_CGROUP = Path("/sys/fs/cgroup")

_lock = threading.Lock()
_promised = 0


def free() -> int:
    """Bytes that this process can still get: of the machine, or of the container that it runs in."""
    available = int(psutil.virtual_memory().available)
    left = _left_in_container()
    return available if left is None else min(available, left)


def _left_in_container() -> int | None:
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = (_CGROUP / "memory.current").read_text()
        files = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    # Pages of files are given back when somebody needs the room.
    cached = int(files.get("inactive_file", 0))
    return None if limit == "max" else max(0, int(limit) - int(used) + cached)


@contextmanager
def promised(size: int, what: str, remedy: str) -> Iterator[None]:
    """Keep this many bytes for work that begins now, so that others which begin meanwhile reckon with it.

    Args:
        size: bytes that the work will take, within the block.
        what: what needs them, at the beginning of a sentence.
        remedy: a sentence.

    Raises:
        OutOfMemoryError: there are not so many.
    """
    global _promised
    with _lock:
        left = free() - _promised
        if size > left:
            raise OutOfMemoryError(
                f"{what} needs about {in_words(size)} of memory, and {in_words(max(0, left))} are free. "
                f"{remedy}"
            )
        _promised += size
    try:
        yield
    finally:
        with _lock:
            _promised -= size


def in_words(size: int) -> str:
    """So many bytes, as people say it."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"
