"""Test all pages in a real browser: text, URL, downloads, keyboard, hostile and invalid input."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

import bert_probe
from tests.helpers.browser import (
    OF_COLOUR,
    App,
    Elsewhere,
    download,
    find_violations,
    matrix_of,
    open_page,
    rows_of,
    visit,
    wait_until_settled,
    wait_until_still,
)
from tests.helpers.gate import PROVE
from tests.helpers.opening import open_minilm

pytestmark = pytest.mark.browser

SAME_VIEW = re.compile(
    r"/attention\?(?=.*\ba=we\+left\+the\+ground\b)(?=.*\blayer=1\b)(?=.*\bhead=7\b)[^&]*(&[^&]*){2}$"
)
"""The URL of a view; its three parameters may be in any order."""

PAGES = (
    "Overview",
    "Tokens",
    "Corpus",
    "Attention",
    "Heads",
    "Steps",
    "Embeddings",
    "Similarity",
    "Compare",
    "Changes",
    "Context",
    "Sentences",
    "Map",
    "Answer",
    "Train",
    "Parameters",
    "Sizes",
    "Vocabulary",
    "Positions",
    "Probes",
    "Report",
)
BEGINS = {
    "Changes": "Fine-tune a copy of A",
    "Corpus": "Build a sample store",
    "Train": "Start training",
    "Probes": "Try an example",
    "Report": "Try an example",
}
"""Page that computes only on request → an element that shows that the page is open."""
PAGES_OF_TEXT = [
    page for page in PAGES if page not in {"Corpus", "Train", "Parameters", "Sizes", "Positions", "Probes"}
]
"""Pages that show results for the sentences of the form."""
IN_LIGHT = (
    {*PAGES}
    if PROVE
    else {"Overview", "Attention", "Heads", "Compare", "Sentences", "Answer", "Train", "Vocabulary", "Report"}
)
"""Pages that are checked with the accessibility rules of axe in the light theme."""
IN_DARK = {*PAGES} if PROVE else {"Overview", "Attention", "Train"}
"""Pages whose contrast is checked in the dark theme, in addition to the light theme."""
TEXT = "Almost before we knew it, we had left the ground."
HOSTILE = "</script><img src=x onerror=window.__pwned=1> **bold** $x^2$ =1+1"


def test_text_view_and_url_stay_in_sync(app: App, new_page: Callable[..., Page]) -> None:
    page = visit(new_page(), f"{app.origin}/attention")
    page.get_by_role("textbox", name="Sentence A").fill("we left the ground")
    page.get_by_role("textbox", name="Sentence B").fill("")
    page.get_by_role("textbox", name="Sentence A").press("Control+Enter")
    expect(page).to_have_url(f"{app.origin}/attention?a=we+left+the+ground")
    wait_until_settled(page)
    page.get_by_role("button", name=re.compile("^Head 7")).click()
    expect(page).to_have_url(SAME_VIEW)
    open_page(page, "Tokens")
    expect(page.get_by_role("textbox", name="Sentence A")).to_have_value("we left the ground")
    page.reload()
    wait_until_settled(page)
    open_page(page, "Attention")
    expect(page).to_have_url(SAME_VIEW)
    expect_in_app = visit(new_page(), page.url)
    expect(expect_in_app.get_by_role("textbox", name="Sentence A")).to_have_value("we left the ground")
    expect(expect_in_app.get_by_label("Attention in layer 1, head 7")).to_be_visible()


def test_downloads_match_library(app: App, page: Page, expect_in_app: Elsewhere) -> None:
    visit(page, f"{app.origin}/attention?a={quote(TEXT)}&layer=4&head=9&show=heatmap")
    trace = open_minilm().trace(TEXT)
    name, content = download(page, "CSV")
    rows, columns, values = matrix_of(content)
    assert name == "attention-layer4-head9.csv"
    assert rows == columns == [str(token) for token in trace.tokens]
    expect_in_app(lambda model: model.trace(TEXT).attention(3, 8)).check(values)

    _, content = download(page, "CSV + provenance")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        meta = json.loads(archive.read("attention-layer4-head9.csv.meta.json"))
        assert archive.read("attention-layer4-head9.csv").startswith(b"token,[CLS]")
    assert (meta["text"], meta["question"]["layer"], meta["question"]["head"]) == (TEXT, 4, 9)

    _, content = download(page, "All layers and heads (CSV, long format)")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        lines = rows_of(archive.read("attention.csv"))
    assert len(lines) == trace.layers * trace.heads * len(trace.tokens) ** 2
    weights = [float(line["weight"]) for line in lines]
    expect_in_app(lambda model: bert_probe.AttentionLong().of(model.trace(TEXT)).table()["weight"]).check(
        weights
    )


@pytest.mark.prove
def test_downloads_of_other_pages_match_library(app: App, page: Page, expect_in_app: Elsewhere) -> None:
    checkpoint = open_minilm()
    trace = checkpoint.trace(TEXT)
    visit(page, f"{app.origin}/similarity?a={quote(TEXT)}&b={quote('Nobody saw it')}")
    _, content = download(page, "CSV")
    similarity = bert_probe.Similarity().of(trace, checkpoint.trace("Nobody saw it"))
    rows, columns, values = matrix_of(content)
    assert (rows, columns) == ([*map(str, similarity.rows)], [*map(str, similarity.columns)])
    expect_in_app(
        lambda model: bert_probe.Similarity().of(model.trace(TEXT), model.trace("Nobody saw it")).cosines
    ).check(values)

    open_page(page, "Tokens")
    _, content = download(page, "CSV")
    assert content.decode() == bert_probe.Tokens().of(trace).table().to_csv(index=False, lineterminator="\n")

    open_page(page, "Parameters")
    _, content = download(page, "CSV")
    counts = [int(line["count"]) for line in rows_of(content)]
    assert sum(counts) == 22_713_216


@pytest.mark.prove
def test_keyboard_cursor_reads_exact_weights(app: App, page: Page) -> None:
    visit(page, f"{app.origin}/attention?a={quote(TEXT)}&layer=2&head=3&show=heatmap")
    picture = page.get_by_role("application", name="Attention in layer 2, head 3")
    picture.focus()
    picture.press("Home")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        picture.press(key)
    weight = open_minilm().trace(TEXT).attention(1, 2)[2, 1]
    expect(page.get_by_text(f"before (2) → almost (1): {weight:.4f}").first).to_be_visible()


@pytest.mark.prove
def test_clicked_token_shows_parts_of_its_embedding(app: App, page: Page) -> None:
    visit(page, f"{app.origin}/?a={quote(TEXT)}")
    open_page(page, "Embeddings")
    page.get_by_role("radio", name="ground").click()
    wait_until_settled(page)
    expect(page.get_by_label("Sum of the embeddings of token 11")).to_be_visible()
    expect(page.get_by_text("exactly equal")).to_be_visible()


@pytest.mark.prove
def test_hostile_text_is_shown_as_text(app: App, page: Page) -> None:
    """Test one page for each way of drawing text; tests/ui/test_pages.py tests Markdown on all pages."""
    visit(page, f"{app.origin}/?a={quote(HOSTILE)}&b={quote(HOSTILE)}&relation=pair")
    for title in PAGES_OF_TEXT if PROVE else ("Tokens", "Compare", "Answer"):
        open_page(page, title)
        assert page.evaluate("window.__pwned") is None
        assert page.locator("img[src='x'], strong:text-is('bold'), .katex").count() == 0
    open_page(page, "Attention")
    for view in ("Table", "BertViz head view", "BertViz model view"):
        page.get_by_text(view, exact=True).click()
        wait_until_settled(page)
        assert page.evaluate("window.__pwned") is None


@pytest.mark.prove
def test_invalid_input_shows_message_and_is_kept(app: App, page: Page) -> None:
    visit(page, app.origin)
    page.get_by_role("textbox", name="Sentence A").fill("word " * 600)
    page.get_by_role("textbox", name="Sentence A").press("Control+Enter")
    expect(page.get_by_text("The text has 602 tokens, but this model accepts at most 512.")).to_be_visible()
    expect(page.get_by_role("textbox", name="Sentence A")).to_have_value("word " * 600)


@pytest.mark.prove
def test_example_opens_with_one_click(app: App, page: Page) -> None:
    visit(page, app.origin)
    page.get_by_role("button", name="Examples").click()
    page.get_by_text("A question and its context, as a pair").click()
    expect(page.get_by_role("textbox", name="Sentence A")).to_have_value(
        "Where do emperor penguins keep their egg?"
    )
    expect(page).to_have_url(re.compile("relation=pair"))
    wait_until_settled(page)


def test_all_pages_open_without_error_and_pass_axe_in_both_themes(app: App, page: Page) -> None:
    visit(page, app.origin)
    violations_by_page = {}
    papers = set()
    for title in PAGES:
        open_page(page, title)
        expect(page.get_by_role("button", name=BEGINS.get(title, "Export")).first).to_be_visible()
        expect(page).to_have_title(f"{title} · BERT Probe")
        assert page.locator('[data-testid="stException"]').count() == 0
        for theme, checked in (("light", IN_LIGHT), ("dark", IN_DARK)):
            if title not in checked:
                continue
            page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            wait_until_still(page)
            wait_until_settled(page)  # The server redraws some pictures for the theme.
            paper = page.get_by_test_id("stApp").evaluate("node => getComputedStyle(node).backgroundColor")
            papers.add((theme, paper))
            for violation in find_violations(page, OF_COLOUR if theme == "dark" else ()):
                violations_by_page[title, theme, violation["id"]] = [
                    node["html"][:160] for node in violation["nodes"][:3]
                ]
    assert violations_by_page == {}
    assert len(papers) == 2, "the page follows the theme"


@pytest.mark.prove
def test_server_pictures_follow_theme_and_typed_text_is_kept(app: App, page: Page) -> None:
    visit(page, f"{app.origin}/?a={quote(TEXT)}")
    picture = page.locator("[class*='st-key-finding_'] img").first
    light = picture.get_attribute("src") or ""
    page.get_by_role("textbox", name="Sentence B").fill("typed, and not run")
    page.emulate_media(color_scheme="dark")
    expect(picture).not_to_have_attribute("src", light)
    expect(page.get_by_role("textbox", name="Sentence B")).to_have_value("typed, and not run")
    assert "went=" not in page.url, "no additional history entry"


@pytest.mark.prove
def test_deep_link_opens_its_page(app: App, page: Page) -> None:
    visit(page, f"{app.origin}/similarity?a={quote(TEXT)}")
    expect(page.get_by_role("heading", name="Similarity", level=1)).to_be_visible()
    assert page.get_by_text("Page not found").count() == 0


@pytest.mark.prove
def test_bertviz_view_shows_text_of_page(app: App, page: Page) -> None:
    query = "a=The cat sat.&b=Why?&relation=pair&layer=6&show=head-view"
    visit(page, f"{app.origin}/attention?{query}")
    frame = page.frame_locator('iframe[src*="/bertviz/"]')
    expect(frame.locator("#left text")).to_have_text(
        ["[CLS]", "the", "cat", "sat", ".", "[SEP]", "why", "?", "[SEP]"]
    )
    expect(frame.locator("#layer option:checked")).to_have_text("6")
