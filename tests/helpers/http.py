"""A test client for the app's own routes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jsonschema
from starlette.applications import Starlette
from starlette.testclient import TestClient

from bert_probe.api import schema
from bert_probe.server import asgi

TEXT = "The small boat crosses the wide river."
TOKENS = {"text": TEXT}
"""A body for questions about one text."""


@contextmanager
def asking(
    host: str = "localhost", address: str = "127.0.0.1", names: tuple[str, ...] = (), token: str = ""
) -> Iterator[TestClient]:
    """Yield a client at an address that uses a host name; all its requests share one event loop."""
    app = Starlette(routes=asgi.routes(names, token), middleware=asgi.middleware(names))
    with TestClient(
        app, f"http://{host}", raise_server_exceptions=False, client=(address, 50_000), follow_redirects=False
    ) as client:
        yield client


def problem(answer: Any, status: int, kind: str) -> str:
    """Check a problem response and return its detail."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-security-policy"] == asgi.HEADERS["Content-Security-Policy"]
    record = answer.json()
    jsonschema.Draft202012Validator(schema.PROBLEM).validate(record)
    assert (record["type"], record["status"]) == (f"/api#{kind}", status)
    detail: str = record["detail"]
    assert "Traceback" not in detail
    return detail
