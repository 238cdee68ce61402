"""Caches opened models for tests in which opening does not matter."""

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
    """Let snippets share opened models, because opening takes them longest."""
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
        # The package resolves `load` on first access, so the real one must be resolved before it is replaced.
        for place in (bert_probe, loading):
            patches.enter_context(patch.object(place, "load", load))
        yield
