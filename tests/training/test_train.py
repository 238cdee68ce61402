"""Test training: steps equal a plain loop, the best weights are kept, and saved models predict the same."""

from __future__ import annotations

import copy
import gc
import math
import random
import re
import tempfile
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    XLNetConfig,
    XLNetModel,
    get_linear_schedule_with_warmup,
)

import bert_probe
from bert_probe import Train
from bert_probe.errors import OutOfMemoryError, SelectionError, SubjectError, TextError, UnavailableError
from bert_probe.model import preflight
from bert_probe.model.checkpoint import TEXT_CLASSIFICATION, Checkpoint
from bert_probe.model.progress import Cancelled
from bert_probe.text.labeled_texts import LabeledText, LabeledTexts
from bert_probe.training import training_loop
from bert_probe.training.datasets import check_texts
from bert_probe.training.models import count_by_scope, select_parameters, with_head
from bert_probe.training.objectives import TextObjective
from bert_probe.training.schedule import LengthBuckets, seeded
from tests.helpers import sentence_models
from tests.helpers.families import build, save_tokenizer
from tests.helpers.folders import change_config
from tests.helpers.gate import prove_unless
from tests.helpers.teaching import equal_states, texts, weights, without_dropout

QUICK = {"epochs": 2, "batch": 4, "rate": 1e-3}


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Return a tiny float64 BERT without dropout, whose training is deterministic."""
    return without_dropout(tmp_path_factory.mktemp("still") / "bert")


def raw_logits(folder: Path, rows: tuple[LabeledText, ...], dtype: Any = torch.float64) -> torch.Tensor:
    """Return the logits of plain transformers, one text at a time."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=dtype).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        result = [model(**tokenizer(row.text, row.pair, return_tensors="pt")).logits[0] for row in rows]
    return torch.stack(result)


# ---------------------------------------------------------------- training steps


def test_optimizer_is_freed_without_garbage_collection(quiet: Checkpoint) -> None:
    """The Trainer has reference cycles; without a collection, each training would leave its optimizer."""
    gc.collect()
    Train(update="top:1", epochs=1).of(quiet, texts(20))
    assert not [item for item in gc.get_objects() if isinstance(item, torch.optim.Optimizer)]


@pytest.mark.parametrize(
    ("name", "update"),
    prove_unless(
        {("bert", "head"), ("bert", "all"), ("albert", "head")},
        [("bert", "head"), ("bert", "top:1"), ("bert", "all"), ("albert", "head"), ("nomic_bert", "head")],
    ),
)
def test_training_equals_plain_loop(name: str, update: str, tmp_path: Path) -> None:
    """The reference trains the complete model with PyTorch; weights differ only by the order of summation."""
    quiet = without_dropout(tmp_path / name, name, classifier_dropout_prob=0.0)
    data, epochs, batch, rate = texts(20), 2, 4, 1e-3
    trained = Train(update, epochs, rate, batch, seed=3, held_out=0).of(quiet, data)
    with seeded(3):
        full_model = with_head(quiet, TEXT_CLASSIFICATION, data.labels, "single_label_classification")
    full_model.requires_grad_(False)
    parts = [part.requires_grad_() for part in select_parameters(full_model, update).values()]
    decays = [{"params": [part for part in parts if part.ndim > 1], "weight_decay": 0.01}]
    decays += [{"params": [part for part in parts if part.ndim == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(decays, lr=rate)
    steps = epochs * math.ceil(20 / batch)
    schedule = get_linear_schedule_with_warmup(optimizer, math.ceil(0.1 * steps), steps)
    read = [quiet.tokenizer(row.text) for row in data.rows]
    lengths = [1 if update == "head" else len(item["input_ids"]) for item in read]
    order, losses = LengthBuckets(lengths, batch, 3), []
    for places in (places for _ in range(epochs) for places in order):
        inputs = quiet.tokenizer.pad([read[place] for place in places], return_tensors="pt")
        right = torch.tensor([data.labels.index(data.rows[place].label) for place in places])
        loss = full_model(**inputs, labels=right).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parts, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    ends = [0, *(item.step for item in trained.history)]
    means = [np.mean(losses[start:end]) for start, end in pairwise(ends)]
    assert means == pytest.approx([item.loss for item in trained.history], abs=1e-6)
    result = weights(trained.checkpoint, TEXT_CLASSIFICATION)
    for name, part in full_model.state_dict().items():
        torch.testing.assert_close(result[name], part, rtol=0, atol=1e-9, msg=name)


def test_only_selected_parameters_change(quiet: Checkpoint) -> None:
    before = quiet.model.state_dict()
    trained = Train("top:1", **QUICK).of(quiet, texts(16))
    after = trained.checkpoint.model.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {name for name in before if name.startswith(("encoder.layer.2.", "pooler."))}
    head = Train("head", **QUICK).of(quiet, texts(16)).checkpoint.model.state_dict()
    assert {name for name in before if not torch.equal(before[name], head[name])} == {
        "pooler.dense.weight",
        "pooler.dense.bias",
    }


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("update", ["head", "lora"])
def test_seed_is_reproducible(family: Callable[[str], Checkpoint], update: str) -> None:
    """The seed determines dropout, new weights, the order of examples, and the held-out split."""
    question = Train(update, **QUICK, seed=5)
    item, again = (question.of(family("bert"), texts(20)) for _ in range(2))
    assert equal_states(
        weights(item.checkpoint, TEXT_CLASSIFICATION), weights(again.checkpoint, TEXT_CLASSIFICATION)
    )
    assert item.table().equals(again.table())
    assert item.held_out.rows == again.held_out.rows
    other = Train(update, **QUICK, seed=6).of(family("bert"), texts(20))
    assert not equal_states(
        weights(item.checkpoint, TEXT_CLASSIFICATION), weights(other.checkpoint, TEXT_CLASSIFICATION)
    )


def test_training_has_no_side_effects(
    family: Callable[[str], Checkpoint], capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    checkpoint = family("bert")
    before = copy.deepcopy(checkpoint.model.state_dict())
    config = copy.deepcopy(vars(checkpoint.model.config))
    dice = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    for update in ("head", "all", "lora"):
        Train(update, **QUICK).of(checkpoint, texts(12))
    assert equal_states(before, checkpoint.model.state_dict())
    assert vars(checkpoint.model.config) == config
    assert not any(part.requires_grad or part.grad is not None for part in checkpoint.model.parameters())
    assert not checkpoint.model.training
    assert dice == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    assert [*tmp_path.iterdir()] == []
    assert capfd.readouterr() == ("", "")


# ---------------------------------------------------------------- results


def test_full_model_learns_a_rule(tmp_path: Path) -> None:
    checkpoint = without_dropout(tmp_path / "bert", num_hidden_layers=2)
    trained = Train("all", epochs=12, rate=3e-3).of(checkpoint, texts(80))
    assert trained.best.measure == 1.0
    assert trained.history[0].measure < 1.0
    folder = trained.save_model(tmp_path / "trained")
    rows = texts(30, seed=9).rows
    message = raw_logits(folder, rows).argmax(dim=1).tolist()
    assert [trained.labels[item] for item in message] == [row.label for row in rows]


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(("update", "kind"), [("head", "several"), ("top:2", "number"), ("lora", "classes")])
def test_saved_model_predicts_as_evaluated(quiet: Checkpoint, tmp_path: Path, update: str, kind: str) -> None:
    """The saved model has the evaluated loss in transformers, and the same logits with `load`."""
    trained = Train(update, **QUICK).of(quiet, texts(20, kind, pairs=True))
    folder = trained.save_model(tmp_path / "trained")
    rows = trained.held_out.rows
    logits = raw_logits(folder, rows)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float64)
    if kind == "classes":
        right = torch.tensor([model.config.label2id[row.label] for row in rows])
        loss = torch.nn.functional.cross_entropy(logits, right)
        measure = (logits.argmax(dim=1) == right).double().mean()
    elif kind == "several":
        right = torch.tensor(
            [[float(label in row.label) for label in trained.labels] for row in rows]
        ).double()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, right)
        hits = ((logits > 0) & (right > 0)).sum()
        measure = 2 * hits / ((logits > 0).sum() + right.sum())
    else:
        right = torch.tensor([row.label for row in rows]).double()
        loss = torch.nn.functional.mse_loss(logits[:, 0], right)
        measure = 1 - loss / right.var(correction=0)
    assert trained.best.held_out_loss == pytest.approx(loss.item(), abs=1e-6)
    assert trained.best.measure == pytest.approx(measure.item(), abs=1e-6)
    again = bert_probe.load(folder, dtype="float64")
    assert again.outputs[TEXT_CLASSIFICATION].labels == trained.labels
    assert (
        again.outputs[TEXT_CLASSIFICATION].problem == trained.checkpoint.outputs[TEXT_CLASSIFICATION].problem
    )
    for row, expected in zip(rows, logits, strict=True):
        for checkpoint in (again, trained.checkpoint):
            result = checkpoint.outputs[TEXT_CLASSIFICATION].logits(checkpoint.trace(row.text, row.pair))
            np.testing.assert_allclose(result, expected.numpy(), rtol=0, atol=1e-6)


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    "name", prove_unless({"albert", "modernbert"}, ["albert", "modernbert", "mobilebert", "deberta"])
)
def test_linear_heads_of_other_families_equal_full_model(
    name: str, family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """The head may read the pooler, the first token or the mean; the loss equals the complete model's."""
    trained = Train("head", **QUICK).of(bert_probe.load(family_folder(name), dtype="float64"), texts(16))
    logits = raw_logits(trained.save_model(tmp_path / "trained"), trained.held_out.rows)
    right = torch.tensor([trained.labels.index(row.label) for row in trained.held_out.rows])
    loss = torch.nn.functional.cross_entropy(logits, right).item()
    assert trained.best.held_out_loss == pytest.approx(loss, abs=1e-5)


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    ("padding", "update"),
    prove_unless(
        {("zero", "head"), ("none", "top:1"), ("token at the end", "head")},
        product(["zero", "none", "token at the end"], ["head", "top:1"]),
    ),
)
def test_head_of_a_decoder_reads_the_same_token_as_in_transformers(
    padding: str, update: str, tmp_path: Path
) -> None:
    """Heads of decoders read the last token that is not the padding token of the config."""
    folder = tmp_path / "decoder"
    build("llama", folder)
    rows = texts(16)
    checkpoint = bert_probe.load(folder, dtype="float64")
    at_end = [int(checkpoint.trace(row.text).encoding.inputs["input_ids"][-1]) for row in rows.rows]
    ids = {"zero": 0, "none": None, "token at the end": at_end[0]}
    change_config(folder, pad_token_id=ids[padding])
    trained = Train(update, **QUICK).of(bert_probe.load(folder, dtype="float64"), rows)
    logits = raw_logits(trained.save_model(tmp_path / "trained"), trained.held_out.rows)
    right = torch.tensor([trained.labels.index(row.label) for row in trained.held_out.rows])
    loss = torch.nn.functional.cross_entropy(logits, right).item()
    assert trained.best.held_out_loss == pytest.approx(loss, abs=1e-5)


@pytest.mark.parametrize("is_labeled", [True, False])
def test_model_whose_head_could_not_be_used_is_not_trained(is_labeled: bool, tmp_path: Path) -> None:
    """The heads of LUKE read the vectors of entities."""
    build("luke", tmp_path)
    labeled = texts(12)
    data = labeled if is_labeled else [row.text for row in labeled.rows]
    started: list[int] = []
    message = r"^Luke.* cannot be trained\. The head for .* Choose another model\.$"
    with pytest.raises(UnavailableError, match=message):
        Train("all", **QUICK).of(
            bert_probe.load(tmp_path), data, progress=lambda done, _: started.append(done)
        )
    assert not any(started)


def test_refused_head_names_the_head_on_the_sentence_vector(tmp_path: Path) -> None:
    build("luke", tmp_path / "encoder")
    folder = sentence_models.save("mean", tmp_path / "encoder", tmp_path / "original")
    checkpoint = bert_probe.load(folder)
    with pytest.raises(UnavailableError, match="Pass --update head --head sentence, or choose another model"):
        Train("all", **QUICK).of(checkpoint, texts(12))
    trained = Train(head="sentence").of(checkpoint, texts(12)).save_model(tmp_path / "trained")
    assert "text-classification" in bert_probe.load(trained).tasks


@pytest.mark.parametrize("name", ["gpt2", "falcon"])
def test_layers_of_a_decoder_trained_in_memory_run_again(name: str, tmp_path: Path) -> None:
    """The config of the user's model enables the key-value cache, and Falcon has no eager attention."""
    build(name, tmp_path)
    model, tokenizer = (kind.from_pretrained(tmp_path) for kind in (AutoModel, AutoTokenizer))
    trained = Train("head", **QUICK).of(bert_probe.wrap(model, tokenizer), texts(12)).checkpoint
    result = bert_probe.Attribution(method="value-zeroing").of(trained.trace("one two three"))
    assert len(result.table()) == len(trained.trace("one two three").tokens)
    assert model.config.use_cache


@pytest.mark.parametrize("update", ["head", "all"])
def test_model_whose_head_reads_padding_is_not_trained(update: str, tmp_path: Path) -> None:
    save_tokenizer("bert", tmp_path)
    sizes = XLNetConfig(vocab_size=120, d_model=32, n_layer=1, n_head=4, d_inner=64)
    XLNetModel(sizes).save_pretrained(tmp_path)
    message = (
        "^XLNetForSequenceClassification cannot be trained. The head .* is not used: it reads the padding"
    )
    with pytest.raises(UnavailableError, match=message):
        Train(update, **QUICK).of(bert_probe.load(tmp_path), texts(12))


def test_existing_head_is_trained_further(quiet: Checkpoint, tmp_path: Path) -> None:
    data = texts(16)
    folder = Train("head", epochs=20, rate=1e-2).of(quiet, data).save_model(tmp_path / "one")
    first = bert_probe.load(folder, dtype="float64")
    on = Train("head", epochs=1, rate=1e-8, held_out=0).of(first, data)
    assert "has a head for this task" in " ".join(on.notes)
    old, new = weights(first, TEXT_CLASSIFICATION), weights(on.checkpoint, TEXT_CLASSIFICATION)
    torch.testing.assert_close(new["classifier.weight"], old["classifier.weight"], rtol=0, atol=1e-6)
    renamed = LabeledTexts.of(
        "classes", [LabeledText(row.text, None, f"{row.label}!", row.line) for row in data.rows]
    )
    other = Train("head", epochs=1, rate=1e-8, held_out=0).of(first, renamed)
    assert other.notes[-1].endswith("so a new head is trained.")
    fresh = weights(other.checkpoint, TEXT_CLASSIFICATION)["classifier.weight"]
    assert (fresh - old["classifier.weight"]).abs().max() > 1e-3


def test_model_without_linear_modules_is_refused_for_lora(family: Callable[[str], Checkpoint]) -> None:
    with pytest.raises(UnavailableError, match=r"no linear modules that LoRA can adapt\. Choose --update"):
        Train("lora", **QUICK).of(family("gpt2"), texts(16))
    assert Train("all", **QUICK).plan(family("gpt2"), texts(16)).trainable > 0
    updates = [count.update for count in count_by_scope(family("gpt2"), TEXT_CLASSIFICATION)]
    assert updates == ["head", "top:1", "top:2", "top:3", "all"]


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_lora_adapter_opens_on_the_base_model(quiet: Checkpoint, tmp_path: Path) -> None:
    from peft import PeftModel

    trained = Train("lora", **QUICK).of(quiet, texts(16))
    folder = trained.save_model(tmp_path / "trained")
    base = AutoModelForSequenceClassification.from_pretrained(quiet.folder, num_labels=2, dtype=torch.float64)
    full_model = PeftModel.from_pretrained(base, folder / "adapter").eval()
    rows = trained.held_out.rows
    with torch.no_grad():
        result = [full_model(**quiet.tokenizer(row.text, return_tensors="pt")).logits[0] for row in rows]
    torch.testing.assert_close(torch.stack(result), raw_logits(folder, rows), rtol=0, atol=1e-7)


# ---------------------------------------------------------------- counts and memory


@pytest.mark.parametrize("task", ["text-classification", "token-classification", "fill-mask"])
def test_counts_equal_those_of_the_model(quiet: Checkpoint, task: str) -> None:
    result = {count.update: count for count in count_by_scope(quiet, task, 2)}
    assert [*result] == ["head", "top:1", "top:2", "top:3", "all", "lora"]
    labels = () if task == "fill-mask" else ("a", "b")
    full_model = with_head(quiet, task, labels)
    for update in ("head", "top:2", "all"):
        assert result[update].trainable == sum(
            part.numel() for part in select_parameters(full_model, update).values()
        )
        assert result[update].parameters == sum(part.numel() for part in full_model.parameters())
    from bert_probe.training.models import LoraModel

    narrow = LoraModel(with_head(quiet, task, labels))
    assert result["lora"].trainable == sum(part.numel() for part in narrow.updated.values())


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize(
    "name", ["xlm", "flaubert", "bert", "distilbert", "gpt2", "modernbert", "deberta-v2"]
)
def test_top_layers_contain_all_parameters_of_a_layer(name: str, family: Callable[[str], Checkpoint]) -> None:
    full_model = with_head(family(name), TEXT_CLASSIFICATION, ("a", "b"))
    updated = {*select_parameters(full_model, "top:1")} - {*select_parameters(full_model, "head")}
    layers = [(name, re.findall(r"\.(\d)\.", name)) for name, _ in full_model.base_model.named_parameters()]
    last = {f"{full_model.base_model_prefix}.{name}" for name, numbers in layers if numbers[:1] == ["2"]}
    assert updated == last
    assert last


def test_too_large_training_raises_error_before_it_starts(
    quiet: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Train("all").plan(quiet, texts(16))
    monkeypatch.setattr(preflight, "free_memory", lambda: plan.memory - 1)
    with pytest.raises(
        OutOfMemoryError, match=r"This training needs about .* are available\. Use a smaller batch"
    ):
        plan.run()
    assert Train("all", batch=64).plan(quiet, texts(16)).memory > plan.memory
    assert Train("head").plan(quiet, texts(16)).memory < plan.memory


# ---------------------------------------------------------------- end of training


def cancelling(after: int) -> Callable[[int, int], None]:
    def report(done: int, _: int) -> None:
        if done >= after:
            raise Cancelled

    return report


def test_cancel_keeps_best_weights(quiet: Checkpoint) -> None:
    question = Train("all", epochs=6, batch=4, rate=1e-3)
    steps = question.plan(quiet, texts(20)).pace.steps
    observed: list[training_loop.EvaluationPoint] = []
    stopped = question.of(quiet, texts(20), progress=cancelling(steps // 2), on_evaluation=observed.append)
    assert stopped.ended == "stopped"
    assert list(stopped.history) == observed
    assert 0 < len(observed) < 6
    assert "The training was stopped" in stopped.notes[-1]
    full_model = question.of(quiet, texts(20))
    untimed = [
        tuple(item.to_json().values())[:-1]
        for item in (*stopped.history, *full_model.history[: len(observed)])
    ]
    assert untimed[: len(observed)] == untimed[len(observed) :]
    assert stopped.best.held_out_loss == pytest.approx(raw_loss(stopped), abs=1e-9)
    with pytest.raises(Cancelled):
        question.of(quiet, texts(20), progress=cancelling(1))


def raw_loss(trained: Any) -> float:
    checkpoint, rows = trained.checkpoint, trained.held_out.rows
    logits = np.array(
        [checkpoint.outputs[TEXT_CLASSIFICATION].logits(checkpoint.trace(row.text)) for row in rows]
    )
    right = torch.tensor([trained.labels.index(row.label) for row in rows])
    return torch.nn.functional.cross_entropy(torch.tensor(logits), right).item()


def test_early_stopping_restores_the_best_weights(family: Callable[[str], Checkpoint]) -> None:
    """With random labels, the held-out loss rises soon, because the model can only memorize them."""
    draw = random.Random(1)
    rows = [LabeledText(row.text, None, draw.choice("ab"), row.line) for row in texts(40).rows]
    trained = Train("head", epochs=300, rate=3e-2).of(family("bert"), LabeledTexts.of("classes", rows))
    assert trained.ended == "early"
    assert trained.best.measure == max(item.measure for item in trained.history)
    assert trained.best is not trained.history[-1]
    assert trained.best.held_out_loss == pytest.approx(raw_loss(trained), abs=1e-4)
    assert trained.table()["kept"].tolist().count(True) == 1


def test_diverging_loss_is_reported(quiet: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TextObjective, "loss", lambda _, message, right: message.sum() * float("nan"))  # noqa: ARG005
    for update in ("head", "all"):
        with pytest.raises(UnavailableError, match=r"not finite after .*\. Choose a lower learning rate"):
            Train(update, **QUICK).of(quiet, texts(12))


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"update": "bottom"}, "head, top:K"),
        ({"update": "top:0"}, "head, top:K"),
        ({"epochs": 0}, "epochs must be 1 to 10000, not 0"),
        ({"rate": float("nan")}, "rate must be 1e-08 to 1, not nan"),
        ({"batch": 1.5}, "batch must be a whole number"),
        ({"held_out": 1.0}, "held_out must be 0 to 0.9, not 1.0"),
    ],
)
def test_invalid_settings_raise_errors(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SelectionError, match=message):
        Train(**arguments)


def test_r_squared_of_equal_numbers_is_nan(quiet: Checkpoint) -> None:
    objective = TextObjective(quiet, LabeledTexts.of("number", [LabeledText("a", None, 0.1, 2)]), ())
    # The mean of the targets differs from 0.1 by rounding.
    assert math.isnan(objective.score(np.array([0.3, 0.2, 0.1]), np.full(3, 0.1)))
    assert objective.score(np.array([1.0, 2.0, 2.0]), np.array([1.0, 2.0, 3.0])) == 0.5


def test_invalid_data_raise_errors(quiet: Checkpoint) -> None:
    def refused(error: type[Exception], data: Any, held_out: Any = None, update: str = "head") -> str:
        with pytest.raises(error) as caught:
            Train(update).plan(quiet, data, held_out)
        return str(caught.value)

    def rows(*pairs: tuple[str, Any], kind: str = "classes") -> LabeledTexts:
        return LabeledTexts.of(
            kind, [LabeledText(text, None, label, place + 2) for place, (text, label) in enumerate(pairs)]
        )

    good = texts(8)
    assert "more layers than this model has (3)" in refused(SelectionError, good, update="top:4")
    assert "All 2 texts have the label x" in refused(TextError, rows(("a", "x"), ("b", "x")))
    assert "All texts have the number 1" in refused(TextError, rows(("a", 1.0), ("b", 1.0), kind="number"))
    for first, second in ((1e-300, 2e-300), (1.0, 1.0 + 1e-12), (1.0, 1.0 + 2e-5), (1.7e9, 1.7e9 + 100)):
        with pytest.raises(TextError, match="too small for numbers of this size in float32"):
            check_texts(rows(("a", first), ("b", second), kind="number"), None, "bfloat16")
    check_texts(rows(("a", 1.0), ("b", 1.0 + 5e-5), kind="number"), None, "float32")
    check_texts(rows(("a", 1.7e9), ("b", 1.7e9 + 1e-3), kind="number"), None, "float64")
    assert "too few to hold out" in refused(TextError, rows(("a", "x"), ("b", "y")))
    repeated = rows(*[("a", "x"), ("b", "y")] * 20)
    assert "40 texts include only 2 different texts" in refused(TextError, repeated)
    assert "2 errors: line 2: The text is empty" in refused(
        TextError, rows(("", "x"), ("\x01", "y"), ("a", "y"), ("b", "y"))
    )
    assert "No text has a label" in refused(TextError, rows(("a", ()), ("b", ()), kind="several"))
    assert "labels that do not occur in the training data: z" in refused(TextError, good, rows(("a", "z")))
    assert (
        "zero or more labels per text (multi-label), but the training texts have one class per text"
        in refused(TextError, good, rows(("a", ("x",)), kind="several"))
    )
    assert "not a dict. Use read_labeled_texts" in refused(SubjectError, {"a": "x"})
    assert "not a list" in refused(SubjectError, ["a", 3])
    assert "have different types" in refused(SubjectError, good, ["a"])


def test_unusual_data_are_noted(quiet: Checkpoint) -> None:
    data = texts(30)
    long = LabeledText("boat " * 300, None, "with", 99)
    torn = LabeledText(data.rows[0].text, None, "with", 100)
    once = LabeledText("a map", None, "rare", 101)
    held_out = LabeledTexts.of("classes", [*data.rows[:7]])
    plan = Train().plan(quiet, LabeledTexts.of("classes", [*data.rows, long, torn, once]), held_out)
    notes = " ".join(plan.notes)
    assert "Some labels have a single text, which cannot be in both splits: rare." in notes
    assert "A text is longer than the limit and truncated: line 99." in notes
    assert "Some texts occur with different labels (ignoring case, spaces and accents): lines 2, " in notes
    assert "7 of 7 held-out texts have the same tokens as a training text" in notes
    assert "lines 2, 3, 4, 5, 6 and 2 more of the held-out file" in notes
    assert max(map(len, plan.material.training)) == 160
    assert "34" not in str(plan)
    assert "33 texts are used for training, and 7 are held out" in str(plan)
    assert max(map(len, Train(max_tokens=9).plan(quiet, data).material.training)) <= 9
