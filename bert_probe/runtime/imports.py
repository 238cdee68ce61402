"""Disable garbage collection during large imports."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def long_lived_imports() -> Iterator[None]:
    """Disable garbage collection during imports, and exempt the imported objects from collection permanently.

    torch and transformers create a million objects that live as long as the process. By default, the garbage
    collector would traverse these objects repeatedly during the import, in every later full collection, and
    at exit.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
