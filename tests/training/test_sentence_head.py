"""Test a linear head on sentence vectors: parity with scikit-learn on sentence-transformers' vectors."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from transformers import AutoModel

import bert_probe
from bert_probe import Attribution, ClassifyText, Evaluate, Lens, Train
from bert_probe.errors import SelectionError, TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Cancelled
from bert_probe.text.labeled_texts import LabeledTexts
from bert_probe.training.sentence_classifier import PENALTIES, select_penalty
from tests.helpers import sentence_models
from tests.helpers.gate import prove_unless
from tests.helpers.teaching import texts

TEXTS = ["the small boat", "river engineers at night", "a map of the old river"]
FamilyFolder = Callable[[str], Path]


@pytest.fixture
def sentence_folder(tmp_path: Path, family_folder: FamilyFolder) -> Callable[[str], Path]:
    """Return a function that saves a tiny sentence-transformers model with the given layout of modules."""

    def save(layout: str) -> Path:
        family = sentence_models.LAYOUTS[layout].family
        return sentence_models.save(layout, family_folder(family), tmp_path / "original")

    return save


def probabilities(checkpoint: Checkpoint, text: str) -> dict[str, float]:
    """Return the probability of each label for a text."""
    frame = ClassifyText().of(checkpoint.trace(text)).frame()
    return dict(zip(frame["label"], frame["probability"], strict=True))


def run_script(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> list[Any]:
    """Run predict.py of a saved folder in this process, and return the JSON objects that it prints."""
    monkeypatch.setattr(sys, "argv", ["predict.py", *TEXTS])
    capsys.readouterr()
    with sentence_models.without_warnings():
        runpy.run_path(str(folder / "predict.py"))
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize(
    "layout",
    prove_unless(
        {"cls", "truncated", "encoder of T5"},
        ["cls", "encoder of T5", "truncated", "joined", "two dense", "layer norm"],
    ),
)
def test_saved_head_equals_scikit_learn_everywhere(
    layout: str,
    sentence_folder: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: Any,
) -> None:
    source = sentence_folder(layout)
    data = texts(40)
    trained = Train().of(bert_probe.load(source, dtype="float64"), data)
    rows, model = trained.data.rows, sentence_models.reference(source, "float64")
    vectors = model.encode([row.text for row in rows])
    reference = LogisticRegression(
        C=trained.best.penalty, tol=1e-8, max_iter=10_000, solver="newton-cholesky"
    )
    reference.fit(vectors, [row.label for row in rows])
    expected = reference.predict_proba(model.encode(TEXTS))
    folder = trained.save_model(tmp_path / "trained")
    opened = bert_probe.load(folder, dtype="float64")
    assert opened.description.notes == trained.checkpoint.description.notes
    script = run_script(folder, capsys, monkeypatch)
    for text, row, line in zip(TEXTS, expected, script, strict=True):
        values = dict(zip(reference.classes_, row, strict=True))
        assert probabilities(trained.checkpoint, text) == pytest.approx(values, abs=1e-4)
        assert probabilities(opened, text) == pytest.approx(
            probabilities(trained.checkpoint, text), abs=1e-12
        )
        assert line == {"text": text, "probabilities": pytest.approx(probabilities(opened, text), abs=1e-5)}
    saved = sentence_models.reference(folder, "float64")
    np.testing.assert_allclose(saved.encode(TEXTS), model.encode(TEXTS), atol=1e-12)
    assert type(AutoModel.from_pretrained(folder)) is type(AutoModel.from_pretrained(source))


def test_rounded_buffers_of_a_model_in_half_precision_are_not_copied(
    sentence_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """Gemma multiplies its word embeddings by √hidden, which a model in bfloat16 rounds to 8 bits."""
    checkpoint = bert_probe.load(sentence_folder("gemma"), dtype="bfloat16")
    trained = Train().of(checkpoint, texts(20))
    scales = dict(trained.checkpoint.model.named_buffers())
    assert float(scales["embed_tokens.embed_scale"]) == pytest.approx(32**0.5, rel=1e-7)
    opened = bert_probe.load(trained.save_model(tmp_path / "trained"))
    assert opened.description.dtype == trained.checkpoint.description.dtype == "float32"
    for text in TEXTS:
        for layer in range(trained.checkpoint.trace(text).layers + 1):
            np.testing.assert_array_equal(
                trained.checkpoint.trace(text).vectors(layer), opened.trace(text).vectors(layer)
            )


def test_gradient_of_the_objective_is_zero(sentence_folder: Callable[[str], Path]) -> None:
    """By definition, the head minimizes C times the sum of the losses plus half of the squared weights."""
    source = sentence_folder("cls")
    checkpoint = bert_probe.load(source, dtype="float64")
    rows = list(texts(60).rows)
    trained = Train(held_out=0).of(checkpoint, LabeledTexts.of("classes", rows))
    assert "C was not selected" in " ".join(trained.notes)
    linear = trained.checkpoint.outputs["text-classification"].model.classifier.linear
    weight, bias = (part.detach().clone().requires_grad_() for part in (linear.weight, linear.bias))
    vectors = torch.tensor(sentence_models.reference(source, "float64").encode([row.text for row in rows]))
    labels = torch.tensor([["with", "without"].index(row.label) for row in rows])
    loss = torch.nn.functional.cross_entropy(vectors @ weight.T + bias, labels, reduction="sum")
    # The two classes have half of scikit-learn's weights w with opposite signs, ±w/2. The penalty ½ ‖w‖² is
    # therefore the sum of the squared weights.
    (trained.best.penalty * loss + weight.pow(2).sum()).backward()
    assert float(weight.grad.abs().max()) < 1e-4
    assert float(bias.grad.abs().max()) < 1e-4


def test_class_that_only_a_repeated_text_has_is_trained(sentence_folder: Callable[[str], Path]) -> None:
    rows = list(texts(20).rows)
    checkpoint = bert_probe.load(sentence_folder("mean"))
    for row in rows[:6]:
        data = LabeledTexts.of("classes", [*rows, replace(row, label="mistyped", line=21)])
        assert Train().of(checkpoint, data).labels == ("mistyped", "with", "without")


@pytest.mark.parametrize("kind", ["several", "number"])
def test_head_for_other_labels_is_trained_without_held_out_texts(
    kind: str, sentence_folder: Callable[[str], Path]
) -> None:
    data = texts(20, kind)
    trained = Train(held_out=0).of(bert_probe.load(sentence_folder("mean")), data)
    assert trained.best.penalty == 1
    assert "C was not selected" in " ".join(trained.notes)


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("kind", ["several", "number"])
def test_other_labels_equal_scikit_learn(kind: str, sentence_folder: Callable[[str], Path]) -> None:
    source = sentence_folder("mean")
    data = texts(40, kind)
    trained = Train().of(bert_probe.load(source, dtype="float64"), data)
    model, rows = sentence_models.reference(source, "float64"), trained.data.rows
    vectors, penalty = model.encode([row.text for row in rows]), trained.best.penalty
    logits = [ClassifyText().of(trained.checkpoint.trace(text)) for text in TEXTS]
    if kind == "number":
        ridge = Ridge(alpha=1 / (2 * penalty)).fit(vectors, [row.label for row in rows])
        expected = ridge.predict(model.encode(TEXTS))
        np.testing.assert_allclose([result.logits[0] for result in logits], expected, atol=1e-9)
    else:
        for label in data.labels:
            targets = [label in row.label for row in rows]
            fitted = LogisticRegression(C=penalty, tol=1e-8, solver="newton-cholesky").fit(vectors, targets)
            for result, expected in zip(logits, fitted.predict_proba(model.encode(TEXTS))[:, 1], strict=True):
                index = result.labels.index(label)
                assert result.probabilities[index] == pytest.approx(expected, abs=1e-4)
    measured = Evaluate().of(trained.checkpoint, trained.held_out)
    main = {"several": "micro_f1", "number": "mse"}[kind]
    expected_measure = trained.best.measure if kind == "several" else trained.best.held_out_loss
    assert measured.measures[main] == pytest.approx(expected_measure)


def test_numbers_with_a_large_offset_keep_their_precision(sentence_folder: Callable[[str], Path]) -> None:
    source = sentence_folder("mean")
    small = texts(40, "number")
    rows = [replace(row, label=2e9 + float(cast("float", row.label))) for row in small.rows]
    data = LabeledTexts.of("number", rows)
    shifted, original = (Train().of(bert_probe.load(source, dtype="float64"), part) for part in (data, small))
    assert shifted.best.measure == pytest.approx(original.best.measure, abs=1e-5)
    measured = Evaluate().of(shifted.checkpoint, shifted.held_out)
    assert measured.measures["mse"] == pytest.approx(original.best.held_out_loss, rel=1e-5)
    with pytest.raises(TextError, match="Subtract their mean"):
        Train().of(bert_probe.load(source), data)


def test_analyses_read_the_head(sentence_folder: Callable[[str], Path]) -> None:
    checkpoint = Train().of(bert_probe.load(sentence_folder("cls")), texts(40)).checkpoint
    trace = checkpoint.trace(TEXTS[0])
    predicted = ClassifyText().of(trace).frame()
    frame = Lens(top=2).of(trace).frame()
    last = frame[frame["layer"] == frame["layer"].max()].reset_index(drop=True)
    assert list(last["label"]) == list(predicted["label"])
    assert list(last["probability"]) == pytest.approx(list(predicted["probability"]))
    # DecompX checks that the contributions sum to the logit.
    scores = Attribution(method="decompx").of(trace)
    assert np.isfinite(scores.frame()["score"].to_numpy()[1:-1]).all()


def test_selection_by_hand() -> None:
    """C = 10 classifies 8 of 10 texts correctly, and C = 1 only 6: a difference of 0.2 ± 0.126."""
    strong, default, weak = np.zeros(10), np.array([1.0] * 6 + [0.0] * 4), np.array([1.0] * 8 + [0.0] * 2)
    assert select_penalty((0.1, 1.0, 10.0), np.stack([strong, default, weak])) == 2  # C = 10: 0.2 > 0.126
    close = np.array([1.0] * 7 + [0.0] * 2 + [1.0])
    assert select_penalty((0.1, 1.0, 10.0), np.stack([weak, close, weak])) == 1  # a tie, so C = 1
    # C = 10 is better by 0.1, which is less than the standard error of 0.17, so C = 1 is selected.
    swapped = np.array([0.0, 0.0, *[1.0] * 7, 0.0])
    assert select_penalty((1.0, 10.0), np.stack([swapped, weak])) == 0
    assert select_penalty((1.0,), np.zeros((1, 0))) == 0


def test_cancel_keeps_the_heads_so_far(sentence_folder: Callable[[str], Path]) -> None:
    data = texts(40)
    history: list[Any] = []

    def progress(done: int, total: int) -> None:
        if done == total - len(PENALTIES) + 2:
            raise Cancelled

    plan = Train().plan(bert_probe.load(sentence_folder("cls")), data)
    result = plan.run(progress, history.append)
    assert result.ended == "stopped"
    assert list(result.history) == history
    assert [item.penalty for item in history] == list(PENALTIES[:2])


def test_other_heads(sentence_folder: Callable[[str], Path]) -> None:
    checkpoint = bert_probe.load(sentence_folder("mean"))
    pairs, data = texts(12, pairs=True), texts(12)
    plan = Train(epochs=1).plan(checkpoint, pairs)
    assert plan.head == "cls"
    assert "text pairs" in " ".join(plan.notes)
    chosen = Train(head="cls", epochs=1).plan(checkpoint, data)
    assert chosen.head == "cls"
    assert "less accurate" in " ".join(chosen.notes)
    for question, rows in ((Train(head="sentence"), pairs), (Train("all", head="sentence"), data)):
        with pytest.raises(SelectionError, match="--head cls"):
            question.plan(checkpoint, rows)
    with pytest.raises(SelectionError, match="no epochs or learning rate"):
        Train(head="sentence", epochs=3).plan(checkpoint, data)
    with pytest.raises(SelectionError, match="does not declare its pooling"):
        Train(head="sentence").plan(Train("head", epochs=1).of(checkpoint, pairs).checkpoint, data)


@pytest.mark.parametrize("layout", ["prompts", "router"])
def test_texts_that_the_checkpoint_changes(layout: str, sentence_folder: Callable[[str], Path]) -> None:
    plan = Train().plan(bert_probe.load(sentence_folder(layout)), texts(12))
    assert plan.head == "cls"
    assert "does not read the sentence vector" in " ".join(plan.notes)


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("labels.json", '{"labels": ["a"], "problem_type": "single_label_classification"}'),
        ("labels.json", '{"labels": ["a", "b"], "problem_type": "other"}'),
        ("labels.json", "[]"),
        ("config.json", "{"),
        ("model.safetensors", "none"),
    ],
)
def test_broken_heads_are_not_opened(
    file: str, content: str, sentence_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = Train().of(bert_probe.load(sentence_folder("mean")), texts(12)).save_model(tmp_path / "trained")
    digest = bert_probe.load(folder).description.outputs_sha256
    assert digest
    (folder / "classification_head" / file).write_text(content)
    opened = bert_probe.load(folder)
    assert "text-classification" not in opened.outputs
    assert any("classification_head cannot be loaded" in note for note in opened.description.notes)


@pytest.mark.prove
def test_script_runs_without_this_package(sentence_folder: Callable[[str], Path], tmp_path: Path) -> None:
    trained = Train().of(bert_probe.load(sentence_folder("cls")), texts(20))
    folder = trained.save_model(tmp_path / "trained")
    script = (folder / "predict.py").read_text()
    assert "bert_probe" not in script
    assert len(script.splitlines()) <= 11
    run = subprocess.run(
        [sys.executable, str(folder / "predict.py"), *TEXTS],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"HF_HUB_OFFLINE": "1", "PATH": ""},
    )
    for line, text in zip(run.stdout.splitlines(), TEXTS, strict=True):
        assert json.loads(line)["probabilities"] == pytest.approx(
            probabilities(trained.checkpoint, text), abs=1e-5
        )
