"""Test labeled texts from tables: parsing, detection of the label type, and errors by line."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from bert_probe import read_labeled_texts
from bert_probe.errors import EmptyTextError, ProbeError, SelectionError, TextError
from bert_probe.model import config
from bert_probe.text import labeled_texts
from bert_probe.text.formats import MAX_LABEL_LENGTH, MAX_LISTED
from bert_probe.text.labeled_texts import Label, LabeledText, LabeledTexts, parse_labeled_texts
from bert_probe.text.sentence_files import parse_sentences
from bert_probe.text.similarity_examples import parse_similarity_examples
from bert_probe.text.tagged_sentences import parse_tagged_sentences


def labels_in(content: str, kind: str | None = None) -> list[Label]:
    return [row.label for row in parse_labeled_texts(content.encode(), "a.csv", kind).rows]


def test_table_has_texts_pairs_labels_and_lines() -> None:
    content = '\ufefflabel;text_b;id;TEXT_A\nyes;"B; two\nlines";1;A\n\n no ;b;2; a \n'
    dataset = parse_labeled_texts(content.encode(), "A.CSV")
    assert dataset.rows == (LabeledText("A", "B; two lines", "yes", 2), LabeledText("a", "b", "no", 5))
    assert (dataset.kind, dataset.labels) == ("classes", ("no", "yes"))


def test_file_equals_its_bytes(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text("sentence\tlabel\nOne, two\tx\nThree\ty\n", encoding="utf-8")
    dataset = read_labeled_texts(file)
    assert [row.text for row in dataset.rows] == ["One, two", "Three"]
    assert dataset.digest == parse_labeled_texts(file.read_bytes(), "b.tsv").digest


def test_digest_does_not_depend_on_the_file_format() -> None:
    digest = parse_labeled_texts(b"text,label\na,x\nb,y\n", "one.csv").digest
    assert parse_labeled_texts(b"id\ttext\tlabel\r\n1\ta\tx\r\n2\tb\ty", "two.tsv").digest == digest
    for other in (b"text,label\nb,y\na,x\n", b"text,label\na,x\nb,x\n", b"text,labels\na,x\nb,y\n"):
        assert parse_labeled_texts(other, "one.csv").digest != digest


@pytest.mark.parametrize(
    ("cells", "kind", "expected"),
    [
        (["1", "2", "3"], "classes", ["1", "2", "3"]),
        (["1", "2.5", "-3e-1"], "number", [1.0, 2.5, -0.3]),
        ([str(value) for value in range(21)], "number", [float(value) for value in range(21)]),
        ([str(value) for value in range(20)], "classes", [str(value) for value in range(20)]),
        (["1", "2.5", "x"], "classes", ["1", "2.5", "x"]),
        (["1_000", "2.5"], "classes", ["1_000", "2.5"]),
    ],
)
def test_kind_is_detected(cells: list[str], kind: str, expected: list[Label]) -> None:
    dataset = parse_labeled_texts(
        "".join(["text,label\n", *(f"t,{value}\n" for value in cells)]).encode(), "a.csv"
    )
    assert dataset.kind == kind
    assert [row.label for row in dataset.rows] == expected
    assert bool(dataset.labels) == (kind == "classes")


def test_row_may_have_several_labels_or_none() -> None:
    dataset = parse_labeled_texts(b"text,labels\na,y | x|y\nb,\nc,z\n", "a.csv")
    assert [row.label for row in dataset.rows] == [("x", "y"), (), ("z",)]
    assert (dataset.kind, dataset.labels) == ("several", ("x", "y", "z"))
    assert labels_in("text,labels\na,1\nb,2\n", "classes") == ["1", "2"]
    assert labels_in("text,label\na,1\nb,2\n", "number") == [1.0, 2.0]


@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        ("text,label\na,x\nb,\n,y\n", None, "2 errors: line 3: no label; line 4: text is empty"),
        ("text,label\na,x\nb,c,y\nd\n", None, "line 3: the row has 3 cells, but the header has 2; quote"),
        ("text_a,text_b,label\na,b,x\nc,,y\n", None, "an error: line 3: text_b is empty"),
        ("text,label\na,1\nb,one\n", "number", "line 3: one is not a number"),
        ("text,labels\na,x||y\n", None, "line 2: there is an empty label in x||y"),
    ],
)
def test_every_error_is_listed_with_its_line(content: str, kind: str | None, message: str) -> None:
    with pytest.raises(TextError) as refused:
        parse_labeled_texts(content.encode(), "a.csv", kind)
    assert message in str(refused.value)


def test_errors_of_a_long_file_are_counted() -> None:
    with pytest.raises(TextError, match=f"200 errors: .*and {200 - MAX_LISTED} more"):
        parse_labeled_texts(("text,label\n" + "a,\n" * 200).encode(), "a.csv")


@pytest.mark.parametrize(
    ("content", "name", "error", "message"),
    [
        (b"", "a.csv", EmptyTextError, "a.csv is empty"),
        (b"text,label\n\n", "a.csv", EmptyTextError, "a.csv has no rows"),
        (b"text,label\na,x\n", "a.txt", TextError, "a.txt is not a table with labels"),
        (b"sentence,class\na,x\n", "a.csv", TextError, "has the columns sentence, class"),
        (b"text,text_a,text_b,label\na,b,c,x\n", "a.csv", TextError, "has the columns"),
        (b"text,label,labels\na,b,c\n", "a.csv", TextError, "has the columns"),
        (b"text,Label,label\na,b,c\n", "a.csv", TextError, "several columns named label"),
        (b"text,label\na,\xff\n", "a.csv", TextError, "not UTF-8, because line 2"),
        (b"text,label\na\0,x\n", "a.csv", TextError, "line 2 contains a NUL"),
        (b'text,label\n"a,x\n', "a.csv", TextError, "broken table: line 2"),
    ],
)
def test_unreadable_files_raise_error(
    content: bytes, name: str, error: type[ProbeError], message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=message):
        parse_labeled_texts(content, name)
    with pytest.raises(error, match=message):
        read_labeled_texts(tmp_path / name)


def test_unknown_kind_and_too_many_labels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SelectionError, match="Unknown label type 'tags'"):
        parse_labeled_texts(b"text,label\na,x\n", "a.csv", "tags")
    with patch.object(labeled_texts, "MAX_LABELS", 2), pytest.raises(TextError, match="3 different labels"):
        parse_labeled_texts(b"text,label\na,x\na,y\na,z\n", "a.csv")
    with pytest.raises(TextError, match="cannot be opened: No such file"):
        read_labeled_texts(tmp_path / "none.csv")


def test_long_labels_are_refused() -> None:
    """A model with longer labels cannot be opened, and NumPy stores all labels at the longest length."""
    assert MAX_LABEL_LENGTH == config.MAX_LABEL_LENGTH == 1_000
    for header, label in (("label", "x" * 1_001), ("labels", "a|" + "x" * 1_001)):
        content = f"text,{header}\na,{label}\nb,c\n".encode()
        with pytest.raises(
            TextError, match="line 2: a label has 1,001 characters, but at most 1,000 are supported"
        ):
            parse_labeled_texts(content, "a.csv")
    with pytest.raises(TextError, match="line 1: a label has 1,001 characters"):
        parse_tagged_sentences(b"word " + b"x" * 1_001 + b"\n", "a.conll")
    assert len(parse_labeled_texts(f"text,label\na,{'x' * 1_000}\nb,c\n".encode(), "a.csv").labels) == 2


def test_oversized_file_is_refused_unread(tmp_path: Path) -> None:
    huge = tmp_path / "huge.csv"
    with huge.open("wb") as stream:
        stream.truncate(1_000_000_000)
    with pytest.raises(TextError, match="larger than 50 MB"):
        read_labeled_texts(huge)


def test_rows_built_in_python_equal_file() -> None:
    rows = [LabeledText("a", None, ("x", "b"), 1), LabeledText("b", None, (), 2)]
    assert LabeledTexts.of("several", rows).labels == ("b", "x")
    assert LabeledTexts.of("number", [LabeledText("a", None, 0.5, 1)]).labels == ()


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        (["1.5", "nan"], "nan is not finite; remove the row"),
        (["1", "2", "-Infinity"], "the label -Infinity is a missing or infinite number"),
        (["good", "NaN", "bad"], "the label NaN is a missing or infinite number"),
        (["1.5", "1e300"], "1e300 is too large; the absolute value must be at most 1e\\+15"),
        (["1.5", "1e999"], "1e999 is too large"),
    ],
)
def test_label_that_is_not_finite_is_reported(cells: list[str], reason: str) -> None:
    rows = "".join(f"t{number},{label}\n" for number, label in enumerate(cells))
    with pytest.raises(TextError, match=reason):
        parse_labeled_texts(f"text,label\n{rows}".encode(), "a.csv")


def test_label_nan_is_a_class_if_the_kind_is_given() -> None:
    content = b"text,label\na,nan\nb,naan\n"
    assert parse_labeled_texts(content, "a.csv", "classes").labels == ("naan", "nan")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text": "a", "label": "x", "label": "y"}', 'the key "label" occurs twice'),
        ('{"text": ["a", "b"], "label": "x"}', "text is a list"),
        ('{"text": "a", "label": ["x", "y"]}', "label is a list; rename the key to labels"),
    ],
)
def test_json_line_that_can_be_read_in_two_ways_is_refused(line: str, reason: str) -> None:
    with pytest.raises(TextError, match=reason):
        parse_labeled_texts(f'{{"text": "b", "label": "z"}}\n{line}\n'.encode(), "a.jsonl")


def test_tsv_file_whose_quotation_marks_join_rows_is_read_without_quoting_or_refused() -> None:
    content = b'text\tlabel\n"Left\tbad\n\nwe did"\tgood\n'
    unquoted = content + b'"Go" he said\tgood\n'
    rows = parse_labeled_texts(unquoted, "a.tsv").rows
    assert [(row.text, row.label, row.line) for row in rows] == [
        ('"Left', "bad", 2),
        ('we did"', "good", 4),
        ('"Go" he said', "good", 5),
    ]
    # Programs that quote could have written these two.
    for read, text in (
        (parse_sentences, unquoted),
        (parse_labeled_texts, content),
        (parse_labeled_texts, content + b"x\ty\tz\n"),
    ):
        with pytest.raises(TextError, match="quotation marks join lines 2 to 4, which may be several rows"):
            read(text, "a.tsv")
    assert parse_labeled_texts(b'text\tlabel\n"two\nlines"\tgood\n', "a.tsv").rows[0].text == "two lines"


def test_compressed_file_equals_its_content() -> None:
    content = b"text,label\na,x\nb,y\n"
    assert (
        parse_labeled_texts(gzip.compress(content), "a.csv.gz").rows
        == parse_labeled_texts(content, "a.csv").rows
    )
    with pytest.raises(TextError, match=r"a\.csv\.gz cannot be decompressed"):
        parse_labeled_texts(content, "a.csv.gz")


def test_decimal_commas_are_refused() -> None:
    content = b"text;label\na;1,5\nb;2,5\nc;3\n"
    with pytest.raises(TextError, match="decimal comma"):
        parse_labeled_texts(content, "a.csv")
    assert parse_labeled_texts(content, "a.csv", "classes").labels == ("1,5", "2,5", "3")


@pytest.mark.parametrize(
    ("parse", "header", "row"),
    [
        (parse_labeled_texts, "text,label\n", "a,x\n"),
        (parse_labeled_texts, "text\tlabel\n", '"a" b\tx\n'),
        (parse_similarity_examples, "anchor,positive\n", "a,x\n"),
    ],
)
def test_rows_are_bounded(parse: Any, header: str, row: str) -> None:
    assert len(parse((header + row * 3).encode(), "a.csv", max_rows=3).rows) == 3
    with pytest.raises(TextError, match=r"has more than 3 rows\. Remove rows, or split the file\."):
        parse((header + row * 4).encode(), "a.csv", max_rows=3)
