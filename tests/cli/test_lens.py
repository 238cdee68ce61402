"""Test the commands lens and tune-lens."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import bert_probe
from bert_probe.analyses.outputs.tuned_lens import TuneLens, load_lens, newest_lens
from bert_probe.cli import predict
from bert_probe.model.checkpoint import Checkpoint
from tests.helpers import command_line
from tests.helpers.command_line import CommandResult
from tests.helpers.families import TEXT
from tests.helpers.questions import SENTENCES

Run = Callable[..., CommandResult]


@pytest.fixture
def run(minilm: Checkpoint) -> Run:
    """Return a function that runs a command in this process."""
    return partial(command_line.bert_probe, built_in=minilm)


@pytest.fixture
def lines(tmp_path: Path) -> str:
    """Write a file of sentences and return its path."""
    file = tmp_path / "lines.txt"
    file.write_text("\n".join(SENTENCES), encoding="utf-8")
    return str(file)


def test_tuned_lens_is_saved_and_used(
    run: Run, lines: str, trained_folder: Callable[[str, str], Path], tmp_path: Path
) -> None:
    model, file = str(trained_folder("bert", "fill-mask")), tmp_path / "mine.safetensors"
    ended = run("tune-lens", lines, "--steps", "2", "--model", model, "--out", str(file))
    assert ended.status == 0
    assert ended.text.startswith("layer,plain_loss_bits,tuned_loss_bits\n0,")
    assert "held-out masked words, the tuned lens is" in ended.err
    assert {path.name for path in tmp_path.iterdir()} == {
        "lines.txt",
        "mine.safetensors",
        "mine.safetensors.meta.json",
    }
    assert "replace it with --force" in run("tune-lens", lines, "--model", model, "--out", str(file)).refusal
    plain, tuned = (
        run("lens", TEXT, "--mask", "ground", "--model", model, *more)
        for more in ([], ["--tuned", str(file)])
    )
    assert tuned.status == 0
    assert tuned.err == ended.err, "the verdict is printed again"
    assert plain.text.splitlines()[0] == tuned.text.splitlines()[0]
    assert plain.text.splitlines()[1] != tuned.text.splitlines()[1]
    assert plain.text.splitlines()[-5:] == tuned.text.splitlines()[-5:], (
        "the last layer is the model's prediction"
    )


def test_lens_is_saved_with_the_model_by_default(
    run: Run, lines: str, trained_folder: Callable[[str, str], Path], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(trained_folder("bert", "fill-mask"), model)
    ended = run("tune-lens", lines, "--steps", "1", "--model", str(model))
    (lens,) = model.glob("tuned-lens-*.safetensors")
    assert f"The tuned lens was saved in {lens}." in ended.err
    losses = str(tmp_path / "losses.csv")
    table = run("tune-lens", lines, "--steps", "1", "--model", str(model), "--out", losses)
    assert table.status == 0
    assert (tmp_path / "losses.csv").read_text().startswith("layer,")
    assert len([*model.glob("tuned-lens-*.safetensors")]) == 1, (
        "--out with another extension writes only the table"
    )


def test_lens_without_a_home_folder_is_refused_before_the_training(
    run: Run, lines: str, minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("XDG_DATA_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", missing)
    monkeypatch.delattr(TuneLens, "of")
    assert run("tune-lens", lines).refusal == (
        "There is no home folder to save the tuned lens in. Pass --out FILE.safetensors, or set "
        "XDG_DATA_HOME to a folder."
    )
    assert newest_lens(minilm) is None


def test_lens_is_saved_elsewhere_if_its_folder_cannot_be_written(
    lines: str,
    trained_folder: Callable[[str, str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = bert_probe.load(trained_folder("bert", "fill-mask"))
    monkeypatch.setattr(predict, "lens_folder", lambda _: Path(lines) / "lenses")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    words = ("tune-lens", lines, "--steps", "1", "--model", "m")
    ended = command_line.bert_probe(*words, checkpoints={"m": model})
    (file,) = tmp_path.glob("bert-probe-*/lenses/*.safetensors")
    assert ended.status == 2
    assert f"Not a directory. Choose another path. The result is in {file.parent}.\n" in ended.err
    assert len(load_lens(file, model).weights) == model.description.layers


def test_invalid_options_are_refused(
    run: Run, lines: str, trained_folder: Callable[[str, str], Path]
) -> None:
    model = str(trained_folder("bert", "fill-mask"))
    assert "Missing argument 'TEXT'" in run("lens", "--model", model).refusal
    assert "Missing argument 'FILE'" in run("tune-lens", "--model", model).refusal
    assert "No such option '--steps'" in run("lens", TEXT, "--steps", "2", "--model", model).refusal
    assert "No such option '--top'" in run("tune-lens", lines, "--top", "2", "--model", model).refusal
    assert "No such option '--pair'" in run("tune-lens", lines, "--pair", TEXT, "--model", model).refusal
    assert "nowhere.txt cannot be opened" in run("tune-lens", "nowhere.txt", "--model", model).refusal
    assert "There is no file" in run("lens", TEXT, "--tuned", "no.safetensors", "--model", model).refusal
    assert "no trained head for fill-mask" in run("tune-lens", lines).refusal
    assert "csv" in run("lens", TEXT, "--model", model, "--out", "a.safetensors").refusal
