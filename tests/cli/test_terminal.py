"""Test that messages escape control characters, and that interruptions and output errors print one line."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from bert_probe.core import files
from bert_probe.model.checkpoint import Checkpoint
from tests.helpers.command_line import CommandResult, bert_probe, run_in_shell
from tests.helpers.gate import prove_unless

HOSTILE = "a\x1b]0;owned\x07\x9b2J\u202ex\udc9b\ny"
ESCAPED = r"a\x1b]0;owned\x07\x9b2J\u202ex\udc9b\ny"


def test_name_in_a_config_is_escaped(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": HOSTILE}), encoding="utf-8")
    refusal = bert_probe("tokens", "a", "--model", str(tmp_path)).refusal
    assert f"({ESCAPED}) is not a model type of transformers" in refusal


def test_name_of_a_folder_or_column_is_escaped(tmp_path: Path, minilm: Checkpoint) -> None:
    folder = tmp_path / "\x1b[31m\u202e\nx"
    folder.mkdir()
    assert r"\x1b[31m\u202e\nx has no conf" in bert_probe("tokens", "a", "--model", str(folder)).refusal
    table = tmp_path / "a.csv"
    table.write_text("one\x1b[2J,two\nA,B\n", encoding="utf-8")
    refusal = bert_probe("sentences", str(table), built_in=minilm).refusal
    assert r"2 columns: one\x1b[2J, two" in refusal


@pytest.mark.parametrize(
    "arguments",
    [
        (HOSTILE,),
        ("tokens", "a", f"--{HOSTILE}"),
        ("attention", "a", "--layer", HOSTILE),
        ("attention", "a", "--layout", HOSTILE),
        ("tokens", "a", "--out", f"{HOSTILE}.xlsx"),
        ("find", "a", "--query", HOSTILE, "--key", "a"),
        ("tokens", "a", HOSTILE),
    ],
)
def test_argument_is_escaped(arguments: tuple[str, ...], minilm: Checkpoint) -> None:
    refusal = bert_probe(*arguments, built_in=minilm).refusal
    assert not set(HOSTILE) - set("a]0;owned2Jxy") & set(refusal)
    assert r"\x1b" in refusal


def test_data_are_not_escaped(tmp_path: Path, minilm: Checkpoint) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one\x1b[2J\ntwo \u202e\n", encoding="utf-8")
    records = bert_probe("sentences", str(file), "--show", "nearest", "--count", "1", built_in=minilm).records
    assert (records[0]["sentence_a"], records[0]["sentence_b"]) == ("one\x1b[2J", "two \u202e")


def test_interruption_prints_one_line_and_exits_with_130(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_arguments: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(files, "format_of", interrupted)
    ended = bert_probe("tokens", "a", "--out", "a.csv")
    assert ended == CommandResult(128 + signal.SIGINT, b"", "bert-probe: Interrupted.\n")


@pytest.mark.parametrize("module", prove_unless({"click", "torch"}, ["click", "pandas", "torch"]))
def test_interruption_of_an_import_prints_one_line(module: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text("import signal; signal.raise_signal(signal.SIGINT)")
    done = run_in_shell(f'PYTHONPATH="{tmp_path}" probe attention a')
    assert (done.returncode, done.stdout) == (130, b"")
    assert done.stderr == b"bert-probe: Interrupted.\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    "command", prove_unless({"probe --help"}, ["probe", "probe --help", "probe tokens -h"])
)
def test_full_output_prints_one_line(command: str) -> None:
    done = run_in_shell(f"{command} >/dev/full")
    assert done.returncode == 2
    assert done.stderr == b"bert-probe: Standard output cannot be written: No space left on device.\n"


@pytest.mark.prove
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_table_that_cannot_be_printed_is_saved(tmp_path: Path) -> None:
    done = run_in_shell(f'TMPDIR="{tmp_path}" probe tokens a >/dev/full')
    assert done.returncode == 2
    (saved,) = tmp_path.glob("bert-probe-*/table.csv")
    assert done.stderr.decode() == (
        f"bert-probe: Standard output cannot be written: No space left on device. The result is in {saved}.\n"
    )
    assert saved.read_bytes().startswith(b"position,token,")


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    "command",
    prove_unless(
        {"probe --help", "probe tokens a"},
        ["probe --help", "probe tokens a", "probe attention 'a b' --layout long"],
    ),
)
def test_closed_pipe_is_not_an_error(command: str) -> None:
    # `true` exits without reading its input, so even a write that fits into the pipe's buffer may fail.
    done = run_in_shell(f"{command} | true")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize(
    ("command", "advice"),
    prove_unless(
        lambda case: case[0] == "probe tokens a",
        [
            ("probe tokens a", "Pass a file with --out."),
            ("probe verify missing.html", "Redirect it to a file."),
        ],
    ),
)
def test_closed_output_is_reported_before_the_computation(command: str, advice: str) -> None:
    done = run_in_shell(f"{command} --model missing >&-")
    assert done.returncode == 2
    assert done.stderr.decode() == f"bert-probe: Standard output is closed. {advice}\n"
