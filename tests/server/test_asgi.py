"""The server around the pages: headers, health, how it starts, and the settings it starts with."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
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
from bert_probe.server import asgi, hosts
from bert_probe.views import palette
from tests.helpers.exactness import assert_printed
from tests.helpers.installed import foreign_settings, free_port
from tests.helpers.server import answer, answer_of, finish
from tests.helpers.waiting import fetch, until_it_answers

ROOT = Path(__file__).parents[2]
CONFIG = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text(encoding="utf-8"))


def test_health_says_which_version_runs() -> None:
    status, headers, body = answer("/health")
    assert status == 200
    assert json.loads(body) == {"status": "ok", "version": bert_probe.__version__}
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", bert_probe.__version__)
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("query", "target"), [(b"", "/"), (b"a=b%26c&model=x", "/?a=b%26c&model=x"), (b"a=b&layer=2", "/?a=b")]
)
def test_the_front_page_is_found_by_its_name_too(query: bytes, target: str) -> None:
    status, headers, _ = answer(f"/{asgi.FRONT_PAGE}", query)
    assert (status, headers["location"]) == (307, target)


@pytest.mark.parametrize("query", [b"show=head-view&layer=2", b"a=we%20left&pins=query.3", b"head=2"])
def test_an_address_from_when_attention_was_the_front_page_leads_there(query: bytes) -> None:
    status, headers, _ = answer("/", query)
    assert (status, headers["location"]) == (307, f"/attention?{query.decode()}")
    assert answer("/", b"a=we+left&b=you+left&of=b&vector_layer=2")[0] == 200


@pytest.mark.parametrize("path", ["/", *(f"/{page}" for page in asgi.PAGES if page != asgi.FRONT_PAGE)])
def test_a_page_comes_with_its_styles(path: str) -> None:
    status, headers, body = answer(path)
    page = body.decode()
    assert (status, headers["cache-control"]) == (200, "no-cache")
    ours = re.search(r"<script>// Runs in.*?</script><style>.*?</style>(?=</head>)", page, re.S)
    assert ours is not None
    assert page.replace(ours[0], "", 1) == (
        Path(streamlit.__file__).with_name("static") / "index.html"
    ).read_text(encoding="utf-8")
    assert ".stMainBlockContainer" in page


@pytest.mark.parametrize(
    "path", ["/attentoin", "/some/page", "/heads/2", "/" + "x" * 3000, "/%3Cscript%3E<script>"]
)
def test_an_unknown_path_offers_the_pages(path: str) -> None:
    status, _, body = answer(path, b"a=we%20left&b=%22%3E%3Cscript%3E")
    page = body.decode()
    assert status == 404
    assert "There is no such page" in page
    assert len(page) < 6_000
    assert "<script" not in page
    for name in asgi.PAGES:
        assert f'href="/{name}?a=we%20left&amp;b=%22%3E%3Cscript%3E"' in page


@pytest.mark.parametrize(
    "path",
    ["/_stcore/health", "/static/js/x", "/media/x", "/component/a.b/c", "/favicon.png", "/manifest.json"],
)
def test_what_streamlit_answers_is_left_to_it(path: str) -> None:
    assert answer(path)[2] == b"Not Found", "no route of ours"


@pytest.mark.parametrize("path", ["/health", "/no-such-page"])
def test_every_answer_carries_the_headers(path: str) -> None:
    _, headers, _ = answer(path)
    for name, value in asgi.HEADERS.items():
        assert headers[name.lower()] == value


def test_a_stricter_policy_is_kept() -> None:
    _, headers, _ = answer("/framed")
    assert headers["content-security-policy"] == "sandbox"
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("layer", ["9" * 4301, "9" * 60_000, "-1", "0", "1.0", "\u0661", "x"])
def test_a_number_of_any_length_in_a_path_is_no_failure(layer: str) -> None:
    status, headers, _ = answer(f"/layers/x/{layer}")
    assert status == 404
    assert headers["content-security-policy"] == asgi.app_policy()


def test_a_failure_carries_the_headers_and_is_still_told_to_the_server() -> None:
    async def fails(_request: Request) -> PlainTextResponse:
        raise ValueError("a reader's text")

    app = Starlette(routes=[Route("/fails", fails)], middleware=asgi.middleware())
    sent: list[Message] = []
    with pytest.raises(ValueError, match="a reader's text"):
        answer_of(app, "/fails", sent=sent)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    assert (sent[0]["status"], headers["cache-control"]) == (500, "no-store")
    for name, value in asgi.HEADERS.items():
        assert headers[name.lower()] == value
    assert b"reader" not in sent[1]["body"]
    assert len(sent) == 2, "one answer, not Starlette's after it"


def test_a_failure_in_the_middle_of_an_answer_is_not_answered_again() -> None:
    async def inner(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ValueError("too late")

    sent: list[Message] = []
    with pytest.raises(ValueError, match="too late"):
        answer_of(asgi.SecurityHeaders(inner), "/", sent=sent)
    assert [message.get("status") for message in sent] == [200]


def connection(*messages: Message) -> list[Message]:
    """What a browser is sent when an application answers its connection so."""

    async def inner(_scope: Scope, _receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    scope = {"type": "websocket", "extensions": {"websocket.http.response": {}}}
    finish(asgi.SecurityHeaders(inner)(scope, receive, send))
    return sent


def test_a_connection_passes_untouched() -> None:
    messages = [{"type": "websocket.accept", "headers": []}, {"type": "websocket.close", "code": 1000}]
    assert connection(*messages) == messages


def test_a_connection_that_is_not_taken_is_answered_with_the_headers() -> None:
    sent = connection({"type": "websocket.close", "code": 1008})
    assert [message["type"] for message in sent] == [
        "websocket.http.response.start",
        "websocket.http.response.body",
    ]
    assert sent[0]["status"] == 403
    assert (b"x-content-type-options", b"nosniff") in sent[0]["headers"]


def test_the_policy_names_no_other_server_and_allows_only_known_inline_scripts() -> None:
    policy = dict(part.split(" ", 1) for part in asgi.app_policy().split("; "))
    assert policy["default-src"] == policy["connect-src"] == "'self'"
    assert policy["object-src"] == "'none'"
    assert "http" not in asgi.app_policy()
    assert "unsafe" not in policy["script-src"]
    inline = re.findall(r"<script>(.*?)</script>", answer("/")[2].decode(), re.S)
    assert len(inline) > 1, "Streamlit's page has no inline script any more: its digests can go"
    for script in inline:
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy["script-src"]


# Settings


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours, 1 to 21; WCAG 2.2."""

    def luminance(colour: str) -> float:
        channels = [byte / 255 for byte in bytes.fromhex(colour[1:])]
        red, green, blue = (
            value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_by_hand() -> None:
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert_printed(4.48, contrast("#777777", "#FFFFFF"), decimals=2)


@pytest.mark.parametrize("name", ["light", "dark"])
def test_text_and_accent_can_be_read_on_every_background(name: str) -> None:
    theme = CONFIG["theme"][name]
    papers = {theme["backgroundColor"], theme["secondaryBackgroundColor"], *theme["sidebar"].values()}
    for paper in papers:
        for ink in ("textColor", "primaryColor", "linkColor", "grayTextColor"):
            assert contrast(theme[ink], paper) >= 4.5, (ink, paper)
    assert contrast(theme["codeTextColor"], theme["codeBackgroundColor"]) >= 4.5
    assert contrast(theme["dataframeHeaderTextColor"], theme["dataframeHeaderBackgroundColor"]) >= 4.5
    for colour in theme["chartCategoricalColors"]:
        assert contrast(colour, theme["backgroundColor"]) >= 3
    assert len(theme["chartSequentialColors"]) == len(theme["chartDivergingColors"]) == 10


def test_the_theme_has_the_colours_of_the_pictures() -> None:
    light, dark = CONFIG["theme"]["light"], CONFIG["theme"]["dark"]
    assert (light["backgroundColor"], dark["backgroundColor"]) == (palette.PAPER_LIGHT, palette.PAPER_DARK)
    assert (light["textColor"], dark["textColor"]) == (palette.INK_LIGHT, palette.INK_DARK)
    assert (light["primaryColor"], dark["primaryColor"]) == (palette.ACCENT_LIGHT, palette.ACCENT_DARK)


def test_settings_that_keep_the_app_to_this_machine() -> None:
    assert CONFIG["server"]["address"] == "127.0.0.1"
    assert "*" not in CONFIG["server"]["allowedHosts"]
    assert CONFIG["browser"]["gatherUsageStats"] is False
    assert CONFIG["client"]["showErrorDetails"] == "type"
    assert "://" not in json.dumps(CONFIG), "a font or a theme from elsewhere"


# Starting it


@contextmanager
def started(command: list[str], folder: Path) -> Iterator[tuple[str, Path]]:
    """The origin of a server started by a command in a folder, and its log."""
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
        until_it_answers(process, f"{origin}/_stcore/health", log)
        yield origin, log
    finally:
        process.terminate()
        process.wait(timeout=20)


@pytest.mark.parametrize(
    "command",
    [
        ["bert_probe", "app", "--port={port}", "--no-browser"],
        ["streamlit", "run", str(ROOT / "app.py"), "--server.port={port}"],
        ["uvicorn", "--app-dir", str(ROOT), "app:app", "--port={port}"],
    ],
    ids=["bert-probe", "streamlit", "uvicorn"],
)
def test_the_app_starts_from_any_folder_and_guards_itself(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever settings another project left in that folder."""
    monkeypatch.setenv(hosts.VARIABLE, "lab.example.org")
    with foreign_settings(tmp_path), started(command, tmp_path) as (origin, log):
        port = int(origin.rpartition(":")[2])
        _, headers, body = fetch(f"{origin}/health")
        assert json.loads(body)["status"] == "ok"
        for path in ("/", "/_stcore/health", "/_stcore/host-config", "/heads"):
            _, headers, _ = fetch(origin + path)
            for name, value in asgi.HEADERS.items():
                assert headers[name.lower()] == value, path
        assert "not a valid config option" not in log.read_text()
        for path in ("/", "/health", "/_stcore/health", "/static/none.js", "/layers/x/1"):
            assert asked(port, path, Host="evil.com").startswith(b"HTTP/1.1 421 "), path
        own, stream = f"localhost:{port}", "/_stcore/stream"
        assert b" 101 " in asked(port, stream, **UPGRADE, Host=own, Origin=f"http://{own}")
        assert b" 421 " in asked(port, stream, **UPGRADE, Host="evil.com", Origin="http://evil.com")
        assert b" 403 " in asked(port, stream, **UPGRADE, Host=own, Origin="http://evil.com")
        # A proxy with a name that was given, which passes on another Host.
        assert b" 101 " in asked(port, stream, **UPGRADE, Host=own, Origin="https://lab.example.org")
        # Of the settings: no other page may read, no file comes without its token, no address but this.
        assert b"example.org" not in asked(port, "/_stcore/health", Host=own, Origin="https://example.org")
        put = asked(port, "/_stcore/upload_file/a/b", "PUT", Host=own, **{"Content-Length": "0"})
        assert b" 403 " in put
        assert b"XSRF" in put
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=10)
        assert "external IP" not in log.read_text(), "asked a server outside"


UPGRADE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


def asked(port: int, path: str, method: str = "GET", **headers: str) -> bytes:
    """All that a server sends back until it ends or takes the connection."""
    written = "".join(f"{name}: {value}\r\n" for name, value in ({"Connection": "close"} | headers).items())
    with socket.create_connection(("127.0.0.1", port), timeout=30) as line:
        line.sendall(f"{method} {path} HTTP/1.1\r\n{written}\r\n".encode("latin-1"))
        found = b""
        while not found.startswith(b"HTTP/1.1 101") and (part := line.recv(65536)):
            found += part
    return found


def test_streamlit_knows_every_setting() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "streamlit", "config", "show"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "not a valid" not in run.stdout + run.stderr
    assert 'primaryColor = "#4338CA"' in run.stdout


def test_the_main_script_is_where_the_server_looks() -> None:
    assert asgi.MAIN_SCRIPT.is_file()
    assert asgi.MAIN_SCRIPT.is_relative_to(Path(bert_probe.__file__).parent)
