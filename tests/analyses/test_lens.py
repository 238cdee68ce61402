"""Test the lens: parity with models truncated at a layer, and the model's prediction at the last layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bert_probe
from bert_probe import ClassifyText, FillMask, LabelTokens, Lens
from bert_probe.analyses.outputs.lens import LensResult, _entropy
from bert_probe.analyses.outputs.prediction import softmax
from bert_probe.errors import SelectionError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.from_model import Float64Mode, keep_float64
from bert_probe.model.trace import Trace
from tests.helpers import trained
from tests.helpers.exactness import assert_exact
from tests.helpers.families import TEXT
from tests.helpers.gate import prove_unless

Folders = Callable[[str, str], Path]
Trained = Callable[[str, str], Checkpoint]
TASKS = ("fill-mask", "text-classification", "token-classification")
EVERY = [(name, task) for task in TASKS for name in trained.families_with_head(task)]
ALL = 10_000


def truncated_model(name: str, task: str, folder: Path, layers: int) -> Any:
    """Return the raw model truncated to its first `layers` layers, with the task head on the last layer."""
    model = trained.model_class(name, task).from_pretrained(
        folder, num_hidden_layers=layers, attn_implementation="eager", dtype=torch.float64
    )
    keep_float64(model)
    return model.eval()


def logits_by_id(result: LensResult, layer: int) -> np.ndarray:
    """Return the logits of a layer sorted by token or label id, shape [position, token or label]."""
    order = np.argsort(result.ids[layer], axis=-1)
    return np.take_along_axis(result.logits[layer], order, axis=-1)


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize(("name", "task"), prove_unless(trained.one_task_each(EVERY), EVERY))
def test_lens_of_a_layer_equals_truncated_model(
    name: str, task: str, double_trained_on: Trained, trained_folder: Folders
) -> None:
    trace = double_trained_on(name, task).trace(TEXT)
    # The lens also runs the final norm, which is outside of the model's forward pass, in float64.
    with Float64Mode():
        result = Lens(task, top=ALL).of(trace)
    inputs = {key: torch.tensor(ids)[None] for key, ids in trace.encoding.inputs.items()}
    for layers in (1, trace.layers):
        with torch.inference_mode():
            logits = (
                truncated_model(name, task, trained_folder(name, task), layers)(**inputs).logits[0].numpy()
            )
        assert_exact(logits_by_id(result, layers), np.atleast_2d(logits), f"{layers} layers")


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("openai-gpt", "text-classification"),
        ("xlm", "fill-mask"),
        ("flaubert", "fill-mask"),
        ("xlm", "token-classification"),
    ],
)
def test_norms_of_layers_are_not_taken_for_a_final_norm(name: str, task: str, tmp_path: Path) -> None:
    trained.build(name, task, tmp_path)
    checkpoint = bert_probe.load(tmp_path, dtype="float64")
    keep_float64(checkpoint.model)
    trace = checkpoint.trace(TEXT)
    with Float64Mode():
        result = Lens(task, top=ALL).of(trace)
    inputs = {key: torch.tensor(ids)[None] for key, ids in trace.encoding.inputs.items()}
    for layers in range(1, trace.layers + 1):
        with torch.inference_mode():
            logits = truncated_model(name, task, tmp_path, layers)(**inputs).logits[0].numpy()
        assert_exact(logits_by_id(result, layers), np.atleast_2d(logits), f"{layers} layers")


def test_lens_of_last_layer_equals_the_prediction_exactly(trained_on: Trained) -> None:
    words = trained_on("bert", "fill-mask").trace("we had [MASK] the ground")
    lens, answer = Lens(top=4).of(words), FillMask(top=4).of(words)
    for name in ("ids", "ranks", "logits", "probabilities"):
        np.testing.assert_array_equal(getattr(lens, name)[-1], getattr(answer, name))
    text = trained_on("bert", "text-classification").trace(TEXT)
    np.testing.assert_array_equal(
        Lens(top=ALL).of(text).probabilities[-1, 0], ClassifyText().of(text).probabilities
    )
    labels = trained_on("bert", "token-classification").trace(TEXT)
    likeliest = Lens(top=1).of(labels).table().query("layer == 3 and position > 0")
    first = LabelTokens(outside=True).of(labels).table()
    assert list(likeliest["label"])[: len(first)] == list(first["label"])


def test_tables_of_masks_and_targets_agree(trained_on: Trained) -> None:
    trace = trained_on("bert", "fill-mask").trace("we had left the ground")
    table = Lens(mask="left", targets=("left", "river", "ground"), top=2).of(trace).table()
    assert list(table) == ["layer", "position", "rank", "token", "probability"]
    assert len(table) == 4 * 2
    assert set(table["position"]) == {3}
    assert set(table["token"]) <= {"left", "river", "ground"}
    full = Lens(top=ALL, mask="left").of(trace)
    first = table[table["layer"] == 1].iloc[0]
    same = full.table().query("layer == 1 and token == @first.token").iloc[0]
    assert (same["rank"], same["probability"]) == (first["rank"], first["probability"])
    entropy = full.showing(show="entropy").table()
    assert list(entropy) == ["layer", "position", "token", "entropy_bits"]
    shares = softmax(logits_by_id(full, 2))
    assert_exact(entropy["entropy_bits"].to_numpy()[2:3], -(shares * np.log2(shares)).sum(axis=-1))


def test_without_masks_all_tokens_are_predicted(trained_on: Trained) -> None:
    trace = trained_on("bert", "fill-mask").trace("we had left")
    assert Lens().of(trace).ids.shape == (4, len(trace.tokens), 5)


def test_entropy_equals_hand_computation() -> None:
    shares = np.array([[1.0, 0, 0, 0], [0.25] * 4, [0.5, 0.25, 0.25, 0], [0.9, 0.8, 0.1, 0.2], [np.nan] * 4])
    np.testing.assert_array_equal(_entropy(shares), [0, 2, 1.5, np.nan, np.nan])


def test_settled_layer_equals_hand_computation(trained_on: Trained) -> None:
    result = Lens(top=1).of(trained_on("bert", "fill-mask").trace("we had"))
    first = np.array([[7, 7, 7, 7], [7, 8, 7, 9], [7, 7, 8, 9], [7, 7, 7, 9]])
    for part in ("ids", "ranks", "logits", "probabilities"):
        object.__setattr__(result, part, first[:, :, None])
    assert result.settled.tolist() == [0, 2, 3, 1]


def test_unsupported_heads_and_options_raise_errors(minilm: Checkpoint, trained_on: Trained) -> None:
    with pytest.raises(UnavailableError, match=r"no trained head for fill-mask.*sentence-similarity"):
        Lens().of(minilm.trace(TEXT))
    text = trained_on("bert", "text-classification").trace(TEXT)
    with pytest.raises(UnavailableError, match="no trained head for fill-mask"):
        Lens("fill-mask").of(text)
    with pytest.raises(SelectionError, match="need a fill-mask head"):
        Lens(mask="ground").of(text)


def test_lens_of_bert_tiny_is_saved_as_csv(tmp_path: Path) -> None:
    trace: Trace = bert_probe.load(trained.bert_tiny()).trace("The capital of France is [MASK].")
    files = Lens().of(trace).save(tmp_path / "lens.csv")
    assert files[0].read_text().splitlines()[0] == "layer,position,rank,token,probability"
