"""Libraries that say nothing for a while."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock


class SilencedLogging:
    """A context in which a library is silent; after the last who is inside it speaks as before the first.

    Args:
        silence: silences it for the whole process, and returns what lets it speak as before.
    """

    def __init__(self, silence: Callable[[], Callable[[], None]]) -> None:
        self._silence = silence
        self._lock = Lock()
        self._inside = 0
        self._restore: Callable[[], None] = lambda: None

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._restore = self._silence()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._restore()
