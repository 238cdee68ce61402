"""Test starting the app: addresses, allowed hosts, browser, invalid options, and settings."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import webbrowser
from pathlib import Path
from typing import Any, ClassVar

import pytest
import streamlit as st
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocket
from streamlit import config
from uvicorn.config import LOGGING_CONFIG

from bert_probe.cli.main import main
from bert_probe.model import lengths
from bert_probe.model.sources import BUILT_IN
from bert_probe.runtime import permissions, shared_cache
from bert_probe.server import access, asgi, paths, start
from tests.helpers.installed import ROOT, foreign_settings, free_port

OWN_NAMES = ["127.0.0.1", "localhost", "::1"]


class AppStub:
    """A stub for `st.App` that records its arguments, runs the app's lifespan and returns immediately."""

    config: ClassVar[dict[str, Any]]
    started: ClassVar[dict[str, Any]]

    def __init__(self, **parts: Any) -> None:
        AppStub.started = self.parts = parts

    def run(self, config: dict[str, Any]) -> None:
        async def run_lifespan() -> None:
            async with self.parts["lifespan"](self):
                pass

        AppStub.config = config
        asyncio.run(run_lifespan())


@pytest.fixture
def opened_urls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the app by a stub, and return the list of URLs that are opened in a browser."""
    urls: list[str] = []

    class Thread(threading.Thread):
        def start(self) -> None:
            self.run()

    monkeypatch.setattr(st, "App", AppStub)
    monkeypatch.setattr(threading, "Thread", Thread)
    monkeypatch.setattr(webbrowser, "open", urls.append)
    monkeypatch.setattr(sys, "argv", ["bert-probe"])
    monkeypatch.setitem(LOGGING_CONFIG["loggers"]["uvicorn.error"], "level", "INFO")
    for name in ("WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    return urls


def test_app_listens_on_loopback_and_opens_a_browser(
    opened_urls: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    start.start(port)
    assert opened_urls == [f"http://127.0.0.1:{port}"]
    assert capsys.readouterr().out == f"BERT Probe is at http://127.0.0.1:{port} (Ctrl+C stops it)\n"
    assert (AppStub.config["server.address"], AppStub.config["server.port"]) == ("127.0.0.1", port)
    assert AppStub.config["server.allowedHosts"] == OWN_NAMES
    # Streamlit reads the settings file in the folder of this program.
    assert Path(sys.argv[0]).parent / ".streamlit" / "config.toml" == paths.settings_file()


@pytest.mark.parametrize(
    ("host", "names", "address", "allowed"),
    [
        ("0.0.0.0", ["lab.example.org"], "127.0.0.1", [*OWN_NAMES, "lab.example.org"]),
        ("127.0.0.2", [], "127.0.0.2", [*OWN_NAMES, "127.0.0.2"]),
        ("localhost", [], "localhost", OWN_NAMES),
        ("0.0.0.0", [], "127.0.0.1", OWN_NAMES),
    ],
)
def test_allowed_hosts_include_own_and_given_names(
    opened_urls: list[str], host: str, names: list[str], address: str, allowed: list[str]
) -> None:
    port = free_port()
    start.start(port, host, names)
    assert AppStub.config["server.address"] == host
    assert AppStub.config["server.allowedHosts"] == allowed
    assert opened_urls == [f"http://{address}:{port}"]


@pytest.mark.usefixtures("opened_urls")
@pytest.mark.parametrize("names", [(), ("localhost", "127.0.0.1", "::1")])
@pytest.mark.parametrize("host", [None, "127.0.0.1", "localhost", "127.0.0.2", "0.0.0.0"])
def test_page_of_another_port_is_refused(host: str | None, names: tuple[str, ...]) -> None:
    async def accept(socket: WebSocket) -> None:
        await socket.accept()
        await socket.close()

    port = free_port()
    start.start(port, host, names)
    routes = [*AppStub.started["routes"], WebSocketRoute("/stream", accept)]
    name = "127.0.0.1" if host in (None, "0.0.0.0") else host
    app = Starlette(routes=routes, middleware=AppStub.started["middleware"])
    with TestClient(app, f"http://{name}:{port}", client=("127.0.0.1", 1)) as client:
        stream = f"ws://{name}:{port}/stream"
        for origin in (f"http://{name}:{port + 1}", f"http://{name}", "http://localhost:1", "http://[::1]:1"):
            foreign = {"Origin": origin}
            with (
                pytest.raises(WebSocketDenialResponse) as denied,
                client.websocket_connect(stream, headers=foreign),
            ):
                pass
            assert denied.value.status_code == 403
            answer = client.post("/api/v1/tokens", json={"text": "a boat"}, headers=foreign)
            assert (answer.status_code, answer.json()["type"]) == (403, "/api#not-from-here")
            assert "other sites" in answer.json()["detail"]
        own = {"Origin": f"http://{name}:{port}"}
        with client.websocket_connect(stream, headers=own):
            pass


@pytest.mark.usefixtures("opened_urls")
def test_wildcard_address_prints_the_allowed_hosts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(access.HOSTS_VARIABLE, "desk.example.org")
    start.start(free_port(), "0.0.0.0", ["lab.example.org"])
    names = "127.0.0.1, localhost, ::1, desk.example.org, lab.example.org"
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"The server listens on all addresses of this machine, but answers only requests to {names}. "
        "Add other host names with --allow or BERT_PROBE_HOSTS."
    ]
    assert AppStub.config["server.allowedHosts"] == names.split(", ")


@pytest.mark.usefixtures("opened_urls")
def test_invalid_host_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "'http://lab' is not a host name." in refusal(capsys, "--allow", "http://lab")


@pytest.mark.usefixtures("opened_urls")
def test_playground_is_set_by_option_or_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "_playground", [])
    monkeypatch.setenv(paths.PLAYGROUND_VARIABLE, "https://example.org/a/")
    assert paths.playground() == "https://example.org/a/"
    start.start(free_port(), playground="http://127.0.0.1:8000/b/")
    assert paths.playground() == "http://127.0.0.1:8000/b/"
    capsys.readouterr()
    for url in (
        "javascript:alert(1)",
        "example.org",
        "https://",
        "https://a.b/#c",
        "https://a b",
        "http://[x",
    ):
        assert f"{url!r} is not the URL of a playground." in refusal(capsys, "--playground", url)


@pytest.mark.skipif(not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists(), reason="no IPv6 here")
@pytest.mark.parametrize("host", ["::1", "::"])
def test_ipv6_address_is_in_brackets(opened_urls: list[str], host: str) -> None:
    port = free_port("::1")
    start.start(port, host)
    assert opened_urls == [f"http://[::1]:{port}"]
    assert AppStub.config["server.allowedHosts"] == OWN_NAMES


def test_no_browser_opens_without_a_display_or_with_no_browser(
    opened_urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start.start(free_port(), browser=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("DISPLAY")
    start.start(free_port())
    assert opened_urls == []
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    start.start(free_port())
    assert len(opened_urls) == 1


@pytest.mark.usefixtures("opened_urls")
def test_ctrl_c_is_not_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_app: AppStub, **_options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(AppStub, "run", interrupted)
    start.start(free_port())


def refusal(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["app", "--no-browser", *options])
    output = capsys.readouterr()
    assert (stopped.value.code, output.out) == (2, "")
    assert output.err.startswith("bert-probe: ")
    assert output.err.count("\n") == 1
    return output.err


@pytest.mark.usefixtures("opened_urls")
def test_port_in_use_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        message = refusal(capsys, "--port", str(port))
    assert f"Port {port} of 127.0.0.1 is already in use. Choose another port with --port." in message


@pytest.mark.usefixtures("opened_urls")
@pytest.mark.parametrize("host", ["nowhere.invalid", "192.0.2.1", "a" * 70, "unix://socket", "[::1]"])
def test_unknown_address_is_refused(capsys: pytest.CaptureFixture[str], host: str) -> None:
    message = refusal(capsys, "--host", host, "--port", str(free_port()))
    assert f"This machine does not have the address {host!r}." in message
    assert "--host 127.0.0.1" in message


@pytest.mark.usefixtures("opened_urls")
def test_empty_address_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--host 127.0.0.1" in refusal(capsys, "--host", "")


@pytest.mark.usefixtures("opened_urls")
@pytest.mark.parametrize("port", ["0", "65536", "http"])
def test_invalid_port_is_refused(capsys: pytest.CaptureFixture[str], port: str) -> None:
    assert port in refusal(capsys, "--port", port)


# Settings


def test_settings_have_streamlit_option_names() -> None:
    options = paths.settings()
    assert options["server.address"] == "127.0.0.1"
    assert options["theme.light.sidebar.backgroundColor"] == "#F4F1EA"
    assert all(name in config.get_config_options() for name in options)


def test_settings_override_other_files_but_not_the_command_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "config.toml"
    other.touch()
    where = {"server.allowedHosts": str(other), "server.address": "command-line argument"}
    changed: dict[str, Any] = {}
    monkeypatch.setattr(config, "get_where_defined", lambda name: where.get(name, "<default>"))
    monkeypatch.setattr(config, "set_option", lambda name, value, _where: changed.update({name: value}))
    asgi.apply_settings()
    expected = paths.settings()
    del expected["server.address"]
    assert changed == expected


def test_settings_apply_under_another_server_in_any_folder(tmp_path: Path) -> None:
    """Another ASGI server imports the module `app` without running it."""
    code = (
        "import app, json; from streamlit import config; from bert_probe.server import paths; "
        "print(json.dumps({name: config.get_option(name) for name in paths.settings()}))"
    )
    with foreign_settings(tmp_path):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == paths.settings()


def test_pages_and_settings_exist_in_the_clone() -> None:
    assert paths.root_folder().samefile(ROOT)
    assert all(paths.page_script(name).is_file() for name in asgi.PAGES)


def test_public_options_reach_the_server(
    opened_urls: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("FORWARDED_ALLOW_IPS", "MPLCONFIGDIR", "NUMBA_CACHE_DIR"):
        monkeypatch.setenv(name, "*")
    monkeypatch.setattr(shared_cache, "limit_traces", lambda size: sizes.append(size))
    monkeypatch.setattr(lengths, "limit_tasks", lambda size: sizes.append(size))
    sizes: list[int] = []
    options = ["--public", "--models", f"{BUILT_IN},a/b", "--frame-ancestors", "https://huggingface.co"]
    with permissions.using(permissions.current()):
        with pytest.raises(SystemExit) as ended:
            main(["app", "--port", str(free_port()), "--no-browser", "--trusted-proxies", "1", *options])
        allowed = permissions.current()
        assert ended.value.code == 0
        assert (allowed.models, allowed.trusted_proxies, allowed.has_api) == ((BUILT_IN, "a/b"), 1, False)
        assert allowed.frame_ancestors == ("https://huggingface.co",)
    assert (AppStub.config["server.maxUploadSize"], sizes) == (1, [allowed.trace_bytes, 250_000_000])
    assert os.environ["FORWARDED_ALLOW_IPS"] == ""
    assert f"users can open {BUILT_IN}, a/b, and nothing is saved" in capsys.readouterr().out
    assert opened_urls == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--models", "a"], "--models configures a public server. Add --public, or omit this option."),
        (["--frame-ancestors", "https://a.b"], "--frame-ancestors configures a public server"),
        (["--trusted-proxies", "1"], "--trusted-proxies configures a public server"),
        (["--public", "--frame-ancestors", "a.b/c"], "'a.b/c' is not an origin"),
        (["--public", "--models", "a,b,c,d"], "4 models were passed"),
    ],
)
@pytest.mark.usefixtures("opened_urls")
def test_invalid_public_options_are_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["app", "--no-browser", *options])
    assert ended.value.code
    assert message in capsys.readouterr().err
