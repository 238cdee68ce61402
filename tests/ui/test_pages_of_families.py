"""Test pages with tiny checkpoints of many families and sentence-transformers layouts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bert_probe.model.trace import CAUSAL
from tests.helpers import sentence_models
from tests.helpers.families import TEXT
from tests.helpers.pages import error_text, open_page, page_text

DECODERS = ("qwen3", "mistral", "gpt2", "gpt_neox", "modernbert-decoder", "clip_text_model", "gemma3_text")
FAMILIES = (
    *DECODERS,
    *("embeddinggemma", "t5", "umt5", "t5gemma", "bart", "siglip_text_model", "bert-generation", "mpnet"),
    *("deberta-v2", "roformer", "rembert", "convbert", "xlm", "luke", "esm"),
)
LAYOUTS = ("dense gelu", "token dense", "prompts", "router", "router with the encoder")
PAGES = ("attention", "heads", "steps", "similarity", "sentences", "answer", "map")

pytestmark = pytest.mark.prove


def _assert_pages_open(folder: Path, is_causal: bool) -> None:
    for page in PAGES:
        app = open_page(page, model=str(folder), a=TEXT, b="the boat was on the river")
        assert not app.exception, (page, app.exception)
        error = error_text(app)
        assert not error or (page == "steps" and "does not expose its queries, keys and values" in error), (
            page
        )
        text = page_text(app)
        assert text.strip(), page
        if page in ("attention", "heads", "steps") and not error:
            assert (CAUSAL in text) == is_causal, page


@pytest.mark.parametrize("name", FAMILIES)
def test_pages_of_a_family_open(name: str, family_folder: Callable[[str], Path]) -> None:
    _assert_pages_open(family_folder(name), name in DECODERS)


@pytest.mark.parametrize("name", LAYOUTS)
def test_pages_of_a_sentence_model_open(
    name: str, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = sentence_models.save(name, family_folder("bert"), tmp_path / "model")
    _assert_pages_open(folder, is_causal=False)
