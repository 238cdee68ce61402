"""Test the API with requests from its OpenAPI document: no status 5xx, and no response violates a schema."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.fuzzing import fuzz
from tests.helpers.http import api_client

EXAMPLES = 2
"""Number of valid bodies, and of invalid ones, for each question; `make prove` sends more."""
QUESTIONS = (
    "attention",
    "evaluation",
    "find-heads",
    "head-ablation",
    "similarity",
    "tokens",
    "word-in-context",
)
"""Questions that together have every type of field and of input."""


def test_generated_bodies_never_break_the_app_or_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    # Some valid requests take a long time, which this test does not measure.
    monkeypatch.setattr("bert_probe.runtime.permissions.MAX_ANSWER_SECONDS", 20.0)
    with api_client() as client:
        document = client.get("/api/openapi.json").json()

        def send(method: str, path: str, body: bytes, headers: dict[str, str]) -> Any:
            return client.request(method, path, content=body, headers=headers)

        outcome = fuzz(document, send, EXAMPLES, *QUESTIONS)
    assert outcome.faults == []
    assert outcome.statuses.keys() >= {200, 400, 422}
    assert outcome.statuses.total() > 20
