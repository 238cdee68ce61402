"""Measures the peak memory of Python objects and NumPy arrays."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def measure_peak() -> Iterator[Callable[[], int]]:
    """Yield a function that returns the peak of additional memory since the start of the block, in bytes.

    Memory allocated by torch and other native code is not counted.
    """
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield lambda: tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
