"""Test that the command line prints either a table to standard output or one line to standard error."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest

import bert_probe
from bert_probe.cli import attention
from bert_probe.cli.main import COMMANDS
from bert_probe.model import loading
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress
from tests.helpers import command_line, families
from tests.helpers.command_line import ROOT, CommandResult, run_in_shell
from tests.helpers.exactness import assert_repeatable

TEXT = "Almost before we knew it, we had left the ground."
PAIR = "The unknown holds its grounds."
LONG_HEADER = "layer,head,query_position,query_token,key_position,key_token,weight"

Run = Callable[..., CommandResult]


@pytest.fixture
def run(minilm: Checkpoint) -> Run:
    """Return a function that runs a command in this process with the built-in model, opened only once."""
    return partial(command_line.bert_probe, built_in=minilm)


@pytest.fixture
def table(run: Run) -> Callable[..., list[list[str]]]:
    """Return a function that runs a command, which must print only a table, and returns its rows."""
    return lambda *arguments: run(*arguments).rows


Table = Callable[..., list[list[str]]]


def numbers(rows: Sequence[Sequence[str]]) -> np.ndarray:
    return np.array([[np.float32(cell) for cell in row] for row in rows], np.float32)


def test_tokens_have_words_and_offsets(table: Table) -> None:
    assert table("tokens", "Mehdi loves AI", "--pair", "Me too") == [
        ["position", "token", "id", "segment", "word", "start", "end", "special"],
        ["0", "[CLS]", "101", "0", "", "", "", "True"],
        ["1", "me", "2033", "0", "0", "0", "2", "False"],
        ["2", "##hdi", "22960", "0", "0", "2", "5", "False"],
        ["3", "loves", "7459", "0", "1", "6", "11", "False"],
        ["4", "ai", "9932", "0", "2", "12", "14", "False"],
        ["5", "[SEP]", "102", "0", "", "", "", "True"],
        ["6", "me", "2033", "1", "0", "0", "2", "False"],
        ["7", "too", "2205", "1", "1", "3", "6", "False"],
        ["8", "[SEP]", "102", "1", "", "", "", "True"],
    ]


@pytest.mark.parametrize(
    ("options", "layer", "head"),
    [
        ([], 5, "mean"),
        (["--layer", "last", "--head", "mean"], 5, "mean"),
        (["--layer", "1", "--head", "1"], 0, 0),
        (["--layer", "6", "--head", "12"], 5, 11),
        (["--head", "3"], 5, 2),
        (["--layer", "2", "--pair", PAIR], 1, "mean"),
    ],
)
def test_attention_prints_a_matrix_or_long_format(
    table: Table, minilm: Checkpoint, options: list[str], layer: int, head: int | str
) -> None:
    trace = minilm.trace(TEXT, PAIR if "--pair" in options else None)
    expected = trace.mean_attention(layer) if head == "mean" else trace.attention(layer, int(head))
    names = [str(token) for token in trace.tokens]
    matrix = table("attention", TEXT, *options)
    assert matrix[0] == ["token", *names]
    assert [row[0] for row in matrix[1:]] == names
    assert_repeatable(numbers([row[1:] for row in matrix[1:]]), expected)
    assert table("attention", TEXT, "--layout", "matrix", *options) == matrix
    long = table("attention", TEXT, "--layout", "long", *options)
    assert ",".join(long[0]) == LONG_HEADER
    head_name = "mean" if head == "mean" else str(int(head) + 1)
    pairs = [(query, key) for query in range(len(names)) for key in range(len(names))]
    assert [row[:6] for row in long[1:]] == [
        [str(layer + 1), head_name, str(query), names[query], str(key), names[key]] for query, key in pairs
    ]
    assert_repeatable(numbers([row[6:] for row in long[1:]])[:, 0], expected.reshape(-1))


@pytest.mark.parametrize(
    ("options", "layer"),
    [([], 6), (["--layer", "last"], 6), (["--layer", "0"], 0), (["--layer", "1"], 1), (["--layer", "6"], 6)],
)
def test_embeddings_count_the_embeddings_as_layer_0(
    table: Table, minilm: Checkpoint, options: list[str], layer: int
) -> None:
    trace = minilm.trace(TEXT, PAIR)
    rows = table("embeddings", TEXT, "--pair", PAIR, *options)
    assert rows[0] == ["token", *map(str, range(384))]
    assert [row[0] for row in rows[1:]] == [str(token) for token in trace.tokens]
    assert_repeatable(numbers([row[1:] for row in rows[1:]]), trace.states[layer])
    rows = table("embeddings", TEXT, "--pair", PAIR, "--vectors", "cls", *options)
    assert [row[0] for row in rows] == ["token", "[CLS]"]
    assert_repeatable(numbers([rows[1][1:]])[0], trace.states[layer][0])


def test_embeddings_of_the_pooler_are_one_vector(table: Table, minilm: Checkpoint) -> None:
    rows = table("embeddings", TEXT, "--vectors", "pooler")
    assert [row[0] for row in rows] == ["token", "pooler"]
    assert_repeatable(numbers([rows[1][1:]])[0], minilm.trace(TEXT).pooler)
    assert table("embeddings", TEXT, "--vectors", "pooler", "--layer", "6") == rows


def test_parameters_are_all_listed(table: Table) -> None:
    rows = table("parameters")
    assert rows[0] == ["name", "group", "shape", "count", "dtype", "bytes"]
    assert len(rows) == 1 + 103
    first = [
        "embeddings.word_embeddings.weight",
        "embeddings",
        "30522×384",
        "11720448",
        "float32",
        "46881792",
    ]
    assert rows[1] == first
    assert sum(int(row[3]) for row in rows[1:]) == 22_713_216


@pytest.mark.parametrize("form", ["csv", "json", "parquet", "npz"])
def test_out_writes_the_file_and_prints_nothing(
    run: Run, minilm: Checkpoint, tmp_path: Path, form: str
) -> None:
    path = tmp_path / f"x.{form}"
    assert run("attention", TEXT, "--layer", "2", "--head", "3", "--out", str(path)) == CommandResult(
        0, b"", ""
    )
    expected = minilm.trace(TEXT).attention(1, 2)
    if form == "csv":
        values = pd.read_csv(path, dtype=str).iloc[:, 1:].map(np.float32).to_numpy(np.float32)
        provenance = json.loads((tmp_path / "x.csv.meta.json").read_text(encoding="utf-8"))
        assert path.read_text(encoding="utf-8") == run("attention", TEXT, "--layer", "2", "--head", "3").text
    elif form == "json":
        content = json.loads(path.read_text(encoding="utf-8"))
        values = np.array(list(content["columns"].values())[1:], np.float32).T
        provenance = content["provenance"]
    elif form == "parquet":
        values = pd.read_parquet(path).iloc[:, 1:].to_numpy(np.float32)
        provenance = None
    else:
        with np.load(path, allow_pickle=False) as content:
            values, provenance = content["values"], json.loads(str(content["provenance"]))
    assert_repeatable(values, expected)
    if provenance is not None:
        question = provenance["question"]
        assert (question["layer"], question["head"], provenance["text"]) == (2, 3, TEXT)


def test_existing_file_is_replaced_only_with_force(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("precious", encoding="utf-8")
    with patch.object(loading, "load") as load:
        refusal = run("attention", "a", "--out", str(path)).refusal
        load.assert_not_called()
    assert refusal.endswith("x.csv already exists. Choose another name, or replace it with --force.")
    assert path.read_text(encoding="utf-8") == "precious"
    assert run("tokens", "a", "--out", str(path), "--force") == CommandResult(0, b"", "")
    assert path.read_text(encoding="utf-8") == run("tokens", "a").text
    assert run("tokens", "a", "--force").refusal == (
        "--force requires --out FILE. Add --out, or omit --force."
    )


def test_csv_safe_escapes_formulas(run: Run, table: Table, tmp_path: Path) -> None:
    exact, safe = table("tokens", "=1"), table("tokens", "=1", "--csv-safe")
    assert [row[1] for row in exact[1:]] == ["[CLS]", "=", "1", "[SEP]"]
    assert [row[1] for row in safe[1:]] == ["[CLS]", "'=", "1", "[SEP]"]
    path = tmp_path / "x.csv"
    assert run("tokens", "=1", "--csv-safe", "--out", str(path)) == CommandResult(0, b"", "")
    assert path.read_text(encoding="utf-8") == run("tokens", "=1", "--csv-safe").text
    assert json.loads((tmp_path / "x.csv.meta.json").read_text(encoding="utf-8"))["csv_safe"] is True
    refusal = run("tokens", "=1", "--csv-safe", "--out", str(tmp_path / "x.json")).refusal
    assert refusal == "--csv-safe applies to CSV files only, not to x.json. Omit --csv-safe."


def test_every_command_with_a_table_has_the_output_options() -> None:
    for name in set(COMMANDS) - {
        "app",
        "convert",
        "corpus",
        "mcp",
        "report",
        "train",
        "verify",
    }:  # The excluded commands do not print a table.
        module = import_module(f"bert_probe.cli.{COMMANDS[name][0]}")
        command = getattr(module, name.replace("-", "_"))
        assert {"--out", "--force", "--csv-safe"} <= {
            option for param in command.params for option in param.opts
        }


@pytest.mark.parametrize("command", ["tokens", "embeddings", "parameters"])
def test_every_command_writes_provenance(run: Run, tmp_path: Path, command: str) -> None:
    path = tmp_path / "x.json"
    texts = [] if command == "parameters" else [TEXT]
    assert run(command, *texts, "--out", str(path)) == CommandResult(0, b"", "")
    provenance = json.loads(path.read_text(encoding="utf-8"))["provenance"]
    assert provenance["weights_sha256"].startswith("53aa51172d142c89")
    assert provenance["question"]["analysis"] == {"embeddings": "hidden states"}.get(command, command)


def test_text_can_start_with_a_dash(table: Table) -> None:
    assert [row[1] for row in table("tokens", "--", "-x --layer")][2:5] == ["-", "x", "-"]


def test_long_text_is_truncated_only_with_the_option(run: Run, table: Table) -> None:
    message = (
        "The text has 602 tokens, but this model accepts at most 512. Shorten the text, or add --truncate."
    )
    assert run("tokens", "word " * 600).refusal == message
    assert run("attention", "word " * 600).refusal == message
    assert len(table("tokens", "word " * 600, "--truncate")) == 1 + 512


INVALID_INPUTS = {
    "empty text": ("tokens", ""),
    "only spaces": ("attention", "  \n"),
    "empty pair": ("tokens", "a", "--pair", ""),
    "too long": ("embeddings", "word " * 600),
    "layer 0": ("attention", "a", "--layer", "0"),
    "layer 7": ("attention", "a", "--layer", "7"),
    "layer -1": ("attention", "a", "--layer", "-1"),
    "layer 1.5": ("attention", "a", "--layer", "1.5"),
    "layer 0_1": ("attention", "a", "--layer", "0_1"),
    "layer with a space": ("attention", "a", "--layer", " 1"),
    "layer mean": ("attention", "a", "--layer", "mean"),
    "layer of many digits": ("attention", "a", "--layer", "9" * 5000),
    "embeddings layer -1": ("embeddings", "a", "--layer=-1"),
    "head 0": ("attention", "a", "--head", "0"),
    "head 13": ("attention", "a", "--head", "13"),
    "head x": ("attention", "a", "--head", "x"),
    "head with a line break": ("attention", "a", "--head", "1\n2"),
    "pooler of layer 2": ("embeddings", "a", "--vectors", "pooler", "--layer", "2"),
    "unknown vectors": ("embeddings", "a", "--vectors", "mean"),
    "unknown layout": ("attention", "a", "--layout", "wide"),
    "unknown option": ("tokens", "a", "--nothing"),
    "unknown command": ("nothing", "a"),
    "missing text": ("tokens",),
    "one text too many": ("tokens", "a", "b"),
    "option without a value": ("attention", "a", "--layer"),
    "unknown ending": ("tokens", "a", "--out", "x.xlsx"),
    "no ending": ("tokens", "a", "--out", "x"),
    "missing folder": ("tokens", "a", "--out", "no/such/folder/x.csv"),
    "missing model": ("tokens", "a", "--model", "./no/such/model"),
    "model not in the cache": ("tokens", "a", "--model", "nobody/nothing"),
    "half of a surrogate pair": ("tokens", os.fsdecode(b"caf\xe9")),
}


@pytest.mark.parametrize("arguments", INVALID_INPUTS.values(), ids=INVALID_INPUTS.keys())
def test_invalid_input_prints_one_line_and_exits_with_2(
    run: Run, arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refusal = run(*arguments).refusal
    assert re.fullmatch(r"\S.*[.]", refusal), refusal
    assert "Traceback" not in refusal
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("attention", "a", "--layer", "0"), "There is no layer 0: this model has layers 1 to 6."),
        (("attention", "a", "--head", "13"), "this model has heads 1 to 12. Use one of these, or mean."),
        (("tokens",), "Missing argument 'TEXT'"),
        (("nothing",), "No such command 'nothing'"),
        (("tokens", "a", "--forse"), "No such option '--forse'. Did you mean '--force'? Put -- before"),
        (("tokens", "a", "--nothing"), "No such option '--nothing'. Put -- before"),
        (
            ("embeddings", "a", "--vectors", "pooler", "--layer", "0"),
            "The pooler reads the last layer, 6, not 0.",
        ),
        (
            ("tokens", "a", "--out", "x.xlsx"),
            "x.xlsx does not end in .html, .htm, .svg, .png, .csv, .json, .parquet, .npz.",
        ),
    ],
)
def test_invalid_input_is_explained(run: Run, arguments: tuple[str, ...], message: str) -> None:
    assert message in run(*arguments).refusal


def test_model_option_opens_another_model(run: Run, family_folder: Callable[[str], Path]) -> None:
    folders = {name: str(family_folder(name)) for name in ("mpnet", "distilbert")}
    rows = run("attention", families.TEXT, "--model", folders["mpnet"], "--head", "4").rows
    expected = bert_probe.load(folders["mpnet"]).trace(families.TEXT).attention(2, 3)
    assert_repeatable(numbers([row[1:] for row in rows[1:]]), expected)
    ended = run("embeddings", "a", "--model", folders["distilbert"], "--vectors", "pooler")
    assert "has no pooler" in ended.refusal


@pytest.mark.parametrize("arguments", [("--help",), ("-h",), ("attention", "--help"), ()])
def test_help_exits_with_0(run: Run, arguments: tuple[str, ...]) -> None:
    ended = run(*arguments)
    assert (ended.status, ended.err) == (0, "")
    assert ended.text.startswith("Usage: bert-probe")


@pytest.mark.prove
def test_installed_script_prints_a_table() -> None:
    done = run_in_shell("probe tokens a", str(Path(sys.executable).parent / "bert-probe"))
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.splitlines()[1:3] == [b"0,[CLS],101,0,,,,True", b"1,a,1037,0,0,0,1,False"]


def test_module_prints_a_table_and_nothing_else() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bert_probe", "tokens", "I am Sinan"],
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=120,
        env=os.environ | {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().splitlines()[1:3] == ["0,[CLS],101,0,,,,True", "1,i,1045,0,0,0,1,False"]


def test_sentences_of_a_file_are_a_matrix(table: Table, minilm: Checkpoint, tmp_path: Path) -> None:
    texts = ["It rains, again", "It is raining", "Apples are not oranges"]
    plain, columns = tmp_path / "a.txt", tmp_path / "b.csv"
    plain.write_text("\n\n".join(texts), encoding="utf-8")
    pd.DataFrame({"id": range(3), "statement": texts}).to_csv(columns, index=False)
    for options, pooling in (([], "mean"), (["--pooling", "model"], "model"), (["--pooling", "cls"], "cls")):
        rows = table("sentences", str(plain), *options)
        assert rows[0] == ["sentence", *texts]
        assert [row[0] for row in rows[1:]] == texts
        result = bert_probe.Sentences(pooling).of(minilm, texts)
        assert_repeatable(numbers([row[1:] for row in rows[1:]]), result.scores)
    assert table("sentences", str(columns), "--column", "statement") == table("sentences", str(plain))


def test_matrix_that_does_not_fit_into_memory_is_refused_before_the_computation(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("One.\nTwo.\n", encoding="utf-8")
    monkeypatch.setattr("bert_probe.model.preflight.free_memory", lambda: 2**2 * 24 - 1)
    monkeypatch.setattr("bert_probe.analyses.vectors.sentences.encode_texts", None)
    assert "The table of 2 sentences needs about" in run("sentences", str(file)).refusal


def test_sentences_have_other_tables(table: Table, minilm: Checkpoint, tmp_path: Path) -> None:
    texts = ["It rains, again", "Apples are not oranges", "It is raining", "An orange is not an apple"]
    file = tmp_path / "a.txt"
    file.write_text("\n".join(texts), encoding="utf-8")
    result = bert_probe.Sentences(order="tree").of(minilm, texts)
    assert table("sentences", str(file), "--order", "tree")[0] == [
        "sentence",
        *(texts[i] for i in result.order),
    ]
    vectors = table("sentences", str(file), "--show", "vectors")
    assert_repeatable(numbers([row[1:] for row in vectors[1:]]), result.vectors)
    nearest = table("sentences", str(file), "--show", "nearest", "--count", "2")
    assert [row[1:3] for row in nearest] == [["a", "b"], ["2", "4"], ["1", "3"]]
    for method in ("pca", "tsne"):
        points = bert_probe.SentenceMap(method).of(minilm, texts).layout.points
        rows = table("sentence-map", str(file), "--method", method)
        assert rows[0] == ["number", "x", "y", "sentence"]
        assert_repeatable(numbers([row[1:3] for row in rows[1:]]), points)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["sentences", "nowhere.txt"], "nowhere.txt cannot be opened: No such file"),
        (["sentences", "FILE", "--pooling", "median"], "'median' is not one of"),
        (["sentences", "FILE", "--column", "x"], "has no column x. Its columns are a, b"),
        (["sentences", "FILE"], "has 2 columns: a, b. Choose one"),
        (
            ["sentences", "FILE", "--show", "nearest", "--count", "0"],
            "count must be 1 or more, not 0.",
        ),
        (["sentences", "FILE", "--show", "points"], "'points' is not one of"),
        (["sentence-map", "FILE", "--order", "tree"], "No such option '--order'"),
        (["sentence-map", "nowhere.txt"], "nowhere.txt cannot be opened: No such file"),
        (
            ["sentence-map", "FILE", "--column", "a", "--method", "tsne"],
            r"needs at least 4 sentences, not 1",
        ),
        (["sentence-map", "FILE", "--method", "som"], "'som' is not one of"),
    ],
)
def test_invalid_sentences_are_refused(run: Run, tmp_path: Path, arguments: list[str], sentence: str) -> None:
    file = tmp_path / "columns.csv"
    file.write_text("a,b\nOne,Two\n")
    ended = run(*[str(file) if part == "FILE" else part for part in arguments])
    assert re.search(sentence, ended.refusal)


@pytest.mark.parametrize(("options", "runs"), [((), 4), (("--layout", "long", "--layer", "1,3"), 8)])
def test_slow_measure_shows_progress(
    options: tuple[str, ...], runs: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates: list[tuple[int, int]] = []

    @contextmanager
    def bar(label: str, unit: str) -> Iterator[Progress]:
        assert (label, unit) == ("Value zeroing", "layer passes")
        yield lambda done, total: updates.append((done, total))
        assert updates[-1] == (runs, runs), "the computation ends within the bar"

    monkeypatch.setattr(attention, "terminal_bar", bar)
    ended = run("attention", "we left", "--measure", "value-zeroing", *options)
    assert (ended.status, ended.err, updates[0]) == (0, "", (0, runs))
