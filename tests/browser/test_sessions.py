"""Test sessions in a real browser: links that expire with a session, and hostile file names."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Callable
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

from tests.helpers.browser import (
    JOINER,
    MADE,
    App,
    Watch,
    save_download,
    visit,
    wait_until_settled,
    wait_until_still,
)
from tests.helpers.families import TEXT
from tests.helpers.gate import PROVE
from tests.helpers.waiting import wait_until

pytestmark = pytest.mark.browser


def layers_of(page: Page, app: App) -> str:
    """Return the URL prefix from which a browser session fetches layers."""
    visit(page, f"{app.origin}/attention?a={quote(TEXT)}&layer=3&head=2")
    with page.expect_response("**/layers/*/4") as waiting:
        page.get_by_role("button", name="Next layer").click()
    assert waiting.value.status == 200
    wait_until_settled(page)
    return waiting.value.url


def status(url: str) -> int:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=30) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_layer_link_expires_with_its_session_only(app: App, new_page: Callable[..., Page]) -> None:
    first_page, other = new_page(), new_page()
    first, second = layers_of(first_page, app), layers_of(other, app)
    assert first != second, "the same text has a different URL for each session"
    assert (status(first), status(second)) == (200, 200)
    first_page.goto("about:blank")
    wait_until(lambda: status(first) != 200, 60)
    assert (status(first), status(second)) == (404, 200)


@pytest.mark.prove
def test_download_outlives_script_runs_of_other_sessions(app: App, new_page: Callable[..., Page]) -> None:
    first, other = new_page(), new_page()
    visit(first, f"{app.origin}/tokens?a={quote(TEXT)}")
    first.get_by_role("button", name="Export").click()
    url = save_download(first, "CSV", exact=True).url
    for page in ("tokens", "vocabulary", "sizes") if PROVE else ("sizes",):
        visit(other, f"{app.origin}/{page}")
    assert status(url) == 200


@pytest.mark.prove
def test_file_name_is_shown_verbatim(app: App, page: Page) -> None:
    visit(page, f"{app.origin}/sentences?sentences_from=file")
    name = ":red[x] **b** www.evil.com :material_home: $x$ a->b.csv"
    file = {"name": name, "mimeType": "text/csv", "buffer": b"text,x\nwe left,1\nthey left,2\n"}
    page.get_by_test_id("stMainBlockContainer").locator('input[type="file"]').set_input_files(file)  # type: ignore[arg-type]
    label = page.locator('[data-testid="stWidgetLabel"]').filter(has_text=re.compile("^Column of"))
    expect(label).to_be_visible(timeout=60_000)
    assert (label.text_content() or "").replace(JOINER, "") == f"Column of {name}"
    assert label.locator(MADE).count() == 0
    wait_until_settled(page)


def record_requests(page: Page) -> tuple[Callable[[], None], list[str | bytes]]:
    """Return a function that cuts the connection of a page, and a list to which its requests are appended."""
    sockets: list[WebSocketRoute] = []
    requests: list[str | bytes] = []

    def connect(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()
        sockets[:] = [socket, server]

        def forward(message: str | bytes) -> None:
            requests.append(message)
            server.send(message)

        socket.on_message(forward)

    def cut() -> None:
        client, server = sockets
        client.close(code=3000)
        server.close(code=3000)

    page.route_web_socket(re.compile("_stcore/stream"), connect)
    return cut, requests


def test_typed_text_survives_a_lost_connection(app: App, page: Page) -> None:
    """React ignores the event that the browser dispatches when the focused field is disabled."""
    cut, _ = record_requests(page)
    visit(page, f"{app.origin}/search")
    query = page.get_by_role("textbox", name="Query")
    query.fill("boats and trains")
    expect(query).to_be_focused()
    with page.expect_response("**/_stcore/health"):
        cut()
    expect(page).to_have_url(re.compile("search_query=boats.and.trains"))


def test_lost_connection_keeps_unsubmitted_text(app: App, page: Page) -> None:
    """A run would restore the submitted text if the server was restarted."""
    cut, requests = record_requests(page)
    visit(page, f"{app.origin}/tokens")
    assert len(requests) == 1, "a page that opens runs once"
    text = page.get_by_role("textbox", name="Sentence A")
    text.fill("boats and trains")
    page.get_by_role("button", name="Export").click()
    save_download(page, "CSV", exact=True)
    page.get_by_role("button", name=re.compile("^Search: ")).first.focus()
    page.keyboard.press("Enter")
    page.get_by_test_id("search-input").fill("boats")  # of the table
    requests.clear()
    cut()
    state = "data-test-connection-state"
    expect(page.get_by_test_id("stApp")).not_to_have_attribute(state, "CONNECTED")
    expect(page.get_by_test_id("stApp")).to_have_attribute(state, "CONNECTED")
    page.evaluate("new Promise((resolve) => setTimeout(() => requestIdleCallback(resolve)))")
    assert not requests
    expect(text).to_have_value("boats and trains")


def test_text_that_a_run_has_not_received_is_sent_after_a_lost_connection(
    app: App, page: Page, watch: Watch
) -> None:
    cut, requests = record_requests(page)
    visit(page, f"{app.origin}/report")
    page.get_by_role("button", name="Try an example").click()
    note = page.get_by_role("textbox", name="Note on view 1")
    note.fill("boats and trains")
    requests.clear()
    page.emulate_media(color_scheme="dark")
    wait_until_still(page)
    wait_until_settled(page)  # a run redraws the charts, but has not received the text
    assert len(requests) == 1
    expect(note).to_be_focused()
    url = page.url
    cut()
    expect(page).not_to_have_url(url)
    page.reload()
    expect(note).to_have_value("boats and trains")
    watch.errors.clear()


def test_text_area_is_sent_after_a_lost_connection(app: App, page: Page, watch: Watch) -> None:
    """Streamlit marks the text as sent although the connection is lost."""
    cut, requests = record_requests(page)
    visit(page, f"{app.origin}/report")
    page.get_by_role("button", name="Try an example").click()
    note = page.get_by_role("textbox", name="Note on view 1")
    note.fill("boats and trains")
    url = page.url
    requests.clear()
    cut()
    expect(page).not_to_have_url(url)
    wait_until_settled(page)
    assert len(requests) == 1
    page.reload()
    expect(note).to_have_value("boats and trains")
    assert {*watch.errors} <= {"Cannot send rerun backMessage when disconnected from server."}
    watch.errors.clear()
