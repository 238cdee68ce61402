"""Test pages with a causal model."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bert_probe.model.trace import CAUSAL
from tests.helpers.families import TEXT
from tests.helpers.gate import prove_unless
from tests.helpers.pages import error_text, open_page, page_text


@pytest.mark.parametrize("name", prove_unless({"qwen3"}, ["qwen3", "embeddinggemma", "t5", "bart"]))
@pytest.mark.parametrize("page", ["attention", "heads", "steps", "similarity"])
def test_page_says_that_later_tokens_are_masked(
    name: str, page: str, family_folder: Callable[[str], Path]
) -> None:
    app = open_page(page, model=str(family_folder(name)), text=TEXT)
    assert not app.exception
    assert not error_text(app)
    is_noted = CAUSAL in page_text(app)
    assert is_noted == (name == "qwen3" and page != "similarity")
