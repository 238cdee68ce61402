"""Test that clicks are not lost: component and page show the last selection, even one during a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from tests.helpers.browser import App, visit
from tests.helpers.gate import PROVE, prove_unless

pytestmark = pytest.mark.browser

HERE = Path(__file__).parent
CLICKS_PER_BURST = 20 if PROVE else 10
COMPONENTS = ("strip", "matrix", "map", "mark", "view", "grid", "native")
CONTROLS = ("place", "default", "numbers")
"""Toggles of the demo page that remount components, or change their initial states or their values."""


@pytest.mark.parametrize("show", prove_unless({"heads"}, ["all", "heads"]))
def test_component_and_page_show_last_of_many_clicks(page: Page, demos: App, show: str) -> None:
    kinds = (*COMPONENTS, *CONTROLS) if show == "all" else ("view", "place")
    bursts = 10 if PROVE else 1
    visit(page, f"{demos.origin}/?demo=demo_clicks&show={show}")
    page.get_by_text("done = 0").wait_for()
    expect(page.get_by_role("spinbutton", name="Layer")).to_be_visible()
    if show == "all":
        expect(page.locator("canvas.grid")).to_be_visible()
    page.evaluate((HERE / "clicks.js").read_text())
    for burst in range(bursts):
        choices = page.evaluate(
            "([seed, kinds, count]) => clicks.run(seed, kinds, count, 20)",
            [burst, kinds, CLICKS_PER_BURST],
        )
        page.get_by_role("button", name="Done").click()
        expect(page.get_by_text(f"done = {burst + 1}", exact=True)).to_be_visible()
        # The head view draws a selection before it reports it, so the report may arrive after "Done".
        try:
            page.wait_for_function("choices => !Object.keys(clicks.wrong(choices)).length", arg=choices)
        except PlaywrightTimeout:
            assert page.evaluate("choices => clicks.wrong(choices)", choices) == {}
