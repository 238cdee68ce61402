"""Fuzzes the API with requests that its OpenAPI document allows, and with invalid ones."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core import NotSet
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]

Send = Callable[[str, str, bytes, dict[str, str]], Any]
"""Method, path, body, headers → the response."""


@dataclass
class FuzzResult:
    """The outcome of fuzzing.

    Attributes:
        statuses: number of responses by status code.
        faults: checks that failed.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def fuzz(
    document: dict[str, Any], send: Send, examples: int, *only: str, left: Callable[[], float] = lambda: 1.0
) -> FuzzResult:
    """Send `examples` valid and `examples` invalid requests for each question, the same in every run.

    Args:
        only: names of the questions; if there are none, all questions.
        left: function that returns the remaining time. No further question is started when none remains.
    """
    outcome = FuzzResult()
    schema = schemathesis.openapi.from_dict(document)
    for result in schema.get_all_operations():
        operation = result.ok()
        if left() < 0:
            break
        if operation.method.lower() != "post" or (only and operation.path.rpartition("/")[2] not in only):
            continue
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            _ask(operation.as_strategy(mode), send, examples, outcome)
    return outcome


def _ask(cases: Any, send: Send, examples: int, outcome: FuzzResult) -> None:
    @seed(9)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def ask(case: Case[Any]) -> None:
        headers = {"Content-Type": case.media_type or "application/json"}
        response = send(case.method, case.path, _written(case.body), headers)
        outcome.statuses[response.status_code] += 1
        try:
            case.validate_response(response, checks=CHECKS)
        except (Failure, FailureGroup) as failure:
            outcome.faults.append(f"{case.method} {case.path} {_written(case.body)[:300]!r}: {failure}")

    ask()


def _written(body: Any) -> bytes:
    if isinstance(body, bytes):
        return body
    return b"" if isinstance(body, NotSet) else json.dumps(body).encode()
