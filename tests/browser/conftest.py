"""Fixtures that start the app and browsers, and check that pages send no requests to other machines.

``page`` is a browser page that can reach only the apps started here. A test fails if its page has requested
anything else, or if its console or scripts have reported an error.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Page,
    Playwright,
    Request,
    ViewportSize,
    WebSocket,
    expect,
    sync_playwright,
)

from bert_probe.model.checkpoint import Checkpoint
from tests.browser import firefox
from tests.helpers.browser import IN_FIREFOX, App, Elsewhere, Watch
from tests.helpers.exactness import expect_raw
from tests.helpers.installed import free_port
from tests.helpers.waiting import wait_for_server

# The timeout is generous, because the machine may be busy.
expect.set_options(timeout=30_000)

ROOT = Path(__file__).parents[2]

USUAL = ViewportSize(width=1280, height=900)

CHROMIUM_FLAGS = (
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    # Requests to other machines are recorded below and fail, because this proxy does not exist.
    "--proxy-server=http://127.0.0.1:9",
    "--proxy-bypass-list=127.0.0.1;localhost",
    # All pages of an origin share a process, so that scripts are compiled only once.
    "--process-per-site",
)


@pytest.fixture(scope="package")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], App]]:
    """Return a function that starts the app of an entry file once; all apps are stopped after the tests."""
    folder = tmp_path_factory.mktemp("apps")
    running: dict[Path, tuple[subprocess.Popen[bytes], App]] = {}

    def start(entry: Path) -> App:
        if entry not in running:
            running[entry] = _started(entry, folder)
        return running[entry][1]

    yield start
    for process, _ in running.values():
        process.terminate()
    for process, _ in running.values():
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="package")
def app(serve: Callable[[Path], App]) -> App:
    """Start BERT Probe like `streamlit run app.py`."""
    return serve(ROOT / "app.py")


@pytest.fixture(scope="package")
def demos(serve: Callable[[Path], App]) -> App:
    """Start the server of all demo pages, which are selected in the URL, as in ``/?demo=frames_page``."""
    return serve(Path(__file__).with_name("demo_app.py"))


@pytest.fixture(scope="package")
def playwright() -> Iterator[Playwright]:
    """Start Playwright once, because a process can have only one instance."""
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="package")
def chromium(playwright: Playwright, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Start a browser for all tests: Chromium, or Firefox if BERT_PROBE_BROWSER=firefox is set."""
    if IN_FIREFOX:
        installation = firefox.installed()
        assert installation, "BERT_PROBE_BROWSER=firefox, but Firefox is not installed"
        browser = firefox.launch(playwright, installation, tmp_path_factory.mktemp("firefox"))
        yield browser
        browser.close()
        return
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        missing = "No Chromium here: install Debian's package, or set CHROMIUM to a browser's path."
        # Without a browser, the tests are skipped locally but fail in CI.
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    browser = playwright.chromium.launch(executable_path=path, args=list(CHROMIUM_FLAGS))
    yield browser
    browser.close()


@pytest.fixture
def expect_in_app(minilm: Checkpoint, double_minilm: Checkpoint) -> Elsewhere:
    """Return a function that computes expected values, with a tolerance for rounding in the app's process.

    The app's process may add numbers in another order than this process.
    """
    return lambda answer: expect_raw(answer(minilm), answer(double_minilm))


@pytest.fixture
def watch() -> Watch:
    """Return the record of unexpected events (errors, foreign requests) on the pages of a test."""
    return Watch()


@pytest.fixture(scope="package")
def contexts(chromium: Browser) -> Callable[..., BrowserContext]:
    """Return a factory that takes the options of Playwright's `Browser.new_context` and returns a context.

    Contexts are shared, because they cache compiled scripts; the data of pages is deleted after each test. An
    empty page stays open in each context. Otherwise, each page would open a new window with additional pages
    and a new process, which would compile all scripts again.
    """
    contexts: dict[str, BrowserContext] = {}

    def context(**options: Any) -> BrowserContext:
        name = repr(sorted(options.items()))
        if name not in contexts:
            contexts[name] = chromium.new_context(**options)
            page = contexts[name].new_page()
            page.route("**", lambda route: route.fulfill(body=""))
            page.goto("http://127.0.0.1")
        return contexts[name]

    return context


@pytest.fixture
def new_page(contexts: Callable[..., BrowserContext], watch: Watch) -> Iterator[Callable[..., Page]]:
    """Return a function that opens watched pages with the options of Playwright's `Browser.new_page`."""
    pages: list[Page] = []

    def make(
        viewport: ViewportSize = USUAL, color_scheme: Literal["light", "dark"] = "light", **options: Any
    ) -> Page:
        if IN_FIREFOX and color_scheme != "light":
            pytest.skip("no theme can be chosen in a released Firefox")
        page = contexts(**options).new_page()
        pages.append(page)
        page.set_viewport_size(viewport)
        page.emulate_media(color_scheme=color_scheme)
        _put_under(watch, page)
        return page

    yield make
    for page in pages:
        page.unroute_all(behavior="ignoreErrors")  # Wait for requests that a test has intercepted.
        _forget(page)
        page.close()
    assert watch.foreign == [], "requested something from another machine"
    assert watch.errors == [], watch.summary()


def _forget(page: Page) -> None:
    page.context.clear_cookies()
    if IN_FIREFOX:
        return
    parts = urlsplit(page.url)
    if parts.scheme == "http":
        parameters = {"origin": f"{parts.scheme}://{parts.netloc}", "storageTypes": "local_storage,indexeddb"}
        page.context.new_cdp_session(page).send("Storage.clearDataForOrigin", parameters)


@pytest.fixture
def page(new_page: Callable[..., Page]) -> Page:
    """Return a watched page of 1280 × 900 pixels in the light theme."""
    return new_page()


def _put_under(watch: Watch, page: Page) -> None:
    def look_at(request: Request) -> None:
        if not _is_ours(request.url):
            watch.foreign.append(request.url)

    def listen(socket: WebSocket) -> None:
        if _is_ours(socket.url):
            watch.listen(socket)
        else:
            watch.foreign.append(socket.url)

    def note(text: str) -> None:
        # Firefox blocks the WebAssembly of a package in Streamlit, which works without it.
        if not (IN_FIREFOX and "blocked WebAssembly" in text):
            watch.errors.append(text)

    page.on("request", look_at)
    page.on("console", lambda message: note(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: note(str(error)))
    page.on("websocket", listen)


def _is_ours(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("data", "blob", "file") or parts.hostname == "127.0.0.1"


def _started(entry: Path, folder: Path) -> tuple[subprocess.Popen[bytes], App]:
    port = free_port()
    log = folder / f"{entry.stem}-{port}.log"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "streamlit", "run", str(entry), f"--server.port={port}"]
    with log.open("wb") as output:
        # Streamlit's settings are in the root folder.
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, env=environment)
    origin = f"http://127.0.0.1:{port}"
    try:
        wait_for_server(process, f"{origin}/_stcore/health", log)
    except AssertionError:
        process.kill()
        raise
    return process, App(origin, log)
