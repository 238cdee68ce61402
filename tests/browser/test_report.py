"""Test the Report page in a real browser: typed notes are saved, and a double click removes one view."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Download, Page, expect

from tests.helpers.browser import App, save_download, visit, wait_until_settled

pytestmark = pytest.mark.browser


def test_saved_views_contain_the_note_that_was_just_typed(app: App, page: Page) -> None:
    with_example(app, page)
    for index in range(3):
        page.get_by_role("textbox", name=f"Note on view {index + 1}").fill(f"typed {index}")
        # The click moves the focus, which sends the note to the server.
        saved = json.loads(Path(save_download(page, "Save these views").path()).read_bytes())
        assert saved["views"][index]["note"] == f"typed {index}"


@pytest.mark.prove
def test_report_without_the_note_that_was_just_typed_is_not_saved(app: App, page: Page) -> None:
    with_example(app, page)
    page.get_by_role("button", name="Create the report").click()
    button = page.get_by_role("button", name="Page (HTML)")
    expect(button).to_be_visible()
    wait_until_settled(page)
    downloads: list[Download] = []
    page.on("download", lambda download: downloads.append(download))
    page.get_by_role("textbox", name="Note on view 2").fill("typed")
    button.click()
    expect(page.get_by_role("button", name="Create the report")).to_be_visible()
    wait_until_settled(page)
    assert downloads == []
    page.get_by_role("button", name="Create the report").click()
    assert "typed" in Path(save_download(page, "Page (HTML)").path()).read_text()


@pytest.mark.prove
def test_double_click_on_remove_removes_one_view(app: App, page: Page) -> None:
    with_example(app, page)
    for count, view in ((2, 3), (1, 1)):
        place = page.get_by_role("button", name="Remove", exact=True).nth(view - 1).bounding_box()
        assert place is not None
        for delay in (0, 200):
            page.wait_for_timeout(delay)  # a slow double click, during which the page may change
            page.mouse.click(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
        wait_until_settled(page)
        expect(page.get_by_role("button", name="Remove", exact=True)).to_have_count(count)
    expect(page.get_by_role("alert")).to_have_count(0)


def with_example(app: App, page: Page) -> None:
    """Open the Report page with the three views of its example."""
    visit(page, f"{app.origin}/report")
    page.get_by_role("button", name="Try an example").click()
    expect(page.get_by_role("textbox", name="Note on view 3")).to_be_visible()
    wait_until_settled(page)
