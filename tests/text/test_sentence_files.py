"""Test sentence files: parsing and errors."""

from __future__ import annotations

import copy
import csv
import gzip
import io
import pickle
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_probe import read_sentences
from bert_probe.errors import EmptyTextError, SelectionError, TextError
from bert_probe.model.lengths import MAX_CHARACTERS
from bert_probe.text import sentence_files
from bert_probe.text.labeled_texts import parse_labeled_texts
from bert_probe.text.sentence_files import Sentence, column_names, lines, parse_sentences
from bert_probe.text.tables import default_column


def test_text_file_has_one_sentence_per_line(tmp_path: Path) -> None:
    file = tmp_path / "plain.txt"
    file.write_bytes("\ufeffOne.\r\n\r\n  Two, “two”\u2028still two. \nÇelik 🙂\r".encode())
    assert read_sentences(file) == ("One.", "Two, “two”\u2028still two.", "Çelik 🙂")


@pytest.mark.parametrize(
    ("content", "column", "expected"),
    [
        ('sentence,n\nOne,1\n"Two, too",2\n', None, ("One", "Two, too")),
        ("id;Text;n\n1;One;x\n2;Two;\n\n3;;x\n", None, ("One", "Two")),
        ("a\tb\nOne\tTwo\n", "b", ("Two",)),
        ('only\nOne\n"Two, with a comma"\n', None, ("One", "Two, with a comma")),
        ('a,b\n"two\nlines",x\n', "a", ("two lines",)),
        (" a , b \nOne,Two\n", "b", ("Two",)),
        ("a,b\nOne,Two", "b ", ("Two",)),
    ],
)
def test_table_has_sentences_in_a_column(content: str, column: str | None, expected: tuple[str, ...]) -> None:
    assert parse_sentences(content.encode(), "table.csv", column) == expected


@pytest.mark.parametrize("cell", ["{}", '"{}"'], ids=["bare", "quoted"])
def test_cell_may_be_as_long_as_a_text(cell: str) -> None:
    csv.field_size_limit(131_072)  # Restore the default, which another test may have changed.
    text = "a" * MAX_CHARACTERS
    content = f"text,label\n{cell.format(text)},x\n".encode()
    assert parse_sentences(content, "a.csv", "text") == (text,)
    assert [row.text for row in parse_labeled_texts(content, "a.csv").rows] == [text]


def test_reference_file_has_named_sentences() -> None:
    content = b'sentence,"A, b",C\n"A, b",1.0,0.5\nC,0.5,1.0\n'
    assert column_names(content, "TABLE.CSV") == ("sentence", "A, b", "C")
    assert parse_sentences(content, "TABLE.CSV") == ("A, b", "C")


def test_first_text_column_is_default() -> None:
    assert default_column(("anything",)) == 0
    assert default_column(("id", "Sentence")) == 1
    assert default_column(("text", "sentence")) is None
    assert default_column(("a", "b")) is None
    assert column_names(b"a,b", "file.txt") == ()


@pytest.mark.parametrize(
    ("content", "name", "column", "error", "sentence"),
    [
        (b"", "a.txt", None, EmptyTextError, "a.txt has no sentences"),
        (b" \n\t\n", "a.txt", None, EmptyTextError, "has no sentences"),
        (b"", "a.csv", None, EmptyTextError, "a.csv is empty"),
        (b"sentence\n", "a.csv", None, EmptyTextError, "has no sentences"),
        (
            "a\r\n\r\nStraße".encode("latin-1"),
            "a.txt",
            None,
            TextError,
            "a.txt is not UTF-8, because line 3 cannot",
        ),
        (b"\xef\xbb\xbfa\n\xff", "a.txt", None, TextError, "a.txt is not UTF-8, because line 2 cannot"),
        (b"PAR1\x15\xfe\n\x00PAR1", "a.parquet", None, TextError, "a.parquet is a Parquet file, which this"),
        ("a\n".encode("utf-16"), "a.txt", None, TextError, "a.txt is not UTF-8, because line 1 cannot"),
        (b"a\n\na\0b", "a.csv", None, TextError, "a.csv is not a text file, because line 3 contains a NUL"),
        (b"a,b\n1,2\n", "a.csv", None, SelectionError, "2 columns: a, b. Choose one"),
        (b"a,b\n1,2\n", "a.csv", "c", SelectionError, "no column c. Its columns are a, b"),
        (b"a,a\n1,2\n", "a.csv", "a", SelectionError, "several columns a"),
        (b"a\nb\n", "a.txt", "a", SelectionError, "has no columns"),
        (b'a\n\n"open\nand on\n', "a.csv", None, TextError, "a.csv is a broken table: line 3, "),
        (
            b"a\n" + b"x" * 250_001,
            "a.csv",
            None,
            TextError,
            "line 2, a cell has more than 250,000 characters",
        ),
    ],
)
def test_undecodable_files_raise_error(
    content: bytes, name: str, column: str | None, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence) as refused:
        parse_sentences(content, name, column)
    assert len(str(refused.value)) < 300


def test_files_that_cannot_be_opened_raise_error(tmp_path: Path) -> None:
    for path in (tmp_path / "none.txt", tmp_path, tmp_path / "nul\0.txt"):
        with pytest.raises(TextError, match=r"cannot be opened: .*Check the path"):
            read_sentences(path)


def test_large_file_with_many_sentences_is_read(tmp_path: Path) -> None:
    large = tmp_path / "large.txt"
    large.write_bytes(b"The ferry leaves the island at dawn.\n" * 200_000)
    sentences = read_sentences(large)
    assert (len(sentences), {*sentences}) == (200_000, {"The ferry leaves the island at dawn."})


@pytest.mark.parametrize(
    ("content", "name", "expected"),
    [
        ("\ufeffa\r\nb\x0cc\u2028d\n\n \re", "a.txt", {"a": 1, "b\x0cc\u2028d": 2, "e": 5}),
        ("sentence\na\n\n\nb\n", "a.csv", {"a": 2, "b": 5}),
        ('n,text\r\n1,"two\r\nlines"\r\n2,\r\n3,b', "a.csv", {"two lines": 2, "b": 5}),
    ],
)
def test_sentence_has_line_number_of_editors(content: str, name: str, expected: dict[str, int]) -> None:
    sentences = parse_sentences(content.encode(), name)
    assert {sentence: sentence.line for sentence in sentences if isinstance(sentence, Sentence)} == expected


def test_sentence_is_string_and_keeps_its_line() -> None:
    sentence = Sentence("We left.", 12)
    assert (sentence, hash(sentence), repr(sentence)) == ("We left.", hash("We left."), "'We left.'")
    for same in (pickle.loads(pickle.dumps(sentence)), copy.deepcopy(sentence)):
        assert (same, same.line) == ("We left.", 12)


@given(st.binary(max_size=300), st.sampled_from(["a.txt", "a.csv"]))
def test_any_bytes_give_sentences_or_an_error(content: bytes, name: str) -> None:
    try:
        sentences = parse_sentences(content, name)
    except (TextError, SelectionError):
        return
    assert sentences
    assert all(sentence == sentence.strip() != "" and "\n" not in sentence for sentence in sentences)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1)))
def test_lines_round_trip(texts: list[str]) -> None:
    assert lines("\n".join(texts)) == [text.strip() for text in texts if text.strip()]


@given(st.lists(st.sampled_from(["a", "é", "👩", " ", "\r", "\n", "\r\n", '"', ","])), st.integers(1, 5))
def test_chunk_size_does_not_change_the_result(parts: list[str], size: int) -> None:
    encoded = "".join(parts).encode()
    for content, name in ((encoded, "a.txt"), (encoded + b"\xff", "a.txt"), (b"a\n" + encoded, "a.csv")):
        results = []
        for chunk in (1 << 16, size):
            with patch.object(sentence_files, "_CHUNK", chunk):
                try:
                    read = parse_sentences(content, name, "a" if name == "a.csv" else None)
                    results.append(
                        [
                            f"{sentence.line}: {sentence}"
                            for sentence in read
                            if isinstance(sentence, Sentence)
                        ]
                    )
                except TextError as error:
                    results.append([str(error)])
        assert results[0] == results[1]


def test_file_over_size_limit_is_not_read(tmp_path: Path) -> None:
    large = tmp_path / "large.txt"
    with large.open("wb") as stream:
        stream.truncate(sentence_files.MAX_BYTES + 1)
    with patch.object(sentence_files, "_sentences") as read:
        with pytest.raises(TextError, match=r"^large\.txt is larger than 50 MB\. Split the file\.$"):
            read_sentences(large)
        read.assert_not_called()


class EndlessStream(io.RawIOBase):
    """An endless stream that counts the bytes that were read."""

    def __init__(self, line: bytes) -> None:
        self.line, self.read_of_it = line, 0

    def read(self, size: int = -1) -> bytes:
        assert size > 0, "the stream is never read completely"
        self.read_of_it += size
        return (self.line * (size // len(self.line) + 1))[:size]


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("name", ["a.txt", "a.csv"])
@pytest.mark.parametrize("line", [b"We left\n", b"one line "])
def test_endless_file_is_read_up_to_the_limit(name: str, line: bytes) -> None:
    endless = EndlessStream(line)
    refused = pytest.raises(
        TextError, match=r"larger than 1 MB|line 1, a cell has more than 250,000 characters"
    )
    with patch.object(sentence_files, "MAX_BYTES", 1_000_000), refused:
        sentence_files._sentences(endless, name, None)
    assert endless.read_of_it <= 1_000_000 + sentence_files._CHUNK


def test_too_many_sentences_are_refused() -> None:
    with patch.object(sentence_files, "MAX_SENTENCES", 3):
        assert parse_sentences(b"a\nb\n\nc\n", "a.txt") == ("a", "b", "c")
        with pytest.raises(TextError, match=r"a\.txt has more than 3 sentences"):
            parse_sentences(b"a\nb\n\nc\nd\n", "a.txt")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="this system has no /dev/zero")
@pytest.mark.parametrize("name", ["blank.txt", "blank.csv", "blank.jsonl"])
def test_too_many_blank_lines_are_refused(name: str) -> None:
    first = b'{"text": "A boat."}\n' if name.endswith("jsonl") else b"text\nA boat.\n"
    with patch.object(sentence_files, "MAX_LINES", 200_000):
        assert parse_sentences(first + b"\n" * 100_000, name)
        with pytest.raises(TextError, match=r"blank\.\w+ has more than 200,000 lines\. Split the file\."):
            parse_sentences(first + b"\n" * 200_000, name)


def test_device_file_is_refused() -> None:
    with pytest.raises(TextError, match="zero is not a text file, because line 1 contains a NUL"):
        read_sentences("/dev/zero")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("one.csv", "text\nThe cat, the dog and the bird sat\nHello there\n"),
        ("two.csv", "text,label\nHello there,a\nThe cat, the dog,b\n"),
        ("two.tsv", "label\ttext\na\tHello\tthere\n"),
        ("break.csv", "label,text\na,The soup was hot\nand the bread was fresh.\n"),
        ("break.tsv", "text\tlabel\nThe soup\nwas hot\ta\n"),
    ],
)
def test_sentence_is_not_cut_at_a_separator(name: str, content: str) -> None:
    with pytest.raises(TextError, match=r"line \d: the row has \d cells?, but the header has \d\. Put texts"):
        parse_sentences(content.encode(), name, "text")


def test_empty_cells_at_the_end_of_a_row_are_ignored() -> None:
    assert parse_sentences(b"text,label\nHello,a,,\nAgain,\n,b\n", "a.csv", "text") == ("Hello", "Again")


def test_tab_and_line_break_within_quotation_marks_are_read_if_the_lines_cannot_be_rows() -> None:
    assert parse_sentences(b'text\tlabel\n"two\n\tlines"\ta\n', "a.tsv", "text") == ("two lines",)
    with pytest.raises(TextError, match=r"join lines 2 to 3, which may be several rows\. Write commas"):
        parse_sentences(b'text\tlabel\n"two\tor\nmore"\ta\n', "a.tsv", "text")


def test_tsv_with_one_column_may_contain_commas() -> None:
    assert parse_sentences(b"text\nThe cat, the dog\nHello; there\n", "one.tsv") == (
        "The cat, the dog",
        "Hello; there",
    )


def test_columns_of_a_compressed_table_are_listed() -> None:
    assert column_names(gzip.compress(b"text,label\na,b\n"), "a.csv.gz") == ("text", "label")
