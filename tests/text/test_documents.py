"""Documents: files with one document per line or row."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

from bert_probe import Document, read_documents
from bert_probe.errors import EmptyTextError, ProbeError, SelectionError, TextError
from bert_probe.text.documents import as_documents, document_of_line


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
        ("a.csv", '_id,title,text,more\nx,Boats,"Two\nboats.",1\n,,One.\n'),
        ("a.tsv", 'text\ttitle\tid\n"Two\nboats."\tBoats\tx\nOne.\t\t\n'),
    ],
)
def test_columns_of_a_table(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    assert rows(tmp_path / name) == [
        ("x", "Boats", "Two\nboats.", "Boats Two\nboats."),
        ("2", "", "One.", "One."),
    ]


@pytest.mark.parametrize(
    ("name", "content", "error", "sentence"),
    [
        ("a.txt", b"\n \n", EmptyTextError, "a.txt has no documents"),
        ("a.txt", b"boat\n\xff\n", TextError, "not UTF-8: line 2"),
        ("a.txt", b"boat\0\n", TextError, "line 1 has a NUL"),
        ("a.csv", b"title,body\na,b\n", SelectionError, "must be named text"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', TextError, "invalid in line 2"),
        ("a.jsonl", b'{"text": "a"}\n{"text": {}}\n', TextError, "line 2: a cell is an object"),
        (
            "a.jsonl",
            b'{"_id": "a", "text": "a"}\n{"_id": "a", "text": "b"}',
            TextError,
            "1 and 2 have the same",
        ),
        ("a.csv", b"text,_id\na,2\nb,\n", TextError, "1 and 2 have the same ID, '2'"),
        ("a.csv", b"text,_id\na," + b"i" * 201 + b"\n", TextError, "at most 200 characters"),
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
        ([], EmptyTextError, "no documents"),
        (["a", 3], TextError, "Document 2 must be a string, not int"),
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
    with pytest.raises(TextError, match="not a document as BERT Probe saves it"):
        document_of_line(line)
