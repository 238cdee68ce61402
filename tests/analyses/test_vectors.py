"""Test tables of hidden states of tokens, of [CLS], and of the pooler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from bert_probe import Checkpoint, HiddenStates, Trace
from bert_probe.errors import SelectionError, ShapeError, UnavailableError
from tests.helpers.traces import two_token_trace


@pytest.fixture(scope="module")
def pair(minilm: Checkpoint) -> Trace:
    return minilm.trace("Sinan loves, loves it", "Do you?")


def test_vectors_of_tokens_cls_and_pooler_equal_trace(pair: Trace) -> None:
    for layer in range(7):
        frame = HiddenStates(layer).of(pair).table()
        assert np.array_equal(frame.to_numpy(), pair.states[layer])
        assert frame.attrs["provenance"]["question"] == {
            "analysis": "hidden states",
            "layer": layer,
            "which": "tokens",
        }
        cls = HiddenStates(layer, "cls").of(pair).frame()
        assert (list(cls.index), cls.shape) == (["[CLS]"], (1, 384))
        assert np.array_equal(cls.to_numpy()[0], pair.states[layer][0])
    assert list(frame.columns) == [str(dimension) for dimension in range(384)]
    assert list(frame.index) == [str(token) for token in pair.tokens]
    assert frame.index.name == "token"
    pooler = HiddenStates(which="pooler").of(pair)
    assert np.array_equal(pooler.frame().to_numpy()[0], pair.pooler)
    assert pooler.question == HiddenStates(6, "pooler")


def test_unavailable_vectors_raise(pair: Trace, family: Callable[[str], Checkpoint]) -> None:
    with pytest.raises(SelectionError, match="which must be tokens, cls or pooler, not 'mean'"):
        HiddenStates(-1, "mean")  # type: ignore[arg-type]
    with pytest.raises(SelectionError, match=r"reads the last layer, 6, not 2\. Omit the layer"):
        HiddenStates(2, "pooler").of(pair)
    with pytest.raises(SelectionError, match="layer 7"):
        HiddenStates(7).of(pair)
    with pytest.raises(UnavailableError, match=r"has no pooler\. Use the vector of"):
        HiddenStates(which="pooler").of(family("distilbert").trace("a"))
    with pytest.raises(
        UnavailableError, match=r"has no \[CLS\] token that attends to the whole text\. Use the token vectors"
    ):
        HiddenStates(which="cls").of(two_token_trace())


def test_inconsistent_names_raise(pair: Trace) -> None:
    result = HiddenStates().of(pair)
    with pytest.raises(ShapeError, match=r"must have shape \[11, hidden\]"):
        replace(result, names=result.names[1:])


def test_table_is_labeled_by_vector_type(minilm: Checkpoint, pair: Trace) -> None:
    result = HiddenStates().of(pair)
    with pytest.raises(TypeError):
        result.table(minilm.trace("another text"))  # type: ignore[call-arg]
    assert result.table().attrs["provenance"]["text"] == "Sinan loves, loves it"
