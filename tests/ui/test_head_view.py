"""Test the head view: its payload gives exact weights, and saved pages and layer links work."""

from __future__ import annotations

import gc
import json
import re
import weakref
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import bert_probe
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.server import sessions
from bert_probe.text.words import word_lens
from bert_probe.views import head_view
from bert_probe.views.head_view import HeadViewData, page
from bert_probe.views.selection import Selection
from tests.helpers.exactness import assert_exact, assert_rounded
from tests.helpers.families import FAMILIES, LONG, PAIR, TEXT, representative
from tests.helpers.framed import decode_text
from tests.helpers.payloads import read_payload
from tests.helpers.server import answer
from tests.helpers.traces import packed

HOSTILE = "</script><img src=x onerror=alert(1)>"


def attention_of(payload: bytes) -> np.ndarray:
    """Return the attention that the browser computes from a payload, [head, query, key]."""
    described, arrays = read_payload(payload)
    if "weights" in arrays:
        return arrays["weights"]
    query, key = (arrays[name].astype(float) for name in ("queries", "keys"))
    length = described["tokenCount"]
    scores = query @ key.transpose(0, 2, 1) * described["scaling"]
    if "mask" in arrays:
        attended = np.unpackbits(arrays["mask"], axis=1)[:, :length] > 0
        scores[:, ~np.broadcast_to(attended, (length, length))] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights * arrays["lengths"][:, None] if "lengths" in arrays else weights


def kind(payload: bytes) -> str:
    """Return whether the payload has queries and keys ("vectors") or weights."""
    return "weights" if "weights" in read_payload(payload)[1] else "vectors"


def assert_round_trip(data: bytes, expected: np.ndarray) -> None:
    """Assert that attention from queries and keys is exact, or that weights are rounded to float32."""
    attention = attention_of(data)
    if kind(data) == "vectors":
        assert_exact(attention, expected)
    else:
        assert_rounded(attention, expected)


@pytest.mark.gate(cases=4)
@pytest.mark.parametrize("text", [TEXT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("name", representative(FAMILIES))
def test_layer_payload_round_trips_for_every_family(
    name: str, text: str, double_family: Callable[[str], Checkpoint]
) -> None:
    trace = packed(double_family(name).trace(text, truncate=True))
    for layer in range(trace.layers):
        assert_round_trip(head_view.payload(HeadViewData(trace), layer, key="k"), trace.attention(layer))


def test_local_windows_are_sent_as_bits(family: Callable[[str], Checkpoint]) -> None:
    trace = family("modernbert").trace(LONG)
    sent = [
        read_payload(head_view.payload(HeadViewData(trace), layer, key="k"))[1]
        for layer in range(trace.layers)
    ]
    assert {len(arrays["mask"]) for arrays in sent if "mask" in arrays} >= {len(trace.tokens)}


def test_smaller_representation_is_sent(minilm: Checkpoint) -> None:
    for text, expected in (("we left", "weights"), ("we left the ground " * 30, "vectors")):
        assert kind(head_view.payload(HeadViewData(minilm.trace(text)), 0, key="k")) == expected


def test_payload_of_512_tokens_is_below_1_6_megabytes(minilm: Checkpoint) -> None:
    trace = minilm.trace("word " * 600, truncate=True)
    labels = bert_probe.Heads().of(trace).labels
    assert len(trace.tokens) == 512
    assert len(head_view.payload(HeadViewData(trace, labels=labels), 3, key="k")) <= 1.6e6


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("times", [1, 12])
@pytest.mark.parametrize("words", [False, True])
def test_value_norms_round_trip(double_minilm: Checkpoint, times: int, words: bool) -> None:
    trace = packed(double_minilm.trace("Electroencephalography " * times))
    picture = HeadViewData(trace, measure="value-norm", words=words)
    payload = head_view.payload(picture, 2, key="k")
    maps = [
        bert_probe.Attention(2, head, "value-norm", words).of(trace).weights for head in range(trace.heads)
    ]
    assert read_payload(payload)[0]["full"] == np.max(maps)
    attention = attention_of(payload)
    if kind(payload) == "vectors" and words:
        attention = word_lens(trace).merge(attention)
    # The weights are exact, but the norms by which they are multiplied are rounded to float32.
    assert_rounded(attention, maps)


def test_rollout_is_sent_as_one_matrix(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    payload = head_view.payload(HeadViewData(trace, measure="rollout"), 3, key="k")
    expected = bert_probe.Attention(3, measure="rollout").of(trace).weights
    np.testing.assert_array_equal(attention_of(payload)[0], expected)
    assert read_payload(payload)[0]["rolled"] is True


def test_words_list_their_tokens(minilm: Checkpoint) -> None:
    trace = minilm.trace("electroencephalography helps", PAIR)
    described, arrays = read_payload(head_view.payload(HeadViewData(trace, words=True), 0, key="k"))
    assert described["texts"][:3] == ["[CLS]", "electroencephalography", "helps"]
    assert arrays["firsts"][:3].tolist() == [0, 1, len(minilm.trace("electroencephalography").tokens) - 1]
    assert arrays["specials"][:2].tolist() == [1, 0]
    assert set(arrays["segments"].tolist()) == {0, 1}


def test_saved_page_contains_all_layers_and_loads_nothing(double_minilm: Checkpoint) -> None:
    trace = packed(double_minilm.trace(HOSTILE))
    picture = HeadViewData(trace, caption=HOSTILE)
    text = page(picture, Selection(3, (1,))).html()
    payload = json.loads(re.search(r'id="payload">(.*?)</script>', text)[1])  # type: ignore[index]
    assert payload["start"] == 3
    assert len(payload["payloads"]) == trace.layers
    for layer, sent in enumerate(payload["payloads"]):
        assert_round_trip(decode_text(*sent), trace.attention(layer))
    assert "<img" not in text
    assert set(re.findall(r"https?://[^\s\"']+", text)) == {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in text
    assert "<!--" not in text, "all placeholders are filled"


def test_layer_urls_are_unguessable(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    picture = HeadViewData(trace, measure="value-norm", caption="said")
    link = sessions.LayerLink(picture)
    assert link.serves(HeadViewData(trace, measure="value-norm")), "the same numbers"
    for other in (
        HeadViewData(trace),
        replace(picture, words=True),
        replace(picture, trace=minilm.trace(TEXT)),
    ):
        assert not link.serves(other)
    assert link.address != sessions.LayerLink(picture).address, "another session's"
    assert len(link.address) >= len("/layers//") + 32
    status, headers, body = answer(f"{link.address}4")
    assert (status, headers["cache-control"], headers["content-encoding"]) == (200, "no-store", "identity")
    assert body == head_view.payload(picture, 3, key="")
    status, headers, body = answer(f"{link.address}labels")
    assert (status, headers["cache-control"]) == (200, "no-store")
    assert json.loads(body) == [list(row) for row in bert_probe.Heads().of(trace).labels]
    for wrong in ("0", "7", "04", "+4", "4.0", "9" * 4301):
        assert answer(link.address + wrong)[0] == 404
    assert answer("/layers/unknown/1")[0] == 404


def test_layer_link_expires_with_its_session_only(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = {"one", "other"}
    monkeypatch.setattr(sessions, "is_connected", here.__contains__)
    picture = HeadViewData(minilm.trace(TEXT))
    links = []
    for name in ("one", "other"):
        monkeypatch.setattr(sessions, "current", lambda name=name: name)
        links.append(sessions.LayerLink(picture))
    first, other = links
    assert [answer(f"{link.address}1")[0] for link in links] == [200, 200]
    here.remove("one")
    assert [answer(f"{link.address}1")[0] for link in links] == [404, 200]
    assert (first.serves(picture), other.serves(picture)) == (False, True)


def test_unreferenced_layer_link_is_collected_with_its_trace(minilm: Checkpoint) -> None:
    picture = HeadViewData(minilm.trace(TEXT))
    retained, let_go = sessions.LayerLink(picture), sessions.LayerLink(picture)
    address = let_go.address
    assert answer(f"{address}1")[0] == 200
    del let_go
    assert answer(f"{address}1")[0] == 404
    trace = weakref.ref(picture.trace)
    del picture
    gc.collect()
    assert trace() is None
    assert answer(f"{retained.address}1")[0] == 404
