"""Sends API requests to the app's own routes, without a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jsonschema
from starlette.applications import Starlette
from starlette.testclient import TestClient

from bert_probe.api import schema
from bert_probe.server import asgi, security_headers

TEXT = "The small boat crosses the wide river."
TOKENS = {"text": TEXT}
"""Request body for the question `tokens`, and for other questions that need only a text."""


@contextmanager
def api_client(
    host: str = "localhost", address: str = "127.0.0.1", names: tuple[str, ...] = (), token: str = ""
) -> Iterator[TestClient]:
    """Yield an HTTP client of the app's routes.

    Args:
        host: host name in the URLs of the requests.
        address: IP address of the client.
        names: additional host names that the app accepts.
        token: API token that the app requires; "" for none.
    """
    app = Starlette(routes=asgi.routes(names, token), middleware=asgi.middleware(names))
    with TestClient(
        app, f"http://{host}", raise_server_exceptions=False, client=(address, 50_000), follow_redirects=False
    ) as client:
        yield client


def problem_detail(answer: Any, status: int, kind: str) -> str:
    """Assert the status, type and headers of a problem document, and return its detail."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-security-policy"] == security_headers.headers()["Content-Security-Policy"]
    problem_document = answer.json()
    jsonschema.Draft202012Validator(schema.PROBLEM).validate(problem_document)
    assert (problem_document["type"], problem_document["status"]) == (f"/api#{kind}", status)
    detail: str = problem_document["detail"]
    assert "Traceback" not in detail
    return detail
