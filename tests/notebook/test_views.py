"""Test views in a notebook: their values, escaping, the sandbox, and saved files."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bert_probe
from bert_probe import notebook
from bert_probe.core.question import Question
from bert_probe.errors import ExportError, SelectionError, TooLongError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.notebook import head_view, model_view
from tests.helpers.exactness import assert_rounded
from tests.helpers.framed import extract_page, extract_pages, extract_payloads, find_elements
from tests.helpers.payloads import read_payload
from tests.helpers.traces import HOSTILE_TOKENS

TEXT = "we had left the ground"
OTHER = "he had left the house"


def test_head_view_contains_every_layer(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    payloads = extract_payloads(extract_page(head_view(trace)))
    assert len(payloads) == trace.layers
    for layer, payload in enumerate(payloads):
        described, arrays = read_payload(payload)
        assert described["layer"] == layer + 1
        np.testing.assert_array_equal(arrays["weights"], trace.attention(layer))


@pytest.mark.parametrize(("heads", "wished"), [("mean", ["mean"]), (2, [2]), ([4, -1, 4], [4, 11])])
def test_view_opens_at_initial_layer_and_heads(minilm: Checkpoint, heads: Any, wished: list[Any]) -> None:
    frame = head_view(
        minilm.trace(TEXT), -2, heads, layout="reading", specials=False, pins=[1, -1], side="key"
    )
    page = extract_page(frame)
    assert '"start": 5' in page
    wish = read_payload(extract_payloads(page)[4])[0]["selection"]["value"]
    assert wish["heads"] == wished
    assert (wish["options"]["layout"], wish["options"]["specials"]) == ("reading", False)
    assert wish["pins"] == {"side": "key", "units": [1, 6]}


@pytest.mark.prove
def test_rounding_error_is_within_the_tolerance(minilm: Checkpoint) -> None:
    trace = minilm.trace("we had left the ground and the river before we knew it " * 7)
    assert len(trace.tokens) > 2 * 32, "queries and keys are fewer numbers than weights"
    assert trace.queries is not None
    assert trace.keys is not None
    small, large = (head_view(trace, exact=exact)._repr_html_() for exact in (False, True))
    assert len(small) < 0.75 * len(large)
    rounded, exact = (extract_payloads(extract_pages(html)[0]) for html in (small, large))
    for layer in range(trace.layers):
        vectors = read_payload(rounded[layer])[1]
        result = replace(
            trace,
            queries=tuple(vectors["queries"] for _ in range(trace.layers)),
            keys=tuple(vectors["keys"] for _ in range(trace.layers)),
        )
        off = np.abs(result.attention(layer) - trace.attention(layer)).max()
        assert 0 < off <= 2.5e-5
        np.testing.assert_array_equal(read_payload(exact[layer])[1]["queries"], trace.queries[layer])
        np.testing.assert_array_equal(read_payload(exact[layer])[1]["keys"], trace.keys[layer])


def test_trace_has_view_methods(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    assert trace.head_view(2, 3, words=True).page == head_view(trace, 2, 3, words=True).page
    assert trace.model_view(measure="value-norm") == model_view(trace, measure="value-norm")


@pytest.mark.parametrize(
    ("question", "other_texts", "expected_values"),
    [
        (bert_probe.Attention(2, 3), (), lambda result: [result.weights]),
        (bert_probe.Similarity(3), (OTHER,), lambda result: [result.cosines]),
        (bert_probe.MinimalPair(), (OTHER,), lambda result: [result.change, result.moved.T]),
        (bert_probe.MinimalPairRow(), (OTHER,), lambda result: [result.both, result.difference[None]]),
        (bert_probe.TokenRollout("left"), (), lambda result: [result.values]),
        (bert_probe.FindHeads([("left", "ground")]), (), lambda result: [result.weights]),
        (bert_probe.HiddenStates(1), (), lambda result: [result.values]),
        (bert_probe.AttentionSteps(1, 2, key="ground"), (), lambda result: steps_of(result)),
    ],
    ids=lambda parameter: type(parameter).__name__ if isinstance(parameter, Question) else "",
)
def test_result_is_displayed_with_its_numbers(
    minilm: Checkpoint, question: Any, other_texts: tuple[str, ...], expected_values: Any
) -> None:
    result = question.of(minilm.trace(TEXT), *map(minilm.trace, other_texts))
    displayed = [
        read_payload(payload)[1]["values"] for payload in extract_payloads(extract_page(result.show()))
    ]
    for values, expected in zip(displayed, expected_values(result), strict=True):
        np.testing.assert_array_equal(values, np.asarray(expected, np.float32))


def steps_of(steps: Any) -> list[Any]:
    """Return the expected heatmaps of attention steps for a text without masked keys."""
    key = steps.question.key
    return [
        [steps.q, steps.keys[key]],
        [steps.products[key]],
        [steps.scaled],
        [steps.mask, steps.scores],
        [steps.weights],
        [steps.values[key], steps.weighted_values[key]],
        [*steps.summands(10)[1], steps.output],
        [steps.model_output, steps.output],
    ]


def test_result_without_visualization_is_refused(minilm: Checkpoint) -> None:
    with pytest.raises(UnavailableError, match=r"Tokens has no visualization\. Use result\.table\(\)"):
        bert_probe.Tokens().of(minilm.trace(TEXT)).show()


def test_words_and_measure_come_from_the_question(minilm: Checkpoint) -> None:
    trace = minilm.trace("tokenization of electroencephalography")
    described, arrays = read_payload(
        extract_payloads(extract_page(head_view(trace, measure="value-norm", words=True)))[2]
    )
    pieces, words = (
        np.stack(
            [
                bert_probe.Attention(2, head, "value-norm", words).of(trace).weights
                for head in range(trace.heads)
            ]
        )
        for words in (False, True)
    )
    # The payload contains the weights between tokens; the browser merges them into words.
    assert_rounded(arrays["weights"], pieces)
    assert described["texts"] == ["[CLS]", "tokenization", "of", "electroencephalography", "[SEP]"]
    assert (described["full"], described["other"]["full"]) == (words.max(), pieces.max())
    assert described["selection"]["value"]["words"] is described["offer"]["words"] is True


def test_model_view_contains_every_head(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    described, arrays = read_payload(extract_payloads(extract_page(model_view(trace)))[0])
    assert (described["layerCount"], described["headCount"]) == (6, 12)
    expected = np.round(255 * np.sqrt(np.stack([trace.attention(layer) for layer in range(6)]).astype(float)))
    assert np.abs(arrays["entries"].astype(float) - expected).max() <= 1


@pytest.mark.parametrize("view", [head_view, model_view])
def test_user_text_is_escaped_and_the_frame_is_sandboxed(view: Any) -> None:
    tokens = [token for token in HOSTILE_TOKENS if token.isprintable()]
    hostile = bert_probe.from_attention(np.full((2, 2, len(tokens), len(tokens)), 0.1), tokens)
    frame = view(hostile)
    html = frame._repr_html_()
    assert find_elements(html) == ["iframe"]
    assert re.search(r'sandbox="([^"]*)"', html)[1] == "allow-scripts allow-downloads"  # type: ignore[index]
    page = extract_page(frame)
    assert "default-src 'none'" in page
    assert "<img" not in page
    assert page.count("</script") == 2
    assert set(re.findall(r"https?://[^\s\"'`]+", page)) <= {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"layer": 6}, SelectionError, "no layer 6"),
        ({"heads": 12}, SelectionError, "no head 12"),
        ({"heads": "all"}, SelectionError, "which count from 0, not 'all'"),
        ({"pins": [99]}, SelectionError, "no pin 99"),
        ({"layout": "rows"}, SelectionError, "layout must be columns or reading, not 'rows'"),
        ({"side": "value"}, SelectionError, "side must be query or key"),
        ({"measure": "wonder"}, SelectionError, "wonder"),
    ],
)
def test_invalid_arguments_are_refused(
    minilm: Checkpoint, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        head_view(minilm.trace(TEXT), **arguments)


def test_measure_without_the_needed_data_is_refused() -> None:
    external = bert_probe.from_attention(np.full((1, 1, 2, 2), 0.5), ["a", "b"])
    with pytest.raises(UnavailableError):
        head_view(external, measure="value-norm")


def test_too_large_page_is_refused(minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "MAX_BYTES", 50_000)
    head_view(minilm.trace("a"))
    with pytest.raises(TooLongError, match=r"6 layers and 102 tokens .* Shorten the text, or use the app"):
        head_view(minilm.trace("word " * 100))


def test_view_is_saved_to_files(minilm: Checkpoint, tmp_path: Path) -> None:
    frame = head_view(minilm.trace(TEXT), 3)
    file = frame.save(tmp_path / "view.html")
    assert extract_payloads(file.read_text(encoding="utf-8")) == extract_payloads(extract_page(frame))
    with pytest.raises(ExportError, match="already exists"):
        frame.save(file, overwrite=False)
    assert frame.save(tmp_path / "view.svg").read_text(encoding="utf-8") == frame.page.svg()
    with pytest.raises(ExportError, match=r"view\.gif must end in \.html, \.htm, \.svg or \.png"):
        frame.save(tmp_path / "view.gif")
