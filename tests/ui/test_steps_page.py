"""Test the Steps page: its values, its selection, and refused input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from bert_probe import AttentionSteps
from bert_probe.analyses.attention import steps
from bert_probe.model.trace import Trace
from bert_probe.runtime import shared_cache
from tests.helpers.families import TEXT
from tests.helpers.gate import prove_unless
from tests.helpers.pages import displayed_view, error_text, open_page, page_text


def metrics(app: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in app.metric}


def shown(value: float) -> str:
    return f"{value:.4f}".replace("-", "−")


def test_steps_match_library() -> None:
    app = open_page("steps", a=TEXT, layer="2", head="3", query="11", key="9")
    checkpoint = shared_cache.open_checkpoint("", "")
    steps = AttentionSteps(1, 2, 11).of(checkpoint.trace(TEXT))
    assert metrics(app) == {
        "Head dimension": "32",
        "q · k": shown(steps.dot_products[9]),
        "q · k × scaling": shown(steps.scaled[9]),
        "Score": shown(steps.scores[9]),
        "Attention weight": shown(steps.weights[9]),
        "Norm of weight × v": shown(steps.weighted_lengths[9]),
        "Norm of the output": shown(steps.output_length),
        "Largest absolute difference": f"{steps.difference:.1e}",
    }
    assert f"attends to **left** (9) with a weight of **{shown(steps.weights[9])}**" in page_text(app)
    assert "query" not in app.query_params, "the last word is the default"
    assert app.query_params["key"] == "9"
    assert len(app.header) == 8


def test_key_with_largest_weight_is_default() -> None:
    app = open_page("steps", a=TEXT, layer="2", head="3")
    checkpoint = shared_cache.open_checkpoint("", "")
    row = checkpoint.trace(TEXT).attention(1, 2)[11]
    assert metrics(app)["Attention weight"] == shown(row.max())
    assert "the largest weight of this query" in page_text(app)
    assert "key" not in app.query_params


def test_selected_head_applies_to_other_pages_but_mean_is_kept() -> None:
    app = open_page("steps", a=TEXT)
    assert app.session_state["single_head"] == 1
    assert app.session_state["head"] == "mean"
    assert "head" not in app.query_params
    app.pills(key="single_head").set_value(7).run()
    assert not app.exception
    assert app.session_state["head"] == 7
    assert app.query_params["head"] == "7"
    app.switch_page("../../pages/attention.py").run()
    assert displayed_view(app).series == (6,)


@pytest.mark.parametrize("address_value", ["14", "-1", "x", "1_0"])
def test_nonexistent_token_in_url_is_reported(address_value: str) -> None:
    app = open_page("steps", a=TEXT, query=address_value)
    assert not app.exception
    assert "There is no token" in page_text(app)
    assert "query" not in app.query_params


def test_token_of_url_is_reset_with_text() -> None:
    app = open_page("steps", a=TEXT, query="3")
    assert "**we** (3) has a query vector" in page_text(app)
    app.text_area(key="draft_a").set_value("Mehdi loves AI")
    next(button for button in app.button if button.label == "Run").click().run()
    assert "**ai** (4) has a query vector" in page_text(app)


def test_layers_heads_and_queries_share_one_extra_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes = []
    original = steps.head_outputs

    def counted(trace: Trace) -> steps.HeadOutputs:
        passes.append(trace)
        return original(trace)

    monkeypatch.setattr("bert_probe.ui.steps.head_outputs", counted)
    app = open_page("steps", a="a sentence whose steps are not in the cache yet")
    app.slider(key="layer").set_value(1).run()
    app.slider(key="layer").set_value(2).run()
    assert not app.exception
    assert len(passes) == 1


def test_architecture_specific_steps_are_explained(family_folder: Callable[[str], Path]) -> None:
    long = f"{TEXT} {TEXT}"
    plain = page_text(open_page("steps", a=TEXT))
    modern = page_text(open_page("steps", a=long, model=str(family_folder("modernbert")), layer="2"))
    grouped = page_text(open_page("steps", a=TEXT, model=str(family_folder("eurobert")), head="3"))
    assert "rotates q and k" not in plain
    assert "may attend to all 14 keys. The model does not add a bias to the attention scores." in plain
    assert "rotates q and k by an angle that depends on their tokens' positions" in modern
    assert "attends only to a window around the query" in modern
    assert "keys are masked: −∞ is added" in modern
    assert "Heads 3, 4 share these keys and values" in grouped


_LEARNED = "adds a bias to the attention scores: a number learned for the distance between query and key."
_PRODUCTS = "adds a bias to the attention scores: the products of q and of k with vectors learned for the"
POSITION_TERMS = (
    ("mpnet", _LEARNED),
    ("t5", _LEARNED),
    ("deberta-v2", _PRODUCTS),
    ("deberta", _PRODUCTS),
    ("roformer", "The model does not add a bias to the attention scores."),
    ("roformer", "rotates q and k by an angle that depends on their tokens' positions"),
)


@pytest.mark.parametrize(
    ("name", "sentence"),
    prove_unless(lambda case: case[0] in {"mpnet", "deberta-v2", "roformer"}, POSITION_TERMS),
)
def test_position_term_is_explained(name: str, sentence: str, family_folder: Callable[[str], Path]) -> None:
    app = open_page("steps", a=TEXT, model=str(family_folder(name)))
    assert sentence in page_text(app)
    headers = [header.value for header in app.header]
    assert ("4 · Mask and bias" if "adds a bias" in sentence else "4 · Mask") in headers


def test_score_of_masked_key_is_minus_infinity(family_folder: Callable[[str], Path]) -> None:
    app = open_page(
        "steps", a=f"{TEXT} {TEXT}", model=str(family_folder("modernbert")), layer="2", query="15", key="1"
    )
    assert not app.exception
    assert metrics(app)["Score"] == "−∞"
    assert metrics(app)["Attention weight"] == "0.0000"


def test_model_without_q_k_v_is_refused_and_text_is_kept(
    family_folder: Callable[[str], Path],
) -> None:
    app = open_page("steps", a=TEXT, model=str(family_folder("longformer")))
    assert not app.exception
    assert "LongformerModel does not expose its queries, keys and values" in error_text(app)
    assert app.text_area(key="draft_a").value == TEXT


def test_outputs_of_text_are_computed_once_for_all_sessions() -> None:
    checkpoint = shared_cache.open_checkpoint("", "")
    ask = steps.head_outputs
    outputs = shared_cache.answers.of(ask, checkpoint.trace("a text that two sessions look at"))
    assert shared_cache.answers.of(ask, checkpoint.trace("a text that two sessions look at")) is outputs
    assert shared_cache.answers.of(ask, checkpoint.trace("another text")) is not outputs
