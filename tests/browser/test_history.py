"""Going back and forward, and addresses that lead nowhere."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.helpers.browser import App, Watch, settled, visit

pytestmark = pytest.mark.browser

TEXT = "we had left the ground"


def test_back_and_forward_move_through_layers_heads_and_views(page: Page, app: App) -> None:
    visit(page, f"{app.origin}/?a={quote(TEXT)}&show=heatmap")
    slider = page.get_by_role("slider", name="Layer")
    expect(slider).to_have_value("6")
    slider.press("ArrowLeft")
    expect(page).to_have_url(re.compile("layer=5"))
    settled(page)
    page.get_by_role("radio", name="3", exact=True).click()
    expect(page).to_have_url(re.compile("head=3"))
    settled(page)
    page.get_by_text("Table", exact=True).click()
    expect(page).to_have_url(re.compile("show=table"))
    settled(page)

    page.go_back()
    expect(page).to_have_url(re.compile("show=heatmap"))
    settled(page)
    expect(page.get_by_role("radio", name="3", exact=True)).to_be_checked()
    page.go_back()
    settled(page)
    expect(page.get_by_role("radio", name="Mean of all")).to_be_checked()
    expect(slider).to_have_value("5")
    page.go_back()
    expect(slider).to_have_value("6")
    page.go_forward()
    expect(slider).to_have_value("5")
    settled(page)
    expect(page).to_have_url(re.compile("layer=5"))


def test_back_leads_over_pages_with_what_was_chosen_there(page: Page, app: App) -> None:
    visit(page, f"{app.origin}/?a={quote(TEXT)}&show=heatmap&layer=2")
    page.get_by_role("link", name="Tokens").click()
    expect(page.get_by_role("heading", name="Tokens")).to_be_visible()
    settled(page)
    page.go_back()
    expect(page.get_by_role("slider", name="Layer")).to_have_value("2")


def test_an_unknown_path_says_so_and_offers_the_pages(page: Page, app: App, watch: Watch) -> None:
    response = page.goto(f"{app.origin}/attentoin?a={quote(TEXT)}")
    assert response is not None
    assert response.status == 404
    assert len(watch.errors) == 1, "the status itself"
    watch.errors.clear()
    expect(page.get_by_role("heading")).to_have_text("There is no such page")
    expect(page.get_by_text("/attentoin")).to_be_visible()
    page.get_by_role("link", name="Heads").click()
    settled(page)
    expect(page.get_by_role("heading", name="Heads")).to_be_visible()
    expect(page.get_by_label("Sentence A")).to_have_value(TEXT)
