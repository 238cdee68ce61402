"""Test BertViz frames in a real browser: drawing, counting from 1, and isolation."""

from __future__ import annotations

import numpy as np
import pytest
from playwright.sync_api import ConsoleMessage, Frame, Page

from tests.helpers.browser import App, Watch, inject_script, visit, wait_until_still
from tests.helpers.exactness import ULP
from tests.helpers.gate import prove_unless
from tests.helpers.traces import HOSTILE_TOKENS

pytestmark = pytest.mark.browser

LONG = "unbelievably-long-token-of-text"
BOX = "((one) => one.getBoundingClientRect())"
HEAD_OF_LINE = "(one) => one.closest('.headAttention').getAttribute('head-index')"
TOKENS = ["[CLS]", "3", LONG, " a  b ", "[SEP]", "x", "[SEP]"]


def drawn(page: Page, demos: App, query: str) -> Frame:
    """Open a page and return its BertViz frame after it has been drawn."""
    visit(page, f"{demos.origin}/?demo=frames_page&{query}")
    element = page.wait_for_selector('iframe[src*="/bertviz/"]')
    assert element is not None
    frame = element.content_frame()
    assert frame is not None
    frame.wait_for_selector("svg line", state="attached")
    return frame


def texts(frame: Frame, selector: str) -> list[str]:
    actual = frame.eval_on_selector_all(selector, "all => all.map(one => one.textContent)")
    assert isinstance(actual, list)
    return actual


def selected(frame: Frame, selector: str) -> str:
    return str(frame.eval_on_selector(selector, "one => one.selectedOptions[0].textContent"))


def test_head_view_draws_requested_layer_and_tokens(page: Page, demos: App) -> None:
    frame = drawn(page, demos, "layer=3&head=0&head=4")
    assert frame.locator("svg line").count() == 12 * len(TOKENS) ** 2
    assert texts(frame, "#left text") == texts(frame, "#right text") == TOKENS
    assert texts(frame, "#layer option") == ["1", "2", "3", "4", "5"]
    assert selected(frame, "#layer") == "4"
    lines = "[...document.querySelectorAll('.headAttention line')]"
    visible = f"{lines}.filter((one) => +one.getAttribute('stroke-opacity')).map({HEAD_OF_LINE})"
    assert set(frame.evaluate(visible)) == {"0", "4"}


def test_lines_have_weights_of_selected_layer(page: Page, demos: App) -> None:
    frame = drawn(page, demos, "layer=0&head=2")
    assert frame.locator("#filter").count() == 0, "only a pair can be filtered"
    opacities = frame.eval_on_selector_all(
        ".headAttention[head-index='2'] line", "all => all.map(one => +one.getAttribute('stroke-opacity'))"
    )
    rows = [sum(opacities[start : start + len(TOKENS)]) for start in range(0, len(opacities), len(TOKENS))]
    # Each weight in a row is rounded to six decimals.
    assert np.abs(np.subtract(rows, 1)).max() <= len(TOKENS) * 0.5e-6 + len(TOKENS) * ULP

    read = "one => one.getAttribute('stroke-opacity')"
    first = ".headAttention[head-index='2'] line:nth-of-type(2)"
    before = frame.eval_on_selector(first, read)
    frame.select_option("#layer", label="5")
    assert selected(frame, "#layer") == "5"
    assert frame.eval_on_selector(first, read) != before
    assert texts(frame, "#left text") == TOKENS
    assert texts(frame, "svg > g:last-child title") == [f"Head {head}" for head in range(1, 13)]
    assert texts(frame, "#left title")[1] == "3 (token 2 of 7)"


@pytest.mark.prove
def test_text_is_not_clipped_and_only_page_scrolls(page: Page, demos: App) -> None:
    for query in ("layer=1", "pair&layer=1", "model", "model&pair"):
        frame = drawn(page, demos, query)
        root = "document.documentElement"
        height, width = frame.evaluate("[innerHeight, innerWidth]")
        assert frame.evaluate(f"{root}.scrollHeight") <= height, query
        assert frame.evaluate(f"{root}.scrollWidth") <= width, query
        lefts = frame.eval_on_selector_all("text", f"(all) => all.map((one) => {BOX}(one).left)")
        assert min(lefts) >= 0, query
        # The frame has no empty area below the drawing.
        assert height - frame.eval_on_selector("svg", f"(svg) => {BOX}(svg).bottom") < 60, query


@pytest.mark.prove
def test_pair_can_be_filtered_by_segment(page: Page, demos: App) -> None:
    frame = drawn(page, demos, "pair&layer=2")
    assert texts(frame, "#filter option") == [
        "All",
        "Sentence A → Sentence A",
        "Sentence B → Sentence B",
        "Sentence A → Sentence B",
        "Sentence B → Sentence A",
    ]
    frame.select_option("#filter", label="Sentence A → Sentence B")
    assert texts(frame, "#left text") == TOKENS[:5]
    assert texts(frame, "#right text") == TOKENS[5:]
    assert selected(frame, "#layer") == "3"


@pytest.mark.prove
def test_model_view_counts_layers_and_heads_from_1(page: Page, demos: App) -> None:
    frame = drawn(page, demos, "model")
    assert frame.locator("svg line").count() == 5 * 12 * len(TOKENS) ** 2
    heads, layers = [str(head) for head in range(1, 13)], [str(layer) for layer in range(1, 6)]
    assert texts(frame, "svg > text") == ["Heads", *heads, "Layers", *layers]
    # The last rectangle of a cell receives the clicks. The cell (2, 4) is layer 3, head 5, counted from 1.
    for layer, head in ((2, 4), (4, 11)):
        frame.locator("svg > g:not(.detail)").nth(layer * 12 + head).locator("> rect").last.click()
        assert texts(frame, "svg > text.detail") == [f"Layer {layer + 1}, Head {head + 1}"]
        assert texts(frame, "text.token") == TOKENS * 2
    assert texts(frame, "svg > text:not(.detail)") == ["Heads", *heads, "Layers", *layers]


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("view", ["", "&model"])
def test_hostile_tokens_are_shown_as_text(page: Page, demos: App, watch: Watch, view: str) -> None:
    frame = drawn(page, demos, f"hostile{view}")
    if view:
        frame.locator("svg > g").nth(0).locator("> rect").last.click()
        actual = texts(frame, "text.token")[: len(HOSTILE_TOKENS)]
    else:
        actual = texts(frame, "#left text")
    # A lone surrogate is invalid, so browsers and Playwright replace it with U+FFFD.
    assert [text.replace("�", "\ud800") for text in actual] == list(HOSTILE_TOKENS)
    wait_until_still(frame)
    assert frame.evaluate("window.__pwned") is None
    assert page.evaluate("window.__pwned") is None
    assert frame.locator("img").count() == 0
    assert frame.locator("script").count() == 5
    assert watch.foreign == []


def test_frame_is_isolated_from_page_and_network(page: Page, demos: App, watch: Watch) -> None:
    frame = drawn(page, demos, "layer=0")
    assert frame.evaluate("origin") == "null"
    for reach in ("parent.document", "parent.title", "top.location.href", "localStorage", "document.cookie"):
        attempt = f"() => {{ try {{ return String({reach}) }} catch (error) {{ return error.name }} }}"
        assert frame.evaluate(attempt) == "SecurityError", reach
    fetching = f"() => fetch('{demos.origin}/health').then(() => 'reached', (error) => error.name)"
    assert frame.evaluate(fetching) == "TypeError"
    assert watch.errors, "the browser reports the refusal of the policy"
    assert all("Content Security Policy" in error for error in watch.errors)
    watch.errors.clear()
    # Injected markup does not run.
    inject_script(frame)
    assert frame.evaluate("window.__pwned") is None
    assert watch.errors
    watch.errors.clear()


@pytest.mark.prove
@pytest.mark.parametrize(
    ("query", "paper", "ink"), prove_unless({("&dark", 20, 236)}, [("", 251, 28), ("&dark", 20, 236)])
)
def test_text_is_readable_in_both_themes(page: Page, demos: App, query: str, paper: int, ink: int) -> None:
    for view in ("layer=0", "model"):
        frame = drawn(page, demos, view + query)
        background = frame.evaluate("getComputedStyle(document.body).backgroundColor")
        fills = frame.eval_on_selector_all(
            "text", "all => [...new Set(all.map(one => getComputedStyle(one).fill))]"
        )
        assert background.startswith(f"rgb({paper}, ")
        assert len(fills) == 1
        assert fills[0].startswith(f"rgb({ink}, ")


def test_console_has_no_errors_or_warnings(page: Page, demos: App) -> None:
    """Warnings about unknown features in the permissions policy of Streamlit's frames are ignored."""
    messages: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type == "warning" and "Unrecognized feature" not in message.text:
            messages.append(message.text)

    page.on("console", note)
    drawn(page, demos, "layer=0")
    assert messages == []
