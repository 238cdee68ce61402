"""Starting the app: where it listens, whom it answers, whether a browser opens, and what it refuses."""

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
from bert_probe.server import asgi, hosts, paths, start
from tests.helpers.installed import ROOT, foreign_settings, free_port

OWN_NAMES = ["127.0.0.1", "localhost", "::1"]


class App:
    """In the place of Streamlit's: starts, says what it was started with, and ends."""

    config: ClassVar[dict[str, Any]]
    started: ClassVar[dict[str, Any]]

    def __init__(self, **parts: Any) -> None:
        App.started = self.parts = parts

    def run(self, config: dict[str, Any]) -> None:
        async def whole_life() -> None:
            async with self.parts["lifespan"](self):
                pass

        App.config = config
        asyncio.run(whole_life())


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Addresses that a browser was opened at, by an app that is not really started."""
    found: list[str] = []

    class Thread(threading.Thread):
        def start(self) -> None:
            self.run()

    monkeypatch.setattr(st, "App", App)
    monkeypatch.setattr(threading, "Thread", Thread)
    monkeypatch.setattr(webbrowser, "open", found.append)
    monkeypatch.setattr(sys, "argv", ["bert-probe"])
    monkeypatch.setitem(LOGGING_CONFIG["loggers"]["uvicorn.error"], "level", "INFO")
    for name in ("WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    return found


def test_it_listens_to_this_machine_and_opens_a_browser(
    opened: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    start.start(port)
    assert opened == [f"http://127.0.0.1:{port}"]
    assert capsys.readouterr().out == f"BERT Probe is at http://127.0.0.1:{port} (Ctrl+C stops it)\n"
    assert (App.config["server.address"], App.config["server.port"]) == ("127.0.0.1", port)
    assert App.config["server.allowedHosts"] == OWN_NAMES
    # Beside this file Streamlit looks for its settings.
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
def test_it_answers_to_its_own_names_and_those_given(
    opened: list[str], host: str, names: list[str], address: str, allowed: list[str]
) -> None:
    port = free_port()
    start.start(port, host, names)
    assert App.config["server.address"] == host
    assert App.config["server.allowedHosts"] == allowed
    assert opened == [f"http://{address}:{port}"]


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize("names", [(), ("localhost", "127.0.0.1", "::1")])
@pytest.mark.parametrize("host", [None, "127.0.0.1", "localhost", "127.0.0.2", "0.0.0.0"])
def test_page_of_another_port_is_refused(host: str | None, names: tuple[str, ...]) -> None:
    async def accept(socket: WebSocket) -> None:
        await socket.accept()
        await socket.close()

    port = free_port()
    start.start(port, host, names)
    routes = [*App.started["routes"], WebSocketRoute("/stream", accept)]
    name = "127.0.0.1" if host in (None, "0.0.0.0") else host
    app = Starlette(routes=routes, middleware=App.started["middleware"])
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


@pytest.mark.usefixtures("opened")
def test_at_every_address_it_says_what_it_answers_to(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(hosts.VARIABLE, "desk.example.org")
    start.start(free_port(), "0.0.0.0", ["lab.example.org"])
    names = "127.0.0.1, localhost, ::1, desk.example.org, lab.example.org"
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"It listens at every address of this machine, and answers only to {names}. "
        "Give other names with --allow or BERT_PROBE_HOSTS."
    ]
    assert App.config["server.allowedHosts"] == names.split(", ")


@pytest.mark.usefixtures("opened")
def test_a_name_that_is_none_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert "'http://lab' is no name to answer to." in refusal(capsys, "--allow", "http://lab")


@pytest.mark.skipif(not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists(), reason="no IPv6 here")
@pytest.mark.parametrize("host", ["::1", "::"])
def test_an_address_of_ipv6_stands_in_brackets(opened: list[str], host: str) -> None:
    port = free_port("::1")
    start.start(port, host)
    assert opened == [f"http://[::1]:{port}"]
    assert App.config["server.allowedHosts"] == OWN_NAMES


def test_without_a_display_or_when_not_wanted_no_browser_opens(
    opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start.start(free_port(), browser=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("DISPLAY")
    start.start(free_port())
    assert opened == []
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    start.start(free_port())
    assert len(opened) == 1


@pytest.mark.usefixtures("opened")
def test_ctrl_c_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_app: App, **_options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(App, "run", interrupted)
    start.start(free_port())


def refusal(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["app", "--no-browser", *options])
    said = capsys.readouterr()
    assert (stopped.value.code, said.out) == (2, "")
    assert said.err.startswith("bert-probe: ")
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.usefixtures("opened")
def test_a_taken_port_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = refusal(capsys, "--port", str(port))
    assert f"Port {port} of 127.0.0.1 is taken. Give another with --port." in said


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize("host", ["nowhere.invalid", "192.0.2.1", "a" * 70, "unix://socket", "[::1]"])
def test_an_address_that_is_not_here_is_a_sentence(capsys: pytest.CaptureFixture[str], host: str) -> None:
    said = refusal(capsys, "--host", host, "--port", str(free_port()))
    assert f"This machine has no address {host!r}." in said
    assert "--host 127.0.0.1" in said


@pytest.mark.usefixtures("opened")
def test_no_address_is_not_every_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--host 127.0.0.1" in refusal(capsys, "--host", "")


@pytest.mark.usefixtures("opened")
@pytest.mark.parametrize("port", ["0", "65536", "http"])
def test_a_port_is_a_number_of_a_port(capsys: pytest.CaptureFixture[str], port: str) -> None:
    assert port in refusal(capsys, "--port", port)


# Settings


def test_settings_have_the_names_that_streamlit_gives_them() -> None:
    found = paths.settings()
    assert found["server.address"] == "127.0.0.1"
    assert found["theme.light.sidebar.backgroundColor"] == "#F4F1EA"
    assert all(name in config.get_config_options() for name in found)


def test_settings_of_another_file_give_way_and_those_of_the_command_line_stay(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "config.toml"
    other.touch()
    where = {"server.allowedHosts": str(other), "server.address": "command-line argument"}
    changed: dict[str, Any] = {}
    monkeypatch.setattr(config, "get_where_defined", lambda name: where.get(name, "<default>"))
    monkeypatch.setattr(config, "set_option", lambda name, value, _where: changed.update({name: value}))
    asgi.use_settings()
    wanted = paths.settings()
    del wanted["server.address"]
    assert changed == wanted


def test_under_another_server_the_settings_are_ours_in_any_folder(tmp_path: Path) -> None:
    """Such a server imports `app`, and that is all that it has to do with Streamlit."""
    tell = (
        "import app, json; from streamlit import config; from bert_probe.server import paths; "
        "print(json.dumps({name: config.get_option(name) for name in paths.settings()}))"
    )
    with foreign_settings(tmp_path):
        done = subprocess.run(
            [sys.executable, "-c", tell],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == paths.settings()


def test_pages_and_settings_are_found_in_the_clone() -> None:
    assert paths.top().samefile(ROOT)
    assert all(paths.page(name).is_file() for name in asgi.PAGES)
