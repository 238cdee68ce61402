"""Test authorization of API requests: local programs, tokens, and pages of other sites."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from bert_probe.errors import AddressError
from bert_probe.server import access, asgi
from tests.helpers.http import TOKENS, api_client, problem_detail

TOKEN = "sesame-opens-all-of-it"


@pytest.fixture(scope="module")
def here() -> Iterator[TestClient]:
    """Return an API client whose requests come from the local machine."""
    with api_client() as client:
        yield client


@pytest.mark.parametrize("address", ["10.0.0.7", "::ffff:10.0.0.7", "fe80::1", "testclient", "0.0.0.0"])
@pytest.mark.parametrize("path", ["/api/v1/tokens", "/metrics"])
def test_other_machine_without_a_token_is_refused(path: str, address: str) -> None:
    with api_client(address=address) as client:
        answer = client.get(path) if path == "/metrics" else client.post(path, json=TOKENS)
    assert "BERT_PROBE_TOKEN" in problem_detail(answer, 403, "not-from-here")


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST"])
@pytest.mark.parametrize("path", ["/_stcore/metrics", "/_stcore/metrics/", "/base/_stcore/%6detrics"])
def test_metrics_of_streamlit_are_hidden(path: str, method: str) -> None:
    async def streamlit(_request: Request) -> PlainTextResponse:
        return PlainTextResponse("active_sessions 1")

    app = Starlette(routes=[Route("/{path:path}", streamlit, methods=[method])], middleware=asgi.middleware())
    with TestClient(app, "http://localhost", client=("127.0.0.1", 50_000)) as client:
        assert client.request(method, "/_stcore/health").status_code == 200
        answer = client.request(method, path)
    assert (answer.status_code, "active_sessions" in answer.text) == (404, False)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_this_machine_needs_no_token(address: str) -> None:
    with api_client(address=address, token=TOKEN) as client:
        assert client.post("/api/v1/tokens", json=TOKENS).status_code == 200


@pytest.mark.parametrize(
    "credentials",
    ["", "Bearer", f"Basic {TOKEN}", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", "Bearer ä", TOKEN],
)
def test_wrong_token_is_refused(credentials: str) -> None:
    with api_client(address="10.0.0.7", token=TOKEN) as client:
        headers = {"Authorization": credentials.encode()}
        answer = client.post("/api/v1/tokens", json=TOKENS, headers=headers)
    problem_detail(answer, 401, "no-token")
    assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER "])
def test_token_is_accepted(scheme: str) -> None:
    with api_client("lab.example.org", "10.0.0.7", ("lab.example.org",), TOKEN) as client:
        headers = {"Authorization": f"{scheme} {TOKEN}"}
        assert client.post("/api/v1/tokens", json=TOKENS, headers=headers).status_code == 200
        assert client.get("/metrics", headers=headers).status_code == 200


def test_empty_token_is_refused() -> None:
    with api_client(address="10.0.0.7") as client:
        answer = client.post("/api/v1/tokens", json=TOKENS, headers={"Authorization": "Bearer "})
    problem_detail(answer, 403, "not-from-here")


@pytest.mark.parametrize("name", ["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via"])
def test_proxy_on_this_machine_is_not_local(name: str, here: TestClient) -> None:
    answer = here.post("/api/v1/tokens", json=TOKENS, headers={name: "127.0.0.1"})
    problem_detail(answer, 403, "not-from-here")


def test_request_to_an_additional_host_name_is_not_local() -> None:
    with api_client("lab.example.org", names=("lab.example.org",)) as client:
        problem_detail(client.post("/api/v1/tokens", json=TOKENS), 403, "not-from-here")


@pytest.mark.parametrize("address", ["10.0.0.7", "127.0.0.1"])
@pytest.mark.parametrize("credentials", ["", "Bearer ", "Bearer None", f"Bearer {TOKEN}"])
def test_additional_host_name_does_not_replace_the_token(address: str, credentials: str) -> None:
    with api_client("lab.example.org", address, ("lab.example.org",)) as client:
        headers = {"Authorization": credentials, "Origin": "http://lab.example.org"}
        problem_detail(client.post("/api/v1/tokens", json=TOKENS, headers=headers), 403, "not-from-here")
        problem_detail(client.get("/metrics", headers=headers), 403, "not-from-here")
        for path in (
            "/layers/guess/1",
            "/layers/guess/labels",
            "/trained/guess/a.zip",
            "/report-preview/guess",
        ):
            answer = client.get(path, headers=headers)
            assert answer.status_code in (204, 404)
            assert len(answer.content) < 100


def test_api_refuses_foreign_host() -> None:
    with api_client("evil.com") as client:
        assert client.post("/api/v1/tokens", json=TOKENS).status_code == 421


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.com",
        "null",
        "http://localhost:1",
        "file://",
        "http://localhost.evil.com",
        "x://localhost",
    ],
)
def test_page_of_another_site_is_refused(origin: str, here: TestClient) -> None:
    answer = here.post("/api/v1/tokens", json=TOKENS, headers={"Origin": origin})
    assert "other sites" in problem_detail(answer, 403, "not-from-here")
    assert not [name for name in answer.headers if name.startswith("access-control")]
    request_headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    preflight = here.options("/api/v1/tokens", headers=request_headers)
    problem_detail(preflight, 405, "wrong-method")
    assert not [name for name in preflight.headers if name.startswith("access-control")]


def test_own_page_is_allowed(here: TestClient) -> None:
    answer = here.post("/api/v1/tokens", json=TOKENS, headers={"Origin": "http://localhost"})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "media", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
)
def test_media_types_of_simple_requests_are_refused(media: str, here: TestClient) -> None:
    answer = here.post("/api/v1/tokens", content=json.dumps(TOKENS), headers={"Content-Type": media})
    problem_detail(answer, 415, "wrong-media")


def test_compressed_body_is_refused(here: TestClient) -> None:
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    problem_detail(here.post("/api/v1/tokens", content=b"\x1f\x8b", headers=headers), 415, "wrong-media")


def test_token_is_read_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(access.TOKEN_VARIABLE, raising=False)
    assert access.token() == ""
    monkeypatch.setenv(access.TOKEN_VARIABLE, TOKEN)
    assert access.token() == TOKEN
    for content in (b"another-sesame-of-ours", b"another-sesame-of-ours\n", b"another-sesame-of-ours\r\n"):
        assert access.token(token_file(tmp_path, content)) == "another-sesame-of-ours"
    assert access.token(token_file(tmp_path, b"c2VzYW1lIG9wZW5zIGFsbA==\n")) == "c2VzYW1lIG9wZW5zIGFsbA=="


def token_file(folder: Path, content: bytes, mode: int = 0o600) -> Path:
    file = folder / "token"
    file.write_bytes(content)
    file.chmod(mode)
    return file


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short\n",
        "s\u00e9same-opens-all-of-it".encode(),
        b"x\ty" * 9,
        b"a" * 40,
        b"1212121212121212121212",
        b"a-token-of-enough-letters" * 30,
        b"# Notes on the project, 2026\n",
        b"root:x:0:0:root:/root:/bin/bash\n",
        b"import numpy as np\nimport torch\n",
        b"another-sesame-of-ours\n# a note\n",
        b"another-sesame-of-ours\n\n",
        b" another-sesame-of-ours",
        b"-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQ\n",
    ],
)
def test_file_that_is_not_a_token_is_refused(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(AddressError) as caught:
        access.token(token_file(tmp_path, content))
    assert "are not a valid token. A token is a single line of 16 to 512" in str(caught.value)
    assert "secrets.token_urlsafe()" in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_token_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AddressError, match="it is not UTF-8"):
        access.token(token_file(tmp_path, b"\xff\xfe"))
    with pytest.raises(AddressError, match="No such file"):
        access.token(tmp_path / "none")
    with pytest.raises(AddressError, match="Is a directory"):
        access.token(tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o606, 0o620])
def test_token_file_of_other_users_is_refused(mode: int, tmp_path: Path) -> None:
    with pytest.raises(AddressError, match=rf"\(mode {mode:o}\)\. Restrict its permissions: chmod 600 "):
        access.token(token_file(tmp_path, TOKEN.encode(), mode))


def test_variable_that_is_not_a_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(access.TOKEN_VARIABLE, "short")
    with pytest.raises(
        SystemExit, match=r"bert-probe: The 5 characters in BERT_PROBE_TOKEN are not a valid token"
    ):
        asgi.apply_settings()


def test_line_ending_of_the_variable_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(access.TOKEN_VARIABLE, f"{TOKEN}\r\n")
    assert access.token() == TOKEN
