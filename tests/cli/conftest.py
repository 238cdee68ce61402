"""Fixtures of the command-line tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.opening import share_opened_models


@pytest.fixture(autouse=True)
def models_are_opened_once() -> Iterator[None]:
    """Open each model only once in this process; commands in other processes open models again."""
    with share_opened_models():
        yield
