"""Opens models once for tests that do not test opening."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any
from unittest.mock import patch
from weakref import WeakValueDictionary

import pytest

import bert_probe
from bert_probe.model import loading
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.runtime import shared_cache
from bert_probe.runtime.cache import Cache

really_load = loading.load
_KEY = ("model", "revision", "device", "dtype")
_DEFAULTS = tuple(signature(really_load).parameters[name].default for name in _KEY)
_opened: dict[tuple[Any, ...], Checkpoint] = {}


@cache
def open_minilm() -> Checkpoint:
    """Return the built-in all-MiniLM-L6-v2, which is opened once in this process."""
    return really_load()


def use_empty_checkpoint_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the shared cache of checkpoints with an empty one until the end of the test."""
    monkeypatch.setattr(shared_cache, "_checkpoints", Cache(shared_cache.CHECKPOINTS))
    monkeypatch.setattr(shared_cache, "_referenced", WeakValueDictionary())


@contextmanager
def share_opened_models() -> Iterator[None]:
    """Make `load` return cached models until the block ends, because code snippets mostly wait for it."""
    really = loading.load  # possibly the function of an outer block

    def load(*args: Any, **kwargs: Any) -> Checkpoint:
        bound = signature(really_load).bind(*args, **kwargs)
        bound.apply_defaults()
        model, *options = (bound.arguments[name] for name in _KEY)
        key = (Path(model).resolve() if model and Path(model).exists() else model, *options)
        if key not in _opened:
            is_minilm = key == _DEFAULTS
            _opened[key] = open_minilm() if is_minilm else really(*args, **kwargs)
        return _opened[key]

    with ExitStack() as patches:
        # `bert_probe` imports `load` lazily from `loading`, so `bert_probe.load` must be patched first.
        for place in (bert_probe, loading):
            patches.enter_context(patch.object(place, "load", load))
        yield
