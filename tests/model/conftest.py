"""Fixtures of the model tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.folders import copy
from tests.helpers.in_memory import load_for_training, tokenizer_of


@pytest.fixture
def folder(tmp_path: Path, family_folder: Callable[[str], Path]) -> Path:
    """Return the folder of a tiny BERT that a test may change."""
    return copy(family_folder("bert"), tmp_path / "model")


@pytest.fixture
def bert(family_folder: Callable[[str], Path]) -> Any:
    """Return a tiny BERT in memory that a test may change."""
    return load_for_training(family_folder("bert"))


@pytest.fixture
def tokenizer(family_folder: Callable[[str], Path]) -> Any:
    """Return the tokenizer of the tiny BERT."""
    return tokenizer_of(family_folder("bert"))
