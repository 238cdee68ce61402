"""Test the components in a real browser: exact values, keyboard, messages to Python, files, hostile text."""

import re
import struct
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.demo_components import HOSTILE, attention, tokens
from tests.helpers.browser import (
    IN_FIREFOX,
    App,
    focus,
    save_download,
    visit,
    wait_until_settled,
    wait_until_still,
)
from tests.helpers.exactness import assert_printed
from tests.helpers.gate import prove_unless

pytestmark = pytest.mark.browser


def shown(page: Page, demos: App, query: str) -> Locator:
    """Open a demo and return the canvas that receives pointer events."""
    visit(page, f"{demos.origin}/?demo=demo_components&{query}")
    canvas = page.locator("canvas.marks")
    canvas.wait_for()
    page.locator(".readout", has_text=re.compile(".")).wait_for()
    return canvas


def readout(page: Page) -> str:
    return page.locator(".readout").text_content() or ""


def sentence(count: int, row: int, column: int) -> str:
    words = tokens(count)
    return f"{words[row]} ({row}) → {words[column]} ({column}): {attention(count)[row, column]:.4f}"


def test_arrow_keys_move_cursor_and_readout_shows_exact_value(page: Page, demos: App) -> None:
    canvas = shown(page, demos, "show=20")
    focus(canvas)
    assert readout(page) == sentence(20, 0, 0)
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft"):
        page.keyboard.press(key)
    assert readout(page) == sentence(20, 1, 1)
    assert page.locator(".visually-hidden[aria-live=polite]").text_content() == sentence(20, 1, 1)
    page.keyboard.press("End")
    assert readout(page) == sentence(20, 1, 19)
    page.keyboard.press("ArrowRight")
    assert readout(page) == sentence(20, 1, 19), "the last column is the limit"
    page.keyboard.press("PageDown")
    page.keyboard.press("Home")
    assert readout(page) == sentence(20, 19, 0)


@pytest.mark.prove
def test_enter_pins_cell_and_escape_unpins(page: Page, demos: App) -> None:
    canvas = shown(page, demos, "show=20")
    focus(canvas)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.get_by_text("pinned: Cell(row=1, column=0)").wait_for()
    assert (page.locator(".pinned").text_content() or "").endswith(sentence(20, 1, 0))
    page.keyboard.press("ArrowDown")
    assert sentence(20, 1, 0) in (page.locator(".pinned").text_content() or ""), "the pin does not move"
    page.keyboard.press("Escape")
    page.get_by_text("pinned: None").wait_for()


@pytest.mark.prove
def test_hover_shows_value_and_click_toggles_pin(page: Page, demos: App) -> None:
    canvas = shown(page, demos, "show=5")
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 120, box["y"] + box["height"] - 20)
    match = re.fullmatch(r"\S+ \((\d)\) → \S+ \((\d)\): (\S+)", readout(page))
    assert match, readout(page)
    row, column = int(match[1]), int(match[2])
    assert readout(page) == sentence(5, row, column)
    assert row == 4, "the last row is at the bottom"
    page.mouse.down()
    page.mouse.up()
    page.get_by_text(f"pinned: Cell(row={row}, column={column})").wait_for()
    page.mouse.down()
    page.mouse.up()
    page.get_by_text("pinned: None").wait_for()


@pytest.mark.prove
def test_hover_sends_no_messages_to_server(page: Page, demos: App) -> None:
    frames: list[object] = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda frame: frames.append(frame)))
    canvas = shown(page, demos, "show=20")
    before = len(frames)
    if IN_FIREFOX and not before:
        pytest.skip("Playwright does not report messages in Firefox")
    assert before, "the page's own start was recorded"
    box = canvas.bounding_box()
    assert box is not None
    for step in range(30):
        page.mouse.move(box["x"] + 90 + step * 12, box["y"] + 120 + step * 9)
    wait_until_still(page)
    assert len(frames) == before


def test_cell_under_pointer_has_color_of_its_value(page: Page, demos: App) -> None:
    """The darkest cell of the picture must show the largest value of the matrix."""
    canvas = shown(page, demos, "show=40")
    darkest = page.locator(".sticky canvas").first.evaluate(
        """canvas => {
            const {data, width} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            let [least, at] = [Infinity, 0];
            for (let i = 0; i < data.length; i += 4) {
                const blueness = data[i] + data[i + 1] - data[i + 2];  // ink is grey: only cells go below 0
                if (blueness < least) [least, at] = [blueness, i / 4];
            }
            return [(at % width) / devicePixelRatio, Math.floor(at / width) / devicePixelRatio];
        }"""
    )
    canvas.hover(position={"x": darkest[0] + 3, "y": darkest[1] + 3})
    assert readout(page).endswith(f": {attention(40).max():.4f}")


@pytest.mark.prove
@pytest.mark.parametrize("count", prove_unless({200}, [200, 512]))
def test_large_matrix_scrolls_fits_and_stays_exact(page: Page, demos: App, count: int) -> None:
    canvas = shown(page, demos, f"show={count}")
    hint = page.locator(".pinned").text_content()
    assert hint == f"{count} × {count} cells: scroll, or press Fit to see them all"
    scroll = page.locator(".scroll")
    assert scroll.evaluate("node => node.scrollWidth > node.clientWidth * 2")
    focus(canvas)
    page.keyboard.press("End")
    for _ in range(40):
        page.keyboard.press("PageDown")
    assert readout(page) == sentence(count, count - 1, count - 1)
    assert scroll.evaluate("node => node.scrollLeft > 0 && node.scrollTop > 0"), "the cursor is visible"
    fit = page.get_by_role("button", name="Fit")
    fit.click()
    assert scroll.evaluate("node => node.scrollWidth <= node.clientWidth")
    assert scroll.evaluate("node => node.scrollHeight <= node.clientHeight")
    fit.click()
    assert scroll.evaluate("node => node.scrollWidth > node.clientWidth * 2")


@pytest.mark.prove
def test_zoom_scroll_and_cursor_survive_rerun(page: Page, demos: App) -> None:
    canvas = shown(page, demos, "show=200")
    page.get_by_role("button", name="Zoom in").click()
    scroll = page.locator(".scroll")
    scroll.evaluate("node => node.scrollTo(900, 1200)")
    wait_until_still(page)
    # Positions are rounded, because Firefox redraws a scrolled picture with an offset of less than a pixel.
    place = "node => [node.scrollLeft, node.scrollTop, node.scrollWidth].map(Math.round)"
    before = scroll.evaluate(place)
    box = canvas.bounding_box()
    assert box is not None
    canvas.click(position={"x": box["width"] * 0.6, "y": box["height"] * 0.6})
    page.get_by_text("pinned: Cell").wait_for()
    wait_until_settled(page)
    wait_until_still(page)
    assert scroll.evaluate(place) == before


@pytest.mark.prove
def test_ctrl_wheel_zooms_around_pointer(page: Page, demos: App) -> None:
    canvas = shown(page, demos, "show=200")
    box = canvas.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] * 0.7, box["y"] + box["height"] * 0.5
    page.mouse.move(x, y)
    cell = readout(page)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -240)
    page.keyboard.up("Control")
    wait_until_still(page)
    page.mouse.move(x + 1, y)
    page.mouse.move(x, y)
    assert readout(page) == cell
    assert page.locator(".extent").evaluate("node => node.clientWidth") > 200 * 16 + 60


def test_hostile_labels_are_shown_as_text(page: Page, demos: App) -> None:
    canvas = shown(page, demos, "show=hostile")
    focus(canvas)
    page.keyboard.press("ArrowRight")
    assert HOSTILE in readout(page)
    page.keyboard.press("Enter")
    page.get_by_text("pinned: Cell(row=0, column=1)").wait_for()
    assert canvas.get_attribute("aria-label") == HOSTILE
    assert page.locator(".matrix img").count() == 0
    assert page.title() != "owned"
    drawing = ElementTree.parse(save_download(page, "SVG").path())
    texts = [node.text for node in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert HOSTILE in texts, "the caption"
    assert "−0.20" in texts


@pytest.mark.prove
def test_missing_value_is_labeled_and_not_shown_as_zero(page: Page, demos: App) -> None:
    canvas = shown(page, demos, "show=difference")
    focus(canvas)
    for key in ["ArrowDown"] * 2 + ["ArrowRight"] * 3:
        page.keyboard.press(key)
    assert readout(page) == "bank (2) → raised (3): no value"
    assert page.locator(".legend-text").evaluate("node => getComputedStyle(node, '::after').content") == (
        '"hatched: no value"'
    )


@pytest.mark.prove
def test_legend_shows_range_and_places_ticks(page: Page, demos: App) -> None:
    shown(page, demos, "show=20&curve=sqrt")
    expect(page.locator(".legend-text")).to_have_text(
        "attention weight, fixed scale 0 to 1, square-root colors"
    )
    ticks = page.locator(".ticks span")
    expect(ticks).to_have_text(["0", "0.05", "0.25", "0.5", "1"])
    places = [float(left.rstrip("%")) for left in ticks.evaluate_all("all => all.map(one => one.style.left)")]
    # The browser returns positions with six significant digits, which are at least three decimals.
    assert_printed(places, [100 * part**0.5 for part in (0, 0.05, 0.25, 0.5, 1)], decimals=3)


@pytest.mark.prove
def test_png_contains_whole_matrix(page: Page, demos: App) -> None:
    shown(page, demos, "show=200")
    download = save_download(page, "PNG")
    assert download.suggested_filename == "attention-200.png"
    start = Path(download.path()).read_bytes()[:24]
    assert start[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", start[16:24])
    assert min(width, height) > 200 * 14


@pytest.mark.prove
def test_svg_has_rectangle_and_number_per_cell(page: Page, demos: App) -> None:
    shown(page, demos, "show=5")
    download = save_download(page, "SVG")
    assert download.suggested_filename == "attention-5.svg"
    drawing = ElementTree.parse(download.path())
    texts = [node.text or "" for node in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert [text for text in texts if re.fullmatch(r"\d\.\d\d", text)][:25] == [
        f"{value:.2f}" for value in attention(5).ravel()
    ]
    assert {"query ↓", "key →", "attention weight, fixed scale 0 to 1"} <= set(texts)


@pytest.mark.prove
def test_svg_of_large_matrix_is_refused_with_message(page: Page, demos: App) -> None:
    shown(page, demos, "show=512")
    page.get_by_role("button", name="SVG").click()
    assert readout(page) == (
        "This matrix has 262,144 cells, but an SVG is limited to 40,000. Save a PNG instead."
    )


@pytest.mark.prove
def test_picture_follows_theme(new_page: Callable[..., Page], demos: App) -> None:
    corners = []
    for scheme in ("light", "dark"):
        page = new_page(color_scheme=scheme)
        shown(page, demos, "show=5")
        base = page.locator(".sticky canvas").first
        corners.append(base.evaluate("node => [...node.getContext('2d').getImageData(1, 1, 1, 1).data]"))
    assert corners == [[0xFB, 0xFA, 0xF7, 255], [0x14, 0x14, 0x1A, 255]]


@pytest.mark.prove
def test_layout_is_stable_without_overflow_on_phone(new_page: Callable[..., Page], demos: App) -> None:
    page = new_page(viewport={"width": 360, "height": 740})
    canvas = shown(page, demos, "show=40")
    canvas.scroll_into_view_if_needed()
    top = canvas.evaluate("node => node.getBoundingClientRect().top")
    canvas.hover(position={"x": 200, "y": 200})
    after = canvas.evaluate("node => node.getBoundingClientRect().top")
    assert abs(after - top) <= 1, "apart from elements that can be scrolled"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator(".matrix").evaluate("node => node.scrollWidth <= node.clientWidth")


@pytest.mark.prove
def test_vectors_fill_width_and_label_round_dimensions(page: Page, demos: App) -> None:
    canvas = shown(page, demos, "show=vectors")
    assert page.locator(".scroll").evaluate("node => node.scrollWidth <= node.clientWidth")
    focus(canvas)
    page.keyboard.press("End")
    assert re.fullmatch(r"\[CLS\] \(0\) → 384: −?\d\.\d{4}", readout(page))


def test_pill_is_selected_by_mouse_and_arrow_keys(page: Page, demos: App) -> None:
    visit(page, f"{demos.origin}/?demo=demo_components&show=strip")
    page.get_by_text("chosen: 3").wait_for()
    group = page.get_by_role("radiogroup", name="Tokens")
    pills = group.get_by_role("radio")
    pills.nth(7).click()
    page.get_by_text("chosen: 7").wait_for()
    page.keyboard.press("ArrowRight")
    page.get_by_text("chosen: 8").wait_for()
    page.keyboard.press("End")
    page.get_by_text("chosen: 39").wait_for()
    checked = group.locator('[aria-checked="true"]')
    expect(checked).to_have_count(1)
    expect(group.locator('[tabindex="0"]')).to_have_count(1)


@pytest.mark.prove
def test_pill_tooltip_is_not_clipped(page: Page, demos: App) -> None:
    visit(page, f"{demos.origin}/?demo=demo_components&show=strip&count=512")
    pill = page.get_by_role("radio").nth(2)
    pill.hover()
    tip = page.locator(".tip:popover-open")
    expect(tip).to_have_text("id 2002 · position 2 · characters 8–11")
    box = tip.bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["y"] >= 0
    assert pill.get_attribute("aria-label") == "bank, id 2002 · position 2 · characters 8–11"
    page.mouse.move(5, 5)
    expect(tip).to_have_count(0)


@pytest.mark.prove
def test_512_pills_scroll_and_hostile_labels_are_text(page: Page, demos: App) -> None:
    visit(page, f"{demos.origin}/?demo=demo_components&show=strip&count=512")
    strip = page.get_by_role("radiogroup", name="Tokens")
    expect(strip.get_by_role("radio")).to_have_count(512)
    assert strip.evaluate("node => node.clientHeight < 300 && node.scrollHeight > node.clientHeight")
    expect(page.get_by_role("list", name=HOSTILE)).to_have_text(HOSTILE)
    assert page.locator(".strip img").count() == 0
    assert page.title() != "owned"
