"""Test that imported objects are exempt from garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from bert_probe.core.extras import long_lived_imports


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    gc.enable()
    gc.collect()
    gc.freeze()


def test_imported_objects_are_frozen() -> None:
    gc.unfreeze()
    with long_lived_imports():
        assert not gc.isenabled()
        garbage: list[list[int]] = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() > len(garbage)


def test_collector_is_restored_after_an_error() -> None:
    for was_on in (True, False):
        (gc.enable if was_on else gc.disable)()
        with pytest.raises(ImportError), long_lived_imports():
            raise ImportError
        assert gc.isenabled() == was_on
