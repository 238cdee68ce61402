"""Test the Heads page in a real browser: clicked words, ablated heads, and profiles of many sentences."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Page, expect

import bert_probe
from bert_probe.analyses.attention.find_heads import HeadScore
from tests.helpers.browser import (
    OF_COLOUR,
    App,
    Elsewhere,
    download,
    find_violations,
    rows_of,
    select_page,
    visit,
    wait_until_settled,
    wait_until_still,
)
from tests.helpers.opening import open_minilm

pytestmark = pytest.mark.browser

TEXT = "Almost before we knew it, we had left the ground."


def part(page: Page, app: App, name: str, text: str = TEXT, **address: str) -> Page:
    more = "".join(f"&{key}={quote(value)}" for key, value in address.items())
    return visit(page, f"{app.origin}/heads?a={quote(text)}&heads_part={name}{more}")


def word(page: Page, side: str, name: str) -> Locator:
    return page.get_by_role("radiogroup", name=side).get_by_role("radio", name=f"{name}, position")


def best(*pairs: tuple[str, str]) -> HeadScore:
    trace = open_minilm().trace(TEXT)
    return bert_probe.FindHeads(pairs).of(trace).ranked[0]


@pytest.mark.prove
def test_clicked_words_update_best_head(app: App, page: Page) -> None:
    part(page, app, "find")
    first_pair = best(("ground", "left"))
    expect(page.get_by_text(f"has the largest weight: {first_pair.weight:.4f}")).to_be_visible()
    word(page, "From this word", "knew").click()
    word(page, "To this word", "it").click()
    second_pair = best(("knew", "it"))
    head = f"Layer {second_pair.layer + 1}, head {second_pair.head + 1}"
    expect(page.get_by_text(f"{head} has the largest weight: {second_pair.weight:.4f}")).to_be_visible()
    expect(page).to_have_url(re.compile("find_pairs=4-5"))
    wait_until_settled(page)
    page.get_by_role("button", name="Add a pair").click()
    expect(page.get_by_role("button", name="Remove this pair")).to_be_visible()
    word(page, "From this word", "left").click()
    word(page, "To this word", "had").click()
    two = best(("knew", "it"), ("left", "had"))
    expect(
        page.get_by_text(f"has the largest weight: {two.weight:.4f}, averaged over 2 pairs")
    ).to_be_visible()
    expect(page).to_have_url(re.compile("find_pairs=4-5%2C9-8"))
    page.reload()
    wait_until_settled(page)
    expect(word(page, "From this word", "knew")).to_have_attribute("aria-checked", "true")
    expect(
        page.get_by_text(f"has the largest weight: {two.weight:.4f}, averaged over 2 pairs")
    ).to_be_visible()


@pytest.mark.prove
def test_arrow_keys_move_through_words_without_jumping_back(app: App, page: Page) -> None:
    part(page, app, "find")
    word(page, "From this word", "ground").focus()
    for _ in range(7):
        page.keyboard.press("ArrowLeft")
    best_head = best(("knew", "left"))
    expect(page.get_by_text(f"has the largest weight: {best_head.weight:.4f}")).to_be_visible()
    expect(word(page, "From this word", "knew")).to_have_attribute("aria-checked", "true")


@pytest.mark.prove
def test_ablation_of_head_set_matches_library(app: App, page: Page, expect_in_app: Elsewhere) -> None:
    part(page, app, "ablation", off="")
    page.get_by_role("combobox", name="Heads to ablate together").click()
    page.keyboard.type("3.7")
    page.keyboard.press("Enter")
    page.keyboard.type("layer 5")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    heads = [(2, 6), *((4, head) for head in range(12))]
    result = bert_probe.HeadAblation(heads).of(open_minilm().trace(TEXT))
    metrics = page.get_by_test_id("stMetricValue")
    expect(metrics.nth(0)).to_have_text(f"{result.mean_token_change:.4f}")
    expect(metrics.nth(1)).to_have_text(f"{result.cls_change:.4f}")
    expect(metrics.nth(2)).to_have_text(f"{result.pooler_change:.4f}")
    expect(page).to_have_url(re.compile("off=3.7%2C5"))
    wait_until_settled(page)
    changes = [float(row["change"]) for row in rows_of(download(page, "CSV")[1])]
    expect_in_app(
        lambda checkpoint: bert_probe.HeadAblation(heads).of(checkpoint.trace(TEXT)).token_change
    ).check(changes)
    for title in ("Before ablation", "After ablation", "Difference"):
        expect(page.get_by_role("application", name=title)).to_be_visible()


@pytest.mark.prove
def test_head_sweep_ranks_heads(app: App, page: Page) -> None:
    part(page, app, "ablation", ablation="each")
    page.get_by_role("button", name="Ablate each head in turn").click()
    first = bert_probe.HeadAblationSweep().of(open_minilm().trace(TEXT)).table().iloc[0]
    where = f"layer {first['layer']:.0f}, head {first['head']:.0f}"
    expect(page.get_by_text(f"Ablating {where} changes the token vectors most")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)


@pytest.mark.prove
def test_profile_of_sentences_can_be_canceled_and_matches_library(
    app: App, page: Page, expect_in_app: Elsewhere
) -> None:
    part(page, app, "many", sentences="file")
    lines = [f"The ferry number {number} leaves the island shortly after dawn." for number in range(6000)]
    chooser = page.get_by_test_id("stMainBlockContainer").locator('input[type="file"]')
    chooser.set_input_files(
        {"name": "many.txt", "mimeType": "text/plain", "buffer": "\n".join(lines).encode()}
    )
    page.get_by_role("button", name="Profile 6,000 sentences").click()
    expect(page.get_by_text(re.compile(r"of 6,000 sentences"))).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text(re.compile(r"Cancelled after [\d,]+ of 6,000 sentences\."))).to_be_visible()
    chooser.set_input_files(
        {"name": "few.txt", "mimeType": "text/plain", "buffer": "\n".join(lines[:3]).encode()}
    )
    page.get_by_role("button", name="Profile 3 sentences").click()
    expect(page.get_by_text("Means over 3 sentences")).to_be_visible()
    wait_until_settled(page)
    highs = [float(row["next_high"]) for row in rows_of(download(page, "CSV")[1])]
    expect_in_app(
        lambda checkpoint: bert_probe.HeadMeans().of(checkpoint, lines[:3]).high["next"].ravel()
    ).check(highs)
    # The file is still available after a visit to another page.
    select_page(page, "Tokens")
    expect(page.get_by_role("heading", name="Tokens", level=1)).to_be_visible()
    select_page(page, "Heads")
    expect(page.get_by_text("few.txt was uploaded earlier.")).to_be_visible()
    expect(page.get_by_text("Means over 3 sentences")).to_be_visible()


@pytest.mark.prove
def test_job_continues_on_another_page(app: App, page: Page) -> None:
    part(page, app, "many", sentences="paste")
    lines = "\n".join(f"The ferry number {number} leaves the island." for number in range(150))
    text_box = page.get_by_role("textbox", name="Sentences (one per line), or FASTA")
    text_box.fill(lines)
    text_box.press("Control+Enter")
    page.get_by_role("button", name="Profile 150 sentences").click()
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    select_page(page, "Tokens")
    expect(page.get_by_role("heading", name="Tokens", level=1)).to_be_visible()
    select_page(page, "Heads")
    expect(page.get_by_text("Means over 150 sentences")).to_be_visible(timeout=60_000)


@pytest.mark.prove
def test_head_is_selected_by_keyboard_and_opened(app: App, page: Page) -> None:
    part(page, app, "profiles")
    picture = page.get_by_role("application", name="Previous token, by head")
    picture.focus()
    for key in ("Home", "ArrowRight", "ArrowRight", "Enter"):
        picture.press(key)
    expect(page.get_by_text("Layer 1, head 3: previous token")).to_be_visible()
    page.get_by_role("button", name="Show the head's attention").click()
    expect(page.get_by_role("heading", name="Attention", level=1)).to_be_visible()
    expect(page).to_have_url(re.compile(r"layer=1.*head=3|head=3.*layer=1"))


@pytest.mark.prove
def test_shared_option_is_same_on_two_pages(app: App, page: Page) -> None:
    visit(page, f"{app.origin}/attention?a={quote(TEXT)}&words=1&show=heatmap")
    select_page(page, "Heads")
    expect(page.get_by_role("heading", name="Heads", level=1)).to_be_visible()
    wait_until_settled(page)
    expect(page.get_by_role("switch", name="Whole words")).to_be_checked()


@pytest.mark.prove
def test_all_views_pass_axe_in_both_themes(app: App, page: Page) -> None:
    violations_by_view = {}
    for name, address in (("find", {"find_pairs": "4-5,11-9"}), ("ablation", {}), ("many", {})):
        part(page, app, name, **address)
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            wait_until_still(page)
            wait_until_settled(page)
            for violation in find_violations(page, OF_COLOUR if theme == "dark" else ()):
                violations_by_view[name, theme, violation["id"]] = [
                    node["html"][:160] for node in violation["nodes"][:3]
                ]
    assert violations_by_view == {}
