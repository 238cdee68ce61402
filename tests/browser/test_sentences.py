"""Test many sentences in a real browser: pasting, uploads, heatmap, selection on the map, and downloads."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from bert_probe import SentenceMap, Sentences
from bert_probe.ui.sentence_input import SENTENCES
from tests.helpers.browser import (
    JOINER,
    App,
    Elsewhere,
    download,
    matrix_of,
    open_page,
    rows_of,
    visit,
    wait_until_settled,
    wait_until_still,
)
from tests.helpers.opening import open_minilm

pytestmark = pytest.mark.browser

TEXTS = [
    "It rains again today",
    "Today it is raining again",
    "Apples are not oranges",
    "An orange is no apple",
]
FOUND = re.compile(f"4 sentences from table{JOINER}?.{JOINER}?csv, column answered.")
HOSTILE = "</script><img src=x onerror=window.__pwned=1> **bold** %{x} =1+1"


def paste(page: Page, texts: list[str]) -> None:
    page.get_by_role("textbox", name="Sentences, one per line").fill("\n".join(texts))
    page.get_by_role("button", name="Compare").click()
    wait_until_settled(page)


def wait_until_computed(page: Page) -> Page:
    """Wait until the vectors have been computed and drawn, and return the page."""
    expect(page.get_by_role("button", name="Export")).to_be_visible(timeout=60_000)
    return wait_until_settled(page)


def show(page: Page, part: str) -> None:
    """Select another view and wait until the script, which changes the URL, has finished."""
    before = page.url
    page.get_by_test_id("stMain").get_by_text(part, exact=True).click()
    page.wait_for_url(lambda url: url != before)
    wait_until_settled(page)


@pytest.mark.prove
def test_downloads_of_pasted_sentences_match_library(app: App, page: Page, expect_in_app: Elsewhere) -> None:
    visit(page, f"{app.origin}/sentences")
    wait_until_computed(page)
    paste(page, TEXTS)
    wait_until_computed(page)
    result = Sentences("model", order="tree").of(open_minilm(), TEXTS)
    picture = page.get_by_role("application", name="Cosine of each pair of sentences")
    expect(picture).to_be_visible()
    picture.focus()
    for key in ("Home", "ArrowRight", "Enter"):
        picture.press(key)
    wait_until_settled(page)
    first, second = result.order[:2]
    expect(page.get_by_text(f"{result.compared.scores[first, second]:.4f}").first).to_be_visible()
    expect(page.get_by_text(TEXTS[second]).first).to_be_visible()
    name, content = download(page, "CSV")
    rows, columns, values = matrix_of(content)
    assert name == "sentences.csv"
    assert rows == columns == [TEXTS[i] for i in result.order]
    ours = result.order
    expect_in_app(
        lambda checkpoint: Sentences("model").of(checkpoint, TEXTS).scores[np.ix_(ours, ours)]
    ).check(values)
    _, content = download(page, "Vectors (CSV)")
    rows, _, values = matrix_of(content)
    assert rows == TEXTS
    expect_in_app(lambda checkpoint: Sentences("model").of(checkpoint, TEXTS).vectors).check(values)
    _, content = download(page, "sentences.txt, input of the code below")
    assert content.decode().splitlines() == TEXTS
    show(page, "Nearest pairs")
    _, content = download(page, "CSV")
    best = rows_of(content)[0]
    assert (best["sentence_a"], best["sentence_b"]) in [(TEXTS[0], TEXTS[1]), (TEXTS[2], TEXTS[3])]
    expect_in_app(
        lambda checkpoint: Sentences("model").of(checkpoint, TEXTS).compared.nearest(1)[0].score
    ).check(float(best["cosine"]))


@pytest.mark.prove
def test_selected_file_column_is_kept_on_page_change(app: App, page: Page, tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    rows = [["id", "said", "answered"], *(["1", text, f"No: {text}"] for text in TEXTS)]
    with file.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows(rows)
    visit(page, f"{app.origin}/sentences?sentences_part=nearest")
    show(page, "File")
    expect(page.get_by_text("Choose a file with one sentence per line")).to_be_visible()
    page.get_by_test_id("stMainBlockContainer").locator("input[type=file]").set_input_files(file)
    wait_until_settled(page)
    page.get_by_role("combobox", name=re.compile("^Column of")).click()
    page.get_by_role("option", name="answered").click()
    wait_until_settled(page)
    expect(page.get_by_text(FOUND)).to_be_visible()
    open_page(page, "Tokens")
    open_page(page, "Sentences")
    expect(page.get_by_text(FOUND)).to_be_visible()
    _, content = download(page, "CSV")
    assert all(row["sentence_a"].startswith("No: ") for row in rows_of(content))
    wrong = tmp_path / "wrong.txt"
    wrong.write_bytes("Straße".encode("latin-1"))
    page.get_by_test_id("stMainBlockContainer").locator("input[type=file]").set_input_files(wrong)
    expect(
        page.get_by_text("wrong.txt is not UTF-8, because line 1 cannot be decoded. Save the file as UTF-8.")
    ).to_be_visible()
    show(page, "Text")
    expect(page.get_by_role("textbox", name="Sentences, one per line")).to_have_value("\n".join(SENTENCES))


@pytest.mark.prove
def test_points_selected_on_map_are_listed(app: App, page: Page, expect_in_app: Elsewhere) -> None:
    visit(page, f"{app.origin}/sentences?sentences_part=map")
    wait_until_computed(page)
    chart = page.locator(".js-plotly-plot .nsewdrag").first
    expect(chart).to_be_visible()
    chart.scroll_into_view_if_needed()
    wait_until_still(page)
    box = chart.bounding_box()
    assert box is not None
    # Select all points with the lasso; the table then shows the number of sentences.
    corners = [
        (2, 2),
        (box["width"] - 2, 2),
        (box["width"] - 2, box["height"] - 2),
        (2, box["height"] - 2),
        (2, 2),
    ]
    page.mouse.move(box["x"] + 2, box["y"] + 2)
    page.mouse.down()
    for x, y in corners:
        page.mouse.move(box["x"] + x, box["y"] + y, steps=8)
    page.mouse.up()
    expect(page.get_by_text("10 selected.")).to_be_visible()
    _, content = download(page, "CSV")
    rows = rows_of(content)
    points = np.array([[row["x"], row["y"]] for row in rows], float)
    expect_in_app(
        lambda checkpoint: SentenceMap("pca", "model").of(checkpoint, SENTENCES).layout.points
    ).check(points)


@pytest.mark.prove
def test_layout_is_computed_and_downloaded(app: App, page: Page) -> None:
    visit(page, f"{app.origin}/sentences?sentences_part=map&sentences_map=tsne")
    expect(page.get_by_text("Sentences by t-SNE")).to_be_visible(timeout=120_000)
    wait_until_settled(page)
    _, content = download(page, "CSV")
    rows = rows_of(content)
    assert [row["sentence"] for row in rows] == list(SENTENCES)


@pytest.mark.prove
def test_hostile_sentences_are_shown_as_text(app: App, page: Page) -> None:
    visit(page, f"{app.origin}/sentences")
    wait_until_computed(page)
    paste(page, [HOSTILE, f"{HOSTILE} again", "A third one"])
    for part in ("Table", "Nearest pairs", "Map", "Heatmap"):
        show(page, part)
        if part == "Map":
            points = page.locator(".js-plotly-plot .points path")
            expect(points).to_have_count(3)
            for index in range(3):
                points.nth(index).hover(force=True)
        assert page.evaluate("window.__pwned") is None
        assert page.locator("img[src='x'], strong:text-is('bold')").count() == 0


@pytest.mark.prove
def test_many_sentences_show_progress_and_can_be_canceled(app: App, page: Page) -> None:
    visit(page, f"{app.origin}/sentences?sentences_part=nearest")
    paste(page, [f"Ferry {number} leaves the island shortly after dawn." for number in range(700)])
    expect(page.get_by_text(re.compile(r"[\d,]+ of 700 sentences"))).to_be_visible(timeout=60_000)
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text(re.compile(r"Cancelled.*No result was saved\."))).to_be_visible()
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    page.get_by_role("button", name="Compute sentence vectors").click()
    expect(page.get_by_text(re.compile(r"[\d,]+ of 700 sentences"))).to_be_visible(timeout=60_000)
    expect(page.get_by_text("Most similar pairs")).to_be_visible(timeout=120_000)
    assert "sentences_part=nearest" in page.url, "the selection survives the wait"
