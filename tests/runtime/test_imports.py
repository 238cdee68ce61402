"""What is imported for good is not looked through for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from bert_probe.runtime.imports import imported_for_good


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    gc.enable()
    gc.collect()
    gc.freeze()


def test_the_collector_rests_and_leaves_alone_what_was_made() -> None:
    gc.unfreeze()
    with imported_for_good():
        assert not gc.isenabled()
        made: list[list[int]] = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() > len(made)


def test_it_is_as_before_after_a_failure_too() -> None:
    for was_on in (True, False):
        (gc.enable if was_on else gc.disable)()
        with pytest.raises(ImportError), imported_for_good():
            raise ImportError
        assert gc.isenabled() == was_on
