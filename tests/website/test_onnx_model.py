"""Test the exported model: float16 weights, computed in float32; queries, keys and values of each layer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from bert_probe.errors import UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from website.onnx_model import WEIGHTS_FILE, OnnxModel, export
from website.precision import COUNT, compared_sentences, measure, run


@pytest.fixture(scope="module")
def model(minilm: Checkpoint) -> OnnxModel:
    return export(minilm)


def test_graph_is_valid_and_has_no_weights(model: OnnxModel, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(model.graph)
    (tmp_path / WEIGHTS_FILE).write_bytes(model.weights)
    onnx.checker.check_model(str(tmp_path / "model.onnx"), full_check=True)
    assert len(model.graph) < 50_000
    assert len(model.weights) == 2 * 22_565_376, "two bytes for each parameter but the pooler's"


def test_only_difference_is_rounding_of_weights(model: OnnxModel, minilm: Checkpoint, tmp_path: Path) -> None:
    rounded = copy.deepcopy(minilm.model)
    with torch.no_grad():
        for parameter in rounded.parameters():
            parameter.copy_(parameter.half().float())
    reference = replace(minilm, model=rounded)
    (tmp_path / "model.onnx").write_bytes(model.graph)
    (tmp_path / WEIGHTS_FILE).write_bytes(model.weights)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    sentence = "Electroencephalographers left the naïve ferry."
    for texts in (("One.",), (sentence,), (" ".join(["word and"] * 120),), ("One.", sentence)):
        trace = reference.trace(*texts)
        outputs = run(session, trace.encoding)
        for actual, expected in zip(outputs, (trace.hidden_states, trace.q, trace.k, trace.v), strict=True):
            assert actual.dtype == np.float32
            assert actual.shape == expected.shape
            # The tolerance allows for a different order of summation in float32.
            # Rounding of the weights to float16 alone would cause differences of 1e-3.
            np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_numbers_are_near_those_of_library(model: OnnxModel, minilm: Checkpoint) -> None:
    assert len(compared_sentences()) == COUNT == len(set(compared_sentences()))
    precision = measure(model, minilm)
    assert precision.sentences == COUNT
    assert precision.attention < 2e-3
    assert precision.hidden < 6e-3
    assert precision.vectors < 6e-3
    assert precision.cosine < 4e-4


def test_other_models_are_refused(family: Callable[[str], Checkpoint]) -> None:
    with pytest.raises(UnavailableError, match="Only BERT encoders with GELU"):
        export(family("roberta"))
