"""The limits of the API: the enforced limits equal the documented ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from bert_probe.api import limits, schema
from bert_probe.api.registry import registered_questions
from bert_probe.model import lengths

DOCUMENT = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
LIMITS = " ".join(DOCUMENT.partition("\n## Limits\n")[2].partition("\n## ")[0].split())


@pytest.mark.parametrize(
    "statement",
    [
        f"A body has at most {limits.MAX_BODY_BYTES / 1e6:g} MB",
        f"a text {lengths.MAX_CHARACTERS:,} characters",
        f"a list {limits.MAX_SENTENCES:,} sentences",
        f"a table {limits.MAX_CELLS:,} cells",
        f"A body must arrive within {limits.MAX_BODY_SECONDS:g} seconds",
        f"{limits.MAX_CLIENT_BYTES / 1e6:g} MB for one client",
        f"{limits.MAX_INCOMING_BYTES / 1e6:g} MB for all",
        f"An answer may take {limits.MAX_ANSWER_SECONDS:g} seconds",
        f"At most {limits.MAX_REQUESTS} requests are processed at once",
    ],
)
def test_documentation_states_the_limit(statement: str) -> None:
    assert statement in LIMITS


def test_schema_states_the_limit_of_a_text() -> None:
    properties = schema.body_schema(registered_questions()["tokens"])["properties"]
    assert properties["text"]["maxLength"] == lengths.MAX_CHARACTERS
