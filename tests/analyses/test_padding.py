"""Test padded batches: hand-computed model inputs, and detection of effects of padding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from bert_probe import PaddingEffect
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import Checkpoint

Family = Callable[[str], Checkpoint]
TEXTS = ("we left the ground", "we left", ("we left", "the ground"))


def test_batch_equals_hand_computation(minilm: Checkpoint) -> None:
    result = PaddingEffect().of(minilm.traces(["we left", ("hi", "you"), "hi"]))
    frame = result.table()
    assert list(frame) == ["text", "position", "token", "id", "segment", "attention_mask", "padding"]
    assert frame.to_numpy().tolist() == [
        [1, 0, "[CLS]", 101, 0, 1, False],
        [1, 1, "we", 2057, 0, 1, False],
        [1, 2, "left", 2187, 0, 1, False],
        [1, 3, "[SEP]", 102, 0, 1, False],
        [1, 4, "[PAD]", 0, 0, 0, True],
        [2, 0, "[CLS]", 101, 0, 1, False],
        [2, 1, "hi", 7632, 0, 1, False],
        [2, 2, "[SEP]", 102, 0, 1, False],
        [2, 3, "you", 2017, 1, 1, False],
        [2, 4, "[SEP]", 102, 1, 1, False],
        [3, 0, "[CLS]", 101, 0, 1, False],
        [3, 1, "hi", 7632, 0, 1, False],
        [3, 2, "[SEP]", 102, 0, 1, False],
        [3, 3, "[PAD]", 0, 0, 0, True],
        [3, 4, "[PAD]", 0, 0, 0, True],
    ]
    assert result.padding_share == 3 / 15
    assert (result.length, result.padding_token) == (5, "[PAD]")


def test_differences_equal_raw_model(double_minilm: Checkpoint) -> None:
    traces = double_minilm.traces(list(TEXTS))
    result = PaddingEffect("differences").of(traces)
    model, tokenizer = double_minilm.model, double_minilm.tokenizer
    with torch.inference_mode():
        value = tokenizer(["we left the ground", "we left"], padding=True, return_tensors="pt")
        value["attention_mask"][:] = 1
        observed = model(**value, output_hidden_states=True).hidden_states
        item = model(**tokenizer("we left", return_tensors="pt"), output_hidden_states=True).hidden_states
    # The second input has fewer tokens than the first input, so only the second input is padded.
    two = PaddingEffect("differences").of([traces[0], traces[1]])
    expected = [float((a[1, :4] - b[0]).abs().max()) for a, b in zip(observed, item, strict=True)]
    np.testing.assert_allclose(two.unmasked[1], expected, rtol=1e-6, atol=1e-12)
    assert result.is_unaffected
    assert result.difference < 1e-12 < 0.01 < result.without_mask
    frame = result.table()
    assert len(frame) == 3 * 7
    assert frame["difference"].max() == result.difference
    assert frame[frame["text"] == 2]["padding"].tolist() == [result.length - 4] * 7


@pytest.mark.parametrize("name", ["roberta", "modernbert", "mpnet", "deberta-v2", "eurobert"])
def test_padding_has_no_effect_in_other_families(name: str, family: Family) -> None:
    checkpoint = family(name)
    assert checkpoint.pads
    result = PaddingEffect().of(checkpoint.traces(["A small boat crosses the river.", "A map"]))
    assert result.is_unaffected
    assert result.without_mask > 10 * result.allowed
    assert result.padding_share > 0


def test_model_that_reads_padding_is_detected(family: Family) -> None:
    checkpoint = family("mobilebert")
    assert not checkpoint.pads
    result = PaddingEffect().of(checkpoint.traces(["A small boat crosses the river.", "A map"]))
    assert not result.is_unaffected
    assert result.metadata["changes_nothing"] is False


def test_invalid_batches_raise(minilm: Checkpoint, family: Family) -> None:
    trace = minilm.trace("hi")
    with pytest.raises(SelectionError, match="A single text needs no padding"):
        PaddingEffect().of([trace])
    with pytest.raises(SelectionError, match="A single text needs no padding"):
        PaddingEffect().of(trace)
    with pytest.raises(SelectionError, match="not traced with the same model"):
        PaddingEffect().of([trace, family("bert").trace("hi")])
    long = minilm.trace("word " * 510)
    with pytest.raises(
        SelectionError, match="17 texts padded to 512 tokens have 8,704 tokens, but a batch can have"
    ):
        PaddingEffect().of([long] * 17)


def test_inconsistent_shapes_raise(minilm: Checkpoint) -> None:
    result = PaddingEffect().of(minilm.traces(["hi", "hi you"]))
    with pytest.raises(ValueError, match="text, layer"):
        replace(result, differences=result.differences[:1])
