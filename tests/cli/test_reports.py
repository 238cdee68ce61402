"""Test view files and reports on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bert_probe.cli.main import main
from bert_probe.reports.view_files import ViewFile, read_view_file

TEXT = "the small boat"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs a command in an empty folder and returns its status, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run_command(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*arguments])
        return int(str(ended.value.code)), *capfd.readouterr()

    return run_command


@pytest.fixture
def view_table(run: Run, family_folder: Callable[[str], Path]) -> str:
    """Save a view of a tiny model in a.json, and return its table."""
    words = ("heads", "--model", str(family_folder("bert")), "--save-view", "a.json", TEXT)
    status, out, _ = run(*words)
    assert status == 0
    return out


def test_view_file_gives_the_same_table(run: Run, view_table: str) -> None:
    assert run("ask", "a.json", "--yes") == (0, view_table, "")
    status, out, error = run("ask", "a.json", "--yes", "--out", "again.csv", "--save-view", "b.json")
    assert (status, out, error) == (0, "", "")
    assert Path("again.csv").read_text(encoding="utf-8") == view_table
    assert read_view_file(Path("b.json")) == read_view_file(Path("a.json"))
    status, _, error = run("ask", "a.json", "--yes", "--save-view", "b.json")
    assert (status, "b.json already exists" in error) == (2, True)


@pytest.mark.usefixtures("view_table")
def test_model_of_a_file_is_opened_only_with_consent(run: Run, family_folder: Callable[[str], Path]) -> None:
    folder = family_folder("bert")
    status, out, error = run("ask", "a.json")
    assert (status, out) == (2, "")
    assert f"names the model {folder}, a folder on this machine" in error
    status, _, error = run("report", "a.json", "--out", "r.html")
    assert (
        status,
        "Pass --yes to open it, or another model with --model." in error,
        Path("r.html").exists(),
    ) == (2, True, False)
    assert run("ask", "a.json", "--model", str(folder))[0] == 0
    status, _, error = run("ask", "a.json", "--model", str(family_folder("electra")))
    assert (status, "differ from those with which the view was created" in error) == (0, True)


@pytest.mark.usefixtures("view_table")
def test_report_is_made_and_verified(run: Run, family_folder: Callable[[str], Path]) -> None:
    words = (
        "report",
        "a.json",
        "--note",
        "1:First {{1, entropy_bits}}",
        "--title",
        "T",
        "--yes",
        "--out",
        "r.html",
    )
    assert run(*words) == (0, "", "bert-probe: Saved 1 view in r.html.\n")
    assert run(*words)[0] == 2, "the file exists"
    status, out, error = run("verify", "r.html", "--yes")
    assert (status, out.count("\n")) == (0, 1)
    assert error.endswith(": no differences.\n")
    page = Path("r.html").read_text(encoding="utf-8")
    Path("r.html").write_text(page.replace(">First ", ">Final ", 1), encoding="utf-8")
    status, out, error = run("verify", "r.html", "--model", str(family_folder("bert")))
    assert status == 1
    assert out.splitlines()[0] == "view,table,row,column,stated,recomputed,difference,tolerance,finding"
    assert out.splitlines()[1].startswith("1,note,")
    assert error.endswith("1 difference.\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["report", "a.json", "--out", "r.pdf"], "does not end in .html or .zip"),
        (
            ["report", "a.json", "--out", "r.html", "--note", "2:x"],
            "--note must have the form NUMBER:TEXT, where NUMBER is a view from 1 to 1, not '2:x'.",
        ),
        (["report", "none.json", "--out", "r.html"], "cannot be read"),
        (["report", "--out", "r.html"], "Missing argument"),
        (["verify", "a.json"], "not a BERT Probe report"),
        (["ask", "page.json"], "has a page but no question"),
        (["app", "--view", "none.json"], "cannot be read"),
        (
            ["attention", TEXT, "--out", "x.html", "--save-view", "x.json"],
            "This figure cannot be saved as a view file. Omit --save-view, or write the table.",
        ),
    ],
)
def test_invalid_input_is_refused(arguments: list[str], sentence: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(ViewFile("Tokens").to_bytes())
    (tmp_path / "page.json").write_bytes(ViewFile(page="tokens", address={"a": TEXT}).to_bytes())
    status, out, error = run(*arguments)
    assert (status, out) == (2, "")
    assert sentence in error
    assert error.count("\n") == 1
    assert not list(tmp_path.glob("r.*"))


def test_table_without_a_question_is_printed_but_not_saved_as_a_view(
    family_folder: Callable[[str], Path], run: Run
) -> None:
    words = ("check", str(family_folder("bert")), "--config-only")
    status, out, error = run(*words, "--save-view", "t.json")
    assert (status, out) == (2, run(*words)[1])
    assert "This table cannot be saved as a view file. Omit --save-view." in error


def test_tokens_are_saved_as_a_view(run: Run) -> None:
    assert run("tokens", TEXT, "--save-view", "t.json")[0] == 0
    assert json.loads(Path("t.json").read_text(encoding="utf-8"))["question"] == "Tokens"
