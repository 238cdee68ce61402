"""Test that hostile files are refused with a readable error and little memory."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest

from bert_probe.cli.main import main
from bert_probe.errors import ReportError
from bert_probe.reports import json_reader, tables
from bert_probe.reports.drafts import read_any
from bert_probe.reports.json_reader import MAX_KEYS, MAX_STRINGS, parse_json
from bert_probe.reports.reading import read_report, unpack
from bert_probe.reports.tables import ReportTable
from bert_probe.views.payload import EmbeddedPayload, decode_text, encode_text
from tests.helpers import hostile_reports
from tests.helpers.gate import prove_unless

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


@pytest.mark.gate(cases=9)
@pytest.mark.parametrize("name", prove_unless(PAGES.keys() - {"a table of a million cells"}, PAGES))
def test_hostile_page_takes_little_memory(name: str, tmp_path: Path) -> None:
    place, content = tmp_path / "report", PAGES[name]
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


@pytest.mark.prove
def test_numbers_of_keys_and_values_are_limited() -> None:
    with pytest.raises(ValueError, match="more than 3,000,000 keys"):
        parse_json(b'{"a":1' + b',"":1' * MAX_KEYS + b"}")
    with pytest.raises(ValueError, match="more than 8,000,000 strings"):
        parse_json(b'["a"' + b' ,""' * (MAX_STRINGS + 1) + b"]")


def test_quotes_within_strings_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_reader, "MAX_KEYS", 2)
    monkeypatch.setattr(json_reader, "MAX_STRINGS", 2)
    assert parse_json(json.dumps({"a": json.dumps({"b": ["c", "d"], "e": "f", "g": "h"})}).encode())
    for content in ({"a": 1, "b": 2, "c": 3}, {"\\": 1, "\\\\": 2, "c": 3}, ["\\", "\\\\", "c", 1]):
        with pytest.raises(ValueError, match="it has more than 2 "):
            parse_json(json.dumps(content).encode())


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
