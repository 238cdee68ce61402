"""Test navigation back and forward in the browser history, and unknown URLs."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from tests.helpers.browser import App, Watch, select_page, visit, wait_until_settled, wait_until_still
from tests.helpers.gate import prove_unless

pytestmark = pytest.mark.browser

TEXT = "we had left the ground"


def test_back_and_forward_restore_layers_heads_and_views(page: Page, app: App) -> None:
    visit(page, f"{app.origin}/attention?a={quote(TEXT)}&show=heatmap&layer=6")
    layer, mean = (
        page.get_by_role("spinbutton", name="Layer"),
        page.get_by_role("button", name="Mean", exact=True),
    )
    expect(layer).to_have_text("Layer 6 of 6")
    layer.press("ArrowLeft")
    expect(page).to_have_url(re.compile("layer=5"))
    wait_until_settled(page)
    page.get_by_role("button", name=re.compile("^Head 3")).click()
    expect(page).to_have_url(re.compile("head=3"))
    wait_until_settled(page)
    page.get_by_text("Table", exact=True).click()
    expect(page).to_have_url(re.compile("show=table"))
    wait_until_settled(page)

    page.go_back()
    expect(page).to_have_url(re.compile("show=heatmap"))
    wait_until_settled(page)
    expect(page.get_by_role("button", name=re.compile("^Head 3"))).to_have_attribute("aria-pressed", "true")
    page.go_back()
    expect(mean).to_have_attribute("aria-pressed", "true")
    wait_until_settled(page)
    expect(layer).to_have_text("Layer 5 of 6")
    page.go_back()
    expect(layer).to_have_text("Layer 6 of 6")
    page.go_forward()
    expect(layer).to_have_text("Layer 5 of 6")
    wait_until_settled(page)
    expect(page).to_have_url(re.compile("layer=5"))


@pytest.mark.prove
def test_back_restores_previous_page_and_its_selection(page: Page, app: App) -> None:
    visit(page, f"{app.origin}/attention?a={quote(TEXT)}&show=heatmap&layer=2")
    select_page(page, "Tokens")
    expect(page.get_by_role("heading", name="Tokens", level=1)).to_be_visible()
    wait_until_settled(page)
    page.go_back()
    expect(page.get_by_role("spinbutton", name="Layer")).to_have_text("Layer 2 of 6")


@pytest.mark.prove
def test_back_keeps_text_that_was_not_submitted(page: Page, app: App) -> None:
    field = page.get_by_test_id("stMain").get_by_role("textbox").first
    visit(page, f"{app.origin}/sentences?layer=2")
    field.fill("A draft.")
    select_page(page, "Tokens")
    expect(page.get_by_role("heading", name="Tokens", level=1)).to_be_visible()
    wait_until_settled(page)
    page.go_back()
    expect(page.get_by_role("heading", name="Sentences", level=1)).to_be_visible()
    wait_until_settled(page)
    expect(field).to_have_value("A draft.")


def test_tap_on_link_sends_typed_text_first(app: App, new_page: Callable[..., Page]) -> None:
    """After a tap, Streamlit requests the new page before it sends the text of the old one."""
    page = new_page(viewport={"width": 1280, "height": 900}, has_touch=True)
    visit(page, f"{app.origin}/context")
    field = page.get_by_role("textbox", name="Add sentences, one per line")
    link = page.get_by_test_id("stTopNav").get_by_role("link", name="Report", exact=True)
    # Streamlit follows these links in the same tab also if a key is pressed.
    follow = (link.tap, link.click, partial(link.click, modifiers=["Control"]))
    for number, press in enumerate(follow):
        field.tap()
        field.fill(f"The bank of river {number}")
        press()
        expect(page.get_by_role("heading", name="Report", exact=True)).to_be_visible()
        wait_until_settled(page)
        page.go_back()
        expect(field).to_have_value(f"The bank of river {number}")
        wait_until_settled(page)


def test_back_sends_text_of_focused_field_first(page: Page, app: App) -> None:
    """Without a loss of focus, Streamlit does not send the text of a field that disappears."""
    visit(page, f"{app.origin}/tokens")
    select_page(page, "Context")
    field = page.get_by_role("textbox", name="Add sentences, one per line")
    field.fill("The bank of the river")
    expect(field).to_be_focused()
    page.go_back()
    expect(page.get_by_role("heading", name="Tokens", level=1)).to_be_visible()
    wait_until_settled(page)
    page.go_forward()
    expect(field).to_have_value("The bank of the river")
    wait_until_settled(page)


@pytest.mark.prove
def test_unknown_path_shows_message_and_pages(page: Page, app: App, watch: Watch) -> None:
    response = page.goto(f"{app.origin}/attentoin?a={quote(TEXT)}")
    assert response is not None
    assert response.status == 404
    assert len(watch.errors) == 1, "the HTTP status"
    watch.errors.clear()
    expect(page.get_by_role("heading")).to_have_text("Page not found")
    expect(page.get_by_text("/attentoin")).to_be_visible()
    page.get_by_role("link", name="Heads").click()
    wait_until_settled(page)
    expect(page.get_by_role("heading", name="Heads")).to_be_visible()
    expect(page.get_by_label("Sentence A")).to_have_value(TEXT)


@pytest.mark.prove
@pytest.mark.parametrize("order", prove_unless({"before"}, ["before", "after"]))
def test_late_fragment_rerun_does_not_undo_page_change(page: Page, app: App, order: str) -> None:
    """After a page change, the browser may rerun fragments of the previous page until the server responds."""
    current, fragments, sent = "", set[str](), 0

    def connect(browser: WebSocketRoute) -> None:
        server = browser.connect_to_server()

        def to_browser(data: str | bytes) -> None:
            nonlocal current
            assert isinstance(data, bytes)
            message = ForwardMsg.FromString(data)
            if message.WhichOneof("type") == "navigation":
                current = message.navigation.page_script_hash
            elif message.delta.fragment_id:
                fragments.add(message.delta.fragment_id)
            browser.send(data)

        def to_server(data: str | bytes) -> None:
            nonlocal sent
            assert isinstance(data, bytes)
            message = BackMsg.FromString(data)
            late = BackMsg()
            if message.rerun_script.page_script_hash not in ("", current) and fragments:
                late.rerun_script.CopyFrom(message.rerun_script)
                late.rerun_script.page_script_hash = current
                late.rerun_script.fragment_id = fragments.pop()
                late.rerun_script.is_auto_rerun = True
                sent += 1
            both = [data, late.SerializeToString()] if late.WhichOneof("type") else [data]
            for event in reversed(both) if order == "before" else both:
                server.send(event)

        browser.on_message(to_server)
        server.on_message(to_browser)

    page.route_web_socket(re.compile("_stcore/stream"), connect)
    visit(page, f"{app.origin}/attention?a={quote(TEXT)}")
    select_page(page, "Tokens")
    expect(page.get_by_text("All tokens", exact=True)).to_be_visible()
    wait_until_settled(page)
    wait_until_still(page)
    assert sent == 1
    expect(page.get_by_role("heading", name="Tokens", level=1)).to_be_visible()
