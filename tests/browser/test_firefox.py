"""Test the views in Firefox, if it is installed: Firefox displays the same values as Chromium."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Playwright, expect

import bert_probe
from bert_probe.model.checkpoint import Checkpoint
from tests.browser.firefox import installed, launch
from tests.helpers.exactness import assert_printed

pytestmark = pytest.mark.browser

TEXT = "Electroencephalographers left the ground."


@pytest.fixture(scope="module")
def firefox(playwright: Playwright, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    path = installed()
    if path is None:
        # CI also skips these tests if Firefox is unavailable, because Chromium covers the same behavior.
        pytest.skip("No Firefox here: install Debian's firefox-esr, or set FIREFOX to a browser's path.")
    browser = launch(playwright, path, tmp_path_factory.mktemp("firefox"))
    yield browser
    browser.close()


@pytest.fixture
def page(firefox: Browser) -> Iterator[Page]:
    errors: list[str] = []
    page = firefox.new_page(viewport={"width": 900, "height": 800})
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    page.close()
    assert errors == []


def numbers(page: Page, count: int) -> list[float]:
    """Return the numbers in the table of pinned weights."""
    cells = page.locator("table td")
    expect(cells).to_have_count(count)
    return [float(cell) for cell in cells.all_text_contents()]


def test_head_view_of_tokens_and_words_matches_library(minilm: Checkpoint, page: Page) -> None:
    trace = minilm.trace(TEXT)
    page.set_content(trace.head_view(3, 8).page.html())
    stage = page.get_by_role("application")
    stage.press("Home")
    stage.press("Enter")
    page.get_by_text("These weights as a table").click()
    assert_printed(numbers(page, len(trace.tokens)), trace.attention(3, 8)[0], 4)
    page.get_by_role("button", name="Whole words").click()
    box = stage.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 60, box["y"] + 26 + 23 * 1.5)
    expect(page.locator(".second")).to_have_text("PinnedElectroencephalographers")
    words = bert_probe.Attention(3, 8, words=True).of(trace).weights
    assert_printed(numbers(page, len(words)), words[1], 4)


def test_heatmap_readout_matches_library(minilm: Checkpoint, page: Page) -> None:
    result = bert_probe.Attention(2, 3).of(minilm.trace(TEXT))
    page.set_content(result.show().page.html())
    stage = page.get_by_role("application")
    stage.press("Home")
    expect(page.locator(".readout")).to_have_text(f"[CLS] (0) → [CLS] (0): {result.weights[0, 0]:.4f}")
    colours = page.locator(".sticky canvas").first.evaluate(
        "node => new Set(new Uint32Array("
        "node.getContext('2d').getImageData(0, 0, node.width, node.height).data.buffer)).size"
    )
    assert colours > 20, "one for the color scale"


def test_head_of_model_view_is_enlarged(minilm: Checkpoint, page: Page) -> None:
    page.set_content(minilm.trace(TEXT).model_view().page.html())
    stage = page.get_by_role("application")
    stage.press("Home")
    stage.press("ArrowRight")
    expect(page.locator(".preview-title")).to_have_text("Layer 1, head 2")
    assert page.locator(".preview").evaluate("node => node.matches(':popover-open')")
