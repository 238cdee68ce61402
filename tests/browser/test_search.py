"""Test the Search page in a real browser: a query, the comparison of two documents, and a view file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

import bert_probe
from bert_probe.ui.sentence_input import DOCUMENTS
from tests.helpers.browser import App, download, rows_of, visit, wait_until_settled
from tests.helpers.opening import open_minilm

pytestmark = pytest.mark.browser

QUERY = "rejected code"


def test_query_comparison_and_view_file(app: App, page: Page, tmp_path: Path) -> None:
    expected = bert_probe.Search(QUERY).of(open_minilm(), DOCUMENTS).table()
    best, second = expected["document"][:2]
    visit(page, f"{app.origin}/search")
    query = page.get_by_role("textbox", name="Query")
    query.fill(QUERY)
    query.press("Enter")
    expect(page.get_by_text(f"The cosine of document {best} is")).to_be_visible(timeout=60_000)
    wait_until_settled(page)
    _, content = download(page, "CSV")
    assert [row["document"] for row in rows_of(content)] == list(expected["document"])

    _, view = download(page, "View file")
    (tmp_path / "view.json").write_bytes(view)
    visit(page, f"{app.origin}/tokens")
    page.get_by_text("Open a view").click()
    page.get_by_test_id("stSidebar").locator("input[type=file]").set_input_files(tmp_path / "view.json")
    expect(page.get_by_role("textbox", name="Query")).to_have_value(QUERY, timeout=60_000)
    expect(page.get_by_text(f"The cosine of document {best} is")).to_be_visible(timeout=60_000)
    wait_until_settled(page)

    table = page.get_by_test_id("stDataFrame").first
    for number in (1, 2):  # The table is a canvas with check boxes on the left, below the header.
        table.locator(".dvn-scroller").click(position={"x": 16, "y": 38 + 35 * number - 17})
        wait_until_settled(page)
    heading = page.get_by_role("heading", name=f"Why does document {best} rank above document {second}?")
    expect(heading).to_be_visible(timeout=60_000)
    expect(page.get_by_text(re.compile(r"The scores differ by \+0\.\d{4}"))).to_be_visible()
