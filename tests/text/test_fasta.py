"""FASTA: records, errors with lines, and the readers of sentences, documents and corpora that accept it."""

from __future__ import annotations

import gzip
import io
from itertools import chain
from pathlib import Path

import pytest

from bert_probe.corpus.formats import InputLine, _fasta_rows
from bert_probe.corpus.inputs import find_inputs, records
from bert_probe.errors import EmptyTextError, InvalidFileError, TextError
from bert_probe.text.documents import documents_in_text, parse_documents, read_documents
from bert_probe.text.fasta import parse_fasta, read_records, single_record
from bert_probe.text.sentence_files import Sentence, parse_sentences, read_sentences, sentences_in_text
from tests.helpers.memory import measure_peak

FASTA = """\
; two proteins
>sp|P1|ONE  Protein one OS=Homo sapiens

MKTAYIAK
QRQ ISF
>two
mkta-*
; a comment
NN.
"""
SEQUENCES = ["MKTAYIAKQRQISF", "mkta-*NN."]
BROKEN = "MKT\n>\nMK1A\n>one\n>two\nMK\n>two x\nÄ?K\n"


def test_records_have_names_and_joined_lines() -> None:
    parsed = list(read_records(enumerate(FASTA.splitlines(), 1)))
    assert [(record.line, record.name, record.description) for record in parsed] == [
        (2, "sp|P1|ONE", "Protein one OS=Homo sapiens"),
        (6, "two", ""),
    ]
    assert [record.sequence for record in parsed] == SEQUENCES


@pytest.mark.parametrize("suffix", ["fasta", "fa", "faa", "FNA", "fasta.gz"])
def test_every_reader_accepts_fasta(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"proteins.{suffix}"
    content = FASTA.replace("\n", "\r\n").encode()
    file.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    sentences = read_sentences(file)
    assert list(sentences) == SEQUENCES
    assert [(item.name, item.line) for item in sentences if isinstance(item, Sentence)] == [
        ("sp|P1|ONE", 2),
        ("two", 6),
    ]
    documents = read_documents(file)
    assert [(document.id, str(document)) for document in documents] == [
        ("sp|P1|ONE", SEQUENCES[0]),
        ("two", SEQUENCES[1]),
    ]
    rows = list(records(find_inputs(tmp_path)))
    assert [(row.line, row.text) for row in rows] == [(2, SEQUENCES[0]), (6, SEQUENCES[1])]
    assert rows[0].header == {"name": "sp|P1|ONE", "description": "Protein one OS=Homo sapiens"}


@pytest.mark.parametrize("content", ["> a\n" + "1\n" * 20_000, ">\n" * 20_000, "?\n" + ">a\nMK\n" * 10_000])
def test_errors_of_many_lines_need_little_memory(content: str) -> None:
    lines = content.splitlines()
    with measure_peak() as peak:
        with pytest.raises(InvalidFileError) as caught:
            parse_fasta(lines, "x.fasta")
        assert peak() < 300_000  # 5 bytes per line
    assert caught.value.count >= 10_000
    with pytest.raises(InvalidFileError) as caught:
        parse_documents(io.BytesIO(content.encode()), "x.fasta")
    assert len(caught.value.faults) == 10
    unreadable = (InputLine(number, None, "The line is too long.") for number in range(2, 20_000))
    with measure_peak() as peak:
        rows = list(_fasta_rows(chain([InputLine(1, ">a", "")], unreadable), "x.fasta", None))
        assert peak() < 300_000
    assert [row.problem for row in rows] == ["Line 1: the record has no sequence."]


def test_all_errors_are_listed_with_their_lines() -> None:
    with pytest.raises(InvalidFileError) as caught:
        parse_sentences(BROKEN.encode(), "x.fasta", as_named=True)
    assert [line for line, _ in caught.value.faults] == [1, 2, 3, 4, 7, 8]
    message = str(caught.value)
    for part in (
        "before the first header",
        "no name",
        "contains '1', but may contain only letters, ., - and *",
        "no sequence",
        "the name two is also in line 5",
        "'?' 'Ä'",
    ):
        assert part in message
    with pytest.raises(EmptyTextError, match="no sequences"):
        parse_sentences(b"; nothing\n", "x.fasta")
    with pytest.raises(TextError, match="looks like FASTA"):
        parse_sentences(FASTA.encode(), "proteins.txt")


def test_corpus_rejects_broken_records_and_reads_on(tmp_path: Path) -> None:
    file = tmp_path / "x.fasta"
    file.write_bytes(b">a\nMK1\n>b\nMKT\n>c\n\xff\xfe\n>d\nKK\n>b\nMM\n")
    rows = list(records(find_inputs(file)))
    assert [(row.line, row.text) for row in rows] == [(1, None), (3, "MKT"), (5, None), (7, "KK"), (9, "MM")]
    assert rows[0].problem.startswith("Line 2: the sequence contains '1'")
    assert rows[2].problem == "Line 5: the record has no sequence."
    long = list(read_records([(1, ">a"), (2, "M" * 9), (3, "K" * 9)], max_length=10))
    assert (long[0].sequence, long[0].errors.count) == ("", 1)


def test_typed_text_is_fasta_only_with_a_header_and_a_sequence() -> None:
    assert [*sentences_in_text(FASTA)] == SEQUENCES
    assert sentences_in_text(FASTA)[1].name == "two"
    assert documents_in_text(FASTA) == SEQUENCES
    record = single_record(">x\nMK\nTA")
    assert record is not None
    assert (record.name, record.sequence) == ("x", "MKTA")
    for text in ("MKTA", "> as you said\nI do not agree.", "> one\n> two", ">x", "a > b\nMKTA"):
        assert single_record(text) is None
        assert list(sentences_in_text(text)) == [line.strip() for line in text.splitlines()]
    with pytest.raises(TextError, match="2 FASTA records, but this input accepts a single"):
        single_record(FASTA)
