"""Test the head view in a real browser: exact numbers, pins, filters, keyboard, and saved files."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

import bert_probe
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Array
from bert_probe.views.selection import STEPS
from tests.helpers.browser import (
    IN_FIREFOX,
    App,
    Elsewhere,
    Watch,
    download,
    focus,
    save_download,
    select_page,
    visit,
    wait_until_settled,
    wait_until_still,
)
from tests.helpers.families import LONG
from tests.helpers.gate import prove_unless
from tests.helpers.opening import open_minilm

pytestmark = pytest.mark.browser

TEXT = "Almost before we knew it, we had left the ground."
QUESTION, CONTEXT = "Where do emperor penguins keep their egg?", "They balance it on their feet."
DECIMALS = 4
"""Number of decimals in the table."""
LONGER = " ".join([LONG, LONG, LONG])  # long enough that queries and keys are sent, not weights


def view(page: Page, app: App, query: str) -> Locator:
    """Open the head view and return the canvas that receives pointer events."""
    visit(page, f"{app.origin}/attention?{query}")
    return drawn(page)


def drawn(page: Page) -> Locator:
    canvas = page.locator(".head-view canvas.marks")
    page.locator(".head-view .share", has_text="carrying").wait_for()
    return canvas


def assert_picture_near_top(page: Page, picture: Locator) -> None:
    """Assert that the picture starts near the top of a phone screen and of a desktop screen."""
    original_size = page.viewport_size
    assert original_size is not None
    for width, height, max_top in ((390, 844, 300), (1440, 900, 220)):
        page.set_viewport_size({"width": width, "height": height})
        wait_until_still(page)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        box = picture.bounding_box()
        assert box is not None
        assert 0 < box["y"] <= max_top, f"at {width} × {height}"
    page.set_viewport_size(original_size)
    wait_until_still(page)


def table(page: Page) -> tuple[list[str], Array]:
    """Return the row names and the numbers of the table below the picture."""
    details = page.locator(".head-view details")
    expect(details).to_be_visible()
    if details.get_attribute("open") is None:
        page.get_by_text("These weights as a table").click()
    expect(page.locator(".head-view tbody tr").first).to_be_visible()
    # Read `textContent`, because the rendered text lacks tabs and line breaks while the element is expanding.
    cells = details.locator("tbody").evaluate(
        "body => [...body.rows].map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return [row[0] for row in cells], np.array([[float(cell) for cell in row[1:]] for row in cells])


def named(units: object) -> list[str]:
    return [f"{unit.display} ({unit.position})" for unit in units]  # type: ignore[attr-defined]


def share(page: Page) -> float:
    label = page.locator(".head-view .share").text_content() or ""
    return float(re.search(r"carrying ([\d.]+)%", label)[1]) / 100  # type: ignore[index]


@pytest.mark.parametrize("text", prove_unless({LONGER}, [TEXT, LONGER]), ids=["weights sent", "vectors sent"])
def test_rows_and_columns_match_library(app: App, page: Page, text: str, expect_in_app: Elsewhere) -> None:
    trace = open_minilm().trace(text)
    view(page, app, f"a={quote(text)}&layer=4&heads=2.9&pins=query.5")
    names, numbers = table(page)
    assert names == named(trace.tokens)

    def columns(checkpoint: Checkpoint) -> Array:
        a, b = checkpoint.trace(text).attention(3)[[1, 8], 5]
        return np.stack([a, b, (a + b) / 2], axis=1)

    expect_in_app(columns).printed(numbers, DECIMALS)
    view(page, app, f"a={quote(text)}&layer=4&head=9&pins=key.3.7")
    wait_until_still(page)  # wait until the sums of all rows are displayed
    names, numbers = table(page)
    pinned = expect_in_app(lambda checkpoint: checkpoint.trace(text).attention(3, 8)[:, [3, 7]].sum(axis=1))
    pinned.printed(numbers[:, 0], DECIMALS)


@pytest.mark.prove
@pytest.mark.parametrize("times", prove_unless({1}, [1, 9]), ids=["weights sent", "vectors sent"])
def test_whole_words_and_mean_head_match_library(
    app: App, page: Page, times: int, expect_in_app: Elsewhere
) -> None:
    text = "Electroencephalographers left. " * times
    question = bert_probe.Attention(1, words=True)
    result = question.of(open_minilm().trace(text))
    view(page, app, f"a={quote(text)}&layer=2&words=1&pins=query.1")
    names, numbers = table(page)
    assert names == named(result.keys)
    expect_in_app(lambda checkpoint: question.of(checkpoint.trace(text)).weights[1]).printed(
        numbers[:, 0], DECIMALS
    )


@pytest.mark.prove
def test_clicked_tokens_are_pinned_and_summed(app: App, page: Page, expect_in_app: Elsewhere) -> None:
    canvas = view(page, app, f"a={quote(TEXT)}&head=3")
    box = canvas.bounding_box()
    assert box is not None
    for row in (2, 4):
        page.mouse.click(box["x"] + 60, box["y"] + 26 + 23 * (row + 0.5))
        wait_until_settled(page)
    page.mouse.move(5, 5)
    expect(page.locator(".head-view .second")).to_contain_text("Pinnedbefore + knew")
    _, numbers = table(page)
    both = expect_in_app(lambda checkpoint: checkpoint.trace(TEXT).attention(5, 2)[[2, 4]].sum(axis=0))
    both.printed(numbers[:, 0], DECIMALS)
    expect(page).to_have_url(re.compile(r"pins=query\.2\.4"))
    page.reload()
    drawn(page)
    expect(page.locator(".head-view .second")).to_contain_text("Pinnedbefore + knew")
    wait_until_settled(page)
    page.go_back()
    expect(page.locator(".head-view .second")).to_have_text("Pinnedbefore")


@pytest.mark.prove
def test_filters_hide_lines_and_share_shows_remaining_weight(
    app: App, page: Page, expect_in_app: Elsewhere
) -> None:
    trace = open_minilm().trace(QUESTION, CONTEXT)
    segments = np.array([token.segment for token in trace.tokens])
    plain = ~np.array([token.special for token in trace.tokens])

    def weights(checkpoint: Checkpoint) -> Array:
        return checkpoint.trace(QUESTION, CONTEXT).attention(2, 0)

    view(page, app, f"a={quote(QUESTION)}&b={quote(CONTEXT)}&relation=pair&layer=3&head=1&lines=0")
    assert share(page) == 1
    page.get_by_role("button", name="More").click()
    page.get_by_role("button", name="A→B").click()
    across = expect_in_app(
        lambda checkpoint: weights(checkpoint)[segments == 0][:, segments == 1].sum() / len(segments)
    )
    across.printed(share(page), 3)
    page.get_by_role("button", name="Any", exact=True).click()
    page.get_by_role("button", name="Show special tokens such as [CLS] and [SEP]").click()
    expect_in_app(lambda checkpoint: weights(checkpoint)[plain][:, plain].sum() / plain.sum()).printed(
        share(page), 3
    )
    page.get_by_role("button", name="More").click()  # Reopen the menu, which the previous click has closed.
    step = STEPS.index(0.1)
    page.get_by_role("slider", name="Lines drawn from").fill(str(step))
    strong = trace.attention(2, 0) * np.outer(plain, plain) >= 0.1
    expect_in_app(lambda checkpoint: weights(checkpoint)[strong].sum() / plain.sum()).printed(share(page), 3)
    expect(page.locator(".head-view .share")).to_contain_text(f"{strong.sum()} lines of at least 0.1")


def test_keyboard_steps_through_tokens_sides_layers_and_heads(app: App, page: Page) -> None:
    trace = open_minilm().trace(TEXT)
    canvas = view(page, app, f"a={quote(TEXT)}&layer=3&head=2")
    focus(canvas)
    readout = page.locator(".head-view .readout")
    page.keyboard.press("ArrowDown")
    best = int(trace.attention(2, 1)[1].argmax())
    announcement = (
        f"almost (1) attends to {trace.tokens[best].display} ({best}) {trace.attention(2, 1)[1, best]:.4f}"
    )
    expect(readout).to_contain_text(announcement)
    page.keyboard.press("]")
    expect(page.get_by_role("spinbutton", name="Layer")).to_have_text("Layer 4 of 6")
    best = int(trace.attention(3, 1)[1].argmax())
    expect(readout).to_contain_text(
        f"{trace.tokens[best].display} ({best}) {trace.attention(3, 1)[1, best]:.4f}"
    )
    page.keyboard.press(".")
    page.keyboard.press("ArrowRight")
    column = trace.attention(3, 2)[:, 1]
    best = int(column.argmax())
    expect(readout).to_contain_text(f"almost (1) is attended to by {trace.tokens[best].display} ({best})")
    expect(readout).to_contain_text(f"{column[best]:.4f}")
    wait_until_settled(page)
    expect(page).to_have_url(re.compile(r"layer=4&head=3"))
    page.get_by_role("spinbutton", name="Layer").focus()
    page.keyboard.press("Home")
    expect(page.locator(".head-view canvas.marks")).to_have_attribute(
        "aria-label", "Attention in layer 1, head 3"
    )
    wait_until_settled(page)
    expect(page).to_have_url(re.compile(r"layer=1&head=3"))


@pytest.mark.prove
def test_selected_heads_are_shared_with_other_views(app: App, page: Page) -> None:
    canvas = view(page, app, f"a={quote(TEXT)}&layer=2")
    assert_picture_near_top(page, canvas)
    page.get_by_role("button", name=re.compile("^Head 7")).click()
    wait_until_settled(page)
    page.get_by_text("Heatmap", exact=True).click()
    wait_until_settled(page)
    assert_picture_near_top(page, page.get_by_label("Attention in layer 2, head 7"))
    expect(page.get_by_label("Attention in layer 2, head 7")).to_be_visible()
    page.get_by_role("button", name=re.compile("^Head 11")).click()
    expect(page.get_by_label("Attention in layer 2, head 11")).to_be_visible()
    wait_until_settled(page)
    page.get_by_text("Head view", exact=True).click()
    canvas = drawn(page)
    expect(canvas).to_have_attribute("aria-label", "Attention in layer 2, head 11")
    page.get_by_role("button", name=re.compile("^Head 4")).click(modifiers=["Shift"])
    expect(canvas).to_have_attribute("aria-label", "Attention in layer 2, heads 4, 11")


@pytest.mark.prove
def test_svg_matches_drawing(app: App, page: Page) -> None:
    view(page, app, f"a={quote(TEXT)}&layer=4&head=9&lines=0.05")
    root = ElementTree.parse(save_download(page, "SVG").path()).getroot()
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "Attention in layer 4, head 9" in texts
    assert any(TEXT in (text or "") for text in texts)
    assert texts.count("ground") == 2
    paths = [node.get("d") or "" for node in root.iter("{http://www.w3.org/2000/svg}path")]
    weights = open_minilm().trace(TEXT).attention(3, 8)
    assert sum(path.count("M") for path in paths) == (weights >= 0.05).sum()
    assert Path(save_download(page, "PNG").path()).read_bytes().startswith(b"\x89PNG")


@pytest.mark.prove
def test_saved_page_works_from_disk(app: App, page: Page, tmp_path: Path, expect_in_app: Elsewhere) -> None:
    view(page, app, f"a={quote(TEXT)}&layer=4&head=9&pins=query.2&layout=reading")
    file = tmp_path / "saved.html"
    file.write_bytes(download(page, "Interactive page (HTML)")[1])
    page.goto(file.as_uri())
    canvas = drawn(page)
    page.get_by_role("button", name="More").click()
    expect(page.get_by_role("button", name="Reading")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("Escape")
    _, numbers = table(page)
    expect_in_app(lambda checkpoint: checkpoint.trace(TEXT).attention(3, 8)[2]).printed(
        numbers[:, 0], DECIMALS
    )
    focus(canvas)
    page.keyboard.press("]")
    expect(canvas).to_have_attribute("aria-label", "Attention in layer 5, head 9")
    page.keyboard.press("Escape")
    page.keyboard.press("Home")
    _, numbers = table(page)
    expect_in_app(lambda checkpoint: checkpoint.trace(TEXT).attention(4, 8)[0]).printed(
        numbers[:, 0], DECIMALS
    )


@pytest.mark.prove
def test_512_tokens_scroll_and_fit_width(app: App, page: Page) -> None:
    text = "word " * 510
    canvas = view(page, app, f"a={quote(text)}&head=3")
    expect(page.locator(".head-view .share")).to_contain_text("tokens in view")
    box = canvas.bounding_box()
    assert box is not None
    assert box["height"] < 900
    page.get_by_role("button", name="More").click()
    page.get_by_role("button", name="Fit the whole text into the view").click()
    expect(page.locator(".head-view .share")).to_contain_text("of all attention")


@pytest.mark.prove
def test_head_clicked_in_model_view_opens_in_head_view(app: App, page: Page) -> None:
    visit(page, f"{app.origin}/attention?a={quote(TEXT)}&show=model")
    heads = page.get_by_role("application", name=re.compile("^Attention of all heads"))
    assert_picture_near_top(page, heads)
    heads.focus()
    for key in ("Home", "ArrowDown", "ArrowDown", "ArrowRight", "Enter"):
        heads.press(key)
    expect(drawn(page)).to_have_attribute("aria-label", "Attention in layer 3, head 2")
    expect(page).to_have_url(re.compile(r"layer=3&head=2"))


@pytest.mark.prove
def test_measures_match_library(app: App, page: Page, expect_in_app: Elsewhere) -> None:
    view(page, app, f"a={quote(TEXT)}&layer=4&head=9&pins=query.5&drawn=value-norm")
    _, numbers = table(page)
    norms = bert_probe.Attention(3, 8, "value-norm")
    expect_in_app(lambda checkpoint: norms.of(checkpoint.trace(TEXT)).weights[5]).printed(
        numbers[:, 0], DECIMALS
    )
    canvas = view(page, app, f"a={quote(TEXT)}&layer=4&pins=query.5&drawn=rollout&residual=0.2")
    expect(canvas).to_have_attribute("aria-label", "Rollout up to layer 4")
    _, numbers = table(page)
    rolled = bert_probe.Attention(3, measure="rollout", residual=0.2)
    expect_in_app(lambda checkpoint: rolled.of(checkpoint.trace(TEXT)).weights[5]).printed(
        numbers[:, 0], DECIMALS
    )


@pytest.mark.prove
def test_token_is_traced_through_layers(app: App, page: Page) -> None:
    visit(page, f"{app.origin}/attention?a={quote(TEXT)}&show=rollout&residual=0.3")
    tokens = page.get_by_role("radiogroup", name="Token to follow")
    tokens.hover()
    page.mouse.wheel(0, 200)
    expect(tokens).not_to_have_js_property("scrollLeft", 0)  # The wheel scrolls the row, not the page.
    page.get_by_role("radio", name=re.compile("^knew")).click()
    wait_until_settled(page)
    picture = page.get_by_role("application", name="Share of knew (4) in each token, by layer")
    assert_picture_near_top(page, picture)
    picture.focus()
    for key in ("Home", "ArrowDown", "ArrowRight"):
        picture.press(key)
    value = bert_probe.TokenRollout(4, residual=0.3).of(open_minilm().trace(TEXT)).values[1, 1]
    expect(page.get_by_text(f"2 → almost (1): {value:.4f}").first).to_be_visible()


@pytest.mark.prove
def test_layer_that_cannot_be_fetched_is_sent_by_server(
    app: App, page: Page, watch: Watch, expect_in_app: Elsewhere
) -> None:
    canvas = view(page, app, f"a={quote(TEXT)}&layer=3&head=2&pins=query.1")
    page.route("**/layers/**", lambda route: route.fulfill(status=404))
    page.get_by_role("button", name="Next layer").click()
    expect(canvas).to_have_attribute("aria-label", "Attention in layer 4, head 2")
    _, numbers = table(page)
    expect_in_app(lambda checkpoint: checkpoint.trace(TEXT).attention(3, 1)[1]).printed(
        numbers[:, 0], DECIMALS
    )
    assert IN_FIREFOX or any("404" in error for error in watch.errors), "Firefox's console does not report it"
    watch.errors.clear()


@pytest.mark.prove
def test_layer_is_kept_after_visit_to_another_page(app: App, page: Page) -> None:
    canvas = view(page, app, f"a={quote(TEXT)}&layer=3&head=2")
    page.get_by_role("button", name="Next layer").click()
    expect(page).to_have_url(re.compile("layer=4"))
    wait_until_settled(page)
    for title in ("Tokens", "Attention"):
        select_page(page, title)
        wait_until_settled(page)
    expect(canvas).to_have_attribute("aria-label", "Attention in layer 4, head 2")
    expect(page.get_by_role("spinbutton", name="Layer")).to_have_text("Layer 4 of 6")
