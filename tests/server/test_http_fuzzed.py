"""The API fuzzed from its own OpenAPI document: no 5xx status, and no response that violates the schema."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.fuzzing import fuzz
from tests.helpers.http import api_client

EXAMPLES = 2
"""Valid and invalid bodies per question; `make prove` uses more."""
ASKED = ("ablation", "attention", "evaluation", "find", "similarity", "tokens", "words-in-context")
"""Questions that together have each type of field and input."""


def test_generated_bodies_conform_to_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    # Answering takes time, and this test is about validation.
    monkeypatch.setattr("bert_probe.api.limits.SECONDS", 20.0)
    with api_client() as client:
        document = client.get("/api/openapi.json").json()

        def send(method: str, path: str, body: bytes, headers: dict[str, str]) -> Any:
            return client.request(method, path, content=body, headers=headers)

        result = fuzz(document, send, EXAMPLES, *ASKED)
    assert result.faults == []
    assert result.statuses.keys() >= {200, 400, 422}
    assert result.statuses.total() > 20
