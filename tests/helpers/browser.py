"""Finding one's way through the app in a real browser."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Download, Frame, Locator, Page, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from bert_probe.model.checkpoint import Checkpoint
from bert_probe.server.asgi import SECTIONS
from tests.helpers.exactness import Expected

# Stock Streamlit fails these by itself; the last with every field for files.
KNOWN_RULES = {"scrollable-region-focusable", "empty-table-header", "presentation-role-conflict"}


IN_FIREFOX = os.environ.get("BERT_PROBE_BROWSER") == "firefox"
"""As `make prove` runs the tests of the components once more."""

Elsewhere = Callable[[Callable[[Checkpoint], Any]], Expected]
"""An answer of the built-in model → its numbers, as near as another process must have them."""


@dataclass
class Watch:
    """What a page did that it should not. A test that provokes an error clears it."""

    foreign: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class App:
    """A running app: where it is, and what it wrote."""

    origin: str
    log: Path


JOINER = "\u2060"
"""Stands, unseen, where Streamlit would make a link or an icon of a text."""

MADE = "a, img, strong, em, del, code, h1, li, blockquote, table, .katex, [role=img], span[style]"
"""Elements that Markdown, or Streamlit after it, could make from a text."""


def visit(page: Page, url: str) -> Page:
    """Open an app's page and wait until its script has run."""
    page.goto(url)
    return settled(page)


def settled(page: Page, timeout: float = 60_000) -> Page:
    """The same page, when Streamlit's script is not running any more."""
    page.wait_for_selector('[data-testid="stApp"][data-test-script-state="notRunning"]', timeout=timeout)
    return page


def still(place: Page | Frame) -> None:
    """Wait until nothing has changed or moved for ten of the browser's frames."""
    place.evaluate(_UNTIL_STILL)


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


def inject(place: Page | Frame) -> None:
    """Put an image into the page that runs a script when it cannot be had, and wait until it could have."""
    place.evaluate(
        """() => new Promise(done => {
          const image = '<img src=x onerror="window.__pwned=1">';
          document.body.insertAdjacentHTML("beforeend", image);
          document.body.lastElementChild.addEventListener("error", done);
        })"""
    )


def violations(page: Page, rules: Sequence[str] = ()) -> list[dict[str, Any]]:
    """What axe finds, by these rules or all of them, but for what stock Streamlit fails by itself."""
    # On a narrow screen it puts the sections of its navigation into a list as no items of one.
    # To list what passes as well takes axe longer than to find what does not.
    options = {"resultTypes": ["violations"], **({"runOnly": [*rules]} if rules else {})}
    result = Axe().run(page, context={"exclude": ["[data-testid=stSidebarNav]"]}, options=options)
    return [violation for violation in result.response["violations"] if violation["id"] not in KNOWN_RULES]


OF_COLOUR = ("color-contrast",)
"""What a theme changes for axe, so that a page in another theme is asked for nothing else."""


def turn_to(page: Page, title: str) -> None:
    """Choose a page in the navigation, which is two clicks, or one for an entry by itself."""
    section = next(title_of_section for title_of_section, names in SECTIONS.items() if title.lower() in names)
    bar = page.get_by_test_id("stTopNav")
    if not section:
        bar.get_by_role("link", name=title, exact=True).click()
        return
    bar.get_by_role("button", name=section, exact=True).click()
    page.get_by_role("menuitem", name=title, exact=True).click()


def go_to(page: Page, title: str) -> None:
    """Choose a page, and wait until it is drawn."""
    turn_to(page, title)
    expect(page.get_by_role("heading", name=title, level=1)).to_be_visible()
    settled(page)


def focus(picture: Locator) -> None:
    """By the keyboard, as focus by script would not count as visible."""
    picture.page.get_by_role("button", name="SVG").focus()
    picture.page.keyboard.press("Tab")
    assert picture.evaluate("node => node.getRootNode().activeElement === node")


def saved(page: Page, label: str, exact: bool = False, timeout: float | None = None) -> Download:
    """The file that a button gives."""
    if IN_FIREFOX:
        pytest.skip("no file that Firefox saves is told of by what drives it")
    with page.expect_download() as waiting:
        page.get_by_role("button", name=label, exact=exact).click(timeout=timeout)
    return waiting.value


def download(page: Page, label: str) -> tuple[str, bytes]:
    """Name and bytes of a file from the export menu."""
    exports = page.get_by_role("button", name="Export").filter(has_not_text="this part")
    expect(exports).to_have_count(1)  # no more that of the part before
    exports.click()
    try:
        file = saved(page, label, exact=True, timeout=5_000)
    except PlaywrightTimeout:  # a run that came just then has closed the menu
        settled(page)
        if not page.get_by_role("button", name=label, exact=True).is_visible():
            exports.click()
        file = saved(page, label, exact=True)
    page.keyboard.press("Escape")
    return file.suggested_filename, Path(file.path()).read_bytes()


def rows_of(content: bytes) -> list[dict[str, str]]:
    """The rows of a CSV table."""
    return list(csv.DictReader(io.StringIO(content.decode())))


def matrix_of(content: bytes) -> tuple[list[str], list[str], np.ndarray]:
    """Row names, column names and float32 values of a CSV matrix."""
    header, *rows = csv.reader(io.StringIO(content.decode()))
    return [row[0] for row in rows], header[1:], np.array([row[1:] for row in rows], dtype=np.float32)
