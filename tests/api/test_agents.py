"""The questions as tools: what a client of the `mcp` package sees and gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from bert_probe.api.alone import Alone

ROOT = Path(__file__).parents[2]
TEXT = "The small boat crosses the wide river."


@pytest.fixture(scope="module")
def shared() -> Alone:
    """Whoever is asked, once for all tests."""
    return Alone()
