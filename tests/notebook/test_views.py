"""A view in a cell: the library's numbers, in a frame that reaches nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bert_probe
from bert_probe.errors import ExportError, SelectionError, TooLongError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.notebook import head_view, model_view, views
from tests.helpers.exactness import assert_rounded
from tests.helpers.framed import elements_of, page_of, payloads_of
from tests.helpers.payloads import opened
from tests.helpers.traces import HOSTILE_TOKENS

TEXT = "we had left the ground"


def test_the_head_view_holds_every_layer(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    payloads = payloads_of(page_of(head_view(trace)))
    assert len(payloads) == trace.layers
    for layer, payload in enumerate(payloads):
        described, arrays = opened(payload)
        assert described["layer"] == layer + 1
        np.testing.assert_array_equal(arrays["weights"], trace.attention(layer))


@pytest.mark.parametrize(("heads", "wished"), [("mean", ["mean"]), (2, [2]), ([4, -1, 4], [4, 11])])
def test_it_begins_where_it_is_told(minilm: Checkpoint, heads: Any, wished: list[Any]) -> None:
    frame = head_view(
        minilm.trace(TEXT), -2, heads, layout="reading", specials=False, pins=[1, -1], side="key"
    )
    page = page_of(frame)
    assert '"start": 5' in page
    wish = opened(payloads_of(page)[4])[0]["shown"]["view"]
    assert wish["heads"] == wished
    assert (wish["options"]["layout"], wish["options"]["specials"]) == ("reading", False)
    assert wish["pins"] == {"side": "key", "units": [1, 6]}


def test_words_and_other_measures_are_those_of_the_question(minilm: Checkpoint) -> None:
    trace = minilm.trace("tokenization of electroencephalography")
    _, arrays = opened(payloads_of(page_of(head_view(trace, measure="value-norm", words=True)))[2])
    expected = [
        bert_probe.Attention(2, head, "value-norm", words=True).of(trace).weights
        for head in range(trace.heads)
    ]
    assert_rounded(arrays["weights"], expected)


def test_the_model_view_holds_every_head(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    described, arrays = opened(payloads_of(page_of(model_view(trace)))[0])
    assert (described["layerCount"], described["headCount"]) == (6, 12)
    expected = np.round(255 * np.sqrt(np.stack([trace.attention(layer) for layer in range(6)]).astype(float)))
    assert np.abs(arrays["entries"].astype(float) - expected).max() <= 1


@pytest.mark.parametrize("view", [head_view, model_view])
def test_no_text_leaves_its_place_and_the_frame_reaches_nothing(view: Any) -> None:
    tokens = [token for token in HOSTILE_TOKENS if token.isprintable()]
    hostile = bert_probe.from_attention(np.full((2, 2, len(tokens), len(tokens)), 0.1), tokens)
    frame = view(hostile)
    written = frame._repr_html_()
    assert elements_of(written) == ["iframe"]
    assert re.search(r'sandbox="([^"]*)"', written)[1] == "allow-scripts allow-downloads"  # type: ignore[index]
    page = page_of(frame)
    assert "default-src 'none'" in page
    assert "<img" not in page
    assert page.count("</script") == 2
    assert set(re.findall(r"https?://[^\s\"'`]+", page)) <= {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        ({"layer": 6}, SelectionError, "no layer 6"),
        ({"heads": 12}, SelectionError, "no head 12"),
        ({"heads": "all"}, SelectionError, "or 'mean', not 'all'"),
        ({"pins": [99]}, SelectionError, "no pin 99"),
        ({"layout": "rows"}, SelectionError, "no layout 'rows'; use columns or reading"),
        ({"side": "value"}, SelectionError, "use query or key"),
        ({"measure": "wonder"}, SelectionError, "wonder"),
    ],
)
def test_what_is_not_there_is_refused(
    minilm: Checkpoint, asked: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        head_view(minilm.trace(TEXT), **asked)


def test_a_measure_that_given_attention_has_not_is_refused() -> None:
    given = bert_probe.from_attention(np.full((1, 1, 2, 2), 0.5), ["a", "b"])
    with pytest.raises(UnavailableError):
        head_view(given, measure="value-norm")


def test_a_page_that_no_notebook_should_hold_is_refused(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "MOST_BYTES", 50_000)
    head_view(minilm.trace("a"))
    with pytest.raises(
        TooLongError, match=r"6 layers over 102 tokens .* Give a shorter text, or use the app"
    ):
        head_view(minilm.trace("word " * 100))


def test_it_is_saved_as_a_page(minilm: Checkpoint, tmp_path: Path) -> None:
    frame = head_view(minilm.trace(TEXT), 3)
    file = frame.save(tmp_path / "view.html")
    assert payloads_of(file.read_text(encoding="utf-8")) == payloads_of(page_of(frame))
    with pytest.raises(ExportError, match="is there already"):
        frame.save(file, overwrite=False)
    with pytest.raises(ExportError, match=r"Give it the ending \.html"):
        frame.save(tmp_path / "view.png")
