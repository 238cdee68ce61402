"""Commands are asked of models that one before has opened."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.opening import share_opened_models


@pytest.fixture(autouse=True)
def models_are_opened_once() -> Iterator[None]:
    """Within this process; a command that a test starts opens its own."""
    with share_opened_models():
        yield
