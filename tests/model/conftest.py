"""Fixtures of the model tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.folders import copy
from tests.helpers.in_memory import load_for_training, tokenizer_of


@pytest.fixture
def folder(tmp_path: Path, family_folder: Callable[[str], Path]) -> Path:
    """A tiny BERT folder that a test may change."""
    return copy(family_folder("bert"), tmp_path / "model")


@pytest.fixture
def bert(family_folder: Callable[[str], Path]) -> Any:
    """A tiny BERT in memory that a test may change."""
    return load_for_training(family_folder("bert"))


@pytest.fixture
def tokenizer(family_folder: Callable[[str], Path]) -> Any:
    """The tokenizer of the tiny BERT."""
    return tokenizer_of(family_folder("bert"))
