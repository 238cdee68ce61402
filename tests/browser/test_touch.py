"""Test touch input on a phone: a tap pins, a drag scrolls, and the layout fits the screen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

import bert_probe
from bert_probe.model.checkpoint import Checkpoint

pytestmark = pytest.mark.browser

TEXT = "Almost before we knew it, we had left the ground and crossed the wide river, as nobody had seen."
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


def drag(page: Page, start: tuple[float, float], way: tuple[float, float]) -> None:
    """Send the touch events of one finger that touches the screen, moves and is lifted.

    Args:
        start: (x, y) of the first touch, in CSS pixels.
        way: (x, y) distance that the finger moves.
    """
    touch = page.context.new_cdp_session(page)
    for step in range(11):
        place = {"x": start[0] + way[0] * step / 10, "y": start[1] + way[1] * step / 10}
        kind = "touchMove" if step else "touchStart"
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [place]})
    touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


def corner(stage: Locator) -> tuple[float, float]:
    box = stage.bounding_box()
    assert box is not None
    return box["x"], box["y"]


def opened(
    new_page: Callable[..., Page], view: bert_probe.HeadView | bert_probe.Frame
) -> tuple[Page, Locator]:
    page = new_page(**PHONE)
    page.set_content(view.page.html())
    stage = page.get_by_role("application")
    stage.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    return page, stage


def test_head_view_can_be_pinned_and_scrolled(minilm: Checkpoint, new_page: Callable[..., Page]) -> None:
    page, stage = opened(new_page, minilm.trace(TEXT + TEXT).head_view(3, 8))
    stage.scroll_into_view_if_needed()
    x, y = corner(stage)
    page.touchscreen.tap(x + 40, y + 26 + 23 * 3.5)
    expect(page.locator(".second")).to_have_text("Pinnedwe")
    drag(page, (x + 170, y + 300), (0, -200))
    expect(page.locator(".scroll")).not_to_have_js_property("scrollTop", 0)
    expect(page.locator(".second")).to_have_text("Pinnedwe")


@pytest.mark.prove
def test_several_heads_can_be_selected_without_shift_key(
    minilm: Checkpoint, new_page: Callable[..., Page]
) -> None:
    page, _ = opened(new_page, minilm.trace(TEXT).head_view(3, 8))
    page.get_by_role("button", name="More").tap()
    page.get_by_role("button", name="A click adds or removes a head").tap()
    page.locator("body").tap(position={"x": 195, "y": 800})
    for head in (3, 5):
        page.locator(f'.chip[data-head="{head}"]').tap()
    pressed = page.locator(".chip[aria-pressed=true]")
    expect(pressed).to_have_count(3)
    expect(page.locator(".readout")).to_contain_text("heads 4, 6, 9")


def test_heatmap_can_be_pinned_and_scrolled(minilm: Checkpoint, new_page: Callable[..., Page]) -> None:
    page, stage = opened(new_page, bert_probe.Attention(2, 3).of(minilm.trace(TEXT)).show())
    x, y = corner(stage)
    drag(page, (x + 250, y + 200), (-150, 0))
    expect(page.locator(".scroll")).not_to_have_js_property("scrollLeft", 0)
    expect(page.locator(".pinned .dot")).to_have_count(0)
    page.touchscreen.tap(x + 200, y + 200)
    expect(page.locator(".pinned .dot")).to_have_text("Pinned")


@pytest.mark.prove
def test_tapped_head_is_enlarged(minilm: Checkpoint, new_page: Callable[..., Page]) -> None:
    page, stage = opened(new_page, minilm.trace(TEXT).model_view())
    x, y = corner(stage)
    page.touchscreen.tap(x + 120, y + 47)
    expect(page.locator(".readout")).to_contain_text("Layer 1, head 3")
