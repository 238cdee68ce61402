"""Test the tuned lens: parity of training with plain torch, recovery of a known map, files, and errors."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file

import bert_probe
from bert_probe import Lens, TuneLens
from bert_probe.analyses.outputs import lens_training
from bert_probe.analyses.outputs.lens_training import (
    LEARNING_RATE,
    MaskTargets,
    WordHead,
    collect_targets,
    mask_lines,
    measure_losses,
    train_maps,
)
from bert_probe.analyses.outputs.tuned_lens import (
    TuneLensResult,
    lens_folder,
    load_lens,
    newest_lens,
    save_lens,
)
from bert_probe.errors import (
    EmptyTextError,
    ExportError,
    SelectionError,
    TextError,
    UnavailableError,
    WeightsError,
)
from bert_probe.model import lengths
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.layers import record_forward_pass
from bert_probe.model.outputs import output_head
from bert_probe.model.progress import Cancelled
from tests.helpers.exactness import assert_exact
from tests.helpers.families import TEXT
from tests.helpers.questions import SENTENCES

Trained = Callable[[str, str], Checkpoint]
LINES = (*SENTENCES, TEXT, "We left the ground at night.", "A map of the wide valley", "Boats cross at dawn.")


def nothing() -> None:
    """A progress callback that does nothing."""


def head_of(checkpoint: Checkpoint) -> WordHead:
    with torch.no_grad():
        return WordHead(output_head(checkpoint, "fill-mask"), record_forward_pass(checkpoint.trace(TEXT)))


def at_masks(checkpoint: Checkpoint) -> MaskTargets:
    inputs = mask_lines(checkpoint, [checkpoint.encoder.inputs(line) for line in LINES], seed=1)
    return collect_targets(checkpoint, inputs, nothing)


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_states_at_masks_equal_raw_model(name: str, double_trained_on: Trained) -> None:
    checkpoint = double_trained_on(name, "fill-mask")
    lines = [checkpoint.encoder.inputs(line) for line in LINES]
    inputs = mask_lines(checkpoint, lines, seed=1)
    result = collect_targets(checkpoint, inputs, nothing)
    mask, begins = checkpoint.tokenizer.mask_token_id, 0
    for text, line, places in zip(inputs.texts, inputs.lines, inputs.places, strict=True):
        ids, original = text.inputs["input_ids"], lines[line].inputs["input_ids"]
        assert len(places) == max(1, round(0.15 * (len(ids) - 2)))
        assert (ids[places] == mask).all()
        assert (np.delete(ids, places) == np.delete(original, places)).all()
        assert not set(original[places]) & set(checkpoint.tokenizer.all_special_ids)
        own = slice(begins, begins := begins + len(places))
        assert (result.lines[own] == line).all()
        if line < 2:
            with torch.no_grad():
                output = checkpoint.model(
                    **{key: torch.tensor(values)[None] for key, values in text.inputs.items()},
                    output_hidden_states=True,
                )
            raw = np.stack([states[0].numpy() for states in output.hidden_states])
            assert_exact(result.states[:, own], raw[:, places])
    assert begins == len(result)


def test_training_equals_plain_torch(double_trained_on: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference uses torch's Adam and KL divergence, and the head of the complete model."""
    monkeypatch.setattr(lens_training, "BATCH_SIZE", 10_000)
    checkpoint = double_trained_on("bert", "fill-mask")
    result, steps = at_masks(checkpoint), 3
    head = head_of(checkpoint)
    weights, biases = train_maps(head, result, steps, 0, nothing)
    output = checkpoint.outputs["fill-mask"].model
    layer, size = 1, result.states.shape[-1]
    states, last = (torch.from_numpy(result.states[item]) for item in (layer, -1))
    a, b = torch.zeros(size, size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
    x = (states - states.mean(0)) / states.std(0, correction=0)
    scale = states.square().mean().sqrt()
    parts = [torch.nn.Parameter(a), torch.nn.Parameter(b)]
    optimizer = torch.optim.Adam(parts, lr=1.0)

    def loss() -> torch.Tensor:
        lens = output.cls(states + scale * (x @ parts[0].T + parts[1])).log_softmax(-1)
        answer = output.cls(last).log_softmax(-1).detach()
        return (answer.exp() * (answer - lens)).sum(-1).mean()

    for step in range(steps):
        optimizer.param_groups[0]["lr"] = LEARNING_RATE / size * (1 - step / steps)
        for part, slope in zip(parts, torch.autograd.grad(loss(), parts), strict=True):
            part.grad = slope
        optimizer.step()
    full = states + scale * (x @ parts[0].T + parts[1]).detach()
    first = states + F.linear(states, torch.from_numpy(weights[layer]), torch.from_numpy(biases[layer]))
    assert_exact(first.numpy(), full.numpy())
    assert (first - states).abs().max() > 1e-3, "the map has changed"
    plain, tuned = measure_losses(head, result, weights, biases, nothing)
    assert_exact(tuned[layer], loss().item() / np.log(2))
    with torch.no_grad():
        for part in parts:
            part.zero_()
    assert_exact(plain[layer], loss().item() / np.log(2))


def test_known_linear_map_is_recovered(double_trained_on: Trained) -> None:
    """The last layer's vectors are an affine map of the first layer's, and the lens learns this map."""
    checkpoint = double_trained_on("bert", "fill-mask")
    size, random = checkpoint.description.hidden_size, np.random.default_rng(0)
    turn = np.linalg.qr(random.normal(size=(size, size)))[0]
    first = random.normal(size=(600, size))
    states = np.stack([first, first @ turn.T + random.normal(size=size)])
    inputs = {name: np.zeros(600, dtype=np.int64) for name in checkpoint.encode(TEXT).inputs}
    values = MaskTargets(states, inputs, np.arange(600))
    head = head_of(checkpoint)
    weights, biases = train_maps(head, values.of(values.lines < 500), 400, 0, nothing)
    plain, tuned = measure_losses(head, values.of(values.lines >= 500), weights, biases, nothing)
    assert tuned[0] < 0.02 * plain[0]


def test_zero_lens_equals_logit_lens_exactly(trained_on: Trained, tmp_path: Path) -> None:
    checkpoint = trained_on("bert", "fill-mask")
    lens = TuneLens(steps=1).of(checkpoint, LINES)
    for part in (lens.weights, lens.biases):
        part.flags.writeable = True
        part[:] = 0
    file = lens.save(tmp_path / "zero.safetensors")[0]
    trace = checkpoint.trace("we had [MASK] the ground")
    plain, tuned = (Lens(tuned=item).of(trace) for item in (None, str(file)))
    for name in ("ids", "ranks", "logits", "probabilities", "entropy"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(tuned, name))


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("name", ["bert", "modernbert", "albert"])
def test_tuned_lens_applies_its_maps(name: str, double_trained_on: Trained, tmp_path: Path) -> None:
    checkpoint = double_trained_on(name, "fill-mask")
    lens = TuneLens(steps=20, seed=2).of(checkpoint, LINES)
    assert lens.tuned.shape == (checkpoint.description.layers,)
    assert (lens.tuned < lens.logit_lens)[:-1].all()
    trace = checkpoint.trace(f"we had {checkpoint.tokenizer.mask_token} the ground")
    result = Lens(tuned=str(lens.save(tmp_path / "a.safetensors")[0]), top=10_000).of(trace)
    mask = result.places[0].position
    head, layer = head_of(checkpoint), 1
    vector = trace.vectors(layer)[mask]
    moved = vector + lens.weights[layer] @ vector + lens.biases[layer]
    inputs = {key: torch.from_numpy(values[[mask]]) for key, values in trace.encoding.inputs.items()}
    with torch.no_grad():
        logits = head(torch.from_numpy(moved)[None], inputs)[0].numpy()
    assert_exact(result.logits[layer, 0][np.argsort(result.ids[layer, 0])], logits)
    plain = Lens(top=10_000).of(trace)
    np.testing.assert_array_equal(plain.logits[-1], result.logits[-1], "the last layer is the model's answer")
    assert np.abs(plain.probabilities - result.probabilities)[:-1].max() > 1e-6
    assert result.metadata["tuned_lens"]["tuned_loss_bits"] == lens.tuned.tolist()


def test_public_server_does_not_train(trained_on: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = trained_on("bert", "fill-mask")
    TuneLens().check_limits(checkpoint, LINES)
    monkeypatch.setattr(lengths, "_task_bytes", 250_000_000)
    with pytest.raises(UnavailableError, match="does not train tuned lenses"):
        TuneLens().check_limits(checkpoint, LINES)


def test_seed_is_reproducible_and_held_out_lines_are_unused(trained_on: Trained) -> None:
    checkpoint = trained_on("bert", "fill-mask")
    reports: list[tuple[int, int]] = []
    first, again = (
        TuneLens(steps=3, seed=5).of(checkpoint, LINES, progress=lambda *now: reports.append(now))
        for _ in range(2)
    )
    assert first.digest == again.digest
    assert first.tuned.tolist() == again.tuned.tolist()
    assert first.digest != TuneLens(steps=3, seed=6).of(checkpoint, LINES).digest
    assert reports[-1][0] == reports[-1][1] > 3
    twice = TuneLens(steps=3, seed=5).of(checkpoint, [*LINES, "", *LINES])
    assert twice.digest == first.digest, "equal lines count once"
    half = TuneLens(steps=3, held_out=0.5).of(checkpoint, LINES)
    assert half.learned + half.kept == first.learned + first.kept
    assert half.kept > first.kept

    def give_up(done: int, _total: int) -> None:
        if done == 2:
            raise Cancelled

    with pytest.raises(Cancelled):
        TuneLens().of(checkpoint, LINES, progress=give_up)


def test_verdict_names_layers_without_improvement(trained_on: Trained) -> None:
    lens = TuneLens(steps=1).of(trained_on("bert", "fill-mask"), LINES)

    def message_of(plain: list[float], tuned: list[float]) -> str:
        created = TuneLensResult(
            lens.question, lens.inputs, lens.weights, lens.biases, np.array(plain), np.array(tuned), 9, 7
        )
        return created.verdict.removeprefix("On 7 held-out masked words, the tuned lens is ")

    assert (
        message_of([2, 2, 2], [1, 1, 1])
        == "closer to the model's prediction than the logit lens at all layers."
    )
    assert message_of([2, 2, 2], [2, 1, 1]).endswith(
        "not closer to the model's prediction than the logit lens at layer 0."
    )
    assert message_of([2, 2, 2], [3, 1, np.nan]).endswith("at layers 0, 2.")


def test_saved_lens_round_trips_with_provenance(trained_on: Trained, tmp_path: Path) -> None:
    checkpoint = trained_on("bert", "fill-mask")
    lens = TuneLens(steps=2, held_out=0.3).of(checkpoint, LINES)
    files = lens.save(tmp_path / "lens.safetensors")
    same = load_lens(files[0], checkpoint)
    assert same.digest == lens.digest
    assert same.provenance == lens.provenance == json.loads(files[1].read_text(encoding="utf-8"))
    assert same.python == lens.python
    assert list(same.table()) == ["layer", "plain_loss_bits", "tuned_loss_bits"]
    files[1].unlink()
    assert load_lens(files[0], checkpoint).provenance == lens.provenance
    with pytest.raises(ExportError, match="already exists"):
        lens.save(files[0], overwrite=False)
    assert lens.save(tmp_path / "losses.csv")[0].read_text().startswith("layer,plain_loss_bits")


def test_folder_of_saved_lenses(
    trained_folder: Callable[[str, str], Path],
    minilm: Checkpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert (
        lens_folder(minilm)
        == tmp_path / "data" / "bert-probe" / "tuned-lenses" / (minilm.description.weights_sha256[:16])
    )
    folder = tmp_path / "model"
    shutil.copytree(trained_folder("bert", "fill-mask"), folder)
    checkpoint = bert_probe.load(folder)
    assert newest_lens(checkpoint) is None
    first, second = (save_lens(TuneLens(steps=1, seed=seed).of(checkpoint, LINES), folder) for seed in (1, 2))
    assert first != second
    assert first.parent == folder
    os.utime(first, (2_000_000_000, 2_000_000_000))
    (folder / "tuned-lens-0.safetensors").write_bytes(b"broken")
    os.utime(folder / "tuned-lens-0.safetensors", (2_100_000_000, 2_100_000_000))
    result = newest_lens(bert_probe.load(folder))
    assert result is not None
    assert result[0] == first, "the newest readable lens is first"


def test_damaged_or_foreign_lens_raises_weights_error(trained_on: Trained, tmp_path: Path) -> None:
    checkpoint, other = trained_on("bert", "fill-mask"), trained_on("roberta", "fill-mask")
    lens = TuneLens(steps=1).of(checkpoint, LINES)
    file = lens.save(tmp_path / "lens.safetensors")[0]

    def refused(path: Path, checkpoint: Checkpoint = checkpoint) -> str:
        trace = checkpoint.trace(f"a {checkpoint.tokenizer.mask_token}")
        with pytest.raises(WeightsError) as caught:
            Lens(tuned=str(path)).of(trace)
        return str(caught.value)

    def save_lens(change: Callable[[Any], Any] = str, **arrays: np.ndarray) -> Path:
        record = json.loads(json.dumps(lens.provenance))
        change(record)
        path = tmp_path / "changed.safetensors"
        inputs = {"weights": lens.weights, "biases": lens.biases} | arrays
        save_file(
            {name: np.ascontiguousarray(part) for name, part in inputs.items()},
            path,
            {"bert_probe": json.dumps(record)},
        )
        return path

    assert "whose weights differ from those of" in refused(file, other)
    assert "There is no file" in refused(tmp_path / "none.safetensors")
    assert "There is no file" in refused(tmp_path)
    full = file.read_bytes()
    for part in (b"", full[:100], full[:-8], b"x" * 1000):
        (tmp_path / "part.safetensors").write_bytes(part)
        assert "damaged or truncated" in refused(tmp_path / "part.safetensors")
    for record in ({}, {"bert_probe": "1"}, {"bert_probe": "[" * 100_000}):
        save_file({"weights": lens.weights}, tmp_path / "bare.safetensors", record)
        assert "is not a tuned lens" in refused(tmp_path / "bare.safetensors")
    assert "shapes" in refused(save_lens(weights=lens.weights[:1]))
    assert "shapes" in refused(save_lens(more=lens.biases))
    assert "float32 or float64" in refused(save_lens(biases=lens.biases.astype(np.int64)))
    assert "not finite" in refused(save_lens(biases=lens.biases * np.nan))
    for change in (
        lambda record: record.pop("facts"),
        lambda record: record["facts"].update(tuned_loss_bits=[1.0]),
        lambda record: record["facts"].update(tuned_loss_bits="no"),
        lambda record: record["question"].update(steps=-1),
        lambda record: record["question"].update(more=1),
        lambda record: record.pop("sentences"),
        lambda record: record.update(sentences="many"),
        lambda record: record.update(dtype=[1]),
        lambda record: record.update(libraries=1),
    ):
        assert "incomplete or invalid" in refused(save_lens(change))


def test_killed_save_keeps_the_old_lens(
    trained_on: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = trained_on("bert", "fill-mask")
    lens, next_one = (TuneLens(steps=1, seed=seed).of(checkpoint, LINES) for seed in (1, 2))
    file = lens.save(tmp_path / "lens.safetensors")[0]

    def killed(_self: Path, _target: Path) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            next_one.save(file)
    assert load_lens(file, checkpoint).digest == lens.digest
    assert next_one.save(file)
    assert load_lens(file, checkpoint).digest == next_one.digest


def test_unusable_lines_raise_errors(trained_on: Trained, minilm: Checkpoint) -> None:
    checkpoint = trained_on("bert", "fill-mask")
    long = "river " * 600
    for lines, error, words in (
        ([], EmptyTextError, "There is no line"),
        (["", "  "], EmptyTextError, "There is no line"),
        (["One line"], TextError, "needs at least two different lines"),
        (["One line", "One line"], TextError, "needs at least two different lines"),
        (["One line", "ONE  line"], TextError, "needs at least two different lines"),
        (["\u4e00", "\u4e01"], TextError, "needs at least two different lines"),
        ([TEXT, long, "A boat", long], TextError, r"The list has 2 errors: line 2: .* tokens.*; line 4: "),
        (["\u4e00", "\u4e00\u4e01"], EmptyTextError, "No line has a token that can be masked"),
        (["\u4e00", TEXT], TextError, "Too few of these lines"),
    ):
        with pytest.raises(error, match=words):
            TuneLens(steps=1).of(checkpoint, lines)
    assert TuneLens(steps=1).of(checkpoint, [TEXT, long], truncate=True).kept
    assert TuneLens(steps=1).of(checkpoint, ["[MASK] a river", "The [MASK]"]).kept
    with pytest.raises(bert_probe.UnavailableError, match="no trained head for fill-mask"):
        TuneLens().of(minilm, LINES)
    for share in (0.0, 1.0):
        with pytest.raises(SelectionError, match="greater than 0 and less than 1"):
            TuneLens(held_out=share)


def test_too_many_masks_raise_error_before_the_model_runs(
    trained_on: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lens_training, "MAX_BYTES", 1_000)
    with pytest.raises(TextError, match=r"8 lines have \d+ masked words"):
        TuneLens().of(trained_on("bert", "fill-mask"), LINES)


def test_tuned_lens_needs_masks(trained_on: Trained, tmp_path: Path) -> None:
    checkpoint = trained_on("bert", "fill-mask")
    file = str(TuneLens(steps=1).of(checkpoint, LINES).save(tmp_path / "lens.safetensors")[0])
    with pytest.raises(SelectionError, match="applies to masks, but the text has none"):
        Lens(tuned=file).of(checkpoint.trace(TEXT))
    assert Lens(tuned=file, mask=5).of(checkpoint.trace(TEXT)).tuned
    with pytest.raises(SelectionError, match="tuned lenses need a fill-mask head"):
        Lens(tuned=file).of(trained_on("bert", "text-classification").trace(TEXT))
