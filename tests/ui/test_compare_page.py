"""Test the Compare page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bert_probe.analyses.attribution.activation_patching import ActivationPatching
from bert_probe.analyses.comparison.minimal_pair import MinimalPair, MinimalPairResult, MinimalPairRow
from bert_probe.model.trace import Trace
from bert_probe.runtime import shared_cache
from bert_probe.ui.sentence_input import EXAMPLES
from bert_probe.views.heatmaps import patched_name
from tests.helpers.exactness import assert_repeatable
from tests.helpers.pages import HOSTILE, open_page, page_text, question_in_url, table_of_snippets

FULL, EMPTY = EXAMPLES[0].a, EXAMPLES[0].b


def traces_of(a: str, b: str) -> list[Trace]:
    """Return the traces that the page uses, so that results are identical in every digit."""
    return shared_cache.traces(shared_cache.open_checkpoint("", ""), [(a, None), (b, None)], truncate=False)


def pair_of(a: str, b: str, words: bool = False) -> MinimalPairResult:
    return MinimalPair(words).of(*traces_of(a, b))


def test_example_is_compared() -> None:
    app = open_page("compare")
    pair = pair_of(FULL, EMPTY)
    finding = page_text(app).replace("\\", "")
    assert pair.finding() in finding
    assert "Only in A: full. Only in B: empty." in finding
    ranked = app.dataframe[0].value
    assert ranked["total_variation"].is_monotonic_decreasing
    assert ranked["total_variation"].tolist() == sorted(pair.total_variation.ravel())[::-1]
    assert_repeatable(app.dataframe[2].value, pair.moved.T)


def test_table_is_ranked_by_selected_measure() -> None:
    app = open_page("compare", change="jensen_shannon")
    ranked = app.dataframe[0].value
    python = app.get("code")[0].value
    assert python.endswith("bert_probe.MinimalPair(by='jensen_shannon').of(a, b).table()")
    assert ranked["jensen_shannon"].is_monotonic_decreasing
    assert not ranked["total_variation"].is_monotonic_decreasing


def test_rows_use_layer_and_head_of_url() -> None:
    app = open_page("compare", a="Mehdi left it", b="Mehdi saw it", words="1", layer="3", head="7")
    pair = pair_of("Mehdi left it", "Mehdi saw it", words=True)
    rows = app.dataframe[1].value
    assert rows["key"].tolist() == ["[CLS]", "Mehdi", "it", "[SEP]", "rest"]
    largest_change = pair.alignment.aligned[pair.most_moved].position
    row = MinimalPairRow(largest_change, 2, 6, words=True).of(*traces_of("Mehdi left it", "Mehdi saw it"))
    assert rows["a"].tolist() == row.a.tolist()
    assert rows["difference"].tolist() == row.difference.tolist()


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("component", ["tokens", "heads"])
def test_patching_finding_matches_library(component: str) -> None:
    a, b = "Mehdi left it there", "Mehdi saw it here"
    app = open_page("compare", a=a, b=b, patch=component)
    result = ActivationPatching(component).of(*traces_of(a, b))
    layer, place = np.unravel_index(result.recovered.argmax(), result.recovered.shape)
    part = f"layer {layer + 1}, head {place + 1}"
    if component == "tokens":
        part = f"“{patched_name(result, int(place))}” after layer {layer}"
    text = page_text(app).replace("\\", "")
    share = f"**{result.recovered.max():.0%}**"
    assert f"Patching {part} alone recovers {share} of the difference, more than any other patch." in text
    together = "Patching all tokens of a layer together recovers 100% of the difference."
    assert (together in text) == (component == "tokens")
    assert any(
        code.value.endswith(f"{ActivationPatching(component)!r}.of(a, b).table()") for code in app.get("code")
    )


@pytest.mark.prove
def test_patching_of_only_differing_token_names_last_layer_with_large_effect() -> None:
    app = open_page("compare")
    result = ActivationPatching("tokens").of(*traces_of(FULL, EMPTY))
    (place,) = [
        place
        for place, (token_a, token_b) in enumerate(zip(result.tokens_a, result.tokens_b, strict=True))
        if token_a != token_b
    ]
    shares = result.recovered[:, place]
    assert shares[0] == pytest.approx(1)
    last = max(layer for layer, share in enumerate(shares) if share > 0.5)
    assert (
        "The sentences differ only in “full for empty”, so patching this token after layer 0 recovers "
        f"100% by construction. Layer {last} is the last layer after which patching this token alone "
        f"recovers more than half of the difference (**{shares[last]:.0%}**)."
        in page_text(app).replace("\\", "")
    )


def test_patching_of_only_differing_token_with_embeddings_that_mix_tokens(
    family_folder: Callable[[str], Path],
) -> None:
    """The input vectors of MobileBERT contain the neighbors, so three vectors differ after layer 0."""
    app = open_page("compare", model=str(family_folder("mobilebert")), a="we left", b="night left")
    assert not app.exception
    text = page_text(app)
    assert "of the difference, more than any other patch." in text
    assert "by construction" not in text


def test_finding_links_to_its_head() -> None:
    app = open_page("compare")
    pair = pair_of(FULL, EMPTY)
    layer, head = pair.strongest_shift(pair.most_moved)
    next(button for button in app.button if button.label.startswith("Show head")).click().run()
    assert (app.query_params["layer"], app.query_params["head"]) == (str(layer + 1), str(head + 1))
    assert app.dataframe[1].value["b"].tolist() == pair.strongest_b[pair.most_moved].tolist()


def test_url_contains_question_of_page() -> None:
    address = {"words": "1", "change": "jensen_shannon", "layer": "3", "head": "7", "show": "heatmap"}
    app = open_page("compare", **address)
    question = question_in_url(app, MinimalPair)
    assert question == MinimalPair(words=True, by="jensen_shannon")
    assert app.get("code")[0].value.endswith(f"{question!r}.of(a, b).table()")
    row = question_in_url(app, MinimalPairRow)
    assert row == MinimalPairRow(layer=2, head=6, words=True)
    assert app.dataframe[1].value["a"].tolist() == row.of(*traces_of(FULL, EMPTY)).a.tolist()


def test_missing_second_sentence_shows_instructions() -> None:
    app = open_page("compare", a="we left")
    assert app.header[0].value == "This page needs a second sentence"
    assert not app.dataframe
    next(button for button in app.button if button.label == "Open the example").click().run()
    assert app.text_area(key="draft_b").value == EMPTY
    assert len(app.dataframe[0].value) == 72


def test_second_segment_is_separate_on_request() -> None:
    app = open_page("compare", a="we left", b="they left", relation="pair")
    assert app.header[0].value == "The two sentences are encoded as a pair"
    next(button for button in app.button if button.label == "Use separate texts").click().run()
    assert not app.exception
    assert "relation" not in app.query_params
    assert (app.text_area(key="draft_a").value, app.text_area(key="draft_b").value) == (
        "we left",
        "they left",
    )
    assert len(app.dataframe[0].value) == 72


def test_texts_with_equal_tokens_show_no_change() -> None:
    app = open_page("compare", a="The cup", b="the CUP")
    assert "Nothing changed" in page_text(app)
    assert not app.dataframe[0].value[["total_variation", "jensen_shannon"]].any(axis=None)
    assert not app.dataframe[2].value.any(axis=None)


def test_hostile_text_is_shown_as_text() -> None:
    app = open_page("compare", a=HOSTILE, b=f"{HOSTILE} **and** <b>more</b> $x$")
    assert not app.exception
    text = "\n".join(element.value for part in (app.markdown, app.caption) for element in part)
    assert not any(piece in text for piece in ("<img", "<b>", "$x$", " **and**", " ** "))


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("words", ["", "1"])
def test_python_and_shell_snippets_produce_same_table(
    words: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    app = open_page(
        "compare", a='-5 degrees, it\'s "cold"', b="--5 degrees, Mehdi's cold", words=words or "0"
    )
    frame = table_of_snippets(app, capfdbinary)
    assert frame.attrs["provenance"]["question"]["words"] == bool(words)
