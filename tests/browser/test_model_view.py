"""Test the model view in a real browser: heads in every sort order, clicks, keyboard, and files."""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, expect

from bert_probe.analyses.attention.heads import Heads
from bert_probe.views import palette
from tests.browser.demo_model_view import MEASURES, demo_trace, labels_of
from tests.helpers.browser import (
    IN_FIREFOX,
    App,
    focus,
    save_download,
    visit,
    wait_until_settled,
    wait_until_still,
)
from tests.helpers.gate import prove_unless
from tests.helpers.traces import HOSTILE_TOKENS

pytestmark = pytest.mark.browser
SVG = "{http://www.w3.org/2000/svg}"
LAYERS, HEADS, TOKENS = 6, 12, 20


def shown(page: Page, demos: App, query: str = "") -> Locator:
    """Open the demo, wait until nothing above the canvas changes its height, and return the canvas."""
    visit(page, f"{demos.origin}/?demo=demo_model_view&{query}")
    # Wait for the component, which replaces a placeholder of a different height.
    page.get_by_role("spinbutton", name="Layer").wait_for()
    grid = page.locator("canvas.grid")
    grid.wait_for()
    page.locator(".readout", has_text=re.compile(".")).wait_for()
    return grid


def readout(page: Page) -> str:
    return page.locator(".readout").text_content() or ""


def values(measure: str) -> np.ndarray:
    return Heads().of(demo_trace(LAYERS, HEADS, TOKENS)).values[MEASURES[measure]]


def sentence(layer: int, head: int, measure: str = "") -> str:
    """Return the expected description of a head: layer, head, label and, optionally, a measure.

    Args:
        layer, head: indices, counted from 0.
        measure: name of the measure to include; "" for none.
    """
    label = labels_of(LAYERS, HEADS)[layer][head] or "no label"
    sentence_text = f"Layer {layer + 1}, head {head + 1} · {label}"
    return f"{sentence_text} · {measure} {values(measure)[layer, head]:.4f}" if measure else sentence_text


def order(measure: str) -> list[tuple[int, list[int]]]:
    """Return the expected order of the grid when it is sorted by the values of `measure`.

    The result contains (layer, heads) for each row from top to bottom, with the heads from left to right.
    """
    measured = values(measure)
    rows = sorted(range(LAYERS), key=lambda layer: -measured[layer].mean())
    return [(layer, sorted(range(HEADS), key=lambda head: -measured[layer, head])) for layer in rows]


def middle(grid: Locator, row: int, column: int, own_numbers: bool) -> tuple[float, float]:
    """Return the (x, y) center of a thumbnail on the page, computed from the size of the grid.

    Args:
        own_numbers: whether each thumbnail has its own head number, because the heads of each row are sorted.
    """
    box = grid.bounding_box()
    assert box is not None
    top = 22 if own_numbers else 36
    height = (box["height"] - top) / LAYERS
    left = box["width"] - HEADS * (height - 14 * own_numbers)
    width = (box["width"] - left) / HEADS
    return box["x"] + left + (column + 0.45) * width, box["y"] + top + (row + 0.5) * height


@pytest.mark.prove
def test_hover_names_and_enlarges_head(page: Page, demos: App) -> None:
    grid = shown(page, demos)
    assert readout(page).startswith("Attention of all heads · point at a head")
    top = grid.evaluate("node => node.getBoundingClientRect().top")
    for layer, head in ((0, 0), (3, 6), (4, 11)):
        page.mouse.move(*middle(grid, layer, head, False))
        assert readout(page) == sentence(layer, head)
        expect(page.locator(".preview-title")).to_have_text(f"Layer {layer + 1}, head {head + 1}")
        box = page.locator(".preview").bounding_box()
        assert box is not None
        assert 0 <= box["x"] <= 1280 - box["width"]
    assert grid.evaluate("node => node.getBoundingClientRect().top") == top, "the layout does not move"
    page.mouse.move(5, 5)
    expect(page.locator(".preview:popover-open")).to_have_count(0)


@pytest.mark.prove
def test_click_is_sent_once(page: Page, demos: App) -> None:
    grid = shown(page, demos)
    page.get_by_text("opened: None").wait_for()
    page.mouse.click(*middle(grid, 4, 2, False))
    page.get_by_text("opened: HeadThumbnail(layer=4, head=2)").wait_for()
    expect(page.get_by_label("Layer", exact=True)).to_have_value("5")
    page.get_by_role("button", name="Again").click()
    page.get_by_text("opened: None").wait_for()
    page.mouse.click(*middle(grid, 4, 2, False))
    page.get_by_text("opened: HeadThumbnail(layer=4, head=2)").wait_for()


@pytest.mark.prove
def test_heads_are_sorted_by_measure(page: Page, demos: App) -> None:
    grid = shown(page, demos)
    page.get_by_label("Sort by").select_option("Previous")
    expected = order("Previous")
    for row, column in ((0, 0), (2, 5), (5, 11)):
        layer, heads = expected[row]
        page.mouse.move(*middle(grid, row, column, True))
        assert readout(page) == sentence(layer, heads[column], "Previous")
    layer, heads = expected[1]
    page.mouse.click(*middle(grid, 1, 3, True))
    page.get_by_text(f"opened: HeadThumbnail(layer={layer}, head={heads[3]})").wait_for()
    wait_until_settled(page)
    assert page.get_by_label("Sort by").input_value() == "Previous", "the order survives a rerun"


@pytest.mark.prove
def test_layers_and_heads_are_sorted_independently(page: Page, demos: App) -> None:
    grid = shown(page, demos)
    heads, layers = (page.get_by_role("button", name=f"Sort the {axis}") for axis in ("heads", "layers"))
    assert heads.is_disabled()
    page.get_by_label("Sort by").select_option("Entropy")
    expected = order("Entropy")
    heads.click()
    page.mouse.move(*middle(grid, 1, 3, False))
    assert readout(page) == sentence(expected[1][0], 3, "Entropy")
    layers.click()
    heads.click()
    page.mouse.move(*middle(grid, 1, 3, True))
    assert readout(page) == sentence(1, dict(expected)[1][3], "Entropy")
    assert page.locator(".visually-hidden[aria-live=polite]").text_content() == (
        "Sorted by Entropy, largest first: heads within each layer"
    )


@pytest.mark.prove
def test_hover_and_sort_send_no_messages_to_server(page: Page, demos: App) -> None:
    frames: list[object] = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda frame: frames.append(frame)))
    grid = shown(page, demos)
    before = len(frames)
    if IN_FIREFOX and not before:
        pytest.skip("Playwright does not report messages in Firefox")
    assert before, "the page's own start was recorded"
    page.get_by_label("Sort by").select_option("Entropy")
    for column in range(HEADS):
        page.mouse.move(*middle(grid, 2, column, True))
    wait_until_still(page)
    assert len(frames) == before


def test_arrow_keys_follow_sorted_order_and_enter_opens_head(page: Page, demos: App) -> None:
    grid = shown(page, demos)
    focus(grid)
    assert readout(page) == sentence(0, 0)
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowLeft", "ArrowLeft", "End"):
        page.keyboard.press(key)
    assert (
        readout(page)
        == page.locator(".visually-hidden[aria-live=polite]").text_content()
        == sentence(2, HEADS - 1)
    )
    page.keyboard.press("Enter")
    page.get_by_text(f"opened: HeadThumbnail(layer=2, head={HEADS - 1})").wait_for()
    page.get_by_label("Sort by").select_option("Previous")
    focus(grid)
    page.keyboard.press("PageUp")
    page.keyboard.press("Home")
    layer, heads = order("Previous")[0]
    assert readout(page) == sentence(layer, heads[0], "Previous")
    assert "6 layers, 12 heads each" in (grid.get_attribute("aria-label") or "")


@pytest.mark.prove
def test_cursor_stays_visible(page: Page, demos: App) -> None:
    grid = shown(page, demos, "layers=24&heads=16")
    focus(grid)
    page.keyboard.press("PageDown")
    box = page.locator(".outline").bounding_box()
    assert box is not None
    assert 0 <= box["y"] <= 900 - box["height"]


@pytest.mark.prove
def test_svg_contains_all_heads_with_numbers_and_pixels(page: Page, demos: App) -> None:
    shown(page, demos)
    page.get_by_label("Sort by").select_option("Previous")
    download = save_download(page, "SVG")
    assert download.suggested_filename == "model-view.svg"
    drawing = ElementTree.parse(download.path())
    images = list(drawing.iter(f"{SVG}image"))
    assert len(images) == LAYERS * HEADS
    expected = [sentence(layer, head, "Previous") for layer, heads in order("Previous") for head in heads]
    assert [image.findtext(f"{SVG}title") for image in images] == expected
    for image in images:
        data = base64.b64decode((image.get("href") or "").removeprefix("data:image/png;base64,"))
        assert struct.unpack(">II", data[16:24]) == (TOKENS, TOKENS), "one pixel per weight"
    texts = [node.text or "" for node in drawing.iter(f"{SVG}text")]
    caption = " ".join(texts)
    for part in (
        "Attention of all heads",
        "“a↵text\ufffd” · a model",
        "Sorted by Previous",
        "fixed scale 0 to 1",
    ):
        assert part in caption
    numbers = [int(text) for text in texts if text.isdigit()]
    assert sorted(numbers)[-1] == HEADS
    assert texts.count(str(HEADS)) == LAYERS, "each thumbnail has its own number"


@pytest.mark.prove
def test_png_contains_whole_picture(page: Page, demos: App) -> None:
    shown(page, demos, "layers=24&heads=16")
    start = Path(save_download(page, "PNG").path()).read_bytes()[:24]
    assert start[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", start[16:24])
    assert width > 1000
    assert height > width


@pytest.mark.prove
def test_thumbnail_cell_has_color_of_its_weight(page: Page, demos: App) -> None:
    """In the thumbnail of the first head, the cell of the largest weight is the darkest."""
    grid = shown(page, demos, "tokens=5")
    weights = demo_trace(LAYERS, HEADS, 5).attention(0, 0)
    query, key = (int(index) for index in np.unravel_index(weights.argmax(), weights.shape))
    x, _ = middle(grid, 0, 0, False)
    box = grid.bounding_box()
    assert box is not None
    side = (box["height"] - 36) / LAYERS - 7
    point = [
        x - box["x"] - 0.45 * (side + 7) + (key + 0.5) * side / 5,
        36 + (query + 0.5) * side / 5,
    ]
    result = grid.evaluate(
        "(node, [x, y]) => [...node.getContext('2d').getImageData(x, y, 1, 1).data]", point
    )
    entry = round(255 * float(np.sqrt(weights.max())))
    assert "#{:02X}{:02X}{:02X}".format(*result[:3]) == palette.sequential(dark=False)[entry]


@pytest.mark.prove
def test_long_text_explains_aggregated_cells(page: Page, demos: App) -> None:
    shown(page, demos, "tokens=102")
    page.get_by_text("102 tokens: each cell is the largest of 2 × 2 values").wait_for()


def test_hostile_labels_are_shown_as_text(page: Page, demos: App) -> None:
    grid = shown(page, demos)
    page.mouse.move(*middle(grid, LAYERS - 1, HEADS - 1, False))
    assert HOSTILE_TOKENS[0] in readout(page)
    assert HOSTILE_TOKENS[0] in (page.locator(".preview-detail").text_content() or "")
    assert page.locator(".model-view img").count() == 0
    titles = [node.text for node in ElementTree.parse(save_download(page, "SVG").path()).iter(f"{SVG}title")]
    assert f"Layer {LAYERS}, head {HEADS} · {HOSTILE_TOKENS[0]}" in titles


@pytest.mark.prove
@pytest.mark.parametrize(("width", "heads"), prove_unless({(360, 12)}, [(700, 12), (360, 12), (700, 16)]))
def test_view_shrinks_to_available_width(
    new_page: Callable[..., Page], demos: App, width: int, heads: int
) -> None:
    page = new_page(viewport={"width": width, "height": 800})
    shown(page, demos, f"heads={heads}&layers=24")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator(".stage").evaluate("node => node.scrollWidth <= node.clientWidth")


@pytest.mark.prove
@pytest.mark.parametrize("theme", prove_unless({"dark"}, ["light", "dark"]))
def test_view_passes_axe(new_page: Callable[..., Page], demos: App, theme: str) -> None:
    page = new_page(color_scheme=theme, viewport={"width": 360, "height": 800})
    shown(page, demos, "heads=16")
    page.get_by_label("Sort by").select_option("Previous")
    result = Axe().run(page)
    assert {violation["id"] for violation in result.response["violations"]} == set()


@pytest.mark.prove
def test_picture_follows_theme_and_pixel_ratio(new_page: Callable[..., Page], demos: App) -> None:
    corners = []
    for scheme in ("light", "dark"):
        page = new_page(color_scheme=scheme, device_scale_factor=2)
        grid = shown(page, demos)
        corners.append(grid.evaluate("node => [...node.getContext('2d').getImageData(1, 1, 1, 1).data]"))
        assert grid.evaluate("node => node.width === 2 * node.clientWidth")
    assert corners == [[0xFB, 0xFA, 0xF7, 255], [0x14, 0x14, 0x1A, 255]]
