"""Test that hostile files are refused with a readable error and little memory."""

from __future__ import annotations

import inspect
import io
import json
import re
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest

from bert_probe.cli.main import main
from bert_probe.errors import ReportError
from bert_probe.reports import tables, zip_checks
from bert_probe.reports.drafts import read_any
from bert_probe.reports.json_reader import parse_json
from bert_probe.reports.reading import read_report, unpack
from bert_probe.reports.tables import ReportTable
from bert_probe.views.payload import EmbeddedPayload, decode_text, encode_text
from tests.helpers import hostile_reports

MEGABYTE = 1_000_000
BOMB = 60 * MEGABYTE

PAGES = dict(hostile_reports.hostile_pages())
ZIPS = dict(hostile_reports.hostile_zips(BOMB))


@pytest.mark.parametrize("content", [*PAGES.values(), *ZIPS.values()], ids=[*PAGES, *ZIPS])
def test_hostile_report_is_refused_in_a_sentence(
    content: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "report"
    place.write_bytes(content)
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(place)])
    out, error = capfd.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert re.fullmatch(r"bert-probe: [^\n]{20,500}\.\n", error), error[:1000]


@pytest.mark.parametrize("name", ["an entry that claims 10 bytes", "an entry that claims a gigabyte"])
def test_zip_bomb_is_not_unpacked(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ReportError, match="is a ZIP file that cannot be read"):
            unpack(ZIPS[name], "a ZIP")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEGABYTE


@pytest.mark.parametrize("content", PAGES.values(), ids=PAGES)
def test_hostile_page_takes_little_memory(content: bytes, tmp_path: Path) -> None:
    place = tmp_path / "report"
    place.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(ReportError):
            read_report(place)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 * len(content) + 3 * MEGABYTE


@pytest.mark.parametrize(
    "content",
    [b"NaN", b"[1e999]", b'{"a": 1, "a": 2}', b"9" * 5_000, b"[18446744073709551616]", b"[" * 65 + b"]" * 65],
)
def test_json_that_parsers_read_differently_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(content)


def test_json_within_the_bounds_is_parsed() -> None:
    assert parse_json(b"[" * 64 + b"]" * 64)
    assert parse_json(b'[18446744073709551615, -1.5e300, "\\ud800"]') == [2**64 - 1, -1.5e300, "\ud800"]


# ---------------------------------------------------------------- payloads and Parquet


def test_payload_that_browsers_read_differently_is_refused() -> None:
    planes, length, letters = encode_text(bytes(range(256)) * 4)
    assert decode_text(EmbeddedPayload(planes, length, letters)) == bytes(range(256)) * 4
    for other in (
        EmbeddedPayload(planes, length, letters + "00000"),
        EmbeddedPayload(planes, length - 4, letters),
        EmbeddedPayload(planes, length, letters.replace(".", ">").replace(",", "&")),
        EmbeddedPayload(planes, length, letters[:-5]),
    ):
        assert tuple(other) != (planes, length, letters)
        with pytest.raises(ValueError, match="The payload is invalid"):
            decode_text(other)


def test_payload_is_not_unpacked_beyond_what_is_expected() -> None:
    packed = encode_text(b"\0" * BOMB)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="larger than the maximum of 1,000 bytes"):
            decode_text(packed, 1_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5 * MEGABYTE


def _file(frame: pd.DataFrame, **options: object) -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pandas(frame, preserve_index=False), sink, **options)
    return sink.getvalue()


FRAME = pd.DataFrame(
    {"token": [f"token {number}" for number in range(1_000)], "weight": np.arange(1_000) / 7}
)


def test_parquet_of_the_same_table_is_decoded() -> None:
    for options in ({}, {"compression": "zstd"}, {"use_dictionary": False}, {"data_page_version": "2.0"}):
        decoded = zip_checks.decoded(_file(FRAME, **options), _file(FRAME))
        assert decoded == (ReportTable.of(FRAME), True)


def _long_texts(length: int) -> bytes:
    """Return a Parquet file whose rows all refer to one long text in the dictionary of its column."""
    texts = pyarrow.DictionaryArray.from_arrays(np.zeros(len(FRAME), dtype=np.int32), ["x" * length])
    sink = io.BytesIO()
    table = pyarrow.table({"token": texts, "weight": FRAME["weight"].to_numpy()})
    pyarrow.parquet.write_table(table, sink, compression="zstd", store_schema=False)
    return sink.getvalue()


def test_text_within_the_limit_of_the_dictionary_is_decoded() -> None:
    decoded = zip_checks.decoded(_long_texts(1_000), _file(FRAME))
    assert decoded is not None
    assert decoded[0].columns[0].cells == ("x" * 1_000,) * len(FRAME)


PARQUET_BOMBS: dict[str, Callable[[], bytes]] = {
    "long texts": lambda: _long_texts(5 * MEGABYTE),
    "many texts": lambda: _file(
        FRAME.assign(token=[f"{'x' * 5_000}{row}" for row in range(1_000)]), compression="zstd"
    ),
    "rows": lambda: _file(pd.concat([FRAME] * 1_000), compression="zstd"),
    "columns": lambda: _file(FRAME.assign(more=1)),
    "deltas": lambda: _file(
        FRAME, use_dictionary=False, column_encoding={"token": "DELTA_BYTE_ARRAY", "weight": "PLAIN"}
    ),
    "footer": lambda: _file(FRAME)[:-9] + b"\xff" + _file(FRAME)[-8:],
    "length": lambda: _file(FRAME)[:-8] + b"\xff\xff\xff\x7fPAR1",
    "short": lambda: b"PAR1",
    "empty": lambda: b"",
}
# Each file is built when its test runs, because building all files would slow down the collection of tests.


@pytest.mark.parametrize("name", PARQUET_BOMBS)
def test_parquet_bomb_is_not_decoded(name: str) -> None:
    assert zip_checks.decoded(PARQUET_BOMBS[name](), _file(FRAME)) is None


def test_page_that_claims_more_than_the_footer_is_not_decoded() -> None:
    frame = pd.DataFrame({"weight": np.random.default_rng(9).random(140_000)})
    options: dict[str, object] = {"compression": "snappy", "use_dictionary": False}
    options["data_page_size"] = 8 * MEGABYTE
    # Older versions of pyarrow have no limit on the rows of a page.
    if "max_rows_per_page" in inspect.signature(pyarrow.parquet.write_table).parameters:
        options["max_rows_per_page"] = len(frame)
    content = _file(frame, **options)
    assert zip_checks.decoded(content, content) is not None
    start = pyarrow.parquet.ParquetFile(io.BytesIO(content)).metadata.row_group(0).column(0).data_page_offset
    # A page header starts with its type, followed by the uncompressed size as four bytes of seven bits each.
    assert content[start : start + 3] == b"\x15\x00\x15"
    assert all(byte >= 0x80 for byte in content[start + 3 : start + 6])
    forged = content[: start + 3] + b"\xfe\xff\xff\x7f" + content[start + 7 :]
    assert zip_checks.decoded(forged, content) is None


# ---------------------------------------------------------------- view files, drafts and notes


@pytest.mark.parametrize("kind", ["bert_probe_view", "bert_probe_tray"])
@pytest.mark.parametrize(
    "value",
    [
        *(
            "1e999",
            "NaN",
            "9" * 4_000,
            "9" * 5_000,
            '"\\ud800"',
            "[" * 100_000,
            '{"a":' * 500,
            "{}",
            "[[]]",
            "null",
        ),
        *('[{"view": {}}]', '[{"view": []}]', "[1]", "true", '{"a": 1, "a": 1}'),
    ],
)
@pytest.mark.parametrize(
    "name",
    [
        "title",
        "views",
        "question",
        "asked",
        "models",
        "texts",
        "sentences",
        "files",
        "truncate",
        "drawn",
        "x",
    ],
)
def test_hostile_view_file_is_read_or_refused(kind: str, value: str, name: str) -> None:
    content = f'{{"{kind}": 1, "page": "tokens", "{name}": {value}}}'.encode()
    with suppress(ReportError):
        assert read_any(content, "a file").to_bytes()


@pytest.mark.parametrize(
    ("name", "file", "sentence"),
    [
        ("data", "code.py", "must end in"),
        ("data", "data.py", "must end in"),
        ("data", "view.json", "must end in"),
        ("data", "other.conll", "must be the name of the argument"),
        ("../data", "../data.conll", "not a valid file name"),
        ("data", "data.conll\0", "not a valid file name"),
    ],
)
def test_file_of_a_view_cannot_replace_another(name: str, file: str, sentence: str) -> None:
    content = {"file": file, "content": "import\tos\n"}
    view = {"bert_probe_view": 1, "question": "Probe", "files": {name: content}}
    with pytest.raises(ReportError, match=sentence):
        read_any(json.dumps(view).encode(), "a file")


TABLE = ReportTable.of(pd.DataFrame({"weight": [0.5], "two words": [1]}))


@pytest.mark.parametrize(
    ("note", "displayed"),
    [
        ("{{1, weight}}", "0.5000"),
        ("{{ 1 ,two words\t}}!", "1!"),
        ("{{{1, weight}}}", "{0.5000}"),
        ("{{x, weight}} {{1 weight}} {{}} {{,}}", "{{x, weight}} {{1 weight}} {{}} {{,}}"),
        ("{{1," + " " * 19_990, "{{1," + " " * 19_990),
        ("{{1," * 5_000, "{{1," * 5_000),
        ("{{" + "1" * 19_990 + "}}", "{{" + "1" * 19_990 + "}}"),
    ],
)
def test_note_is_read_in_linear_time(note: str, displayed: str) -> None:
    assert tables.render_note(note, TABLE) == displayed
    assert isinstance(tables.unchecked_numbers(note), list)


def test_reading_opens_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr("bert_probe.model.loading.load", lambda *args, **_: calls.append(args))
    reading: Callable[[Path], object] = read_report
    for number, content in enumerate([*PAGES.values(), *ZIPS.values()]):
        place = tmp_path / str(number)
        place.write_bytes(content)
        with pytest.raises(ReportError):
            reading(place)
    assert calls == []
