"""What the tests of opening a model share."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.folders import copy


@pytest.fixture
def folder(tmp_path: Path, family_folder: Callable[[str], Path]) -> Path:
    """A tiny BERT that a test may change."""
    return copy(family_folder("bert"), tmp_path / "model")
