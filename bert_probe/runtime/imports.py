"""Imports that take seconds."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imported_for_good() -> Iterator[None]:
    """While torch and transformers are imported, nobody looks through what they made for garbage.

    They make a million objects that live as long as the process, and Python's collector would go through
    them again and again: meanwhile, in every pause that it takes later, and at the end.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
