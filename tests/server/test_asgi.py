"""Test the ASGI app: routes, headers, content security policy, settings, and all ways to start it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import streamlit
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

import bert_probe
from bert_probe.runtime import jobs
from bert_probe.server import access, asgi, security_headers
from bert_probe.views import palette
from tests.helpers.exactness import assert_printed
from tests.helpers.gate import prove_unless
from tests.helpers.installed import foreign_settings, free_port
from tests.helpers.server import answer, answer_of, run_in_thread
from tests.helpers.waiting import fetch, wait_for_server

ROOT = Path(__file__).parents[2]
CONFIG = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text(encoding="utf-8"))


def test_menu_of_the_page_answer_has_another_name() -> None:
    assert asgi.SECTIONS["Output"] == ("answer", "train")
    assert "Answer" not in asgi.SECTIONS


def test_health_has_the_version() -> None:
    status, headers, body = answer("/health")
    assert status == 200
    assert json.loads(body) == {"status": "ok", "version": bert_probe.__version__}
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", bert_probe.__version__)
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("query", "target"), [(b"", "/"), (b"a=b%26c&model=x", "/?a=b%26c&model=x"), (b"a=b&layer=2", "/?a=b")]
)
def test_front_page_name_redirects_to_root(query: bytes, target: str) -> None:
    status, headers, _ = answer(f"/{asgi.FRONT_PAGE}", query)
    assert (status, headers["location"]) == (307, target)


@pytest.mark.parametrize("query", [b"show=head-view&layer=2", b"a=we%20left&pins=query.3", b"head=2"])
def test_old_attention_links_redirect_to_the_attention_page(query: bytes) -> None:
    status, headers, _ = answer("/", query)
    assert (status, headers["location"]) == (307, f"/attention?{query.decode()}")
    assert answer("/", b"a=we+left&b=you+left&of=b&vector_layer=2")[0] == 200


@pytest.mark.parametrize("path", ["/", *(f"/{page}" for page in asgi.PAGES if page != asgi.FRONT_PAGE)])
def test_index_page_contains_the_script_and_styles(path: str) -> None:
    status, headers, body = answer(path)
    page = body.decode()
    assert (status, headers["cache-control"]) == (200, "no-cache")
    additions = re.search(r"<script>// Runs in.*?</script><style>.*?</style>(?=</head>)", page, re.S)
    assert additions is not None
    assert page.replace(additions[0], "", 1) == (
        Path(streamlit.__file__).with_name("static") / "index.html"
    ).read_text(encoding="utf-8")
    assert ".stMainBlockContainer" in page


@pytest.mark.parametrize(
    "path", ["/attentoin", "/some/page", "/heads/2", "/" + "x" * 3000, "/%3Cscript%3E<script>"]
)
def test_unknown_path_links_to_the_pages(path: str) -> None:
    status, _, body = answer(path, b"a=we%20left&b=%22%3E%3Cscript%3E")
    page = body.decode()
    assert status == 404
    assert "Page not found" in page
    assert len(page) < 6_000
    assert "<script" not in page
    for name in asgi.PAGES:
        assert f'href="/{name}?a=we%20left&amp;b=%22%3E%3Cscript%3E"' in page


def test_unknown_path_does_not_repeat_a_long_query() -> None:
    assert len(answer("/some/page", b"'" * 60_000)[2]) < 6_000


@pytest.mark.parametrize(
    "path",
    ["/_stcore/health", "/static/js/x", "/media/x", "/component/a.b/c", "/favicon.png", "/manifest.json"],
)
def test_streamlit_paths_have_no_own_route(path: str) -> None:
    assert answer(path)[2] == b"Not Found", "the test app has only our own routes"


@pytest.mark.parametrize("path", ["/health", "/no-such-page"])
def test_all_responses_have_security_headers(path: str) -> None:
    _, headers, _ = answer(path)
    for name, value in security_headers.headers().items():
        assert headers[name.lower()] == value


def test_stricter_policy_is_kept() -> None:
    _, headers, _ = answer("/framed")
    assert headers["content-security-policy"] == "sandbox"
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("layer", ["9" * 4301, "9" * 60_000, "-1", "0", "1.0", "\u0661", "x"])
def test_invalid_layer_number_is_404(layer: str) -> None:
    status, headers, _ = answer(f"/layers/x/{layer}")
    assert status == 404
    assert headers["content-security-policy"] == security_headers.app_policy()


def test_error_response_has_security_headers_and_error_is_raised() -> None:
    async def fails(_request: Request) -> PlainTextResponse:
        raise ValueError("a reader's text")

    app = Starlette(routes=[Route("/fails", fails)], middleware=asgi.middleware())
    sent: list[Message] = []
    with pytest.raises(ValueError, match="a reader's text"):
        answer_of(app, "/fails", sent=sent)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    assert (sent[0]["status"], headers["cache-control"]) == (500, "no-store")
    for name, value in security_headers.headers().items():
        assert headers[name.lower()] == value
    assert b"reader" not in sent[1]["body"]
    assert len(sent) == 2, "Starlette must not send a second response"


def test_error_after_the_start_sends_no_second_response() -> None:
    async def inner(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ValueError("too late")

    sent: list[Message] = []
    with pytest.raises(ValueError, match="too late"):
        answer_of(asgi.SecurityHeaders(inner), "/", sent=sent)
    assert [message.get("status") for message in sent] == [200]


def connection(*messages: Message) -> list[Message]:
    """Return the WebSocket messages that reach the browser if the wrapped app sends `messages`."""

    async def inner(_scope: Scope, _receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    scope = {"type": "websocket", "extensions": {"websocket.http.response": {}}}
    run_in_thread(asgi.SecurityHeaders(inner)(scope, receive, send))
    return sent


def test_accepted_websocket_is_forwarded_unchanged() -> None:
    messages = [{"type": "websocket.accept", "headers": []}, {"type": "websocket.close", "code": 1000}]
    assert connection(*messages) == messages


def test_refused_websocket_gets_response_with_security_headers() -> None:
    sent = connection({"type": "websocket.close", "code": 1008})
    assert [message["type"] for message in sent] == [
        "websocket.http.response.start",
        "websocket.http.response.body",
    ]
    assert sent[0]["status"] == 403
    assert (b"x-content-type-options", b"nosniff") in sent[0]["headers"]


def test_policy_allows_only_this_server_and_its_inline_scripts() -> None:
    policy = dict(part.split(" ", 1) for part in security_headers.app_policy().split("; "))
    assert policy["default-src"] == policy["connect-src"] == "'self'"
    assert policy["object-src"] == "'none'"
    assert "http" not in security_headers.app_policy()
    assert "unsafe" not in policy["script-src"]
    inline = re.findall(r"<script>(.*?)</script>", answer("/")[2].decode(), re.S)
    assert len(inline) > 1, "Streamlit's page has no inline scripts any more: remove `_inline_scripts`"
    for script in inline:
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy["script-src"]


# Settings


def contrast(first: str, second: str) -> float:
    """Return the contrast ratio of two colors, 1 to 21 (WCAG 2.2)."""

    def luminance(color: str) -> float:
        channels = [byte / 255 for byte in bytes.fromhex(color[1:])]
        red, green, blue = (
            value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_equals_hand_computed_values() -> None:
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert_printed(4.48, contrast("#777777", "#FFFFFF"), decimals=2)


@pytest.mark.parametrize("name", ["light", "dark"])
def test_text_and_accent_have_sufficient_contrast(name: str) -> None:
    theme = CONFIG["theme"][name]
    papers = {theme["backgroundColor"], theme["secondaryBackgroundColor"], *theme["sidebar"].values()}
    for paper in papers:
        for ink in ("textColor", "primaryColor", "linkColor", "grayTextColor"):
            assert contrast(theme[ink], paper) >= 4.5, (ink, paper)
    assert contrast(theme["codeTextColor"], theme["codeBackgroundColor"]) >= 4.5
    assert contrast(theme["dataframeHeaderTextColor"], theme["dataframeHeaderBackgroundColor"]) >= 4.5
    for color in theme["chartCategoricalColors"]:
        assert contrast(color, theme["backgroundColor"]) >= 3
    assert len(theme["chartSequentialColors"]) == len(theme["chartDivergingColors"]) == 10


def test_theme_has_the_colors_of_the_charts() -> None:
    light, dark = CONFIG["theme"]["light"], CONFIG["theme"]["dark"]
    assert (light["backgroundColor"], dark["backgroundColor"]) == (palette.PAPER_LIGHT, palette.PAPER_DARK)
    assert (light["textColor"], dark["textColor"]) == (palette.INK_LIGHT, palette.INK_DARK)
    assert (light["primaryColor"], dark["primaryColor"]) == (palette.ACCENT_LIGHT, palette.ACCENT_DARK)


def test_settings_restrict_the_app_to_this_machine() -> None:
    assert CONFIG["server"]["address"] == "127.0.0.1"
    assert "*" not in CONFIG["server"]["allowedHosts"]
    assert CONFIG["browser"]["gatherUsageStats"] is False
    assert CONFIG["client"]["showErrorDetails"] == "type"
    assert "://" not in json.dumps(CONFIG), "a font or a theme from elsewhere"


# Starting the app


@contextmanager
def started(
    command: list[str], folder: Path, ended_by: signal.Signals = signal.SIGTERM
) -> Iterator[tuple[str, Path]]:
    """Start a server with a command in a folder, yield its origin and its log, and end it by a signal."""
    port = free_port()
    log = folder / f"server-{port}.log"
    command = [part.format(port=port) for part in command]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], cwd=folder, stdout=output, stderr=output, env=environment
        )
    try:
        origin = f"http://127.0.0.1:{port}"
        wait_for_server(process, f"{origin}/_stcore/health", log)
        yield origin, log
    finally:
        process.send_signal(ended_by)
        process.wait(timeout=20)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["bert_probe", "app", "--port={port}", "--no-browser"], id="bert-probe"),
        pytest.param(
            ["streamlit", "run", str(ROOT / "app.py"), "--server.port={port}"],
            id="streamlit",
            marks=pytest.mark.prove,
        ),
        pytest.param(
            ["uvicorn", "--app-dir", str(ROOT), "app:app", "--port={port}"],
            id="uvicorn",
            marks=pytest.mark.prove,
        ),
    ],
)
def test_app_starts_from_any_folder_with_its_protections(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings of another project in the current folder have no effect."""
    monkeypatch.setenv(access.HOSTS_VARIABLE, "lab.example.org")
    with foreign_settings(tmp_path), started(command, tmp_path) as (origin, log):
        port = int(origin.rpartition(":")[2])
        _, headers, body = fetch(f"{origin}/health")
        assert json.loads(body)["status"] == "ok"
        for path in ("/", "/_stcore/health", "/_stcore/host-config", "/heads"):
            _, headers, _ = fetch(origin + path)
            for name, value in security_headers.headers().items():
                assert headers[name.lower()] == value, path
        assert "not a valid config option" not in log.read_text()
        for path in ("/", "/health", "/_stcore/health", "/static/none.js", "/layers/x/1"):
            assert raw_response(port, path, Host="evil.com").startswith(b"HTTP/1.1 421 "), path
        own, stream = f"localhost:{port}", "/_stcore/stream"
        assert b" 101 " in raw_response(port, stream, **UPGRADE, Host=own, Origin=f"http://{own}")
        assert b" 421 " in raw_response(port, stream, **UPGRADE, Host="evil.com", Origin="http://evil.com")
        assert b" 403 " in raw_response(port, stream, **UPGRADE, Host=own, Origin="http://evil.com")
        # A proxy with an additional host name may change the Host header.
        assert b" 101 " in raw_response(port, stream, **UPGRADE, Host=own, Origin="https://lab.example.org")
        # The settings disable CORS, enable XSRF protection for uploads, and restrict the listening address.
        assert b"example.org" not in raw_response(
            port, "/_stcore/health", Host=own, Origin="https://example.org"
        )
        put = raw_response(port, "/_stcore/upload_file/a/b", "PUT", Host=own, **{"Content-Length": "0"})
        assert b" 403 " in put
        assert b"XSRF" in put
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=10)
        assert "external IP" not in log.read_text(), "queried an external server"


@pytest.mark.parametrize("ended_by", prove_unless({signal.SIGHUP}, [signal.SIGHUP, signal.SIGTERM]))
def test_temporary_folders_are_removed_after_a_signal(
    ended_by: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    command = ["bert_probe", "app", "--public", "--port={port}", "--no-browser"]
    with started(command, tmp_path, ended_by) as (_, log):
        assert list(temporary.glob("bert-probe-caches-*"))
    assert list(temporary.glob("bert-probe-*")) == []
    assert "Traceback" not in log.read_text()


def test_signals_cancel_jobs_before_the_server_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(jobs, "cancel_all", lambda: calls.append("cancelled"))
    previous = signal.signal(signal.SIGTERM, lambda number, _frame: calls.append(number))

    async def receive_a_signal() -> None:
        async with asgi.lifespan(None):
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(0)

    try:
        asyncio.run(receive_a_signal())
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert calls == [signal.SIGTERM, "cancelled"]


UPGRADE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


def raw_response(port: int, path: str, method: str = "GET", **headers: str) -> bytes:
    """Send a request and return the raw response; for a WebSocket, only up to the end of the handshake."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in ({"Connection": "close"} | headers).items())
    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        line.sendall(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1"))
        response = b""
        while not response.startswith(b"HTTP/1.1 101") and (part := line.recv(65536)):
            response += part
    return response


def test_streamlit_accepts_every_setting() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "streamlit", "config", "show"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "not a valid" not in run.stdout + run.stderr
    assert 'primaryColor = "#4338CA"' in run.stdout


def test_main_script_exists() -> None:
    assert asgi.MAIN_SCRIPT.is_file()
    assert asgi.MAIN_SCRIPT.is_relative_to(Path(bert_probe.__file__).parent)
