"""Test the search for input files, and the rows that are read from these files."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import socket
import sys
import threading
import tracemalloc
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import cast
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_probe.corpus import formats
from bert_probe.corpus.formats import open_rows
from bert_probe.corpus.inputs import (
    InputFile,
    MatchedFile,
    Record,
    count_records,
    describe_files,
    find_inputs,
    records,
)
from bert_probe.errors import EmptyTextError, ProbeError, SelectionError, TextError
from bert_probe.text import parquet
from bert_probe.text.documents import read_documents
from bert_probe.text.sentence_files import Sentence, parse_sentences
from bert_probe.text.tagged_sentences import parse_tagged_sentences
from tests.helpers.gate import examples

TREE = (
    "# sent_id = one\n"
    "# text = We left.\n"
    "1\tWe\twe\tPRON\t_\t_\t2\tnsubj\t_\t_\n"
    "2\tleft\tleave\tVERB\t_\t_\t0\troot\t_\tSpaceAfter=No\n"
    "3\t.\t.\tPUNCT\t_\t_\t2\tpunct\t_\t_\n"
)


def zst(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as packing:
        packing.write(content)
    return sink.getvalue().to_pybytes()


def read(folder: Path, name: str, content: bytes | str, column: str | None = None) -> list[Record]:
    file = folder / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    result = list(records([MatchedFile(name, file)], column))
    assert count_records([MatchedFile(name, file)], column) == len(result)
    return result


def texts_or_problems(result: list[Record]) -> list[tuple[int, str]]:
    """Return the line number of each record, with its text or, if it has none, its problem."""
    assert all((record.text is None) == bool(record.problem) for record in result)
    assert [record.row for record in result] == list(range(1, len(result) + 1))
    return [(record.line, record.problem if record.text is None else record.text) for record in result]


@contextmanager
def assert_few_bytes(maximum: int) -> Iterator[None]:
    """Assert that the `with` block never allocates more than a number of bytes."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < maximum
    finally:
        tracemalloc.stop()


def names(result: tuple[MatchedFile, ...]) -> list[str]:
    return [file.name for file in result]


# ---------------------------------------------------------------- formats

READ = [
    (
        "a.txt",
        "\ufeffOne.\r\n\r\n  Two, “two”\u2028still two. \rÇelik 🙂",
        [(1, "One."), (3, "Two, “two”\u2028still two."), (4, "Çelik 🙂")],
    ),
    (
        "a.csv",
        'sentence,n\nOne,1\n\n"Two, ""too""\nand on",2\nHe said "no",3',
        [(2, "One"), (4, 'Two, "too" and on'), (6, 'He said "no"')],
    ),
    ("a.tsv", "id\tText\n1\tOne, one\n", [(2, "One, one")]),
    ("a.tsv", "Text\nOne, one\n", [(2, "One, one")]),
    ("a.csv", "id;text\n1;One\n", [(2, "One")]),
    (
        "a.jsonl",
        '\n{"n": 1, "text": "One\\nand on"}\n{"text": " Two "}\n"Three"',
        [(2, "One and on"), (3, "Two"), (4, "Three")],
    ),
    ("a.ndjson", '"One"\r\n"Two"\r\n', [(1, "One"), (2, "Two")]),
    ("a.conllu", f"{TREE}\n\n{TREE}", [(3, "We left."), (10, "We left.")]),
    ("a.conll", "-DOCSTART- O\n\nWe O\nleft O\n", [(3, "We left")]),
    ("notes", "One.\nTwo.\n", [(1, "One."), (2, "Two.")]),
]


@pytest.mark.parametrize(("name", "content", "expected"), READ, ids=[case[0] for case in READ])
@pytest.mark.parametrize("packed", ["", ".gz", ".ZST"])
def test_format_is_read_compressed_or_not(
    tmp_path: Path, name: str, content: str, expected: list[tuple[int, str]], packed: str
) -> None:
    pack: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".ZST": zst}
    assert texts_or_problems(read(tmp_path, name + packed, pack[packed](content.encode()))) == expected


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_parquet_is_read_row_group_by_row_group(tmp_path: Path, kind: pa.DataType) -> None:
    texts = ["One", None, " Two\ntwo ", "", "Three"]
    rows = pa.table({"id": range(5), "text": pa.array(texts, kind), "sentences": texts})
    file = tmp_path / "a.parquet"
    pq.write_table(rows, file, row_group_size=2)
    expected = [
        (1, "One"),
        (2, "The row has no text."),
        (3, "Two two"),
        (4, "The text is empty."),
        (5, "Three"),
    ]
    for column in (None, "text", "sentences"):
        assert texts_or_problems(list(records(find_inputs([file], column), column))) == expected


def test_repeated_text_of_a_parquet_file_takes_memory_once(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": pa.DictionaryArray.from_arrays([0] * 200, ["x" * 2_000_000])}), file)
    pool = pa.default_memory_pool()
    with open_rows(file, file.name, None) as rows:
        peak = max(pool.bytes_allocated() for _ in rows)
    assert peak < 50_000_000


@pytest.mark.prove
def test_parquet_file_that_needs_too_much_memory_is_one_refusal(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    texts = pa.array(["a", "b", "x" * 300_000_000])
    pq.write_table(pa.table({"text": texts}), file, row_group_size=2, use_dictionary=False)
    assert file.stat().st_size < 50_000_000
    assert texts_or_problems(list(records(find_inputs(file)))) == [
        (1, "a"),
        (2, "b"),
        (3, BREAKS_OFF + "reading it takes more than 537 MB of memory."),
    ]


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import os; os.abort()", "it crashes the process that reads it"),
        ("import sys; sys.stderr.write('no column'); sys.exit(4)", "no column"),
    ],
)
def test_process_that_reads_a_parquet_file_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, problem: str
) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a"]}), file)
    monkeypatch.setattr(parquet, "_command", lambda _column: [sys.executable, "-c", code])
    assert texts_or_problems(list(records(find_inputs(file)))) == [(1, f"{BREAKS_OFF}{problem}.")]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="child processes cannot be listed")
def test_process_that_reads_a_parquet_file_ends_with_the_reader(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [f"text {n}" * 1000 for n in range(10_000)]}), file)
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    before = children.read_text().split()
    with open_rows(file, file.name, None) as rows:
        assert next(rows).text
        assert children.read_text().split() != before
        cast(Generator[object], rows).close()
        assert children.read_text().split() == before


def test_parquet_cell_that_is_not_utf_8_refuses_only_its_row(tmp_path: Path) -> None:
    odd = pa.Array.from_buffers(pa.string(), 3, pa.array([b"a", b"\xff", b"c"]).buffers())
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": odd}), file)
    assert texts_or_problems(list(records(find_inputs(file)))) == [
        (1, "a"),
        (2, "The text is not UTF-8."),
        (3, "c"),
    ]


def test_parquet_column_name_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a"], "zqzq": ["c"]}), file, store_schema=False)
    content = file.read_bytes().replace(b"zqzq", b"z\xffzq")
    file.write_bytes(content)
    with pytest.raises(TextError, match="has a column whose name is not UTF-8"):
        find_inputs(file)
    with pytest.raises(
        TextError, match=r"^a\.parquet has a column whose name is not UTF-8\. Rename the column"
    ):
        read_documents(file)


def test_treebank_keeps_words_tags_and_comments(tmp_path: Path) -> None:
    first, second = read(tmp_path, "a.conllu", f"{TREE}\n{TREE}")
    assert first.tagged == parse_tagged_sentences(f"{TREE}\n{TREE}".encode(), "a.conllu")[0]
    assert (first.tagged.words, first.tagged.metadata) == (("We", "left", "."), {"sent_id": "one"})
    assert (second.line, second.tagged.line, second.tagged.heads) == (9, 9, (1, -1, 1))


# ---------------------------------------------------------------- invalid rows

LONG = "x" * 1_000_001
TOO_LONG = "The line is longer than 1,000,000 bytes."
NOT_UTF_8 = "The line is not UTF-8."
BREAKS_OFF = "The file cannot be read from this line on, and earlier lines may also be damaged: "
QUOTES = "The row cannot be read: "


def cells(result: int, due: int) -> str:
    return f"The row has {result} cells, but the header has {due}."


JOINED = "Quotation marks join lines 2 to 3, which may be one row or several."
BAD = [
    (
        "a.txt",
        b"One\nStra\xdfe\nTwo\0\nThree\n",
        [(1, "One"), (2, NOT_UTF_8), (3, "The line contains a NUL character."), (4, "Three")],
    ),
    ("a.txt", f"One\n{LONG}\n{LONG[1:]}\n\n", [(1, "One"), (2, TOO_LONG), (3, LONG[1:])]),
    ("a.txt", LONG, [(1, TOO_LONG)]),
    (
        "a.csv",
        b"text,n\n\xff,1\nTwo,2\n ,3\n,\n",
        [(2, NOT_UTF_8), (3, "Two"), (4, "The text is empty."), (5, "The text is empty.")],
    ),
    ("a.csv", "text,n\nOne\nTwo,2,2\nThree,3", [(2, cells(1, 2)), (3, cells(3, 2)), (4, "Three")]),
    ("a.csv", b'text,n\n"One\n\xff one",1\nTwo,2', [(2, NOT_UTF_8), (4, "Two")]),
    ("a.csv", 'text\n"One"one\nTwo', [(2, QUOTES + "',' expected after '\"'."), (3, "Two")]),
    # An unclosed quote extends to the end of the file, the next quote, or the length limit.
    ("a.csv", 'text\n"One\nTwo\nThree', [(2, QUOTES + "unexpected end of data."), (3, "Two"), (4, "Three")]),
    (
        "a.csv",
        'text\n"One\nTwo\n"Three\nthree"\nFour',
        [(2, QUOTES + "',' expected after '\"'."), (3, "Two"), (4, "Three three"), (6, "Four")],
    ),
    (
        "a.tsv",
        'text\tlabel\n"One\ta\nTwo"\tb\nThree\tc',
        [(2, JOINED), (3, JOINED), (4, "Three")],
    ),
    ("a.tsv", 'text\tlabel\n"One\n\ta\none"\tb\nThree\tc', [(2, "One a one"), (5, "Three")]),
    (
        "a.csv",
        f'text,n\n"One,1\nTwo,2\n{LONG}\nThree,3',
        [(2, QUOTES + "a quotation mark is not closed."), (3, "Two"), (4, TOO_LONG), (5, "Three")],
    ),
    (
        "a.csv",
        f'text\n"{"a" * 200_000}"\n"{"b" * 250_001}"\nThree',
        [
            (2, "a" * 200_000),
            (3, QUOTES + "a cell has more than 250,000 characters, or its quotation mark is not closed."),
            (4, "Three"),
        ],
    ),
    (
        "a.jsonl",
        '{"text": 1}\n{"text": null}\n{"n": "x"}\n{"text": true}\n[]\n{"text": {}}\n{"text": " "}',
        [
            (1, "The text must be a string, not a number."),
            (2, "The row has no text."),
            (3, "The object has no key text."),
            (4, "The text must be a string, not true or false."),
            (5, "The text must be a string, not a list."),
            (6, "The text must be a string, not an object."),
            (7, "The text is empty."),
        ],
    ),
    (
        "a.jsonl",
        '{"text": "a"\n"b"\n"\\ud800"\n"\\u0000"\n' + "[" * 100_000 + "\n" + "9" * 5000,
        [
            (1, "The line is not valid JSON: Expecting ',' delimiter, at character 13."),
            (2, "b"),
            (3, "The text contains a lone surrogate, which is not valid Unicode."),
            (4, "The text contains a NUL character."),
            (5, "The JSON on this line is nested too deeply."),
            (
                6,
                "The JSON on this line cannot be used: a number has 5,000 digits, but at most 4,300 are "
                "allowed.",
            ),
        ],
    ),
    (
        "a.jsonl",
        '{"text": "a"}\n{"text": "a", "text": "b"}',
        [
            (1, "a"),
            (2, 'The JSON on this line cannot be used: the key "text" occurs twice; write the key once.'),
        ],
    ),
    (
        "a.jsonl",
        '"a"\n' * 100 + '{"text": "b"}',
        [(n, "a") for n in range(1, 101)]
        + [(101, "The line is a JSON object, but the first lines are strings.")],
    ),
    (
        "a.conllu",
        TREE.replace("\t2\tnsubj", "\t9\tnsubj") + "\n" + TREE,
        [(3, "The head is 9, but the sentence has 3 words."), (9, "We left.")],
    ),
    (
        "a.conllu",
        TREE.encode() + b"\n1\tStra\xdfe\n2\tx\n\n" + TREE.encode(),
        [(3, "We left."), (7, NOT_UTF_8), (12, "We left.")],
    ),
    (
        "a.conllu",
        TREE + "\n" + f"# {LONG[:9_998]}\n" * 100 + TREE + "\n" + TREE,
        [
            (3, "We left."),
            (107, "The sentence is longer than 1,000,000 characters."),
            (115, "We left."),
        ],
    ),
    (
        "a.conll",
        "We O\nleft\n\nThey O\ngo O",
        [(2, "“left” has no tag in a column after the word."), (4, "They go")],
    ),
]


@pytest.mark.parametrize(("name", "content", "expected"), BAD, ids=[case[0] for case in BAD])
def test_bad_row_does_not_end_reading(
    tmp_path: Path, name: str, content: bytes | str, expected: list[tuple[int, str]]
) -> None:
    assert texts_or_problems(read(tmp_path, name, content)) == expected
    assert read(tmp_path, name, content) == read(tmp_path, name, content)


def test_unclosed_quote_is_searched_only_up_to_row_limit(tmp_path: Path) -> None:
    """Each line closes one quoted cell and opens another, but no line is read more than three times."""
    selected = 0

    def counted(self: object) -> formats.InputLine | None:
        nonlocal selected
        selected += 1
        return following(self)

    following = formats._RowSplitter._next
    file = tmp_path / "a.csv"
    file.write_text("text,n\n" + f'{LONG[:997]}","\n' * 3000)
    with patch.object(formats._RowSplitter, "_next", counted):
        every = records([MatchedFile("a.csv", file)])
        assert next(every).problem == QUOTES + "a quotation mark is not closed."
        assert selected < 1010
        assert len([*every]) == 2999
    assert selected < 3 * 3000


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize(("name", "pack"), [("a.txt.gz", gzip.compress), ("a.csv.zst", zst)])
@pytest.mark.parametrize("spoil", ["cut off", "changed", "another"])
def test_unreadable_end_of_file_is_one_refusal(
    tmp_path: Path, name: str, pack: Callable[[bytes], bytes], spoil: str
) -> None:
    digests = [hashlib.sha256(bytes([n % 256, n // 256])).hexdigest() for n in range(8_000)]
    packed = pack("\n".join(["text", *digests]).encode())
    half = len(packed) // 2
    broken = {
        "cut off": packed[:half],
        "changed": packed[:half] + bytes(99) + packed[half + 99 :],
        "another": b"no",
    }
    result = read(tmp_path, name, broken[spoil])
    complete = read(tmp_path, f"whole-{name}", packed)
    assert BREAKS_OFF in result[-1].problem
    if spoil == "another":
        assert len(result) == 1
    else:  # Decompression may detect a changed byte only later.
        sure = len(result) - 1 if spoil == "cut off" else 2000
        assert len(result) > 2000
        assert all(record.text == same.text for record, same in zip(result[:sure], complete, strict=False))
    after = list(
        records([MatchedFile(name, tmp_path / name), MatchedFile("whole", tmp_path / f"whole-{name}")])
    )
    assert len(after) == len(result) + len(complete)
    assert all(record.text == same.text for record, same in zip(after[len(result) :], complete, strict=True))


def test_truncated_parquet_is_one_refusal(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [f"{n} {n * n}" for n in range(4000)]}), file, row_group_size=1000)
    content = bytearray(file.read_bytes())
    place = pq.ParquetFile(file).metadata.row_group(2).column(0).data_page_offset
    content[place : place + 200] = bytes(200)
    result = read(tmp_path, "b.parquet", bytes(content))
    assert (len(result), result[-2].text) == (2001, f"1999 {1999 * 1999}")
    assert result[-1].problem.startswith(BREAKS_OFF)


def test_missing_or_changed_file_does_not_end_reading(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,m\n1,2\n")
    (tmp_path / "b.txt").write_text("One\n")
    files = [MatchedFile(name, tmp_path / name) for name in ("none.txt", "a.csv", "b.txt")]
    result = list(records(files))
    assert [record.text for record in result] == [None, None, "One"]
    assert "none.txt cannot be opened: No such file or directory" in result[0].problem
    assert result[1].problem == "a.csv has 2 columns: n, m. Choose one of these columns."


def test_folder_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_dir", denied)
        with pytest.raises(TextError, match=r"\*.txt cannot be opened: Permission denied. Check the path."):
            find_inputs(tmp_path / "*.txt")
    (tmp_path / "a.txt").write_text("A boat.")
    monkeypatch.setattr(Path, "lstat", denied)
    with pytest.raises(TextError, match=r"a\.txt cannot be opened: Permission denied. Check the path."):
        find_inputs(tmp_path / "*")


# ---------------------------------------------------------------- bounded memory


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl", "a.txt.gz", "a.txt.zst"])
def test_records_are_read_lazily(tmp_path: Path, name: str) -> None:
    piece = b'"text"\n' * 15_000
    file = tmp_path / name
    with file.open("wb") as output:
        for _ in range(3 if name.endswith(("gz", "zst")) else 30):
            output.write(
                gzip.compress(piece * 100)
                if name.endswith("gz")
                else zst(piece * 100)
                if name.endswith("zst")
                else piece
            )
    handed = 0

    def counted(stream: object) -> object:
        nonlocal handed
        for line in split_lines(stream):
            handed += 1
            yield line

    split_lines = formats._split_lines
    with patch.object(formats, "_split_lines", counted), assert_few_bytes(1_000_000):
        every = records(find_inputs(file))
        handed = 0
        first = list(islice(every, 10))
    assert [record.text for record in first] == (
        ["text"] * 10 if name in ("a.csv", "a.jsonl") else ['"text"'] * 10
    )
    assert handed <= 100


def test_decompression_bomb_of_one_line_takes_little_memory(tmp_path: Path) -> None:
    files = [tmp_path / "a.txt.gz", tmp_path / "a.jsonl.zst"]
    for file, pack in zip(files, (gzip.compress, zst), strict=True):
        file.write_bytes(pack(b" " * 20_000_000))
    with assert_few_bytes(4_000_000):
        result = list(records(find_inputs(files)))
    assert [record.problem for record in result] == [TOO_LONG] * 2


# ---------------------------------------------------------------- arbitrary lines


@given(st.lists(st.sampled_from(["a", "é", "👩", " ", "\r", "\n", "\r\n", "\ufeff"])), st.integers(1, 5))
def test_lines_do_not_depend_on_chunk_size(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], size: int
) -> None:
    content = "".join(parts).encode()
    try:
        expected = [
            (sentence.line, str(sentence))
            for sentence in parse_sentences(content, "a.txt")
            if isinstance(sentence, Sentence)
        ]
    except EmptyTextError:
        expected = []
    folder = tmp_path_factory.getbasetemp()
    for chunk in (1 << 16, size):
        with patch.object(formats, "_CHUNK", chunk):
            assert texts_or_problems(read(folder, "lines.txt", content)) == expected


TEXTS = st.lists(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).map(str.strip).filter(bool)
)


@given(TEXTS)
@settings(max_examples=examples(30))
def test_texts_survive_every_format(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    folder = tmp_path_factory.getbasetemp()
    pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), folder / "t.parquet")
    quoted = "".join('"' + text.replace('"', '""') + '"\n' for text in ["text", *texts])
    for name, content in {
        "t.txt": "\n".join(texts),
        "t.csv": quoted,
        "t.jsonl": "\n".join(json.dumps({"text": text}) for text in texts),
        "t.ndjson": "\n".join(json.dumps(text, ensure_ascii=False) for text in texts),
        "t.parquet": (folder / "t.parquet").read_bytes(),
    }.items():
        assert [record.text for record in read(folder, name, content)] == texts


@given(
    st.binary(max_size=300),
    st.sampled_from(["a.txt", "a.csv", "a.jsonl", "a.conllu", "a.conll", "a.parquet", "a.gz", "a.zst"]),
)
def test_arbitrary_bytes_raise_no_traceback(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str
) -> None:
    folder = tmp_path_factory.getbasetemp()
    result = read(folder, name, content)
    assert len(texts_or_problems(result)) == len(result)
    for record in result:
        assert (record.text or record.problem).encode().strip()
    with suppress(ProbeError):
        find_inputs(folder / name)


# ---------------------------------------------------------------- selection of the input files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "b.txt",
        "a.csv",
        "sub/a.csv",
        "sub/deep/c.jsonl.gz",
        ".hidden/x.txt",
        ".x.txt",
        "picture.png",
        "notes",
    ):
        file = tmp_path / "data" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(gzip.compress(b'"One"') if name.endswith("gz") else b"text\nOne\n")
    return tmp_path / "data"


def test_folder_matches_readable_files_by_name(folder: Path) -> None:
    result = find_inputs(folder)
    assert names(result) == ["a.csv", "b.txt", "sub/a.csv", "sub/deep/c.jsonl.gz"]
    assert all(file.path == folder / file.name for file in result)
    assert [record.text for record in records(result)] == ["One", "text", "One", "One", "One"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.csv", ["a.csv"]),
        ("**/*.csv", ["a.csv", "sub/a.csv"]),
        ("*", ["a.csv", "b.txt", "sub/a.csv", "sub/deep/c.jsonl.gz"]),
        ("**", ["a.csv", "b.txt", "sub/a.csv", "sub/deep/c.jsonl.gz"]),
        ("s?b/[a-c].csv", ["s?b/a.csv"]),
        ("sub/*", ["a.csv", "deep/c.jsonl.gz"]),
    ],
)
def test_pattern_matches_files_and_folders(folder: Path, pattern: str, expected: list[str]) -> None:
    assert names(find_inputs([str(folder / pattern)])) == [name.replace("s?b", "sub") for name in expected]


def test_files_are_unique_with_unique_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "link.csv").symlink_to(folder / "a.csv")
    monkeypatch.chdir(folder.parent)
    every = ["data/b.txt", "data/sub", "data", Path("data") / "*.csv", "data/notes", folder / "b.txt"]
    result = find_inputs(every)
    assert names(result) == ["data/b.txt", "a.csv", "deep/c.jsonl.gz", "data/a.csv", "data/notes"]
    assert result[3].path == Path("data/a.csv")


def test_file_name_may_be_a_pattern_or_any_bytes(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_text("One")
    assert names(find_inputs(str(tmp_path / "a[1].txt"))) == [str(tmp_path / "a[1].txt")]
    for odd in (b"\xff.txt", b"\xfe.txt"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + odd)).write_text("One")
    assert names(find_inputs(tmp_path)) == ["a[1].txt", "\ufffd.txt", f"{tmp_path}/\ufffd.txt"]


def test_cyclic_links_are_not_followed(folder: Path) -> None:
    (folder / "sub" / "again").symlink_to(folder)
    (folder / "self").symlink_to(folder / "self")
    for meant in (folder, folder / "**" / "*", folder / "sub" / "again"):
        assert names(find_inputs(meant)) == ["a.csv", "b.txt", "sub/a.csv", "sub/deep/c.jsonl.gz"]


@pytest.mark.parametrize(
    ("name", "content", "column", "error", "sentence"),
    [
        ("none.txt", None, None, TextError, "none.txt cannot be opened: No such file or directory. Check"),
        ("nul\0.txt", None, None, TextError, "cannot be opened: embedded null byte. Check the path."),
        ("*.txt", None, None, EmptyTextError, "*.txt matches no file with the extension .txt, "),
        ("**a", None, None, TextError, "**a is not a valid pattern: "),
        (".", None, None, EmptyTextError, " contains no file with the extension .txt, "),
        ("a.csv", b"n,m\n", None, SelectionError, "a.csv has 2 columns: n, m. Choose one of these columns."),
        ("a.csv", b"n,m\n", "text", SelectionError, "a.csv has no column text. Its columns are n, m. "),
        ("a.csv", b"n,n\n", "n", SelectionError, "a.csv has several columns n. Its columns are n, n. "),
        ("a.csv", b"", None, EmptyTextError, "a.csv is empty. Add a header, and write one sentence per row."),
        (
            "a.csv",
            b"a\xff\n",
            None,
            TextError,
            "a.csv cannot be read (line 1). The line is",
        ),
        (
            "a.csv.gz",
            b"text\n",
            None,
            TextError,
            "a.csv.gz cannot be read (line 1). The file",
        ),
        ("a.jsonl", b'{"a": 1, "b": 2}\n', None, SelectionError, "a.jsonl has 2 columns: a, b. Choose one"),
        (
            "a.jsonl",
            b"".join(b'{"%d%s": 1}\n' % (number, b"k" * 200_000) for number in range(6)),
            None,
            SelectionError,
            "a.jsonl have more than 1,000,000 characters. Write short keys",
        ),
        ("a.parquet", b"PAR1", None, TextError, "a.parquet cannot be read: "),
        (
            "a.txt",
            b"One",
            "text",
            SelectionError,
            "None of the files has columns, so there is no column text",
        ),
        (
            "a.json",
            b"[]",
            None,
            TextError,
            "a.json has a format that is not supported. Convert the file to .txt or ",
        ),
        (
            "a.parquet.gz",
            b"",
            None,
            TextError,
            "a.parquet.gz has a format that is not supported. Convert the file to .txt or ",
        ),
        (
            "a.xlsx",
            b"PK\0",
            None,
            TextError,
            "a.xlsx is not UTF-8 text, because it contains a NUL character. Convert the file to .txt or ",
        ),
        ("notes.gz", b"no", None, TextError, "notes.gz cannot be decompressed: Not a gzipped file (b'no')."),
    ],
)
def test_unreadable_inputs_are_refused_before_the_run(
    tmp_path: Path,
    name: str,
    content: bytes | None,
    column: str | None,
    error: type[Exception],
    sentence: str,
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(error) as refused:
        find_inputs([tmp_path / name], column)
    assert sentence in str(refused.value)


def test_parquet_column_must_be_text(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "a.parquet")
    with pytest.raises(
        SelectionError, match=r"Column n of .*a.parquet has type int64, not string. Choose another column."
    ):
        find_inputs(tmp_path / "a.parquet")


def test_column_applies_to_tables_among_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("said,n\nOne,1\n")
    (tmp_path / "b.txt").write_text("Two\n")
    (tmp_path / "c.jsonl").write_text('{"n": 1, "said": "Three"}\n')
    assert [record.text for record in records(find_inputs(tmp_path, "said"), "said")] == [
        "One",
        "Two",
        "Three",
    ]


def test_pipes_and_devices_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket.txt")
        for meant in ("pipe.txt", "socket.txt", "/dev/zero", tmp_path):
            with pytest.raises(
                TextError, match=r"is not a regular file\. Write the content to a regular file"
            ):
                find_inputs(meant)
    assert (
        "not a regular file"
        in texts_or_problems(list(records([MatchedFile("pipe.txt", tmp_path / "pipe.txt")])))[0][1]
    )


@pytest.mark.parametrize("nothing", [[], ()])
def test_no_inputs_are_refused(nothing: list[str]) -> None:
    with pytest.raises(EmptyTextError, match=r"There are no inputs. Pass files, folders or patterns."):
        find_inputs(nothing)


def test_file_description_has_size_and_digest(tmp_path: Path) -> None:
    contents = {"a.txt": (b"x" * 799_999 + b"\n") * 3, "b.txt.gz": gzip.compress(b"Two")}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    reports: list[tuple[int, int]] = []
    result = describe_files(find_inputs(tmp_path), lambda done, total: reports.append((done, total)))
    assert result == tuple(
        InputFile(name, tmp_path / name, len(content), hashlib.sha256(content).hexdigest())
        for name, content in contents.items()
    )
    total = sum(map(len, contents.values()))
    assert reports == [(1 << 20, total), (2 << 20, total), (2_400_000, total), (total, total)]
    assert list(records(result))[-1] == Record(4, "b.txt.gz", 1, "Two")
    with pytest.raises(TextError, match="none cannot be read: No such file or directory"):
        describe_files([MatchedFile("none", tmp_path / "none")])
