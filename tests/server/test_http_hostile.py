"""Test the HTTP API with hostile or disconnecting clients: errors are short, and abandoned work ends."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator

import pytest
from mcp import types
from starlette.applications import Starlette
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Message

from bert_probe.api import agents, errors
from bert_probe.api.body import Body
from bert_probe.api.registry import registered_questions
from bert_probe.runtime import jobs, permissions, shared_cache
from bert_probe.server import asgi
from tests.helpers.http import TOKENS, api_client, problem_detail
from tests.helpers.waiting import wait_until

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def here() -> Iterator[TestClient]:
    """Return an API client whose requests come from the local machine."""
    with api_client() as client:
        yield client


@pytest.mark.parametrize("where", ["text", "pair", "model", "truncate", "question"])
def test_deeply_nested_body_is_a_problem(where: str, here: TestClient) -> None:
    for depth in range(900, 1000, 4):  # at some depths, JSON can be parsed but not serialized
        content = f'{{"text": "a", "{where}": {"[" * depth}{"]" * depth}}}'.replace(
            '"text": "a", "text"', '"text"'
        )
        answer = here.post("/api/v1/tokens", content=content, headers=JSON)
        assert len(problem_detail(answer, 400, "no-json")) < 400


@pytest.mark.parametrize("layer", [10**4000, "9" * 1_000_000, ["x" * 100] * 10_000])
def test_long_value_is_shortened_in_the_message(layer: object, here: TestClient) -> None:
    answer = here.post("/api/v1/attention", json=TOKENS | {"question": {"layer": layer}})
    assert len(problem_detail(answer, 422, "selection")) < errors.MAX_DETAIL_LENGTH + 10
    answer = here.post("/api/v1/attention", json=TOKENS | {"question": {"layer": 10**4000}})
    assert answer.json()["detail"].endswith("Use one of these, or last.")


@pytest.mark.parametrize(
    "name", ["X-Forwarded-Proto", "X-Forwarded-Port", "CF-Connecting-IP", "True-Client-IP", "X-Original-Host"]
)
def test_request_with_a_proxy_header_is_not_local(name: str, here: TestClient) -> None:
    problem_detail(here.post("/api/v1/tokens", json=TOKENS, headers={name: "1"}), 403, "not-from-here")


def test_cancelled_request_leaves_the_queue_for_passes(
    here: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "CHECK_INTERVAL", 0.02)
    here.post("/api/v1/tokens", json=TOKENS)
    monkeypatch.setattr(permissions, "MAX_ANSWER_SECONDS", 0.1)
    with shared_cache.passes, shared_cache.passes:
        problem_detail(here.post("/api/v1/tokens", json={"text": "A text of its own."}), 504, "took-too-long")
        wait_until(lambda: shared_cache.passes.waiting == 0)


def test_abandoned_work_counts_as_a_request(here: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    def silent(*_: object) -> None:
        go.wait(20)

    with monkeypatch.context() as patched:
        patched.setattr(Body, "answer", silent)
        patched.setattr(permissions, "MAX_ANSWER_SECONDS", 0.1)
        patched.setattr(permissions, "MAX_REQUESTS", 1)
        problem_detail(here.post("/api/v1/tokens", json=TOKENS), 504, "took-too-long")
        problem_detail(here.post("/api/v1/tokens", json=TOKENS), 503, "busy")
        go.set()
        wait_until(lambda: here.post("/api/v1/tokens", json=TOKENS).status_code != 503)
    assert here.post("/api/v1/tokens", json=TOKENS).status_code == 200


def test_page_is_served_with_a_trailing_slash(here: TestClient) -> None:
    assert here.get("/api/").text == here.get("/api").text


def test_agent_may_write_an_integer_as_a_float() -> None:
    def call(layer: object) -> types.CallToolResult:
        arguments = {**TOKENS, "question": {"layer": layer}}
        return agents.call_tool(registered_questions()["attention"], arguments, threading.Event())

    assert call(2.0).structured_content == call(2).structured_content
    assert call(2).structured_content is not None
    assert call(float("inf")).is_error
    assert json.dumps(call(2).structured_content)


class Sender:
    """A client that sends `parts` of a body.

    Args:
        is_complete: whether the body ends after `parts`. Otherwise, the client never ends the body.
    """

    def __init__(
        self, app: ASGIApp, *parts: bytes, client: str = "127.0.0.1", is_complete: bool = False
    ) -> None:
        self._app, self._parts, self._is_complete, self._client = app, [*parts], is_complete, client
        self.waits = asyncio.Event()
        self.gone = asyncio.Event()
        self.messages: list[Message] = []

    async def __call__(self) -> None:
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/api/v1/tokens",
            "headers": headers,
            "client": (self._client, 1),
            "query_string": b"",
        }
        await self._app(scope, self._receive, self._send)

    async def _receive(self) -> Message:
        if self._parts:
            part = self._parts.pop(0)
            more = not self._is_complete or bool(self._parts)
            return {"type": "http.request", "body": part, "more_body": more}
        self.waits.set()
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.messages.append(message)

    @property
    def status(self) -> int:
        status: int = self.messages[0]["status"]
        return status

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.messages[0]["headers"])


def test_incomplete_bodies_do_not_block_other_requests(here: TestClient) -> None:
    here.post("/api/v1/tokens", json=TOKENS)  # the first request takes longer, because it imports modules
    app = Starlette(routes=asgi.routes())

    async def attack() -> int:
        halves = [Sender(app, b'{"text": ') for _ in range(2 * permissions.MAX_REQUESTS)]
        attacks = [asyncio.create_task(half()) for half in halves]
        await asyncio.gather(*(half.waits.wait() for half in halves))
        other = Sender(app, json.dumps(TOKENS).encode(), is_complete=True)
        await other()
        for half in halves:
            half.gone.set()
        await asyncio.gather(*attacks)
        assert {half.status for half in halves} == {499}
        return other.status

    assert asyncio.run(attack()) == 200


def test_late_body_is_refused_and_its_connection_closed(
    here: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.post("/api/v1/tokens", json=TOKENS)
    monkeypatch.setattr(permissions, "MAX_BODY_SECONDS", 0.05)
    half = Sender(Starlette(routes=asgi.routes()), b'{"text": ')
    asyncio.run(half())
    assert (half.status, half.headers[b"connection"]) == (408, b"close")
    problem_record = json.loads(half.messages[1]["body"])
    assert problem_record["type"] == "/api#late-body"
    message = "Only 9 bytes of the body arrived in 0.05 seconds. Send the complete body at once."
    assert problem_record["detail"] == message


def test_arriving_bodies_are_limited_per_client_and_in_total(
    here: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.post("/api/v1/tokens", json=TOKENS)
    monkeypatch.setattr(permissions, "MAX_CLIENT_BYTES", 25)
    monkeypatch.setattr(permissions, "MAX_INCOMING_BYTES", 45)
    app = Starlette(routes=asgi.routes(token="sesame-opens-all-of-it"))

    async def attack() -> list[int]:
        halves = [Sender(app, b" " * 20, client=client) for client in ("127.0.0.1", "127.0.0.2")]
        attacks = [asyncio.create_task(half()) for half in halves]
        await asyncio.gather(*(half.waits.wait() for half in halves))
        statuses = []
        for client, size in (("127.0.0.1", 6), ("127.0.0.3", 6), ("127.0.0.3", 5)):
            other = Sender(app, b" " * size, client=client, is_complete=True)
            await other()
            statuses.append(other.status)
        for half in halves:
            half.gone.set()
        await asyncio.gather(*attacks)
        last = Sender(app, b" " * 25, is_complete=True)
        await last()
        return [*statuses, last.status]

    # The bodies consist of spaces, which are not valid JSON. Status 400 therefore means that a body was read.
    assert asyncio.run(attack()) == [503, 503, 400, 400]
