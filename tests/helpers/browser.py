"""Functions that navigate and check the app in a real browser."""

from __future__ import annotations

import csv
import io
import os
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Download, Frame, Locator, Page, WebSocket, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeout
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from bert_probe.model.checkpoint import Checkpoint
from bert_probe.server.asgi import SECTIONS
from tests.helpers.exactness import Expected

# Streamlit itself violates these rules; it violates the last one in every file uploader.
KNOWN_RULES = {"scrollable-region-focusable", "empty-table-header", "presentation-role-conflict"}


IN_FIREFOX = os.environ.get("BERT_PROBE_BROWSER") == "firefox"
"""True if `make prove` repeats the tests of the components in Firefox."""

Elsewhere = Callable[[Callable[[Checkpoint], Any]], Expected]
"""Function from a computation on the built-in model to its expected numbers, with a tolerance for the process
of the app."""


@dataclass
class Watch:
    """Unexpected events on a page. A test that provokes an error must clear it afterwards."""

    foreign: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    received: deque[bytes] = field(default_factory=lambda: deque(maxlen=200))
    """The last messages that the page has received from Streamlit until its first error."""

    def listen(self, socket: WebSocket) -> None:
        """Store the messages of a connection."""
        socket.on("framereceived", self._store)

    def _store(self, data: str | bytes) -> None:
        if isinstance(data, bytes) and not self.errors:
            self.received.append(data)

    def summary(self) -> str:
        """Describe the errors, and the received messages in a line each: type, position, run and page."""
        return "\n".join(["errors in the browser, after these messages:", *map(_line, self.received)])


def _line(data: bytes) -> str:
    message = ForwardMsg.FromString(data)
    metadata, new = message.metadata, message.new_session.page_script_hash
    run = f"{metadata.run.script_run_id[:8]} {list(metadata.run.fragment_ids)}" if metadata.run else ""
    page = new or message.navigation.page_script_hash or metadata.active_script_hash
    return f"{message.WhichOneof('type')} {list(metadata.delta_path)} {run} page {page[:6]}"


@dataclass(frozen=True)
class App:
    """The origin and the log file of a running app."""

    origin: str
    log: Path


JOINER = "\u2060"
"""Invisible character that prevents Streamlit from turning a text into a link or an icon."""

MADE = "a, img, strong, em, del, code, h1, li, blockquote, table, .katex, [role=img], span[style]"
"""Elements that Markdown, or Streamlit's extensions of it, could create from a text."""


def visit(page: Page, url: str) -> Page:
    """Open a page of an app, wait until the page's script has run, and return the page."""
    page.goto(url)
    return wait_until_settled(page)


def wait_until_settled(page: Page, timeout: float = 60_000) -> Page:
    """Wait until Streamlit's script has stopped running, and return the page."""
    page.wait_for_selector('[data-testid="stApp"][data-test-script-state="notRunning"]', timeout=timeout)
    return page


def wait_until_still(place: Page | Frame) -> None:
    """Wait until nothing has changed or moved for ten animation frames."""
    place.evaluate(_UNTIL_STILL)


def wait_until_ready(page: Page) -> None:
    """Wait until the script of the page has run, no job is running, and nothing moves."""
    wait_until_settled(page, 120_000)
    for name in ("stSpinner", "stProgress"):
        page.get_by_test_id(name).first.wait_for(state="detached", timeout=120_000)
    wait_until_settled(page, 120_000)
    wait_until_still(page)


_UNTIL_STILL = """() => new Promise(done => {
  let frames = 0;
  const changes = new MutationObserver(() => { frames = 0; });
  changes.observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
  const ends = one => one.playState === "running" && one.effect.getComputedTiming().endTime !== Infinity;
  const look = () => {
    frames = document.getAnimations().some(ends) ? 0 : frames + 1;
    if (frames < 10) return requestAnimationFrame(look);
    changes.disconnect();
    done();
  };
  look();
})"""


def inject_script(place: Page | Frame) -> None:
    """Add an image whose error handler runs a script, and wait until it could have run."""
    place.evaluate(
        """() => new Promise(done => {
          const image = '<img src=x onerror="window.__pwned=1">';
          document.body.insertAdjacentHTML("beforeend", image);
          document.body.lastElementChild.addEventListener("error", done);
        })"""
    )


def find_violations(page: Page, rules: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the violations of the given axe rules, or of all rules, except those of Streamlit itself."""
    # Exclude the navigation, which Streamlit puts into a list without list items on narrow screens.
    # Request only violations, because axe takes longer to list the passed rules.
    options = {"resultTypes": ["violations"], **({"runOnly": [*rules]} if rules else {})}
    result = Axe().run(page, context={"exclude": ["[data-testid=stSidebarNav]"]}, options=options)
    return [violation for violation in result.response["violations"] if violation["id"] not in KNOWN_RULES]


OF_COLOUR = ("color-contrast",)
"""Accessibility rules that depend on the theme. Only these rules are checked in a second theme."""


def select_page(page: Page, title: str) -> None:
    """Select a page in the navigation: two clicks if the page is in a menu, otherwise one."""
    section = next(title_of_section for title_of_section, names in SECTIONS.items() if title.lower() in names)
    bar = page.get_by_test_id("stTopNav")
    if not section:
        bar.get_by_role("link", name=title, exact=True).click()
        return
    bar.get_by_role("button", name=section, exact=True).click()
    page.get_by_role("menuitem", name=title, exact=True).click()


def open_page(page: Page, title: str) -> None:
    """Select a page, and wait until it is drawn."""
    select_page(page, title)
    expect(page.get_by_role("heading", name=title, level=1)).to_be_visible()
    wait_until_settled(page)


def focus(picture: Locator) -> None:
    """Focus an element with the keyboard, because focus set by a script does not match `:focus-visible`."""
    picture.page.get_by_role("button", name="SVG").focus()
    picture.page.keyboard.press("Tab")
    assert picture.evaluate("node => node.getRootNode().activeElement === node")


def save_download(page: Page, label: str, exact: bool = False, timeout: float | None = None) -> Download:
    """Click a download button and return the download."""
    if IN_FIREFOX:
        pytest.skip("Playwright does not report downloads in Firefox")
    with page.expect_download() as waiting:
        page.get_by_role("button", name=label, exact=exact).click(timeout=timeout)
    return waiting.value


def download(page: Page, label: str) -> tuple[str, bytes]:
    """Download a file from the export menu, and return its name and content."""
    exports = page.get_by_role("button", name="Export").filter(
        has_not_text=re.compile("attribution|patching|predictions by layer|explanation|lengths")
    )
    expect(exports).to_have_count(1)  # wait until the menu of the previous view is gone
    exports.click()
    try:
        file = save_download(page, label, exact=True, timeout=5_000)
    except PlaywrightTimeout:  # A rerun during the click has closed the menu.
        wait_until_settled(page)
        if not page.get_by_role("button", name=label, exact=True).is_visible():
            exports.click()
        file = save_download(page, label, exact=True)
    page.keyboard.press("Escape")
    return file.suggested_filename, Path(file.path()).read_bytes()


def rows_of(content: bytes) -> list[dict[str, str]]:
    """Return the rows of a CSV table."""
    return list(csv.DictReader(io.StringIO(content.decode())))


def matrix_of(content: bytes) -> tuple[list[str], list[str], np.ndarray]:
    """Return the row names, column names and float32 values of a CSV matrix."""
    header, *rows = csv.reader(io.StringIO(content.decode()))
    return [row[0] for row in rows], header[1:], np.array([row[1:] for row in rows], dtype=np.float32)
