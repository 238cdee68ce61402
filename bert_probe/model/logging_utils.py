"""Temporary silencing of a library's logging."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock


class SilencedLogging:
    """A reentrant, thread-safe context manager that silences a library's logging.

    Args:
        silence: silences the library for the whole process, and returns a function that restores the logging.
            `silence` is called when the first context is entered, the returned function when the last context
            is left.
    """

    def __init__(self, silence: Callable[[], Callable[[], None]]) -> None:
        self._silence = silence
        self._lock = Lock()
        self._depth = 0
        self._restore: Callable[[], None] = lambda: None

    def __enter__(self) -> None:
        with self._lock:
            if not self._depth:
                self._restore = self._silence()
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._depth -= 1
            if not self._depth:
                self._restore()
