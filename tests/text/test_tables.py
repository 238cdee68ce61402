"""Test that a table is read as it was written, or refused, whatever its cells contain."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_probe.corpus.inputs import find_inputs, records
from bert_probe.errors import ProbeError
from bert_probe.text.documents import parse_documents
from bert_probe.text.labeled_texts import parse_labeled_texts
from bert_probe.text.sentence_files import parse_sentences
from tests.helpers.gate import examples

TEXTS = st.lists(st.sampled_from(["a", "b", '"', '"', "\t", "\n", " "]), min_size=1, max_size=8).map("".join)
ROWS = st.lists(st.tuples(TEXTS, st.sampled_from("pq")), min_size=1, max_size=6)


def one_line(text: str) -> str:
    """Return a text as the readers do: without spaces at its ends, and with spaces for line breaks."""
    return " ".join(line.strip() for line in text.split("\n") if line.strip())


def is_cell(text: str) -> bool:
    """Return whether a text can be a cell of a TSV file without quoting."""
    return not {"\t", "\n"} & {*text}


def is_subsequence(texts: Sequence[str | None], of: Sequence[str]) -> bool:
    """Return whether `texts` are elements of `of` in the same order."""
    rest = iter(of)
    return all(text in rest for text in texts)


def refusable(read: Any, content: bytes) -> Any:
    """Return what a reader reads, or None if it refuses the file."""
    try:
        return read(content)
    except ProbeError:
        return None


@settings(max_examples=examples(2_000, gate=150))
@given(rows=ROWS, separator=st.sampled_from("\t;,"))
def test_quoted_tables_are_read_as_written_or_refused(rows: list[tuple[str, str]], separator: str) -> None:
    target = io.StringIO()
    writer = csv.writer(target, delimiter=separator, lineterminator="\n")
    writer.writerows([("text", "label"), *rows])
    content = target.getvalue().encode()
    texts = [one_line(text) for text, _ in rows]
    sentences = refusable(lambda content: parse_sentences(content, "a.tsv", "text"), content)
    assert sentences is None or [*sentences] == [text for text in texts if text]
    labeled = refusable(lambda content: parse_labeled_texts(content, "a.tsv", "classes").rows, content)
    assert labeled is None or [(row.text, row.label) for row in labeled] == [
        (text, label) for text, (_, label) in zip(texts, rows, strict=True)
    ]
    documents = refusable(lambda content: parse_documents(io.BytesIO(content), "a.tsv"), content)
    assert documents is None or len(documents) == len(rows)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "a.tsv"
        file.write_bytes(content)
        stored = [row.text for row in records(find_inputs(file, "text"), "text") if not row.problem]
    assert is_subsequence(stored, texts)


@pytest.mark.parametrize("row", ['p\t"He said ""boat"" twice"\n', 'p\t"""boat"""\n'])
def test_incomplete_table_with_quoting_is_not_read_without_quoting(row: str) -> None:
    content = f"label\ttext\n{row}q\tplain\n{row}".encode()
    expected = [text for _, text in csv.reader(io.StringIO(content.decode()), delimiter="\t")][1:3]
    for end in range(content.index(b"plain") + len(b"plain"), len(content)):
        read = refusable(lambda content: parse_labeled_texts(content, "a.tsv", "classes").rows, content[:end])
        assert read is None or [row.text for row in read][:2] == expected


@settings(max_examples=examples(2_000, gate=150))
@given(rows=st.lists(st.tuples(TEXTS.filter(is_cell), st.sampled_from("pq")), min_size=1, max_size=6))
def test_labels_of_tables_without_quoting_are_read_as_written_or_refused(rows: list[tuple[str, str]]) -> None:
    content = "".join(f"{text}\t{label}\n" for text, label in [("text", "label"), *rows]).encode()
    labeled = refusable(lambda content: parse_labeled_texts(content, "a.tsv", "classes").rows, content)
    assert labeled is None or [row.label for row in labeled] == [label for _, label in rows]
