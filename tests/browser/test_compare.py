"""Test a minimal pair in a real browser: selecting words and heads, and downloading files."""

from __future__ import annotations

import csv
import io
import json
import re
import zipfile
from collections.abc import Callable
from urllib.parse import quote

import numpy as np
import pytest
from playwright.sync_api import Page, expect

import bert_probe
from bert_probe.analyses.comparison.minimal_pair import MinimalPairResult
from bert_probe.ui.sentence_input import EXAMPLES
from tests.helpers.browser import (
    App,
    download,
    find_violations,
    open_page,
    visit,
    wait_until_settled,
    wait_until_still,
)
from tests.helpers.exactness import assert_rounded
from tests.helpers.gate import prove_unless
from tests.helpers.opening import open_minilm

LIKE = 64
"""Tolerance in float32 rounding errors between two processes with different numbers of threads."""

pytestmark = pytest.mark.browser

FULL, EMPTY = EXAMPLES[0].a, EXAMPLES[0].b


@pytest.fixture(scope="module")
def pair() -> MinimalPairResult:
    checkpoint = open_minilm()
    return bert_probe.MinimalPair().of(checkpoint.trace(FULL), checkpoint.trace(EMPTY))


def numbers(content: bytes, *columns: str) -> np.ndarray:
    rows = csv.DictReader(io.StringIO(content.decode()))
    return np.array([[row[column] for column in columns] for row in rows], dtype=np.float32)


def test_clicked_word_and_head_update_rows_and_download(
    app: App, page: Page, pair: MinimalPairResult
) -> None:
    visit(page, app.origin)
    open_page(page, "Compare")
    expect(page.get_by_text(pair.finding())).to_be_visible()

    page.get_by_role("radiogroup", name="Sentence A").get_by_text("it", exact=True).click()
    expect(page.get_by_text(pair.finding(11))).to_be_visible()
    wait_until_settled(page)  # Streamlit shows the tokens of the previous run until the new run ends.
    expect(page.get_by_label("Sentence B").locator(".partner")).to_have_text("it")
    layer, head = pair.strongest_shift(11)
    page.get_by_role("button", name=f"Show head {layer + 1}.{head + 1}").click()
    expect(
        page.get_by_label(f"Attention of “it” in A and in B, layer {layer + 1}, head {head + 1}")
    ).to_be_visible()

    picture = page.get_by_role("application", name="Change of each head's attention between A and B")
    picture.focus()
    for key in ("Home", "ArrowDown", "ArrowRight", "ArrowRight", "Enter"):
        picture.press(key)
    expect(page.get_by_label("Attention of “it” in A and in B, layer 2, head 3")).to_be_visible()
    expect(page).to_have_url(re.compile("layer=2&head=3"))
    wait_until_settled(page)

    name, content = download(page, "CSV")
    assert name == "compare.csv"
    table = pair.table()
    assert content.decode().splitlines()[0] == ",".join(table)
    order = ["layer", "head", "total_variation", "jensen_shannon"]
    assert_rounded(numbers(content, *order), table[order], LIKE)

    checkpoint = open_minilm()
    row = bert_probe.MinimalPairRow("it", 1, 2).of(checkpoint.trace(FULL), checkpoint.trace(EMPTY))
    _, content = download(page, "Attention of the word (CSV + provenance)")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        rows = numbers(archive.read("rows.csv"), "a", "b", "difference")
        metadata = json.loads(archive.read("rows.csv.meta.json"))
    assert_rounded(rows, np.transpose([row.a, row.b, row.difference]), LIKE)
    assert [text["text"] for text in metadata["texts"]] == [FULL, EMPTY]
    assert (metadata["facts"]["query"], metadata["question"]["layer"], metadata["question"]["head"]) == (
        "it",
        2,
        3,
    )

    page.get_by_role("radiogroup", name="Sentence A").get_by_text("full", exact=True).click()
    expect(page.get_by_text("“full” has no counterpart in sentence B")).to_be_visible()


@pytest.mark.prove
def test_empty_page_offers_example(app: App, page: Page) -> None:
    visit(page, f"{app.origin}/compare?a={quote('we left')}")
    page.get_by_role("button", name="Open the example").click()
    expect(page.get_by_role("textbox", name="Sentence B")).to_have_value(EMPTY)
    expect(page.get_by_label("Change of each head's attention between A and B")).to_be_visible()


@pytest.mark.prove
def test_whole_words_option_of_another_page_applies_immediately(app: App, page: Page) -> None:
    visit(page, f"{app.origin}/heads?a={quote('Mehdi left')}&b={quote('Mehdi stayed')}&words=1")
    open_page(page, "Compare")
    expect(page.get_by_role("radiogroup", name="Sentence A").get_by_text("Mehdi", exact=True)).to_be_visible()


@pytest.mark.prove
@pytest.mark.parametrize(
    "address",
    prove_unless({"a=we%20had&b=we"}, ["a=we%20left", "a=we&b=left&relation=pair", "a=we%20had&b=we"]),
)
def test_all_states_pass_axe(app: App, new_page: Callable[..., Page], address: str) -> None:
    """Check all axe rules in the light theme; test_walk.py checks the contrast in the dark theme."""
    page = visit(new_page(viewport={"width": 700, "height": 900}), f"{app.origin}/compare?{address}")
    wait_until_still(page)
    assert find_violations(page) == []
