"""Test the reading of documents from files with one document per line or row."""

from __future__ import annotations

import copy
import gzip
import io
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import Mock

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_probe import Document, read_documents
from bert_probe.errors import EmptyTextError, InvalidFileError, ProbeError, SelectionError, TextError
from bert_probe.runtime.cache import cache_key
from bert_probe.text import documents, parquet
from bert_probe.text.documents import DocumentList, as_documents, document_of_line, parse_documents
from bert_probe.text.formats import ValidationErrors
from bert_probe.text.parquet_child import NO_MEMORY
from tests.helpers.command_line import ROOT


def rows(file: Path) -> list[tuple[str, str, str, str]]:
    return [(document.id, document.title, document.text, str(document)) for document in read_documents(file)]


def test_lines_are_numbered(tmp_path: Path) -> None:
    file = tmp_path / "documents.txt"
    file.write_text("One boat. \n\n Two boats.\n")
    assert rows(file) == [("1", "", "One boat.", "One boat."), ("2", "", "Two boats.", "Two boats.")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (
            "a.jsonl",
            '{"_id": "x", "title": "Boats", "text": "Two\\nboats.", "metadata": {}}\n{"text": "One."}\n',
        ),
        ("a.csv", '_id,title,text,more\nx,Boats,"Two\nboats.",1\n,,One.,\n'),
        ("a.tsv", 'text\ttitle\tid\n"Two\nboats."\tBoats\tx\nOne.\t\t\n'),
    ],
)
def test_columns_of_a_table(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    assert rows(tmp_path / name) == [
        ("x", "Boats", "Two\nboats.", "Boats Two\nboats."),
        ("2", "", "One.", "One."),
    ]


def test_missing_numbers_are_null() -> None:
    lines = (b'{"_id": %b, "title": %b, "text": "One boat."}' % (value, value) for value in (b"NaN", b"null"))
    documents = [parse_documents(io.BytesIO(line), "a.jsonl")[0] for line in lines]
    assert documents[0].line == documents[1].line == Document("One boat.", "1").line


@pytest.mark.parametrize(
    ("name", "content", "error", "sentence"),
    [
        ("a.txt", b"\n \n", EmptyTextError, "a.txt has no documents"),
        ("a.txt", b"boat\n\xff\n", InvalidFileError, "line 2: the line is not UTF-8"),
        ("a.txt", b"boat\0\n", TextError, "line 1 contains a NUL"),
        ("a.csv", b"title,body\na,b\n", SelectionError, "must be named text"),
        ("a.csv", b"Text,text\na,b\n", TextError, "a.csv has several columns named text. Keep one"),
        ("a.csv", b"text,id, ID\na,1,2\n", TextError, "a.csv has several columns named id. Keep one"),
        ("a.jsonl", b'{"text": "a", "Text": "b"}\n', TextError, "a.jsonl has several columns named text."),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', InvalidFileError, "line 2: Expecting value"),
        ("a.jsonl", b'{"text": "a"}\n{"text": {}}\n', InvalidFileError, "line 2: a cell is an object"),
        ("a.jsonl", b'{"text": "a"}\n{"text": 1e400}\n', InvalidFileError, "line 2: a cell is an infinite"),
        ("a.jsonl", b'{"text": "a", "_id": -Infinity}\n', InvalidFileError, "line 1: a cell is an infinite"),
        (
            "a.jsonl",
            b'{"text": NaN, "title": NaN}\n',
            InvalidFileError,
            "title and the text are both missing",
        ),
        ("a.jsonl", b'{"text": "\\ud800"}', InvalidFileError, "line 1: a text is not UTF-8, or contains"),
        (
            "a.jsonl",
            b'{"_id": "a", "text": "a"}\n{"_id": "a", "text": "b"}',
            InvalidFileError,
            "line 2: the ID 'a' is also the ID of line 1",
        ),
        ("a.csv", b"text,_id\na,2\nb,\n", InvalidFileError, "line 3: the ID '2' is also the ID of line 2"),
        ("a.csv", b"text,_id\na," + b"i" * 201 + b"\n", InvalidFileError, "more than 200 characters"),
        ("a.csv", b"text,\xff\na,b\n", TextError, "header of a.csv is not UTF-8"),
        ("a.csv", b'"text"x,_id\na,b\n', TextError, "broken table: line 1"),
        ("a.parquet", b"PAR1", TextError, "cannot be read as Parquet"),
    ],
)
def test_unusable_files_are_refused(
    tmp_path: Path, name: str, content: bytes, error: type[ProbeError], sentence: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=sentence):
        read_documents(tmp_path / name)


@pytest.mark.parametrize(
    "document",
    [
        Document("One boat."),
        Document('A "line"\nand\u2028another', "7", "Title\t1"),
        Document("", "x", "Only a title"),
    ],
)
def test_document_is_restored_from_its_line_and_its_copies(document: Document) -> None:
    assert "\n" not in document.line
    for again in (
        document_of_line(document.line),
        pickle.loads(pickle.dumps(document)),
        copy.deepcopy(document),
    ):
        assert (again, again.id, again.title, again.text) == (
            document,
            document.id,
            document.title,
            document.text,
        )


@pytest.mark.parametrize(
    ("texts", "error", "sentence"),
    [
        ("one text", TextError, "not a string"),
        (pd.DataFrame({"text": ["a"]}), TextError, "not a DataFrame"),
        ({"text": "a"}, TextError, "not a dict"),
        ([], EmptyTextError, "no documents"),
        (["a", 3], TextError, "Document 2 must be a string, not int"),
        (["a", "\ud800"], TextError, "Document 2: Character 0 is half of a surrogate pair"),
    ],
)
def test_invalid_lists_are_refused(texts: object, error: type[ProbeError], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        as_documents(texts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "line",
    [
        "hello",
        "[1]",
        '{"_id": {"a": 1}}',
        '{"text": null}',
        '{"text": ["a"]}',
        '{"text": "a", "text": "b"}',
        '{"text": "a", "other": "b"}',
        '{"text":"a"}',
        "[" * 50_000,
        "9" * 5_000,
    ],
)
def test_line_that_no_document_has_is_refused(line: str) -> None:
    with pytest.raises(TextError, match="not in the format in which BERT Probe saves documents"):
        document_of_line(line)


BROKEN = {
    "a.csv": (
        b"_id,title,text\nx,Boats,They float.\ny,One cell more,a,b\nx,,Night.\nz,,\nv,,\xff\n,,Day.\n"
        b'"w"w,,Map.\n,,Sea.\n',
        {
            3: "4 cells",
            4: "the ID 'x'",
            5: "the title and the text are both missing",
            6: "UTF-8",
            8: "expected after",
        },
        ["x", "6", "8"],
    ),
    "a.jsonl": (
        b'{"_id": "x", "text": "They float."}\n{"text": }\n[1]\n{"text": "\xff"}\n\n'
        b'{"_id": "x", "text": "Night."}\n{"text": ["a"]}\n{"title": " ", "text": ""}\n{"text": "Day."}\n',
        {
            2: "Expecting value",
            3: "neither an object",
            4: "UTF-8",
            6: "the ID 'x'",
            7: "a list",
            8: "the title and the text are both missing",
        },
        ["x", "8"],
    ),
    "a.txt": (b"They float.\n\n\xff\xfe\nDay.\n", {3: "UTF-8"}, ["1", "3"]),
}
"""File name → content, problem of each broken line, and IDs of the other documents."""


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rows_are_listed_or_skipped(name: str, tmp_path: Path) -> None:
    content, problems, names = BROKEN[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidFileError, match=r"--skip-broken") as refused:
        read_documents(tmp_path / name)
    assert [line for line, _ in refused.value.faults] == [*problems]
    for (_, message), problem in zip(refused.value.faults, problems.values(), strict=True):
        assert problem in message
    remaining = read_documents(tmp_path / name, skip_broken=True)
    assert [document.id for document in remaining] == names
    assert remaining.skipped == refused.value.faults
    assert remaining.about_skipped["skipped"]["count"] == len(problems)
    assert f"line {next(iter(problems))}: " in remaining.skipped_sentence
    assert cache_key("a question", remaining) != cache_key("a question", as_documents([*remaining]))


def test_documents_with_other_ids_have_another_cache_key() -> None:
    keys = {cache_key("a question", as_documents([Document("a boat", name)])) for name in ("1", "2", "1")}
    assert len(keys) == 2


def test_an_open_quotation_mark_takes_the_following_lines_along(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text('_id,text\na,One boat.\nb,"Two boats.\nc,Three boats.\n')
    remaining = read_documents(file, skip_broken=True)
    assert [document.id for document in remaining] == ["a"]
    assert remaining.skipped == ((3, "unexpected end of data; the row extends to line 4"),)


def test_keys_that_the_first_lines_lack_are_not_ignored(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    late = '{"_id": "late", "title": "Python", "text": "language"}\n'
    file.write_text('{"text": "a boat"}\n' * 100 + late)
    with pytest.raises(InvalidFileError, match="line 101: the key '_id' does not occur in the first lines"):
        read_documents(file)
    file.write_text('{"text": "a boat"}\n' * 99 + late)
    assert read_documents(file)[-1].id == "late"


@pytest.mark.parametrize("name", ["title", "text"])
def test_files_in_which_only_late_documents_have_a_title_or_a_text(tmp_path: Path, name: str) -> None:
    """BERT Probe writes such files, because it omits empty values."""
    early = {"text": "a boat"} if name == "title" else {"title": "A boat", "text": ""}
    late = {"title": "Boats", "text": "They float."}
    written = as_documents([Document(**early, id=f"d{number}") for number in range(100)])
    for expected in (written, as_documents([*written, Document(**late, id="late")])):
        (tmp_path / "a.jsonl").write_text("".join(f"{line}\n" for line in expected.lines))
        read = read_documents(tmp_path / "a.jsonl")
        assert (read.lines, read.cache_key) == (expected.lines, expected.cache_key)


@pytest.mark.parametrize("key", ["Title", " title ", "Text", "TEXT"])
def test_late_key_in_another_spelling_is_not_ignored(tmp_path: Path, key: str) -> None:
    early = "text" if key.strip().casefold() == "title" else "title"
    lines = [json.dumps({"_id": str(number), early: "a boat"}) for number in range(100)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, json.dumps({"_id": "b", early: "a", key: "b"})]))
    with pytest.raises(InvalidFileError, match=f"line 101: the key '{key}' does not occur"):
        read_documents(tmp_path / "a.jsonl")


def test_column_with_an_unknown_name_is_not_ignored(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"_id": "1", "title": "Boats", "body": "They float."}\n')
    message = "a.jsonl has 3 columns: _id, title, body. The column with the text must be named text."
    with pytest.raises(SelectionError, match=re.escape(message)):
        read_documents(tmp_path / "a.jsonl")
    for names in ("_id, body", "title, document", "id, title"):
        row = dict.fromkeys(names.split(", "), "They float.")
        (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
        with pytest.raises(SelectionError, match=f"2 columns: {names}"):
            read_documents(tmp_path / "a.jsonl")
    early = [json.dumps({"text": "a boat"})] * 100
    (tmp_path / "a.jsonl").write_text("\n".join([*early, '{"title": "Boats", "body": "They float."}']))
    with pytest.raises(InvalidFileError, match="line 101: the key 'title' does not occur"):
        read_documents(tmp_path / "a.jsonl")


def test_single_column_named_title_is_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("title\nA boat\n")
    assert read_documents(tmp_path / "a.csv") == ("A boat",)


def test_a_file_of_broken_rows_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("[1]\n[2]\n")
    with pytest.raises(InvalidFileError, match=r"a\.jsonl has 2 errors"):
        read_documents(tmp_path / "a.jsonl", skip_broken=True)


TABLE = {"_id": ["x", "y", None], "title": ["Boats", None, ""], "text": ["They float.", "Night.", "Day."]}


def parquet_bytes(table: pa.Table, **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    "options", [{}, {"compression": "gzip", "row_group_size": 2, "data_page_version": "2.0"}]
)
def test_parquet_equals_the_same_table_as_json_lines(options: dict[str, object]) -> None:
    table = pa.table({"number": [1, 2, 3], **TABLE, "vector": [[1.0], [2.0], [3.0]]})
    rows = "".join(
        f"{row}\n"
        for row in table.drop(["vector"]).to_pandas().to_json(orient="records", lines=True).splitlines()
    )
    expected = parse_documents(io.BytesIO(rows.encode()), "a.jsonl")
    assert parse_documents(io.BytesIO(parquet_bytes(table, **options)), "a.parquet").lines == expected.lines
    encoded = table.set_column(3, "text", table["text"].dictionary_encode())
    assert parse_documents(io.BytesIO(parquet_bytes(encoded)), "a.parquet").lines == expected.lines


def test_skipped_rows_and_files_have_different_keys() -> None:
    """With equal keys, a cache could return a result that reports a skipped line as a skipped file."""
    keys = []
    for unit in ("line", "file"):
        errors = ValidationErrors("x", unit)
        errors.add(2, "it is empty")
        keys.append(DocumentList([Document("a", "1")], errors).cache_key)
    assert keys[0] != keys[1]


def test_broken_rows_of_parquet_are_listed_or_skipped() -> None:
    invalid = pa.array([b"They float.", b"\xff", b"Night.", b"Day.", b""]).view(pa.string())
    content = parquet_bytes(
        pa.table({"id": pa.array([7, 8, 7, 9, 10]), "text": invalid}), use_dictionary=False
    )
    with pytest.raises(
        InvalidFileError, match="row 2: a text is not UTF-8; row 3: the ID '7' is also the ID of row 1"
    ):
        parse_documents(io.BytesIO(content), "a.parquet")
    remaining = parse_documents(io.BytesIO(content), "a.parquet", skip_broken=True)
    assert [document.id for document in remaining] == ["7", "9"]


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            parquet_bytes(pa.table({"text": ["a" * 500] * 9}), write_statistics=False),
            "a.parquet has more than 0 MB of texts",
        ),
        (
            parquet_bytes(pa.table({"text": ["a" * 3000]}), compression="zstd", write_statistics=False),
            "a.parquet has more than 0 MB of texts",
        ),
        (parquet_bytes(pa.table({"text": pa.nulls(60, pa.string())})), "a.parquet has more than 50 rows"),
        (
            parquet_bytes(
                pa.table({"text": ["a"]}), use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY"
            ),
            "unsupported encoding",
        ),
        (parquet_bytes(pa.table({"text": [[1]]})), "has type list"),
        (parquet_bytes(pa.table({"a": ["a"], "b": ["b"]})), "must be named text"),
    ],
    ids=["one text many times", "compressed page", "rows", "shared prefixes", "lists", "columns"],
)
def test_parquet_that_needs_too_much_memory_or_has_no_texts_is_refused(
    content: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "MAX_BYTES", 2_500)
    monkeypatch.setattr(parquet, "MAX_SENTENCES", 50)
    with pytest.raises(ProbeError, match=message):
        parse_documents(io.BytesIO(content), "a.parquet")


def test_a_damaged_parquet_file_is_refused() -> None:
    content = parquet_bytes(pa.table(TABLE), compression="none")
    start = content.index(b"They float.")
    for damaged in (content[:-20], content[: start - 40] + bytes(60) + content[start + 20 :]):
        with pytest.raises(TextError, match=r"a\.parquet cannot be read as Parquet"):
            parse_documents(io.BytesIO(damaged), "a.parquet")


def zstd(content: bytes) -> bytes:
    return pa.compress(content, "zstd", asbytes=True)


def test_zstandard_equals_the_plain_file_and_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = b'{"_id": "a", "title": "Boats", "text": "They float."}\n{"_id": "b", "text": "Night."}\n'
    expected = parse_documents(io.BytesIO(rows), "a.jsonl")
    for name, content in {"a.jsonl.zst": zstd(rows), "a.jsonl.gz": gzip.compress(rows)}.items():
        (tmp_path / name).write_bytes(content)
        assert read_documents(tmp_path / name).lines == expected.lines
    for content in (zstd(rows)[:-4], b"no Zstandard at all"):
        with pytest.raises(TextError, match=r"a\.txt\.zst cannot be decompressed"):
            parse_documents(io.BytesIO(content), "a.txt.zst")
    monkeypatch.setattr("bert_probe.text.sentence_files.MAX_BYTES", 1_000)
    with pytest.raises(TextError, match="is larger than"):
        parse_documents(io.BytesIO(zstd(b"boat\n" * 1_000)), "a.txt.zst")


def test_folder_that_may_be_listed_but_not_searched_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("A boat.")

    def denied(path: Path) -> os.stat_result:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "lstat", denied)
    with pytest.raises(TextError, match=r"a\.txt cannot be opened: Permission denied"):
        read_documents(tmp_path)
    with pytest.raises(TextError, match="cannot be opened: File name too long"):
        read_documents("x" * 256)
    with pytest.raises(TextError, match="cannot be opened: embedded null byte"):
        read_documents("nul\0")


def test_a_folder_of_text_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "manual"
    (folder / "b" / ".hidden").mkdir(parents=True)
    (folder / "b" / "z.MD").write_text("# Boats\r\nThey float.\n", newline="")
    (folder / "a.txt").write_bytes(b"\xef\xbb\xbfNight.")
    for name in ("a.pdf", ".a.txt", "b/.hidden/c.txt"):
        (folder / name).write_text("not read")
    (tmp_path / "outside.txt").write_text("secret")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "c.txt").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "outside.txt")
    (folder / "link").symlink_to(tmp_path / "outside")
    os.mkfifo(folder / "pipe.txt")
    assert [(document.id, str(document)) for document in read_documents(folder)] == [
        ("a.txt", "Night."),
        ("b/z.MD", "# Boats\nThey float."),
    ]
    (folder / "c.txt").write_bytes(b"\xff")
    (folder / "d.md").write_text(" ")
    with pytest.raises(InvalidFileError, match=r"file 3: c\.txt is not UTF-8; file 4: d\.md is empty"):
        read_documents(folder)
    assert len(read_documents(folder, skip_broken=True)) == 2
    monkeypatch.setattr(documents, "MAX_BYTES", 20)
    with pytest.raises(TextError, match="The files of manual have more than 0 MB"):
        read_documents(folder)
    monkeypatch.setattr(documents, "MAX_ENTRIES", 3)
    with pytest.raises(TextError, match="more than 3 files"):
        read_documents(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(EmptyTextError, match=r"no file with the extension \.txt or \.md"):
        read_documents(tmp_path / "empty")


@pytest.mark.skipif(sys.platform == "win32", reason="needs the peak memory of a child process")
def test_child_process_does_not_copy_a_repeated_text() -> None:
    """A text of 1.5 MB in 3,000 rows would take 1.5 GB for each batch of 1,024 rows."""
    table = pa.table({"text": pa.DictionaryArray.from_arrays(pa.array([0] * 3000), ["a" * 1_500_000])})
    content = parquet_bytes(
        table, compression="zstd", store_schema=False, write_statistics=False, dictionary_pagesize_limit=2**30
    )
    assert len(content) < 10_000
    # Start the child process from a small process, because its peak memory includes that of its parent.
    script = """
import resource, subprocess, sys
subprocess.run([sys.executable, "-m", "bert_probe.text.parquet_child"], stdin=sys.stdin, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], input=content, cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    assert int(ended.stdout) * (1 if sys.platform == "darwin" else 1024) < 400e6


@pytest.mark.prove
def test_parquet_that_takes_long_to_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups that repeat the same pages make a short file as long as its author likes."""
    pytest.importorskip("resource")
    child = (
        "from bert_probe.text import parquet_child\n"
        "parquet_child.CPU_SECONDS = 1\n"
        "parquet_child._limit_cpu_time()\n"
        "while True: pass"
    )
    monkeypatch.setattr(parquet, "_command", lambda: [sys.executable, "-c", child])
    with pytest.raises(TextError, match=r"^a\.parquet takes more than 8 seconds of CPU time to read\. Split"):
        parquet.check_readable(b"PAR1", "a.parquet")


def test_a_file_that_crashes_the_parquet_reader_is_refused() -> None:
    content = bytearray(parquet_bytes(pa.table({"text": ["a", "b"]}), compression="none"))
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    content[start + 20] = 0  # This byte makes the column required instead of optional.
    # Older versions of pyarrow raise an exception instead of crashing.
    reason = (
        "Unexpected end of stream" if pa.__version__.startswith("17.") else "the file is damaged, and crashes"
    )
    with pytest.raises(TextError, match=rf"a\.parquet cannot be read as Parquet: {reason}"):
        parse_documents(io.BytesIO(bytes(content)), "a.parquet")


def test_a_reader_process_that_is_killed_once_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = [-9, 0, -6, -6]
    monkeypatch.setattr("subprocess.run", lambda command, **_: CompletedProcess(command, codes.pop(0)))
    parquet.check_readable(b"", "a.parquet")
    with pytest.raises(TextError, match="crashes the process that reads it"):
        parquet.check_readable(b"", "a.parquet")


def test_an_upload_that_is_large_when_it_is_decoded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "MAX_BYTES", 2_500)
    table = pa.table({"text": ["x" * 3000], "number": [1]})
    content = parquet_bytes(table, compression="zstd", write_statistics=False)
    with pytest.raises(TextError, match=r"a\.parquet has more than 0 MB of texts"):
        parquet.check_upload(content, "a.parquet")
    parquet.check_upload(parquet_bytes(pa.table({"text": ["x"], "number": [1]})), "a.parquet")


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_reading_reports_progress_in_bytes(ending: str, tmp_path: Path) -> None:
    lines = "".join(f"Document number {number} is here.\n" for number in range(2_500)).encode()
    file = tmp_path / f"documents.txt{ending}"
    file.write_bytes(gzip.compress(lines) if ending else lines)
    reports: list[tuple[int, int]] = []
    assert len(read_documents(file, progress=lambda *report: reports.append(report))) == 2_500
    assert [total for _, total in reports] == [file.stat().st_size] * 2
    assert 0 < reports[0][0] <= reports[1][0] <= file.stat().st_size


def test_typed_text_is_not_called_a_file() -> None:
    with pytest.raises(InvalidFileError, match=r"^The text has an error: line 4: .* Correct the text\.$"):
        documents.documents_in_text(">a\nMK TAY\n>b\n1 2 3 !!\n")


@pytest.mark.parametrize(
    "header",
    [
        b"\x15\x00\x15\x00\x15\x00\x06\x04\x02\x00",  # the size, field 2, again as a 64-bit integer
        b"\x15\x00\x15\x00\x15\x00\x05\x04\x02\x00",  # the size again as a 32-bit integer
        b"\x15\x00\x16\x00\x15\x00\x00",  # the size as a 64-bit integer only
    ],
)
def test_page_headers_with_ambiguous_sizes_are_refused(header: bytes) -> None:
    """The Parquet library ignores a field of another type, and uses the first of two values."""
    assert parquet._page_headers(b"\x15\x00\x15\x02\x15\x00\x00")[0][2] == 1
    with pytest.raises(ValueError, match=r"a field twice|unknown type"):
        parquet._page_headers(header)


def test_file_that_needs_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: Mock(returncode=NO_MEMORY))
    with pytest.raises(TextError, match=r"a\.parquet needs more than 537 MB of memory to read"):
        parquet.check_readable(b"", "a.parquet")


def test_columns_are_decoded_in_another_process(tmp_path: Path) -> None:
    table = pa.table(
        {"text": ["we", None, "left"], "id": [1, 2, 3], "tag": pa.array(["a"] * 3).dictionary_encode()}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    decoded = parquet.decode(content, "a.parquet", ["tag", "text"], 1_000)
    assert decoded.to_pydict() == {"tag": ["a"] * 3, "text": ["we", None, "left"]}
    with (tmp_path / "a.parquet").open("rb") as stream:
        assert parquet.decode(stream, "a.parquet", ["id"], 1_000).to_pydict() == {"id": [1, 2, 3]}
    with pytest.raises(TextError, match=r"a\.parquet has more than 0 MB after decompression"):
        parquet.decode(content, "a.parquet", ["text"], 10)
    with pytest.raises(ValueError, match="Parquet"):
        parquet.decode(content[:-20], "a.parquet", ["text"], 1_000)


def test_repeated_texts_are_refused_by_the_process_that_decodes_them(tmp_path: Path) -> None:
    table = pa.table({"text": pa.DictionaryArray.from_arrays([0] * 1_000, ["x" * 1_000_000])})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(TextError, match="needs more than 537 MB of memory"):
        parquet.decode((tmp_path / "a.parquet").read_bytes(), "a.parquet", ["text"], 10**12)
