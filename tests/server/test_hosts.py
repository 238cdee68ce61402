"""Test allowed host names, and origins that can open a WebSocket."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from bert_probe.errors import AddressError
from bert_probe.server import access, asgi, security_headers
from tests.helpers.server import answer, run_in_thread

OWN_NAMES = [
    "localhost",
    "localhost:8501",
    "LocalHost.:80",
    "127.0.0.1:9",
    "127.0.0.1",
    "[::1]",
    "[::1]:8501",
]
FOREIGN = [
    "evil.com",
    "evil.com:8501",
    "localhost.evil.com",
    "evil-localhost",
    "localhost@evil.com",
    "evil.com/localhost",
    "evil.com#localhost",
    "localhost:8501:1",
    "localhost:http",
    "localhost..",
    "127.0.0.2",
    "127.1",
    "::1",
    "[::2]",
    "[localhost]",
    "0.0.0.0",
    "",
    " ",
    "*",
    "l\u00f6calhost",
    "x" * 5000,
]


def header(*pairs: tuple[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs]


@pytest.mark.parametrize("host", OWN_NAMES)
def test_own_names_are_allowed_on_any_port(host: str) -> None:
    assert answer("/health", headers=header(("host", host)))[0] == 200


@pytest.mark.parametrize("host", FOREIGN)
@pytest.mark.parametrize("path", ["/", "/health", "/no-such-page", "/_stcore/health"])
def test_foreign_host_is_refused_with_an_explanation(path: str, host: str) -> None:
    status, headers, body = answer(path, headers=header(("host", host)))
    assert status == 421
    assert headers["content-type"] == "text/plain; charset=utf-8"
    for name, value in security_headers.headers().items():
        assert headers[name.lower()] == value
    text = body.decode("ascii")
    assert text.startswith(f"BERT Probe does not accept the host name {ascii(host)[:100]}")
    assert "BERT_PROBE_HOSTS" in text
    assert "--allow" in text
    assert len(text) < 400


def test_missing_and_duplicate_host_headers_are_refused() -> None:
    assert answer("/health", headers=[])[0] == 421
    assert answer("/health", headers=header(("host", "localhost"), ("host", "evil.com")))[0] == 421


def test_additional_names_come_from_the_environment_and_the_argument(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(access.HOSTS_VARIABLE, "Lab.Example.org, *.lab.example , ,[fe80::1]")
    expected = ("lab.example.org", "*.lab.example", "fe80::1", "desk", "10.0.0.7")
    assert access.additional_names(["desk", "10.0.0.7", "desk"]) == expected
    for host in ("lab.example.org:443", "a.lab.example", "a.b.lab.example", "[fe80::1]:80", "localhost"):
        assert answer("/health", headers=header(("host", host)))[0] == 200, host
    for host in ("lab.example", "evil-lab.example", "example.org", "desk"):
        assert answer("/health", headers=header(("host", host)))[0] == 421, host


@pytest.mark.parametrize(
    "name",
    ["*", "http://lab", "lab:8501", "a b", "*.", "**.lab", "a.*.lab", "lab/", "a..b", "lab.", "\u00e9"],
)
def test_invalid_name_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AddressError, match=r"is not a host name\. Pass the name as in the browser"):
        access.additional_names([name])
    monkeypatch.setenv(access.HOSTS_VARIABLE, name)
    with pytest.raises(SystemExit, match=r"bert-probe: .* is not a host name"):
        asgi.apply_settings()


# Connections


def connected(
    host: str, *origins: str, names: tuple[str, ...] = (), has_denial: bool = True
) -> tuple[Scope | None, list[Message]]:
    """Open a WebSocket; return the scope in the inner app (None if refused) and the messages sent back."""
    scopes: list[Scope] = []
    sent: list[Message] = []

    async def inner(scope: Scope, _receive: Receive, send: Send) -> None:
        scopes.append(scope)
        await send({"type": "websocket.accept", "headers": []})

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    scope: dict[str, Any] = {
        "type": "websocket",
        "path": "/_stcore/stream",
        "headers": header(("host", host), *(("origin", origin) for origin in origins)),
        "extensions": {"websocket.http.response": {}} if has_denial else {},
    }
    run_in_thread(asgi.SecurityHeaders(access.AllowedHosts(inner, names))(scope, receive, send))
    return (scopes[0] if scopes else None), sent


@pytest.mark.parametrize(
    ("host", "origins"),
    [
        ("localhost:8501", ["http://localhost:8501"]),
        ("127.0.0.1:8501", ["HTTP://127.0.0.1:8501"]),
        ("[::1]:8501", ["http://[::1]:8501"]),
        ("localhost", ["https://localhost"]),
        ("localhost:8501", []),
    ],
)
def test_own_pages_and_programs_can_connect(host: str, origins: list[str]) -> None:
    received, sent = connected(host, *origins)
    assert received is not None
    assert sent == [{"type": "websocket.accept", "headers": []}]


@pytest.mark.parametrize(
    ("host", "origins", "status"),
    [
        ("evil.com", ["http://evil.com"], 421),
        ("evil.com", [], 421),
        ("localhost:8501", ["http://evil.com"], 403),
        ("localhost:8501", ["http://localhost:3000"], 403),
        ("localhost:8501", ["http://127.0.0.1:8501"], 403),
        ("localhost:8501", ["null"], 403),
        ("localhost:8501", [""], 403),
        ("localhost:8501", ["localhost:8501"], 403),
        ("localhost:8501", ["x://localhost:8501"], 403),
        ("localhost:8501", ["chrome-extension://localhost:8501"], 403),
        ("localhost:8501", ["ws://localhost:8501"], 403),
        ("localhost:8501", ["http://localhost:8501", "http://evil.com"], 403),
        ("localhost:8501", ["http://localhost:8501/evil.com"], 403),
    ],
)
def test_foreign_pages_cannot_connect(host: str, origins: list[str], status: int) -> None:
    received, sent = connected(host, *origins)
    assert received is None
    assert (sent[0]["type"], sent[0]["status"]) == ("websocket.http.response.start", status)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    assert headers["content-security-policy"] == security_headers.app_policy()
    assert b"BERT_PROBE_HOSTS" in sent[1]["body"]


@pytest.mark.parametrize(
    ("scheme", "is_secure", "expected"),
    [("http", False, True), ("https", False, True), ("https", True, True), ("http", True, False)],
)
def test_page_without_tls_is_foreign_to_a_server_with_tls(
    scheme: str, is_secure: bool, expected: bool
) -> None:
    assert access.is_same_page([f"{scheme}://localhost"], "localhost", (), is_secure) is expected


def test_server_without_denial_responses_closes_the_websocket() -> None:
    received, sent = connected("evil.com", has_denial=False)
    assert (received, sent) == (None, [{"type": "websocket.close", "code": 1008}])


def test_behind_a_proxy_the_host_of_the_page_replaces_the_host_header() -> None:
    page = "https://lab.example.org"
    for host in ("127.0.0.1:8501", "lab.example.org", "lab.example.org:443"):
        received, _ = connected(host, page, names=("lab.example.org",))
        assert received is not None
        assert dict(received["headers"])[b"host"] == b"lab.example.org"
        assert [name for name, _ in received["headers"]].count(b"host") == 1
    assert connected("127.0.0.1:8501", page)[0] is None
    assert connected("127.0.0.1:8501", "x://lab.example.org", names=("lab.example.org",))[0] is None
    assert connected("127.0.0.1:8501", "https://other.example.org", names=("lab.example.org",))[0] is None
