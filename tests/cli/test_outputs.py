"""Test that commands reserve their output files before they load a model."""

from __future__ import annotations

import errno
import json
import os
import resource
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import bert_probe
from bert_probe import Tokens
from bert_probe.cli import options
from bert_probe.cli.logs import open_log
from bert_probe.conversion.convert import convert
from bert_probe.core import writing
from bert_probe.core.result import save
from bert_probe.core.writing import reserved
from bert_probe.corpus import workers
from bert_probe.corpus.store import open_corpus, write_shard
from bert_probe.corpus.vector_files import read_vectors
from bert_probe.errors import ExportError, NotFoundError, TextError, WrittenElsewhereError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.reports.view_files import ViewFile
from bert_probe.views import pictures
from tests.helpers.command_line import bert_probe as run

COMMANDS = (
    ("attention", "We left.", "--out", "{}.csv"),
    ("attention", "We left.", "--out", "{}.html"),
    ("attention", "We left.", "--save-view", "{}.json"),
    ("sentences", "lines.txt", "--out", "{}.npz"),
    ("evaluate", "no-such-model", "lines.txt", "--out", "{}.json"),
    ("tune-lens", "lines.txt", "--out", "{}.safetensors"),
    ("report", "no-such-view.json", "--out", "{}.zip"),
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    Path("lines.txt").write_text("We left.\nWe came back.\n")
    Path("dangling").symlink_to("no/where")
    return tmp_path


def test_result_without_figure_is_refused_before_the_computation() -> None:
    message = "The result of {} has no figure. Choose another extension for --out, such as .csv."
    for name, *words in (("tokens", "We left."), ("diff parameters", "a", "b"), ("tune-lens", "lines.txt")):
        assert run(*name.split(), *words, "--out", "a.svg").refusal == message.format(name)
    assert not Path("a.svg").exists()


def test_table_without_figure_is_saved_elsewhere(minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "is_drawn", lambda _: False)
    message = run("heads", "We left.", "--out", "a.svg", built_in=minilm).refusal
    assert message.startswith("This result has no figure. Choose another extension for --out, such as .csv.")
    path = message.removesuffix(".").rpartition("The result is in ")[2]
    assert len(pd.read_csv(path)) == len(bert_probe.Heads().of(minilm.trace("We left.")).table())
    assert Path(path).name == "a.csv"
    assert not Path("a.svg").exists()


def command(words: tuple[str, ...], place: str) -> tuple[str, ...]:
    model = () if words[0] in ("evaluate", "report") else ("--model", "no-such-model")
    return (*(word.format(place) for word in words), *model)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("place", ["no/where", "~/where", "lines.txt/where", "loop", "n" * 300])
def test_output_that_cannot_be_written_is_refused_before_anything_is_opened(
    words: tuple[str, ...], place: str
) -> None:
    output = Path(words[-1].format(place))
    if place == "loop":
        output.symlink_to(output)
    before = sorted(path.name for path in Path.cwd().iterdir())
    assert "cannot be written: " in run(*command(words, place)).refusal
    assert sorted(path.name for path in Path.cwd().iterdir()) == before


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_output_that_another_command_writes_is_refused_at_once(words: tuple[str, ...]) -> None:
    output = Path(words[-1].format("out"))
    with reserved([output], overwrite=False):
        for force in ((), ("--force",)):
            ended = ThreadPoolExecutor(1).submit(run, *command(words, "out"), *force).result()
            assert "is being written by another command" in ended.refusal
    assert "no-such" in run(*command(words, "out")).refusal
    assert not output.exists()


def test_lens_whose_description_exists_is_refused_before_it_is_trained() -> None:
    Path("x.safetensors.meta.json").write_text("mine")
    ended = run("tune-lens", "lines.txt", "--out", "x.safetensors", "--model", "no-such-model")
    assert ended.refusal.startswith("x.safetensors.meta.json already exists.")


def test_two_outputs_in_one_file_are_refused() -> None:
    words = ("attention", "We left.", "--model", "no-such-model", "--out", "x.json", "--save-view", "x.json")
    assert run(*words).refusal == "x.json is the path of two output files. Choose different paths."


def test_log_is_not_appended_to_the_inputs_of_a_corpus() -> None:
    Path("data.jsonl").write_text(json.dumps({"text": "We left."}) + "\n")
    before = Path("data.jsonl").read_bytes()
    ended = run("corpus", "run", "data.jsonl", "--out", "store", "--log", "data.jsonl")
    assert ended.refusal == "data.jsonl is read by this command. Choose another file to write."
    assert Path("data.jsonl").read_bytes() == before
    assert not Path("store").exists()


SHARD = {"seconds": 0.5, "shard": 1, "refusals": 0, "records": 2, "of": 2}
EVALUATION = {"step": 1, "epoch": 1.0, "loss": 0.5, "held_out_loss": None, "measure": 0.5, "seconds": 2.0}
CORPUS_RUN = ("corpus", "run", "lines.txt", "--out", "store")
TRAIN = ("train", "lines.txt", "--out", "trained", "--force")


@pytest.mark.parametrize(
    ("words", "event", "other"),
    [
        (CORPUS_RUN, SHARD, EVALUATION),
        (TRAIN, EVALUATION, SHARD),
        (TRAIN, EVALUATION | {"C": 1.0}, SHARD),
    ],
    ids=["corpus run", "train", "train a head"],
)
def test_only_own_logs_are_changed(
    words: tuple[str, ...], event: dict[str, Any], other: dict[str, Any]
) -> None:
    log = Path("log.jsonl")
    line = json.dumps(event)
    others = [other, event | {"lr": 1.0}, {"seconds": 0.5, "text": "We left."}, {"step": 1, "loss": 0.5}, []]
    lines = [*map(json.dumps, others), f"{line}\nmine", f"{line}\n", f"{line} {line}"]
    for content in (*(f"{text}\n" for text in lines), line):
        log.write_text(content)
        refusal = run(*words, "--model", "no-such-model", "--log", "log.jsonl").refusal
        assert refusal.startswith("log.jsonl exists and is not a log that this command wrote.")
        assert log.read_text() == content
    for content in ("", f"{line}\n{line}\n"):
        log.write_text(content)
        assert "no-such-model" in run(*words, "--model", "no-such-model", "--log", "log.jsonl").refusal
        assert log.read_text() == content


def test_log_in_the_folder_of_the_store_is_refused() -> None:
    for log, relation in (("store/log.jsonl", "is in"), ("./store", "is")):
        assert run(*CORPUS_RUN, "--log", log).refusal == (
            f"The log {Path(log)} {relation} the output folder store. Choose another path for the log."
        )


def test_incomplete_line_of_a_full_disk_is_removed_from_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    log = Path("log.jsonl")
    line = json.dumps(SHARD) + "\n"
    log.write_text(line)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(line) + 9, limits[1]))
    try:
        with open_log(log, "a", [tuple(SHARD)]) as write:
            write(SHARD)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "The command continues without the log." in capsys.readouterr().err
    assert log.read_text() == line


def test_outputs_of_a_corpus_run_are_not_inputs(minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("texts").mkdir()
    Path("texts/a.txt").write_text("We left.\nWe came back.\nIt rained.\n")
    outputs = ("--out", "texts/store", "--log", "texts/log.jsonl", "--model", "m")
    words: tuple[str, ...] = ("corpus", "run", "texts", "texts/*", *outputs, "--shard-rows", "1")

    def interrupted(*arguments: Any) -> object:
        if arguments[1] == 2:
            raise KeyboardInterrupt
        return write_shard(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(workers, "write_shard", interrupted)
        assert "Run the same command to continue." in run(*words, checkpoints={"m": minilm}).err
    ended = run(*words, checkpoints={"m": minilm})
    assert ended.status == 0, ended.err
    events = [json.loads(line) for line in Path("texts/log.jsonl").read_text().splitlines()]
    assert [event["records"] for event in events] == [1, 2, 3]
    assert [file["name"] for file in open_corpus("texts/store").manifest["inputs"]] == ["a.txt"]
    table = "texts/store/profiles/00000.parquet"
    for name in ("new.jsonl", table):
        words = ("corpus", "run", name, "--out", "texts/store", "--log", "new.jsonl", "--model", "m")
        refusal = run(*words, checkpoints={"m": minilm}).refusal
        assert refusal == f"{name} is written by this run. Choose another input, or another output."


@pytest.mark.parametrize("out", ["lines.txt", "lines.txt/store", "loop"])
def test_store_that_cannot_be_written_is_refused_before_the_model_is_opened(out: str) -> None:
    Path("loop").symlink_to("loop")
    ended = run("corpus", "run", "lines.txt", "--out", out, "--model", "no-such-model")
    assert out.partition("/")[0] in ended.refusal
    assert "no-such-model" not in ended.refusal


@pytest.mark.parametrize("link", ["", "symbolic", "hard"])
def test_input_is_not_replaced_by_an_output_even_with_force(link: str) -> None:
    output = Path("lines.csv" if not link else "other.csv")
    Path("lines.csv").write_text("text\nWe left.\n")
    if link == "symbolic":
        output.symlink_to("lines.csv")
    elif link == "hard":
        output.hardlink_to("lines.csv")
    ended = run("sentences", "lines.csv", "--out", str(output), "--force", "--model", "no-such-model")
    assert ended.refusal == f"{output} is read by this command. Choose another file to write."
    assert Path("lines.csv").read_text() == "text\nWe left.\n"


@pytest.mark.parametrize(
    ("marker", "output"), [("config.json", "tokenizer.json"), ("manifest.json", "rows/00000.parquet")]
)
def test_file_of_a_folder_that_is_read_is_not_replaced_even_with_force(marker: str, output: str) -> None:
    file = Path("m") / output
    file.parent.mkdir(parents=True)
    for path in (file, Path("m") / marker):
        path.write_text("{}")
    ended = run("tokens", "We left.", "--model", "m", "--out", f"./m/{output}", "--force")
    assert ended.refusal == f"{file} is read by this command. Choose another file to write."
    assert file.read_text() == "{}"


def test_file_of_a_model_that_a_view_file_names_is_not_replaced(minilm: Checkpoint) -> None:
    Path("m").mkdir()
    Path("m/config.json").write_text("{}")
    view = ViewFile.of(Tokens().of(minilm.trace("We left.")))
    model = replace(view.models[0], name="m")
    Path("view.json").write_bytes(replace(view, models=(model,)).to_bytes())
    ended = run("ask", "view.json", "--yes", "--out", "m/config.json", "--force")
    assert "m/config.json is read by this command" in ended.refusal
    assert Path("m/config.json").read_text() == "{}"


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("out", ["~no-user", "./~", "./~root"])
def test_tilde_that_is_not_a_home_folder_is_part_of_the_name(
    out: str, family_folder: Callable[[str], Path]
) -> None:
    Path("data.csv").write_text("text,label\n" + "".join(f"A boat {n}.,{n % 2}\n" for n in range(40)))
    ended = run("train", "data.csv", "--model", str(family_folder("bert")), "--out", out, "--epochs", "1")
    assert ended.status == 0, ended.err
    folder = Path.cwd() / out
    assert (folder / "config.json").is_file()
    assert f"Saved in {folder}." in ended.err
    if out == "~no-user":
        assert "text-classification" in bert_probe.load(out).tasks


def test_input_with_a_tilde_in_its_name_is_not_replaced() -> None:
    Path("~no-user.csv").write_text("text\nWe left.\n")
    ended = run("sentences", "~no-user.csv", "--out", "~no-user.csv", "--force", "--model", "no-such-model")
    assert "is read by this command" in ended.refusal
    with pytest.raises(TextError, match="cannot be opened"):
        read_vectors("~no-user.npy")
    with pytest.raises(NotFoundError):
        convert("./no-such-model", "~no-user")


@pytest.mark.parametrize("name", [" blank.csv", "blank.csv ", " blank.csv ", "~"])
def test_input_with_blanks_around_its_name_is_not_replaced(name: str) -> None:
    Path(name).write_text("text\nA boat.\n")
    words = ("search", "boat", "--documents", f"./{name}", "--model", "no-such-model", "--force")
    assert "is read by this command" in run(*words, "--save-view", f"./{name}").refusal
    train = ("train", "lines.txt", "--held-out", name, "--out", "trained", "--model", "no-such-model")
    assert "is read by this command" in run(*train, "--log", f"./{name}", "--force").refusal
    assert Path(name).read_text() == "text\nA boat.\n"


@pytest.mark.parametrize("output", ["lines.csv", "m/tokenizer.json"])
def test_input_in_the_home_folder_is_not_replaced(output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(Path.cwd()))
    file = Path(output)
    file.parent.mkdir(exist_ok=True)
    for path in (file, file.parent / "config.json"):
        path.write_text("text\nWe left.\n")
    words = ("sentences", "~/lines.csv", "--model", "no-such-model")
    if file.parent.name:
        words = ("tokens", "We left.", "--model", " ~/m")
    assert "is read by this command" in run(*words, "--out", f"~/{output}", "--force").refusal
    assert file.read_text() == "text\nWe left.\n"


def test_document_is_not_replaced_by_the_result_of_a_search() -> None:
    Path("docs").mkdir()
    for name in "ab":
        Path(f"docs/{name}.txt").write_text("A boat.")
    words = ("search", "boat", "--model", "no-such-model", "--documents", "docs")
    assert "is read by this command" in run(*words, "--save-view", "docs/a.txt", "--force").refusal
    assert Path("docs/a.txt").read_text() == "A boat."


def test_text_that_is_the_name_of_a_folder_is_not_an_input() -> None:
    Path("x.csv").write_text("")
    ended = run("tokens", ".", "--model", "no-such-model", "--out", "x.csv", "--force")
    assert "is read by this command" not in ended.refusal


@pytest.mark.parametrize(
    "words",
    [
        ("train", "lines.txt", "--out", "trained", "--log"),
        ("train", "lines.txt", "--out", "trained", "--held-out"),
        ("corpus", "run", "lines.txt", "--out", "store", "--log"),
        ("corpus", "health"),
        ("search", "boat", "--documents"),
    ],
)
def test_path_that_is_too_long_is_refused(words: tuple[str, ...]) -> None:
    assert "File name too long" in run(*words, f"{'x' * 256}.npz").refusal


def test_share_with_many_digits_is_not_a_path() -> None:
    ended = run("train", "no-such-file.csv", "--out", "trained", "--held-out", f"0.{'1' * 256}")
    assert "no-such-file.csv cannot be opened" in ended.refusal


def test_training_does_not_replace_its_held_out_file_by_a_log() -> None:
    Path("held.txt").write_text('{"step": 1}')
    words = ("train", "lines.txt", "--held-out", "held.txt", "--out", "trained", "--model", "no-such-model")
    assert "is read by this command" in run(*words, "--log", "held.txt", "--force").refusal


def test_log_that_appears_during_a_training_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    line = json.dumps(EVALUATION) + "\n"
    log.write_text(line)
    with pytest.raises(ExportError), open_log(log, "x", [tuple(EVALUATION)]):
        pass
    assert log.read_text() == line


@pytest.mark.parametrize("name", ["a.csv", "a.png"])
@pytest.mark.parametrize("failures", [1, 9])
def test_result_that_does_not_fit_on_its_disk_is_saved_elsewhere(
    name: str, failures: int, minilm: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, seen = writing._write_new, []

    def failing(*arguments: Any) -> None:
        seen.append(arguments)
        if len(seen) <= failures:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(*arguments)

    monkeypatch.setattr(writing, "_write_new", failing)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    refusal = run(
        "attention", "a boat", "--layer", "1", "--head", "1", "--out", name, built_in=minilm
    ).refusal
    assert f"{name} cannot be written: No space left on device" in refusal
    assert not Path(name).exists()
    files = [*tmp_path.glob(f"bert-probe-*/{name}")]
    assert [f"The result is in {file}." in refusal for file in files] == [True] * (failures == 1)


@pytest.mark.parametrize("out", ["a.csv", "a.npz"])
def test_view_and_result_that_do_not_fit_on_their_disk_are_both_named(
    out: str, minilm: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = writing._write_new

    def failing(path: Path, *arguments: Any) -> None:
        if "bert-probe-" not in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, *arguments)

    monkeypatch.setattr(writing, "_write_new", failing)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    words = ("attention", "a boat", "--layer", "1", "--head", "1", "--save-view", "v.json", "--out", out)
    refusal = run(*words, built_in=minilm).refusal
    for name in ("v.json", out):
        assert f"{name} cannot be written: No space left on device" in refusal
        assert f"The result is in {next(tmp_path.glob(f'bert-probe-*/{name}'))}." in refusal
        assert not Path(name).exists()


@pytest.mark.parametrize("has_home", [True, False])
def test_result_is_saved_at_home_without_a_temporary_folder(
    has_home: bool, minilm: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, seen = writing._write_new, []

    def failing(*arguments: Any) -> None:
        seen.append(arguments)
        if len(seen) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(*arguments)

    monkeypatch.setattr(writing, "_write_new", failing)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    if has_home:
        (tmp_path / "home").mkdir()
    words = ("attention", "a boat", "--layer", "1", "--head", "1", "--out", "a.csv")
    refusal = run(*words, built_in=minilm).refusal
    assert "a.csv cannot be written: No space left on device" in refusal
    files = [*tmp_path.glob("home/bert-probe-*/a.csv")]
    assert [f"The result is in {file}." in refusal for file in files] == [True] * has_home


def test_missing_temporary_folder_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", missing)
    assert "set TMPDIR to a folder" in run("tokens", "a boat").refusal


def test_table_that_the_format_cannot_represent_is_saved_as_parquet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    frame = pd.DataFrame({"value": [np.inf]})
    with pytest.raises(WrittenElsewhereError, match="infinite values") as caught:
        options.save_or_rescue(lambda path: save(frame, path), tmp_path / "a.json")
    (file,) = tmp_path.glob("bert-probe-*/a.parquet")
    assert f"The result is in {file}." in str(caught.value)
    assert pd.read_parquet(file).equals(frame)
