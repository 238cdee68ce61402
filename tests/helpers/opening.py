"""Caches opened models for tests that do not test opening."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from inspect import signature
from pathlib import Path
from typing import Any
from unittest.mock import patch

import bert_probe
from bert_probe.model import loading
from bert_probe.model.checkpoint import Checkpoint

_opened: dict[tuple[Any, ...], Checkpoint] = {}


@contextmanager
def share_opened_models() -> Iterator[None]:
    """Make `load` return cached models until the block ends, because code snippets mostly wait for it."""
    really = loading.load

    def load(*args: Any, **kwargs: Any) -> Checkpoint:
        bound = signature(really).bind(*args, **kwargs)
        bound.apply_defaults()
        model, *options = (bound.arguments[name] for name in ("model", "revision", "device", "dtype"))
        key = (Path(model).resolve() if model and Path(model).exists() else model, *options)
        if key not in _opened:
            _opened[key] = really(*args, **kwargs)
        return _opened[key]

    with ExitStack() as patches:
        # `bert_probe` imports `load` lazily from `loading`, so `bert_probe.load` must be patched first.
        for place in (bert_probe, loading):
            patches.enter_context(patch.object(place, "load", load))
        yield
