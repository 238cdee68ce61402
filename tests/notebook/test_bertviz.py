"""Test the examples in BertViz's README with BERT Probe: encoder, decoder, and encoder-decoder models."""

from __future__ import annotations

from typing import Any

import bertviz
import numpy as np
import pytest
import torch
from transformers import BartConfig, BartModel, BertConfig, BertModel, GPT2Config, GPT2Model

from bert_probe.bertviz import head_view, model_view
from bert_probe.errors import SelectionError, ShapeError
from bert_probe.views import palette
from bert_probe.views.page import Page
from tests.helpers.framed import extract_pages, extract_payloads
from tests.helpers.payloads import read_payload

BERT_TOKENS = ["[CLS]", "the", "cat", "[SEP]", "it", "##s", "mat", "[SEP]"]
GPT_TOKENS = ["The", "Ġquick", "Ġfox", "</w>x"]
SMALL: dict[str, Any] = {"vocab_size": 20, "attn_implementation": "eager"}


def weights_of(html: Any) -> list[np.ndarray]:
    """Return the weights of each layer, [head, query, key], in the frame of a head view."""
    (page,) = extract_pages(html.data)
    return [read_payload(payload)[1]["weights"] for payload in extract_payloads(page)]


def read_description(html: Any) -> dict[str, Any]:
    """Return the description of the initial payload."""
    (page,) = extract_pages(html.data)
    return read_payload(extract_payloads(page)[0])[0]


@pytest.fixture(scope="module")
def bert() -> Any:
    config = BertConfig(
        hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=8, **SMALL
    )
    return BertModel(config)(torch.arange(8)[None], output_attentions=True).attentions


@pytest.fixture(scope="module")
def gpt() -> Any:
    config = GPT2Config(n_embd=16, n_layer=2, n_head=4, n_positions=8, **SMALL)
    return GPT2Model(config)(torch.arange(4)[None], output_attentions=True).attentions


@pytest.fixture(scope="module")
def bart() -> Any:
    sizes = {f"{side}_{unit}": 2 for side in ("encoder", "decoder") for unit in ("layers", "attention_heads")}
    config = BartConfig(
        d_model=16, encoder_ffn_dim=8, decoder_ffn_dim=8, max_position_embeddings=16, **sizes, **SMALL
    )
    return BartModel(config)(
        input_ids=torch.arange(4, 9)[None], decoder_input_ids=torch.arange(4, 7)[None], output_attentions=True
    )


ENCODER, DECODER = ["<s>", "▁we", "▁left", "▁it", "</s>"], ["</s>", "▁wir", "▁gingen"]


def assert_equal(actual: list[np.ndarray], expected: Any) -> None:
    assert len(actual) == len(expected)
    for weights, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(weights, other[0].detach().numpy())


def test_sentence_pair_has_weights_filters_and_initial_layer(bert: Any) -> None:
    view = head_view(bert, BERT_TOKENS, 4, html_action="return")
    assert_equal(weights_of(view), bert)
    description = read_description(view)
    assert (description["layer"], description["selection"]["value"]["heads"]) == (1, [0, 1]), (
        "the defaults of BertViz: the first layer, all heads"
    )
    _, arrays = read_payload(extract_payloads(extract_pages(view.data)[0])[0])  # type: ignore[union-attr]
    assert arrays["segments"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_decoder_attention_is_displayed(gpt: Any) -> None:
    view = head_view(gpt, GPT_TOKENS, layer=1, heads=[3, 0], html_action="return")
    assert_equal(weights_of(view), gpt)
    assert read_description(view)["selection"]["value"]["heads"] == [3, 0]
    assert read_description(view)["texts"] == ["The", "quick", "fox", "x"]
    plain = head_view(gpt, GPT_TOKENS, prettify_tokens=False, html_action="return")
    assert read_description(plain)["texts"] == GPT_TOKENS


def test_encoder_decoder_has_blocks_in_one_view(bart: Any) -> None:
    view = head_view(
        encoder_attention=bart.encoder_attentions,
        decoder_attention=bart.decoder_attentions,
        cross_attention=bart.cross_attentions,
        encoder_tokens=ENCODER,
        decoder_tokens=DECODER,
        html_action="return",
    )
    for layer, weights in enumerate(weights_of(view)):
        for block, expected in (
            (weights[:, :3, :3], bart.decoder_attentions),
            (weights[:, :3, 3:], bart.cross_attentions),
            (weights[:, 3:, 3:], bart.encoder_attentions),
        ):
            np.testing.assert_array_equal(block, expected[layer][0].detach().numpy())
        assert not weights[:, 3:, :3].any()
    (page,) = extract_pages(view.data)  # type: ignore[union-attr]
    assert (
        "Sentence A consists of the decoder&#x27;s tokens, sentence B of the encoder&#x27;s tokens." in page
    )
    assert (
        "Measures such as the entropy are computed from both kinds of attention of a decoder token." in page
    )
    assert "do not sum to 1 as after a softmax: their sums range from 1 to 2." in page


def test_cross_attention_alone_and_unequal_layer_counts_are_displayed(bart: Any) -> None:
    both = {"encoder_tokens": ENCODER, "decoder_tokens": DECODER, "html_action": "return"}
    alone = weights_of(head_view(cross_attention=bart.cross_attentions, **both))
    np.testing.assert_array_equal(alone[1][:, :3, 3:], bart.cross_attentions[1][0].detach().numpy())
    fewer = head_view(
        cross_attention=bart.cross_attentions, encoder_attention=bart.encoder_attentions[:1], **both
    )
    assert len(extract_pages(fewer.data)) == 2, "one picture each"


def test_include_layers_selects_and_orders_layers(bert: Any) -> None:
    view = head_view(bert, BERT_TOKENS, include_layers=[2, 1], layer=1, html_action="return")
    assert_equal(weights_of(view), [bert[2], bert[1]])
    (page,) = extract_pages(view.data)  # type: ignore[union-attr]
    assert read_description(view)["layerNumbers"] == [3, 2]
    assert "numbered 1 to 2" not in page
    first = Page("head_view", extract_payloads(page)[:1], "")
    assert "Attention in layer 3, all heads" in first.svg(), "numbered as in the model"
    assert '"start": 2' in page
    some = model_view(
        bert, BERT_TOKENS, include_heads=np.array([1]), include_layers=np.array([0]), html_action="return"
    )
    assert (read_description(some)["layerCount"], read_description(some)["headCount"]) == (1, 1)


@pytest.mark.parametrize(("mode", "paper"), [("dark", palette.PAPER_DARK), ("light", palette.PAPER_LIGHT)])
def test_display_mode_sets_the_theme(bert: Any, mode: Any, paper: str) -> None:
    (page,) = extract_pages(model_view(bert, BERT_TOKENS, display_mode=mode, html_action="return").data)  # type: ignore[union-attr]
    assert f"--st-background-color: {paper}" in page
    assert "prefers-color-scheme: dark) {:root" not in page


def test_view_is_displayed_or_returned(bert: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    view: list[Any] = []
    monkeypatch.setattr("IPython.display.display", view.append)
    assert head_view(bert, BERT_TOKENS) is None
    assert len(extract_pages(view[0].data)) == 1


@pytest.mark.parametrize("ours", [head_view, model_view])
def test_signatures_equal_those_of_bertviz(ours: Any) -> None:
    import inspect

    theirs = inspect.signature(getattr(bertviz, ours.__name__)).parameters
    assert [
        (parameter.name, parameter.default) for parameter in inspect.signature(ours).parameters.values()
    ] == [(parameter.name, parameter.default) for parameter in theirs.values()]


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        ({}, ShapeError, "There is no attention"),
        ({"attention": "BERT"}, ShapeError, "There are no tokens"),
        (
            {"attention": "BERT", "tokens": BERT_TOKENS[:3]},
            ShapeError,
            "The attention has 8 tokens, but tokens has 3 entries",
        ),
        (
            {"attention": "BERT", "tokens": BERT_TOKENS, "encoder_tokens": ["a"]},
            ShapeError,
            "omit encoder_attention",
        ),
        ({"cross_attention": "BERT", "decoder_tokens": ["a"]}, ShapeError, "encoder_tokens is missing"),
        (
            {"cross_attention": "BERT", "decoder_tokens": ["a"], "encoder_tokens": ["b", "c"]},
            ShapeError,
            r"cross_attention has shape \(2, 8, 8\), but must have shape \(2, 1, 2\)",
        ),
        ({"attention": "BERT", "tokens": BERT_TOKENS, "include_layers": [3]}, SelectionError, "no layer 3"),
        (
            {"attention": "BERT", "tokens": BERT_TOKENS, "include_layers": [1], "layer": 0},
            SelectionError,
            "layer must be one of include_layers",
        ),
        ({"attention": "BERT", "tokens": BERT_TOKENS, "heads": [2]}, SelectionError, "no head 2"),
        (
            {"attention": "BERT", "tokens": BERT_TOKENS, "html_action": "save"},
            SelectionError,
            "view or return",
        ),
        ({"attention": (None,), "tokens": BERT_TOKENS}, ShapeError, "eager"),
    ],
)
def test_inconsistent_arguments_are_refused(
    bert: Any, overrides: dict[str, Any], error: type[Exception], message: str
) -> None:
    arguments = {name: bert if value == "BERT" else value for name, value in overrides.items()}
    with pytest.raises(error, match=message):
        head_view(**arguments)


def test_unknown_display_mode_is_refused(bert: Any) -> None:
    with pytest.raises(SelectionError, match="Use light or dark"):
        model_view(bert, BERT_TOKENS, display_mode="sepia")  # type: ignore[arg-type]
