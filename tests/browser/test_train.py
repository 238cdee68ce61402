"""Test training in a real browser: the example, its progress, errors, and a prediction on the Answer page."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from bert_probe.text.datasets import everyday_topics
from tests.helpers import trained
from tests.helpers.browser import App, visit, wait_until_settled

pytestmark = pytest.mark.browser


@pytest.mark.prove
def test_trained_model_opens_on_answer_page(app: App, page: Page) -> None:
    visit(page, f"{app.origin}/train?held_out=0.5&epochs=2&model={quote(str(trained.bert_tiny()))}")
    page.get_by_role("button", name="Open", exact=True).click()
    page.get_by_role("button", name="Start training").click()
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    expect(page.get_by_role("heading", name="Result", exact=True)).to_be_visible(timeout=120_000)
    wait_until_settled(page)
    expect(page.get_by_text("Training has ended. Accuracy on 150 held-out texts")).to_be_visible()
    matrix = page.get_by_role("application", name="Texts by true and predicted label")
    matrix.focus()
    for key in ("Home", "Enter"):
        matrix.press(key)
    expect(page.get_by_text(re.compile("^food predicted as food"))).to_be_visible()
    wait_until_settled(page)
    page.get_by_role("button", name="Open in Answer").first.click()
    expect(page).to_have_url(re.compile(r"/answer\?.*a=.*model=Fine-tuned"))
    expect(
        page.get_by_text("This is single-label classification: the probabilities of all classes sum to 1.")
    ).to_be_visible()
    wait_until_settled(page)
    food = [row.text for row in everyday_topics().rows if row.label == "food"]
    text_box = page.get_by_role("textbox", name="Sentence A")
    expect(text_box).to_have_value(re.compile("|".join(re.escape(text) for text in food)))
