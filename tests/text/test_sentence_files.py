"""Sentences out of files: what is read, and what is refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_probe import sentences_from_file
from bert_probe.errors import EmptyTextError, SelectionError, TextError
from bert_probe.text.sentence_files import columns_of, lines, sentences_of, usual_column


def test_a_text_file_has_a_sentence_a_line(tmp_path: Path) -> None:
    file = tmp_path / "plain.txt"
    file.write_bytes("\ufeffOne.\r\n\r\n  Two, “two”\u2028still two. \nÇelik 🙂\r".encode())
    assert sentences_from_file(file) == ("One.", "Two, “two”\u2028still two.", "Çelik 🙂")


@pytest.mark.parametrize(
    ("content", "column", "expected"),
    [
        ('sentence,n\nOne,1\n"Two, too",2\n', None, ("One", "Two, too")),
        ("id;Text;n\n1;One;x\n2;Two\n\n3;;x\n4\n", None, ("One", "Two")),
        ("a\tb\nOne\tTwo\n", "b", ("Two",)),
        ("only\nOne\nTwo, with a comma\n", None, ("One", "Two")),
        ('a,b\n"two\nlines",x\n', "a", ("two lines",)),
        (" a , b \nOne,Two\n", "b", ("Two",)),
        ("a,b\nOne,Two", "b ", ("Two",)),
    ],
)
def test_a_table_has_them_in_a_column(content: str, column: str | None, expected: tuple[str, ...]) -> None:
    assert sentences_of(content.encode(), "table.csv", column) == expected


def test_the_reference_file_names_its_sentences() -> None:
    content = b'sentence,"A, b",C\n"A, b",1.0,0.5\nC,0.5,1.0\n'
    assert columns_of(content, "TABLE.CSV") == ("sentence", "A, b", "C")
    assert sentences_of(content, "TABLE.CSV") == ("A, b", "C")


def test_the_usual_column() -> None:
    assert usual_column(("anything",)) == 0
    assert usual_column(("id", "Sentence")) == 1
    assert usual_column(("text", "sentence")) is None
    assert usual_column(("a", "b")) is None
    assert columns_of(b"a,b", "file.txt") == ()


@pytest.mark.parametrize(
    ("content", "name", "column", "error", "sentence"),
    [
        (b"", "a.txt", None, EmptyTextError, "a.txt holds no sentences"),
        (b" \n\t\n", "a.txt", None, EmptyTextError, "holds no sentences"),
        (b"", "a.csv", None, EmptyTextError, "a.csv is empty"),
        (b"sentence\n", "a.csv", None, EmptyTextError, "holds no sentences"),
        ("Straße".encode("latin-1"), "a.txt", None, TextError, "not UTF-8: byte 4 "),
        ("a\n".encode("utf-16"), "a.txt", None, TextError, "not UTF-8: byte 0 "),
        (b"a\0b", "a.txt", None, TextError, "NUL"),
        (b"a,b\n1,2\n", "a.csv", None, SelectionError, "2 columns: a, b. Name one"),
        (b"a,b\n1,2\n", "a.csv", "c", SelectionError, "no column c; there are a, b"),
        (b"a,a\n1,2\n", "a.csv", "a", SelectionError, "several columns a"),
        (b"a\nb\n", "a.txt", "a", SelectionError, "has no columns"),
        (b'a\n"open', "a.csv", None, TextError, "broken table"),
        (b"a\n" + b"x" * 200_000, "a.csv", None, TextError, "broken table"),
        (b"x\n" * 2001, "a.txt", None, TextError, "2,001 sentences; at most 2,000"),
        (b"x" * 5_000_001, "a.txt", None, TextError, "larger than 5 MB"),
    ],
)
def test_files_that_cannot_be_read(
    content: bytes, name: str, column: str | None, error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence) as refused:
        sentences_of(content, name, column)
    assert len(str(refused.value)) < 300


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    for path in (tmp_path / "none.txt", tmp_path, tmp_path / "nul\0.txt"):
        with pytest.raises(TextError, match=r"cannot be opened: .*Check the path"):
            sentences_from_file(path)
    large = tmp_path / "large.txt"
    large.write_bytes(b"x" * 5_000_001)
    with pytest.raises(TextError, match="larger than 5 MB"):
        sentences_from_file(large)


@given(st.binary(max_size=300), st.sampled_from(["a.txt", "a.csv"]))
def test_no_bytes_are_a_traceback(content: bytes, name: str) -> None:
    try:
        found = sentences_of(content, name)
    except (TextError, SelectionError):
        return
    assert found
    assert all(one == one.strip() != "" and "\n" not in one for one in found)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1)))
def test_lines_come_back_as_they_were(written: list[str]) -> None:
    assert lines("\n".join(written)) == [one.strip() for one in written if one.strip()]
