"""Test the features that work with each model type, as listed in docs/models.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers import multi_vector_models
from tests.helpers.exactness import EXACT
from tests.helpers.gate import prove_unless
from tests.helpers.model_types import all_types, outcome
from tests.helpers.sentence_models import LAYOUTS

DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"
SEED = {"big_bird", "bloom", "falcon", "gpt_oss", "marian", "mixtral", "openai-gpt"}


def rows() -> dict[str, list[str]]:
    """Return the other cells of each row in the table of model types, by name of the tiny checkpoint."""
    table = DOCUMENT.read_text(encoding="utf-8").split("## Model types")[1].split("## ")[0]
    lines = [line.strip("|") for line in table.splitlines() if "|" in line]
    cells = [[cell.strip() for cell in line.split(" | ")] for line in lines]
    return {re.sub(r".* \((.*)\)", r"\1", name): values for name, *values in cells[2:]}


def test_document_lists_all_model_types() -> None:
    assert [*rows()] == all_types()
    works = [row[0] for row in rows().values()]
    assert sum(word != "refused" for word in works) >= 50
    assert works.count("fully") >= 40
    layouts = DOCUMENT.read_text(encoding="utf-8").split("## Layouts")[1].split("## Models")[0]
    assert all(f"\n| {name} | " in layouts for name in LAYOUTS)
    assert len(LAYOUTS) >= 25
    late = DOCUMENT.read_text(encoding="utf-8").split("## Late-interaction models")[1].split("## Models")[0]
    assert all(f"\n| {name} | " in late for name in multi_vector_models.LAYOUTS)


@pytest.mark.gate(cases=3)
@pytest.mark.parametrize("name", prove_unless(SEED, all_types()))
def test_outcome_is_as_documented(name: str) -> None:
    result, row = outcome(name), rows()[name]
    assert (result.works, result.reason) == (row[0], row[3].strip())
    if result.dtype == "float64":
        assert result.attention is not None
        assert result.states is not None
        assert max(result.attention, result.states) <= EXACT
