"""The API fuzzed from its own OpenAPI file: no 5xx, and no answer that breaks its schema."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.fuzzing import fuzzed
from tests.helpers.http import asking

EXAMPLES = 2
"""Bodies that keep to the schema, and as many that do not, for each question; `make prove` has more."""
ASKED = ("ablation", "attention", "evaluation", "find", "similarity", "tokens", "words-in-context")
"""Questions that have each kind of field and of subject between them."""


def test_generated_bodies_conform_to_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    # What the built-in model is asked in earnest takes its time; here it is about what is sent.
    monkeypatch.setattr("bert_probe.api.limits.SECONDS", 20.0)
    with asking() as client:
        document = client.get("/api/openapi.json").json()

        def send(method: str, path: str, body: bytes, headers: dict[str, str]) -> Any:
            return client.request(method, path, content=body, headers=headers)

        result = fuzzed(document, send, EXAMPLES, *ASKED)
    assert result.faults == []
    assert result.statuses.keys() >= {200, 400, 422}
    assert result.statuses.total() > 20
