"""Outputs of commands are reserved before a model is opened."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bert_probe.results.writing import reserved
from tests.helpers.command_line import bert_probe as run

COMMANDS = (
    ("attention", "We left.", "--out", "{}.csv"),
    ("attention", "We left.", "--out", "{}.html"),
    ("attention", "We left.", "--save-view", "{}.json"),
    ("sentences", "lines.txt", "--out", "{}.npz"),
    ("evaluate", "no-such-model", "lines.txt", "--out", "{}.json"),
    ("lens", "--tune", "lines.txt", "--out", "{}.safetensors"),
    ("report", "no-such-view.json", "--out", "{}.zip"),
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    Path("lines.txt").write_text("We left.\nWe came back.\n")
    Path("dangling").symlink_to("no/where")
    return tmp_path


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
    ended = run("lens", "--tune", "lines.txt", "--out", "x.safetensors", "--model", "no-such-model")
    assert ended.refusal.startswith("x.safetensors.meta.json is there already.")


def test_two_outputs_in_one_file_are_refused() -> None:
    words = ("attention", "We left.", "--model", "no-such-model", "--out", "x.json", "--save-view", "x.json")
    assert run(*words).refusal == "x.json is given for two outputs. Choose two names."


def test_log_is_not_appended_to_the_inputs_of_a_corpus() -> None:
    Path("data.jsonl").write_text(json.dumps({"text": "We left."}) + "\n")
    before = Path("data.jsonl").read_bytes()
    ended = run("corpus", "run", "data.jsonl", "--out", "store", "--log", "data.jsonl")
    assert "data.jsonl exists and is not a log" in ended.err
    assert Path("data.jsonl").read_bytes() == before
    assert not Path("store").exists()


@pytest.mark.parametrize("out", ["lines.txt", "lines.txt/store", "loop"])
def test_store_that_cannot_be_written_is_refused_before_the_model_is_opened(out: str) -> None:
    Path("loop").symlink_to("loop")
    ended = run("corpus", "run", "lines.txt", "--out", out, "--model", "no-such-model")
    assert out.partition("/")[0] in ended.refusal
    assert "no-such-model" not in ended.refusal
