"""Test routes, headers and limits of a public server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from bert_probe.api import schema
from bert_probe.model.sources import BUILT_IN
from bert_probe.runtime import permissions
from bert_probe.runtime.permissions import Permissions
from bert_probe.server import asgi, bertviz_frames, paths, sessions, visitors
from bert_probe.server.visitors import ClientAddress, LimitedVisitors, RateLimit, client_name
from tests.helpers.http import api_client, problem_detail
from tests.helpers.server import answer, answer_of

TOKEN = "a-token-of-a-public-server"
FROM_AFAR = {"Authorization": f"Bearer {TOKEN}"}
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def public(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Permissions]:
    monkeypatch.chdir(tmp_path)
    allowed = permissions.public(frame_ancestors=["https://huggingface.co"], has_api=True)
    with permissions.using(allowed):
        yield allowed


def test_pages_that_are_switched_off_do_not_exist(public: Permissions) -> None:
    for page in ("train", "corpus", "changes"):
        assert page not in asgi.pages()
        status, _, body = answer(f"/{page}")
        assert status == 404
        assert f'href="/{page}"'.encode() not in body
    assert answer("/attention")[0] == 200
    with permissions.using(replace(public, models=(BUILT_IN, "a/b"))):
        assert "changes" in asgi.pages()
    assert all(asgi.sections().values()), "a menu has no pages"


@pytest.mark.usefixtures("public")
def test_stores_of_the_operator_are_offered_and_the_default_folder_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / paths.DEFAULT_STORES_FOLDER / "news"
    store.mkdir(parents=True)
    (store / paths.MANIFEST).touch()
    assert (paths.stores(), "corpus" in asgi.pages()) == ({}, False)
    monkeypatch.setenv(paths.STORES_VARIABLE, str(store.parent))
    assert ([*paths.stores()], "corpus" in asgi.pages()) == (["news"], True)


def test_routes_of_trained_models_and_of_an_api_without_token_do_not_exist(public: Permissions) -> None:
    assert answer("/trained/a/b.zip")[0] == 404
    assert "/trained/{name}/{file}" not in [getattr(route, "path", "") for route in asgi.routes()]
    with permissions.using(replace(public, has_api=False)):
        for path in ("/api", "/api/openapi.json", "/api/v1/tokens"):
            status, headers, _ = answer(path)
            assert (status, headers["content-type"].partition("/")[0]) == (404, "text"), path
        for path in ("/healthz", "/health"):
            assert answer(path)[0] == 200


@pytest.mark.usefixtures("public")
def test_crawlers_read_only_the_front_page() -> None:
    status, _, body = answer("/robots.txt")
    assert (status, body) == (200, b"User-agent: *\nAllow: /$\nDisallow: /\n")


@pytest.mark.usefixtures("public")
def test_frames_within_the_app_allow_the_same_ancestors() -> None:
    expected = "frame-ancestors 'self' https://huggingface.co"
    policies = (
        answer("/")[1]["content-security-policy"],
        bertviz_frames.frame_policy("x"),
        sessions.preview_policy(),
    )
    assert all(expected in policy.split("; ") for policy in policies)


@pytest.mark.usefixtures("public")
def test_api_offers_only_the_models_of_the_server() -> None:
    document = schema.document("1")
    body = document["paths"]["/api/v1/tokens"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["model"]["enum"] == [BUILT_IN, None]
    assert "revision" not in body["properties"]
    with api_client(token=TOKEN, address="203.0.113.9") as client:
        url = "/api/v1/tokens"
        reply = client.post(url, json={"text": "a boat", "model": "/etc"}, headers=FROM_AFAR)
        assert "'/etc' is not available on this server" in problem_detail(reply, 422, "model")
        reply = client.post(url, json={"text": "a boat", "revision": "main"}, headers=FROM_AFAR)
        assert "must not have a member" in problem_detail(reply, 400, "no-json")
        reply = client.post(url, content=b'"' + b"x" * 1_000_001 + b'"', headers=FROM_AFAR | JSON)
        assert "more than 1,000,000 bytes" in problem_detail(reply, 413, "too-large")
        assert client.post(url, json={"text": "a boat"}, headers=FROM_AFAR).status_code == 200
        assert client.post(url, json={"text": "a boat"}).status_code == 401


@pytest.mark.usefixtures("public")
def test_api_does_not_train() -> None:
    names = {path.rpartition("/")[2] for path in schema.document("1")["paths"]}
    assert "lens" in names
    assert "tuned-lens" not in names
    with api_client(token=TOKEN, address="203.0.113.9") as client:
        reply = client.post("/api/v1/tuned-lens", json={"sentences": ["a", "b"]}, headers=FROM_AFAR)
        assert "is not the name of a question" in problem_detail(reply, 404, "no-such-thing")
    with permissions.using(Permissions()):
        assert "/api/v1/tuned-lens" in schema.document("1")["paths"]


def test_api_of_a_private_app_still_offers_revisions() -> None:
    body = schema.document("1")["paths"]["/api/v1/tokens"]["post"]["requestBody"]["content"]
    assert "revision" in body["application/json"]["schema"]["properties"]


# ---------------------------------------------------------------- clients


@pytest.mark.parametrize(
    ("proxies", "headers", "client"),
    [
        (1, ["198.51.100.7"], "198.51.100.7"),
        (1, ["10.9.9.9, 198.51.100.7"], "198.51.100.7"),  # the first entry was sent by the user
        (2, ["10.9.9.9, 198.51.100.7, 192.0.2.1"], "198.51.100.7"),
        (2, ["10.9.9.9", "198.51.100.7", "192.0.2.1"], "198.51.100.7"),
        (2, ["198.51.100.7"], "203.0.113.1"),  # too few entries, because a proxy did not add its own
        (1, [], "203.0.113.1"),
        (1, ["not an address"], "203.0.113.1"),
        (1, ["2001:db8:1:2:3::4"], "2001:db8:1:2::/64"),
        (1, ["::ffff:198.51.100.7"], "198.51.100.7"),
        (1, ["198.51.100.7:5555"], "198.51.100.7"),
        (1, ["[2001:db8:1:2:3::4]:443"], "2001:db8:1:2::/64"),
        (1, ["[2001:db8:1:2:3::4]"], "2001:db8:1:2::/64"),
        (1, ["198.51.100.7:x"], "203.0.113.1"),
    ],
)
def test_client_is_the_address_that_the_outermost_trusted_proxy_saw(
    proxies: int, headers: list[str], client: str
) -> None:
    async def reply(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse(client_name(scope))(scope, receive, send)

    app = ClientAddress(reply, proxies)
    pairs = [(b"x-forwarded-for", value.encode()) for value in headers]
    assert answer_of(app, "/", headers=pairs, client=("203.0.113.1", 5))[2].decode() == client


def test_forwarded_addresses_are_ignored_without_the_option(public: Permissions) -> None:
    classes: list[Any] = [middleware.cls for middleware in asgi.middleware()]
    assert ClientAddress not in classes
    with permissions.using(replace(public, trusted_proxies=1)):
        classes = [middleware.cls for middleware in asgi.middleware()]
    assert classes[0] is ClientAddress
    assert classes.index(LimitedVisitors) < classes.index(visitors.BoundedUploads)
    with permissions.using(Permissions()):
        classes = [middleware.cls for middleware in asgi.middleware()]
        assert LimitedVisitors not in classes


def test_rate_is_limited_per_client_and_recovers() -> None:
    now = 0.0
    limit = RateLimit(60, lambda: now)
    assert [limit.delay("a") for _ in range(60)] == [0] * 60
    assert limit.delay("a") == pytest.approx(1)
    assert limit.delay("b") == 0
    now = 2.5
    assert [limit.delay("a") for _ in range(3)] == [0, 0, pytest.approx(0.5)]
    now = 1e6
    assert [limit.delay("a") for _ in range(61)] == [0] * 60 + [pytest.approx(1)]


def _visited(allowed: Permissions) -> Starlette:
    async def page(_request: object) -> PlainTextResponse:
        return PlainTextResponse("page")

    async def stream(socket: WebSocket) -> None:
        await socket.accept()
        async for text in socket.iter_text():
            await socket.send_text(text)

    routes = [Route("/", page), Route("/api/v1/tokens", page), WebSocketRoute("/_stcore/stream", stream)]
    app = Starlette(routes=routes)
    app.add_middleware(LimitedVisitors, permissions=allowed, page_paths=("/",))
    return app


def test_requests_and_questions_beyond_the_limits_get_429(public: Permissions) -> None:
    allowed = replace(public, requests_per_minute=6, runs_per_minute=2)
    with TestClient(_visited(allowed)) as client:
        assert [client.get("/api/v1/tokens").status_code for _ in range(3)] == [200, 200, 429]
        assert [client.get("/").status_code for _ in range(4)] == [200, 200, 200, 429]
        reply = client.get("/")
        assert int(reply.headers["retry-after"]) <= 10
        assert "Too many requests from your IP address" in reply.text


def test_sessions_are_limited_per_client_and_in_total(public: Permissions) -> None:
    app = _visited(replace(public, max_sessions=3, max_client_sessions=2))
    with TestClient(app, client=("192.0.2.1", 1)) as one, TestClient(app, client=("192.0.2.2", 1)) as two:
        with one.websocket_connect("/_stcore/stream"), one.websocket_connect("/_stcore/stream"):
            with pytest.raises(WebSocketDenialResponse) as refused, one.websocket_connect("/_stcore/stream"):
                pass
            assert (refused.value.status_code, one.get("/").status_code) == (503, 503)
            assert "2 pages are open from your IP address" in one.get("/").text
            with two.websocket_connect("/_stcore/stream"):
                assert "This server already has 3 open pages" in two.get("/").text
            assert two.get("/").status_code == 200
        assert one.get("/").status_code == 200


def test_messages_of_a_session_beyond_the_limit_wait(
    public: Permissions, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        limited._runs = RateLimit(100)

    limited = LimitedVisitors(_echo, replace(public, runs_per_minute=2))
    monkeypatch.setattr("bert_probe.server.visitors.asyncio.sleep", sleep)
    with TestClient(limited).websocket_connect("/") as socket:
        for number in range(4):
            socket.send_text(str(number))
            assert socket.receive_text() == str(number)
    assert len(waits) == 1
    assert 0 < waits[0] <= 30


async def _echo(scope: Scope, receive: Receive, send: Send) -> None:
    socket = WebSocket(scope, receive, send)
    await socket.accept()
    async for text in socket.iter_text():
        await socket.send_text(text)
