"""Test the Steps page in a real browser: selecting tokens by clicking, numbers, and a long text."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from playwright.sync_api import Locator, Page, expect

import bert_probe
from tests.helpers.browser import App, Elsewhere, download, rows_of, visit, wait_until_settled
from tests.helpers.opening import open_minilm

pytestmark = pytest.mark.browser

TEXT = "Almost before we knew it, we had left the ground."


def strip(page: Page, name: str) -> Locator:
    return page.get_by_role("radiogroup", name=name)


def metric(page: Page, label: str) -> Locator:
    return page.get_by_test_id("stMetric").filter(has_text=label).get_by_test_id("stMetricValue")


@pytest.mark.prove
def test_steps_of_clicked_tokens_match_library(app: App, page: Page, expect_in_app: Elsewhere) -> None:
    visit(page, f"{app.origin}/steps?a={quote(TEXT)}&layer=2")
    page.get_by_role("radio", name="3", exact=True).click()
    expect(page.get_by_text("In layer 2, head 3,")).to_be_visible()
    strip(page, "Query token").get_by_role("radio", name="knew").click()
    expect(page.get_by_text("knew (4) attends to")).to_be_visible()
    strip(page, "Key token").get_by_role("radio", name="left").click()
    expect(page.get_by_text("knew (4) attends to left (9)")).to_be_visible()
    wait_until_settled(page)
    checkpoint = open_minilm()
    trace = checkpoint.trace(TEXT)
    steps = bert_probe.AttentionSteps(layer=1, head=2, query=4).of(trace)
    for label, value in (
        ("q · k × scaling", steps.scaled[9]),
        ("Score", steps.scores[9]),
        ("Attention weight", steps.weights[9]),
    ):
        expect(metric(page, label)).to_have_text(f"{value:.4f}".replace("-", "−"))
    expect(metric(page, "Attention weight")).to_have_text(f"{trace.attention(1, 2)[4, 9]:.4f}")
    assert float(metric(page, "Largest absolute difference").text_content() or "") < 1e-5
    expect(page).to_have_url(re.compile("[?&]query=4"))
    assert parse_qs(urlsplit(page.url).query) == {
        "a": [TEXT],
        "layer": ["2"],
        "head": ["3"],
        "query": ["4"],
        "key": ["9"],
    }

    picture = page.get_by_role("application", name="The attention weights of all keys")
    picture.focus()
    picture.press("Home")
    picture.press("ArrowRight")
    expect(page.get_by_text(f"weight → almost (1): {steps.weights[1]:.4f}").first).to_be_visible()
    picture = page.get_by_role("application", name="The query vector and the key vector")
    picture.focus()
    picture.press("Home")
    picture.press("ArrowDown")
    key_label = f"k, the key → 0: {steps.keys[9, 0]:.4f}".replace("-", "−")
    expect(page.get_by_text(key_label).first).to_be_visible()

    name, content = download(page, "CSV")
    assert name == "steps-layer2-head3-query4.csv"
    weights = [float(row["weight"]) for row in rows_of(content)]
    expect_in_app(lambda model: bert_probe.AttentionSteps(1, 2, 4).of(model.trace(TEXT)).weights).check(
        weights
    )


@pytest.mark.prove
def test_copied_link_opens_same_steps(app: App, page: Page) -> None:
    visit(page, f"{app.origin}/steps?a={quote(TEXT)}&layer=2&head=3&query=4&key=9")
    expect(page.get_by_text("In layer 2, head 3, knew (4) attends to left (9)")).to_be_visible()
    expect(strip(page, "Key token").get_by_role("radio", checked=True)).to_have_text("left")


@pytest.mark.prove
def test_text_of_maximum_length_shows_selected_token_and_all_steps(app: App, page: Page) -> None:
    long = " ".join([TEXT] * 50)
    visit(page, f"{app.origin}/steps?a={quote(long)}&truncate=1&query=400")
    expect(metric(page, "Largest absolute difference")).to_be_visible()
    box = strip(page, "Query token")
    selected = box.get_by_role("radio", checked=True)
    outer, inner = (node.bounding_box() for node in (box, selected))
    assert outer is not None
    assert inner is not None
    assert outer["y"] <= inner["y"] <= outer["y"] + outer["height"]
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
