"""Test the command train: its output, its errors, and interruption."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import shlex
import signal
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import bert_probe
from bert_probe import Train
from bert_probe.training.saving import reserve_folder
from bert_probe.training.training_loop import TrainingLoop
from bert_probe.training.training_result import TrainingResult
from tests.helpers import sentence_models
from tests.helpers.command_line import CommandResult, run_in_shell
from tests.helpers.command_line import bert_probe as run
from tests.helpers.gate import prove_unless
from tests.helpers.teaching import texts


def write(file: Path, count: int = 24, seed: int = 0) -> Path:
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["text", "label"])
        writer.writerows([row.text, row.label] for row in texts(count, seed=seed).rows)
    return file


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family_folder: Callable[[str], Path]) -> Path:
    """Write training data and a model into a folder, and change to it."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "data.csv")
    (tmp_path / "bert").symlink_to(family_folder("bert"))
    return tmp_path


def train(*words: str) -> CommandResult:
    return run("train", "data.csv", "--model", "bert", "--out", "trained", "--epochs", "2", *words)


@pytest.mark.usefixtures("folder")
def test_history_is_printed_and_model_is_saved() -> None:
    ended = train("--update", "top:1", "--lr", "1e-3", "--batch", "8", "--seed", "3", "--log", "log.jsonl")
    assert ended.status == 0, ended.err
    rows = list(csv.DictReader(io.StringIO(ended.text)))
    assert [*rows[0]] == ["step", "epoch", "loss", "held_out_loss", "accuracy", "kept"]
    messages = ended.err.splitlines()
    assert messages[0].startswith(
        "20 texts are used for training, and 4 are held out. 8,626 of 32,722 parameters are updated in "
        "6 steps of 8"
    )
    assert messages[-1] == "Saved in trained."
    log = [json.loads(line) for line in Path("log.jsonl").read_text().splitlines()]
    assert [str(evaluation["step"]) for evaluation in log] == [row["step"] for row in rows]
    assert bert_probe.load("trained").outputs["text-classification"].labels == ("with", "without")
    question = Train("top:1", 2, 1e-3, 8, seed=3)
    data = bert_probe.read_labeled_texts("data.csv")
    history = question.of(bert_probe.load("bert"), data).history
    losses = [evaluation.held_out_loss for evaluation in history]
    assert losses == [float(row["held_out_loss"]) for row in rows]


@pytest.mark.prove
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("has_held_out_file", prove_unless({True}, [False, True]))
def test_snippets_train_the_same_model(has_held_out_file: bool) -> None:
    held_out = (
        bert_probe.read_labeled_texts(write(Path("held_out.csv"), 8, seed=4)) if has_held_out_file else None
    )
    question = Train(epochs=2, batch=4, seed=1, held_out=0.2 if has_held_out_file else 0.5)
    result = question.of(bert_probe.load("bert"), bert_probe.read_labeled_texts("data.csv"), held_out)
    *lines, last = result.python.splitlines()
    names: dict[str, Any] = {}
    exec("\n".join(lines), names)
    again = eval(last, names)
    assert again.equals(result.table())
    assert again.attrs["provenance"] == json.loads(json.dumps(result.provenance))
    ended = run(*shlex.split(result.shell)[1:])
    assert ended.status == 0, ended.err
    losses = [float(row["held_out_loss"]) for row in csv.DictReader(io.StringIO(ended.text))]
    assert losses == pytest.approx(result.table()["held_out_loss"].tolist())
    assert bert_probe.load("trained").tasks == ("text-classification",)


SIGNALS = [["SIGINT"], ["SIGTERM"], ["SIGHUP", "SIGHUP"], ["SIGHUP", "SIGTERM"], ["SIGTERM", "SIGINT"]]


@pytest.mark.gate(cases=1)
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("names", prove_unless([["SIGINT"], ["SIGHUP", "SIGTERM"]], SIGNALS), ids=" ".join)
def test_signals_keep_the_best_weights(names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    step = TrainingLoop.step

    def interrupted(self: TrainingLoop, done: int, loss: Any) -> bool:
        if done == 7:
            for name in names:
                signal.raise_signal(getattr(signal, name))
        return step(self, done, loss)

    monkeypatch.setattr(TrainingLoop, "step", interrupted)
    # Without this, the test would fail under nohup, where SIGHUP is ignored.
    numbers = (signal.SIGTERM, signal.SIGHUP)
    previous = [(number, signal.signal(number, signal.SIG_DFL)) for number in numbers]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        ended = train("--batch", "4", "--epochs", "6")
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        for number, handler in previous:
            signal.signal(number, handler)
    assert ended.status == 0, ended.err
    assert "The training was stopped. The model has the weights of step" in ended.err
    assert bert_probe.load("trained").tasks == ("text-classification",)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("folder")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_training_without_space_for_its_log_is_saved() -> None:
    ended = train("--epochs", "2", "--log", "/dev/full")
    assert ended.status == 0, ended.err
    warning = "Warning: /dev/full cannot be written: No space left on device. The command continues without"
    assert ended.err.count(warning) == 1
    assert bert_probe.load("trained").tasks == ("text-classification",)


@pytest.mark.prove
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    ("redirection", "reason"),
    prove_unless(
        lambda case: case[0] == ">/dev/full",
        [
            (">&-", "Standard output is closed. The table cannot be printed."),
            (">/dev/full", "Standard output cannot be written: No space left on device."),
        ],
    ),
)
def test_model_and_table_are_saved_without_standard_output(
    redirection: str, reason: str, folder: Path
) -> None:
    (folder / "temporary").mkdir()
    command = f"probe train {folder}/data.csv --model {folder}/bert --out {folder}/trained --epochs 1"
    ended = run_in_shell(f'TMPDIR="{folder}/temporary" {command} {redirection}')
    assert ended.returncode == 2
    (table,) = folder.glob("temporary/bert-probe-*/table.csv")
    assert table.read_bytes().startswith(b"step,epoch,loss,")
    assert ended.stderr.decode().splitlines()[-2:] == [
        f"Saved in {folder}/trained.",
        f"bert-probe: {reason} The result is in {table}.",
    ]
    assert bert_probe.load(folder / "trained").tasks == ("text-classification",)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("failures", [1, 2])
def test_model_that_does_not_fit_on_its_disk_is_saved_elsewhere(
    failures: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill, seen = TrainingResult._fill, []

    def failing(self: TrainingResult, folder: Path) -> None:
        seen.append(folder)
        if len(seen) <= failures:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fill(self, folder)

    monkeypatch.setattr(TrainingResult, "_fill", failing)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = train("--epochs", "2")
    assert ended.status == 2
    assert "No space left on device" in ended.err
    assert not Path("trained").exists()
    if failures == 1:
        (folder,) = tmp_path.glob("bert-probe-*/trained")
        assert f"The result is in {folder}." in ended.err
        assert bert_probe.load(folder).tasks == ("text-classification",)
    else:
        assert not [*tmp_path.glob("bert-probe-*")]


@pytest.mark.usefixtures("folder")
def test_ctrl_c_before_the_first_evaluation_saves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingLoop, "step", lambda *_: signal.raise_signal(signal.SIGINT))
    ended = train("--epochs", "1")
    assert ended.status == 130
    assert not Path("trained").exists()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--held-out", "0.95"], "held_out must be 0 to 0.9, not 0.95."),
        (["--held-out", "none.csv"], "none.csv cannot be opened"),
        (["--update", "some"], "update must be head, top:K"),
        (["--lr", "fast"], "rate must be a number, not 'fast'."),
        (["--log", "no/where.jsonl"], "no/where.jsonl cannot be written"),
        (["--out", "bert"], "bert already exists"),
        (["--out", "no/where"], "There is no folder"),
        (["--labels", "number"], "is not a number"),
    ],
)
def test_invalid_options_are_refused(words: list[str], reason: str) -> None:
    ended = train(*words)
    assert ended.status == 2
    assert reason in ended.err.splitlines()[-1]
    assert ended.out == b""
    assert not Path("trained").exists()


@pytest.mark.usefixtures("folder")
def test_unusable_data_are_refused() -> None:
    with Path("large.csv").open("wb") as large:
        large.truncate(10**9)
    Path("empty.csv").write_text("text,label\n")
    for name, reason in (("large.csv", "larger than 50 MB. Split the file"), ("empty.csv", "has no rows")):
        ended = run("train", name, "--model", "bert", "--out", "trained")
        assert (ended.status, ended.out) == (2, b"")
        assert reason in ended.err.splitlines()[-1]
    assert not Path("trained").exists()


@pytest.mark.prove
@pytest.mark.usefixtures("folder")
def test_training_again_with_another_seed_gives_a_warning() -> None:
    assert train().status == 0
    ended = run("train", "data.csv", "--model", "trained", "--out", "twice", "--epochs", "1", "--seed", "1")
    assert ended.status == 0, ended.err
    assert ended.err.count("Warning: This model was trained on this data") == 1
    ended = run("train", "data.csv", "--model", "trained", "--out", "trained", "--epochs", "1", "--force")
    assert ended.status == 0, ended.err
    assert "Warning" not in ended.err
    assert len(bert_probe.load("trained").training_history) == 2


@pytest.mark.usefixtures("folder")
def test_second_training_into_a_folder_is_refused_before_the_model_is_opened() -> None:
    second = ("train", "data.csv", "--model", "no-such-model", "--out", "./trained")
    for force in ((), ("--force",)):
        with reserve_folder(Path("trained"), False):
            ended = ThreadPoolExecutor(1).submit(run, *second, *force).result()
        assert ended.refusal.endswith(
            "is being written by another command. Wait until that command has ended, or choose another name."
        )
    assert "no-such-model" in run(*second).refusal


@pytest.mark.usefixtures("folder")
def test_failed_training_leaves_no_reservation(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(path.name for path in Path.cwd().iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(TrainingLoop, "step", Mock(side_effect=RuntimeError("broken")))
        with pytest.raises(RuntimeError, match="broken"):
            train()
    assert sorted(path.name for path in Path.cwd().iterdir()) == before
    assert train().status == 0


@pytest.mark.usefixtures("folder")
def test_force_does_not_replace_a_folder_of_other_files() -> None:
    for name, content in (("config.json", "{}"), (".git/HEAD", "ref"), ("thesis.docx", "years")):
        Path("mine", name).parent.mkdir(parents=True, exist_ok=True)
        Path("mine", name).write_text(content)
    command = ("train", "data.csv", "--model", "no-such-model", "--out", "mine", "--force")
    assert run(*command).refusal.startswith("mine is not replaced, because .git was not saved by BERT Probe.")
    assert Path("mine/.git/HEAD").read_text() == "ref"


@pytest.mark.usefixtures("folder")
def test_force_does_not_wait_for_a_pipe_in_the_folder() -> None:
    assert run("train", "data.csv", "--model", "bert", "--out", "trained", "--epochs", "1").status == 0
    Path("trained/config.json").unlink()
    os.mkfifo("trained/config.json")
    ended = run("train", "data.csv", "--model", "no-such-model", "--out", "trained", "--force")
    assert "config.json has changed since BERT Probe saved it" in ended.refusal


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--out", "~/no/trained"), "There is no folder"),
        (("--out", "caf\udce9"), "is not UTF-8"),
        (("--out", "dangling"), "There is no folder"),
        (("--out", "loop"), "is a symbolic link that forms a loop"),
        (("--out", "trained", "--log", "data.csv"), "data.csv already exists"),
        (("--out", "trained", "--log", "trained/log.jsonl"), "is in the output folder trained"),
        (("--out", "trained", "--log", "./trained"), "is the output folder trained"),
        (("--out", "trained", "--log", "no/log.jsonl"), "no/log.jsonl cannot be written"),
    ],
)
def test_output_that_cannot_be_written_is_refused_before_the_model_is_opened(
    words: tuple[str, ...], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(Path.cwd()))
    Path("dangling").symlink_to("no/trained")
    Path("loop").symlink_to("loop")
    before = sorted(path.name for path in Path.cwd().iterdir())
    data = Path("data.csv").read_bytes()
    assert reason in run("train", "data.csv", "--model", "no-such-model", *words).refusal
    assert sorted(path.name for path in Path.cwd().iterdir()) == before
    assert Path("data.csv").read_bytes() == data


@pytest.mark.usefixtures("folder")
def test_quoted_home_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(Path.cwd()))
    ended = run("train", "data.csv", "--model", "bert", "--out", "~/trained", "--epochs", "1")
    assert ended.status == 0, ended.err
    assert Path("trained/config.json").is_file()
    assert not Path("~").exists()


@pytest.mark.usefixtures("folder")
def test_json_lines_are_read_as_labeled_texts() -> None:
    rows = [json.dumps({"text": row.text, "label": row.label}) for row in texts(24).rows]
    Path("data.jsonl").write_text("\n".join(rows))
    Path("lines.txt").write_text("\n".join(rows))
    options = ("--model", "bert", "--epochs", "1", "--batch", "8")
    ended = run("train", "data.jsonl", *options, "--out", "trained")
    assert ended.status == 0, ended.err
    assert ended.text == run("train", "data.csv", *options, "--out", "same").text
    refusal = run("train", "lines.txt", *options, "--out", "lines").refusal
    assert (
        "is read as plain text, but it looks like JSON lines. Change the file extension to .jsonl."
    ) in refusal
    assert run("train", "lines.txt", *options, "--out", "lines", "--as-named").status == 0


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--lr", "1e30"), "rate must be 1e-08 to 1, not 1e30."),
        (("--lr", "nan"), "rate must be a number, not 'nan'."),
        (
            ("--epochs", "1e30"),
            "epochs must be a whole number in digits, 1 to 10000, not 1e30.",
        ),
        (("--epochs", "9" * 20), "epochs must be 1 to 10000, not 99999999999999999999."),
        (("--epochs", "-3"), "epochs must be 1 to 10000, not -3."),
        (("--held-out", "1e30"), "held_out must be 0 to 0.9, not 1e+30."),
        (("--held-out", "-0.5"), "held_out must be 0 to 0.9, not -0.5."),
    ],
)
def test_number_out_of_bounds_is_refused_with_the_bounds(words: tuple[str, ...], reason: str) -> None:
    assert reason in train(*words).refusal


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([(f"text {n}", f"label {n}") for n in range(30)], "Each of the 30 texts has a different label"),
        ([("same", n % 2) for n in range(12)], "All 12 texts are equal"),
        (
            [("a  same Text".title() if n else "a same text", n % 2) for n in range(12)],
            "only in case, spaces",
        ),
        (
            [(f"text {n}", n * 1e300) for n in range(30)],
            "is too large; the absolute value must be at most 1e+15",
        ),
        ([(f"text {n}", n / 2 if n else "nan") for n in range(30)], "nan is not finite"),
    ],
)
def test_data_that_cannot_be_learned_are_refused(rows: list[tuple[str, Any]], reason: str) -> None:
    with Path("odd.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([("text", "label"), *rows])
    assert reason in run("train", "odd.csv", "--model", "bert", "--out", "trained").refusal


def test_columns_select_the_task(folder: Path, family_folder: Callable[[str], Path]) -> None:
    sentence_models.save("cls", family_folder("bert"), folder / "sentences")
    pairs = "".join(f"the river {number % 7},a boat {number % 5}\n" for number in range(20))
    (folder / "pairs.csv").write_text(f"anchor,positive\n{pairs}")
    ended = run(
        "train", "pairs.csv", "--model", "sentences", "--out", "similar", "--update", "top:1", "--epochs", "1"
    )
    assert ended.status == 0, ended.err
    rows = list(csv.DictReader(io.StringIO(ended.text)))
    assert "recall@1" in rows[0]
    assert rows[0]["step"] == "0"
    assert "sentence-similarity" in bert_probe.load("similar").tasks
    ended = run("train", "data.csv", "--model", "sentences", "--out", "head", "--log", "log.jsonl")
    assert ended.status == 0, ended.err
    rows = list(csv.DictReader(io.StringIO(ended.text)))
    assert [*rows[0]] == ["step", "C", "loss", "held_out_loss", "accuracy", "kept"]
    log = [json.loads(line) for line in Path("log.jsonl").read_text().splitlines()]
    assert [evaluation["C"] for evaluation in log] == [float(row["C"]) for row in rows]
    assert Path("head/predict.py").exists()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("header", "row", "options"),
    [
        ("anchor,positive", "a river {0},a boat {0}", ()),
        ("text_a,text_b,score", "a river {0},a boat {0},{0}", ("--loss", "cosent")),
        ("text_a,text_b,score", "a river {0},a boat {0},{0}", ("--task", "sentence-similarity")),
    ],
)
def test_similarity_without_a_pooling_names_the_model(
    header: str, row: str, options: tuple[str, ...]
) -> None:
    Path("pairs.csv").write_text("\n".join([header, *map(row.format, range(20))]))
    refusal = run("train", "pairs.csv", "--model", "bert", "--out", "similar", *options).refusal
    assert "does not declare its pooling, which training on sentence similarity requires" in refusal


@pytest.mark.usefixtures("folder")
def test_scores_without_a_pooling_train_a_regression_head() -> None:
    rows = [f"a river {number},a boat {number},{number}" for number in range(20)]
    Path("pairs.csv").write_text("\n".join(["text_a,text_b,score", *rows]))
    ended = run("train", "pairs.csv", "--model", "bert", "--out", "scores", "--epochs", "1")
    assert ended.status == 0, ended.err
    assert bert_probe.load("scores").tasks == ("text-classification",)
