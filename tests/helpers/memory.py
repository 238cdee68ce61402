"""Measure the memory that Python objects and NumPy arrays need at the same time."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def measure_peak() -> Iterator[Callable[[], int]]:
    """Yield a function that returns the largest additional memory since the start of the block, in bytes.

    Memory of torch tensors and of other native code is not counted.
    """
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield lambda: tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
