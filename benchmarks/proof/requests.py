"""Send malformed HTTP and WebSocket requests to the app over raw sockets, and check its responses."""

from __future__ import annotations

import random
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import running_app
from benchmarks.pairs import Line
from benchmarks.proof.theme import Run

REQUESTS = 300
HEADERS = (b"content-security-policy", b"x-content-type-options", b"referrer-policy", b"permissions-policy")
_SECONDS = 10.0
_SILENCE = 0.5
"""Seconds without data after which a response is considered complete."""
_MOST_BYTES = 8_000_000

_BEFORE_THE_APP = (b"Invalid HTTP request received.", b"Failed to open a WebSocket connection")
"""First bytes of response bodies with which the server's parsers reject invalid requests before the app."""
_CUT_SHORT = "h11._util.LocalProtocolError: can't handle event type Response"
"""Error in the log, which the server's parser raises if the body of a request turns out to be invalid."""
_FILES = (rb"root:[^:]*:0:0:", rb"\[build-system\]", rb"# Settings of the app", rb"from __future__ import")
"""Content of files that must never be served."""

_METHODS = (
    "GET",
    "GET",
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "OPTIONS",
    "PATCH",
    "TRACE",
    "CONNECT",
    "get",
    "X" * 300,
)
_PATHS = (
    "/",
    "/attention",
    "/heads",
    "/health",
    "/nowhere",
    "/layers/x/1",
    "/bertviz/x",
    "/static/index.html",
    "/_stcore/health",
    "/_stcore/host-config",
    "/_stcore/upload_file/a/b",
    "/_stcore/stream",
    "/media/x.csv",
    "/component/x/y.js",
    "/app/static/app.py",
    "/favicon.png",
    "*",
    "",
    "http://127.0.0.1/",
    "//evil.com/x",
)
_OUTSIDE = (
    "/../../etc/passwd",
    "/static/../../../../../../etc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/..%2f..%2fetc%2fpasswd",
    "/static/..%5c..%5cetc%5cpasswd",
    "/%252e%252e%252fetc/passwd",
    "//etc/passwd",
    "/static//etc/passwd",
    "/app/static/../../pyproject.toml",
    "/component/../app.py",
    "/static/%00/etc/passwd",
    "/.streamlit/config.toml",
    "/app.py",
    "/pages/tokens.py",
    "/bert_probe/server/asgi.py",
    "/media/../../../pyproject.toml",
    "/file:///etc/passwd",
    "/component/x/../../../../../../etc/passwd",
    "/static/static/../../../../../../../pyproject.toml",
    "/..;/app.py",
)
_HOSTS = (
    "evil.com",
    "127.0.0.1.evil.com",
    "localhost@evil.com",
    "",
    "[::1",
    "127.0.0.1:99999999",
    "*",
    "a" * 5000,
    "évil",
)
_ORIGINS = (
    "http://evil.com",
    "null",
    "http://localhost.evil.com",
    "file://",
    "http://127.0.0.1:1",
    "x" * 3000,
)


@dataclass(frozen=True)
class Answer:
    """A response: status, head in lower case, and body."""

    status: int
    head: bytes
    body: bytes


def lines(run: Run) -> Iterator[Line]:
    log = run.folder / "app.log"
    total, sent, kinds = run.times(REQUESTS), 0, Counter[str]()
    with running_app.started(log) as app:
        for kind, request in _requests(run.lots("requests"), app.port, total):
            if run.left < 0:
                break
            sent += 1
            kinds[_judged(run, kind, request, _asked(app.port, request))] += 1
        alive = _asked(app.port, _plain("GET", "/health", app.port))
        if alive is None or alive.status != 200:
            run.failed("The app no longer responds after all requests.")
    _read_log(run, log)
    answers = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
    is_complete = sent == total
    yield Line("Raw requests", "sockets, 127.0.0.1", f"{sent} of {total}: {answers}", "all sent", is_complete)
    yield Line(
        "Responses with status 500, without the headers, or with a file that must not be served",
        "every response of the app",
        f"{len(run.failures)}",
        "0",
        not run.failures,
    )


def _requests(lots: random.Random, port: int, total: int) -> Iterator[tuple[str, bytes]]:
    """Yield the name of a generator and a request from it, for each generator in turn."""
    makers: tuple[tuple[str, Callable[[random.Random, int], bytes]], ...] = (
        ("path", lambda lots, port: _plain(lots.choice(_METHODS), lots.choice(_PATHS), port)),
        ("outside", lambda lots, port: _plain("GET", lots.choice(_OUTSIDE), port)),
        ("long", _long),
        ("host", lambda lots, port: _plain("GET", lots.choice(_PATHS), port, Host=lots.choice(_HOSTS))),
        ("malformed", _malformed),
        ("websocket", _websocket),
        ("body", _body),
    )
    for number in range(total):
        kind, make = makers[number % len(makers)]
        yield kind, make(lots, port)


def _plain(method: str, path: str, port: int, body: bytes = b"", **headers: str) -> bytes:
    every = {"Host": f"127.0.0.1:{port}", "Connection": "close"} | headers
    header_lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in every.items())
    return f"{method} {path} HTTP/1.1\r\n{header_lines}\r\n".encode() + body


def _long(lots: random.Random, port: int) -> bytes:
    digits = lots.choice((4_301, 20_000)) * lots.choice("0179")
    path = lots.choice(
        (
            f"/layers/x/{digits}",
            f"/layers/{digits}/1",
            f"/{digits}",
            f"/?layer={digits}",
            f"/heads?a={'%F0%9F%98%80' * 5_000}",
            f"/bertviz/{digits}",
            "/" + "a/" * 10_000,
            "/?" + "&".join(f"k{i}=v" for i in range(5_000)),
        )
    )
    return _plain("GET", path, port)


def _malformed(lots: random.Random, port: int) -> bytes:
    host = f"Host: 127.0.0.1:{port}\r\n".encode()
    return lots.choice(
        (
            b"\r\n\r\n",
            b"\x00" * 100 + b"\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00" + lots.randbytes(200),
            b"GET / HTTP/9.9\r\n" + host + b"\r\n",
            b"GET / HTTP/1.1\r\n" + host + host + b"\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.0\r\n\r\n",
            b"GET /\xff\xfe\x00 HTTP/1.1\r\n" + host + b"\r\n",
            b"GET / HTTP/1.1\r\n" + host + b"X: " + b"a" * 100_000 + b"\r\n\r\n",
            b"GET / HTTP/1.1\r\n" + host + b"".join(b"X-%d: 1\r\n" % i for i in range(2_000)) + b"\r\n",
            b"GET / HTTP/1.1\r\n" + host + b" folded\r\n\r\n",
            b"GET / HTTP/1.1\r\n" + host + b"Na\x00me: v\r\n\r\n",
            b"POST /health HTTP/1.1\r\n" + host + b"Content-Length: -1\r\n\r\n",
            b"POST /health HTTP/1.1\r\n" + host + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
            b"POST /health HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n\r\n",
            b"POST / HTTP/1.1\r\n"
            + host
            + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            lots.randbytes(300) + b"\r\n\r\n",
        )
    )


def _websocket(lots: random.Random, port: int) -> bytes:
    own = f"http://127.0.0.1:{port}"
    opening = {
        "Host": lots.choice((*[f"127.0.0.1:{port}"] * len(_HOSTS), *_HOSTS)),
        "Origin": lots.choice((*[own] * len(_ORIGINS), *_ORIGINS)),
        "Connection": lots.choice(("Upgrade", "close", "Upgrade, close")),
        "Upgrade": lots.choice(("websocket", "websocket", "h2c")),
        "Sec_WebSocket_Version": lots.choice(("13", "13", "13", "0", "x")),
        "Sec_WebSocket_Key": lots.choice((*["AAAAAAAAAAAAAAAAAAAAAA=="] * 4, "x", "")),
        "Sec_WebSocket_Protocol": lots.choice(("streamlit", "streamlit, x, ../../y", ", ,", "a" * 2_000)),
    }
    # Masked frames with invalid opcodes and lengths, which must not crash the app.
    frames = lots.choice(
        (b"", b"\x82\xfe\xff\xff" + lots.randbytes(80), b"\x82\x84\0\0\0\0" + lots.randbytes(4), b"\xff\xff")
    )
    path = lots.choice(("/_stcore/stream", "/", "/stream", "/layers/x/1"))
    return _plain("GET", path, port, frames, **opening)


def _body(lots: random.Random, port: int) -> bytes:
    content = lots.randbytes(lots.choice((0, 10, 100_000)))
    stated = lots.choice((str(len(content)), "0", str(10**12), "9" * 30, "abc"))
    path = lots.choice(
        ("/_stcore/upload_file/a/b", "/_stcore/upload_file/../../x", "/health", "/_stcore/metrics", "/")
    )
    kind = lots.choice(("multipart/form-data; boundary=x", "multipart/form-data", "text/plain", "x" * 1_000))
    return _plain(
        lots.choice(("PUT", "POST", "DELETE")), path, port, content, Content_Length=stated, Content_Type=kind
    )


def _asked(port: int, request: bytes) -> Answer | None:
    """Send a request; return the response, or None if the connection was closed without a response."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=_SECONDS) as connection:
        connection.settimeout(_SILENCE)
        try:
            connection.sendall(request)
            while len(received) < _MOST_BYTES and (block := connection.recv(1 << 16)):
                received += block
        except OSError:  # the connection is closed or idle, so the response is complete
            pass
    head, _, body = received.partition(b"\r\n\r\n")
    first = re.match(rb"HTTP/1\.[01] (\d{3})", head)
    return Answer(int(first[1]), head.lower(), body) if first else None


def _judged(run: Run, kind: str, request: bytes, answer: Answer | None) -> str:
    """Record an unexpected response as a failure, and return a label to count the response under."""
    description = f"{kind} request {request[:150]!r} of {len(request):,} bytes"
    if answer is None:
        return "closed"
    if answer.status == 101:
        return "101"
    if answer.status == 400 and any(phrase in answer.body[:100] for phrase in _BEFORE_THE_APP):
        return "400 before the app"
    if answer.status >= 500:
        run.failed(f"{description}: status {answer.status}")
    missing = [name for name in HEADERS if b"\n" + name + b":" not in answer.head]
    if missing:
        run.failed(
            f"{description}: status {answer.status} without {b', '.join(missing).decode()}: "
            f"{answer.body[:60]!r}"
        )
    if any(re.search(content, answer.body) for content in _FILES):
        run.failed(f"{description}: serves a file")
    return str(answer.status)


def _read_log(run: Run, log: Path) -> None:
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if re.match(r"[\w.]*(Error|Exception)(:|$)", line) and not line.startswith(_CUT_SHORT):
            run.failed(f"The app's log has: {line}")
