"""Test words in context in a real browser: adding sentences, clicking words, and downloading files."""

from __future__ import annotations

import csv
import io
from urllib.parse import quote

import numpy as np
import pytest
from playwright.sync_api import Page, expect

import bert_probe
from tests.helpers.browser import App, download, matrix_of, open_page, visit, wait_until_settled
from tests.helpers.exactness import assert_rounded
from tests.helpers.opening import open_minilm

LIKE = 64
"""Tolerance in float32 rounding errors between two processes with different numbers of threads."""

pytestmark = pytest.mark.browser

TEXTS = ["The bank of the river was steep", "He opened an account at the bank", "Money is kept in a bank"]


@pytest.mark.prove
def test_downloads_of_clicked_words_match_library(app: App, page: Page) -> None:
    visit(page, f"{app.origin}/context")
    page.get_by_role("button", name="Clear all").click()
    expect(page.get_by_text("Select a word in at least two sentences")).to_be_visible()
    page.get_by_role("textbox", name="Add sentences, one per line").fill("\n".join(TEXTS[:2]))
    page.get_by_role("button", name="Add", exact=True).click()
    # The text field is cleared only after the sentences have been added.
    expect(page.get_by_role("radiogroup", name="Word of sentence 2")).to_be_visible()
    wait_until_settled(page)
    page.get_by_role("textbox", name="Add sentences, one per line").fill(TEXTS[2])
    page.get_by_role("button", name="Add", exact=True).click()
    wait_until_settled(page)
    page.get_by_role("radiogroup", name="Word of sentence 1").get_by_role("radio", name="bank").click()
    # The same word is preselected in the other sentences and can be changed.
    second = page.get_by_role("radiogroup", name="Word of sentence 2").get_by_role("radio", name="bank")
    expect(second).to_be_checked()
    third = page.get_by_role("radiogroup", name="Word of sentence 3").get_by_role("radio", name="Money")
    third.click()
    expect(third).to_be_checked()
    wait_until_settled(page)
    expect(page.get_by_label("Cosine of each pair of word vectors after layer 6").first).to_be_visible()

    checkpoint = open_minilm()
    traces = [checkpoint.trace(text) for text in TEXTS]
    words = ["bank", "bank", "Money"]
    result = bert_probe.WordInContext(words).of(traces)
    expected = result.table()
    name, content = download(page, "CSV")
    assert name == "context.csv"
    header, *rows = csv.reader(io.StringIO(content.decode()))
    assert header == list(expected)
    assert_rounded(np.array(rows, float)[:, 3:], expected.to_numpy()[:, 3:], LIKE)
    assert np.array_equal(np.array(rows, float)[:, :3], expected.to_numpy()[:, :3])
    _, content = download(page, "Similarity matrix (CSV)")
    rows_named, columns, values = matrix_of(content)
    assert rows_named == columns == ["1 bank", "2 bank", "3 Money"]
    assert_rounded(values, result.cosine(-1), LIKE)

    picture = page.get_by_role("application", name="Cosine of each pair of word vectors after layer 6")
    picture.focus()
    picture.press("Home")
    picture.press("ArrowRight")
    expect(page.get_by_text(f"1 bank → 2 bank: {result.cosine(-1)[0, 1]:.4f}").first).to_be_visible()


@pytest.mark.prove
def test_selection_survives_page_change_and_opens_from_url(app: App, page: Page) -> None:
    address = f"context={quote(chr(10).join(TEXTS[:2]))}&context_words=bank%0Aaccount"
    visit(page, f"{app.origin}/context?{address}")
    expect(page.get_by_role("radio", name="account")).to_be_checked(timeout=30_000)
    page.get_by_role("radio", name="opened").click()
    wait_until_settled(page)
    page.get_by_text("Corrected", exact=True).click()
    wait_until_settled(page)
    draft = page.get_by_role("textbox", name="Add sentences, one per line")
    draft.fill("half a sen")
    draft.press("Tab")
    wait_until_settled(page)
    open_page(page, "Tokens")
    open_page(page, "Context")
    expect(page.get_by_role("radio", name="opened")).to_be_checked()
    expect(page.get_by_role("textbox", name="Add sentences, one per line")).to_have_value("half a sen")
    expect(page.get_by_text("cosine − mean of unrelated tokens")).to_be_visible()
    page.reload()
    wait_until_settled(page)
    expect(page.get_by_role("radio", name="opened")).to_be_checked()
    expect(page.get_by_text("cosine − mean of unrelated tokens")).to_be_visible()
    wait_until_settled(page)
    expect(page.get_by_role("button", name="Remove")).to_have_count(2)
    page.get_by_role("button", name="Remove").first.click()
    expect(page.get_by_text("Select a word in at least two sentences")).to_be_visible()
    expect(page.get_by_role("radio", name="opened")).to_be_checked()
