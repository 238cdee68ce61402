"""Test that training on numbers continues from a checkpoint's head for a number, whatever its label."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import bert_probe
from bert_probe import Train
from bert_probe.model.checkpoint import TEXT_CLASSIFICATION, Checkpoint
from tests.helpers.families import config, randomize, save_tokenizer
from tests.helpers.teaching import STILL, texts, weights


def with_number_head(folder: Path, labels: list[str], problem: str | None) -> Checkpoint:
    """Return a tiny BERT with a text-classification head that has the given labels and problem type."""
    settings = config("bert", id2label=dict(enumerate(labels)), problem_type=problem, **STILL)
    model = AutoModelForSequenceClassification.from_config(settings)
    randomize(model)
    model.save_pretrained(folder)
    save_tokenizer("bert", folder)
    return bert_probe.load(folder, dtype="float64")


@pytest.mark.parametrize("update", ["head", "all"])
@pytest.mark.parametrize(("label", "problem"), [("LABEL_0", "regression"), ("score", None)])
def test_training_on_numbers_continues(label: str, problem: str | None, update: str, tmp_path: Path) -> None:
    """With a tiny rate, the first loss is that of the original model in transformers."""
    checkpoint = with_number_head(tmp_path / "original", [label], problem)
    data = texts(16, "number")
    trained = Train(update, epochs=1, rate=1e-8, batch=16, held_out=0).of(checkpoint, data)
    assert trained.labels == (label,)
    assert trained.notes[-1].endswith("has a head for this task. Training continues from this head.")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "original", dtype=torch.float64)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "original")
    with torch.no_grad():
        logits = [model.eval()(**tokenizer(row.text, return_tensors="pt")).logits.item() for row in data.rows]
    errors = np.array(logits) - [row.label for row in data.rows]
    assert trained.history[0].loss == pytest.approx((errors**2).mean(), abs=1e-5)
    new = weights(trained.checkpoint, TEXT_CLASSIFICATION)
    for name, old in model.state_dict().items():
        torch.testing.assert_close(new[name], old, rtol=0, atol=1e-6, msg=name)
    again = bert_probe.load(trained.save_model(tmp_path / "trained")).outputs[TEXT_CLASSIFICATION]
    assert (again.labels, again.problem) == ((label,), "regression")


@pytest.mark.parametrize(
    ("labels", "problem"), [(["yes"], "multi_label_classification"), (["x", "y"], "regression")]
)
def test_other_heads_are_replaced_with_a_note(labels: list[str], problem: str, tmp_path: Path) -> None:
    checkpoint = with_number_head(tmp_path, labels, problem)
    plan = Train(held_out=0).plan(checkpoint, texts(16, "number"))
    assert plan.material.objective.labels == ("number",)
    assert plan.notes[-1] == (
        f"The text-classification head of {checkpoint.description.name} has other labels, predicts another "
        "type of labels, or reads the sentence vector, so a new head is trained."
    )


@pytest.mark.parametrize("rows", ["number", "classes"])
def test_trained_head_has_no_activation(rows: str, tmp_path: Path) -> None:
    """The loss is that of the logits, so the activation of the cross-encoder does not apply to them."""
    with_number_head(tmp_path / "original", ["LABEL_0"], None)
    settings = json.loads((tmp_path / "original/config.json").read_text())
    settings["sentence_transformers"] = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
    settings["sbert_ce_default_activation_function"] = "torch.nn.modules.activation.Sigmoid"
    (tmp_path / "original/config.json").write_text(json.dumps(settings))
    checkpoint = bert_probe.load(tmp_path / "original", dtype="float64")
    assert checkpoint.outputs[TEXT_CLASSIFICATION].activation is not None
    trained = Train("all", epochs=1, held_out=0).of(checkpoint, texts(16, rows))
    saved = bert_probe.load(trained.save_model(tmp_path / "trained"), dtype="float64")
    for trained_checkpoint in (trained.checkpoint, saved):
        assert trained_checkpoint.outputs[TEXT_CLASSIFICATION].activation is None
