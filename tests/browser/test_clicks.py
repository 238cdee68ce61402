"""No click is lost: whatever a reader chooses last, at any moment of a run, is what component and page show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.helpers.browser import App, visit

pytestmark = pytest.mark.browser

HERE = Path(__file__).parent
CLICKS = 200
COMPONENTS = ("strip", "matrix", "map", "mark", "view", "grid", "native")
CONTROLS = ("place", "default", "numbers")
"""Toggles that mount components elsewhere, and change what they begin with and the numbers that they draw."""


@pytest.fixture(scope="module")
def demo(serve: Callable[[Path], App]) -> App:
    return serve(HERE / "demo_model_view_app.py")


def reported(page: Page) -> dict[str, str]:
    """What the page takes each choice to be."""
    lines = page.get_by_test_id("stText").all_text_contents()
    return {name: choice for name, _, choice in (line.partition(" = ") for line in lines)}


@pytest.mark.parametrize("show", ["all", "heads"])
def test_the_last_of_many_clicks_is_shown_by_component_and_page(page: Page, demo: App, show: str) -> None:
    kinds = (*COMPONENTS, *CONTROLS) if show == "all" else ("view", "place")
    bursts = 10
    visit(page, f"{demo.origin}/?clicks&show={show}")
    page.get_by_text("done = 0").wait_for()
    expect(page.get_by_role("spinbutton", name="Layer")).to_be_visible()
    if show == "all":
        expect(page.locator("canvas.grid")).to_be_visible()
    page.evaluate((HERE / "clicks.js").read_text())
    for burst in range(bursts):
        choices = page.evaluate(
            "([seed, kinds, count]) => clicks.run(seed, kinds, count, 20)",
            [burst, kinds, CLICKS // bursts],
        )
        page.get_by_role("button", name="Done").click()
        expect(page.get_by_text(f"done = {burst + 1}", exact=True)).to_be_visible()
        page.wait_for_function("choices => clicks.shows(choices)", arg=choices)
        told = reported(page)
        assert {name: told[name] for name in choices} == choices
