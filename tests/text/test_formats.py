"""Test file formats: contents that do not match the extension are refused unless forced."""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from bert_probe.corpus.formats import InputLine, _fasta_rows
from bert_probe.corpus.inputs import find_inputs, records
from bert_probe.errors import EmptyTextError, InvalidFileError, TextError
from bert_probe.text import formats, sentence_files
from bert_probe.text.documents import documents_in_text, parse_documents, read_documents
from bert_probe.text.formats import parse_fasta, read_records, single_record
from bert_probe.text.labeled_texts import parse_labeled_texts, read_labeled_texts
from bert_probe.text.sentence_files import (
    Sentence,
    column_names,
    parse_sentences,
    read_sentences,
    sentences_in_text,
)
from bert_probe.text.similarity_examples import parse_similarity_examples
from bert_probe.text.tagged_sentences import parse_tagged_sentences
from tests.helpers.memory import measure_peak

JSONL = b'{"text": "a nice day", "label": "good"}\n{"text": "a bad day", "label": "bad"}\n'
CSV = b"text,label\na nice day,good\na bad day,bad\n"
CONLL = b"EU B-ORG\nrejects O\n\nPeter B-PER\n. O\n"
CONLLU = b"# sent_id = 1\n1\tWe\twe\tPRON\t_\t_\t2\tnsubj\t_\t_\n2\tleft\tleave\tVERB\t_\t_\t0\troot\t_\t_\n"


@pytest.mark.parametrize(
    ("read", "name", "content", "detected"),
    [
        (parse_sentences, "a.txt", JSONL, "JSON lines"),
        (parse_sentences, "a", b"\n\n" + JSONL, "JSON lines"),
        (parse_sentences, "a.txt", b"\xef\xbb\xbf" + JSONL, "JSON lines"),
        (parse_sentences, "a.json", b'[\n {"text": "a day"}\n]\n', "JSON"),
        (parse_sentences, "a.txt", CSV, "a CSV or TSV table"),
        (parse_sentences, "a.txt", CSV.replace(b",", b"\t"), "a CSV or TSV table"),
        (parse_sentences, "a.txt", CSV.replace(b"\n", b"\r\n"), "a CSV or TSV table"),
        (parse_sentences, "a.txt", b"review;stars\nNice;5\n", "a CSV or TSV table"),
        (parse_sentences, "a.txt", CONLL, "CoNLL"),
        (parse_sentences, "a.conllu", CONLLU, "CoNLL-U"),
        (parse_sentences, "a.txt", b"<!DOCTYPE html>\n<p>Hello\n", "HTML or XML"),
        (parse_sentences, "a.csv", JSONL, "JSON lines"),
        (parse_sentences, "a.csv", b"We left the ground.\nWe came back.\n", "plain text"),
        (parse_sentences, "a.jsonl", CONLLU, "CoNLL-U"),
        (parse_labeled_texts, "a.csv", JSONL, "JSON lines"),
        (parse_labeled_texts, "a.csv", b"<html>\n", "HTML or XML"),
        (parse_labeled_texts, "a.jsonl", CSV, "a CSV or TSV table"),
        (parse_tagged_sentences, "a.conll", JSONL, "JSON lines"),
        (parse_tagged_sentences, "a.conll", CSV, "a CSV or TSV table"),
        (parse_tagged_sentences, "a.conll", CONLLU, "CoNLL-U"),
        (parse_tagged_sentences, "a.conllu", CONLL, "CoNLL"),
        (column_names, "a.csv", JSONL, "JSON lines"),
    ],
)
def test_content_of_another_format_is_refused_with_the_option_that_forces_it(
    read: Callable[..., Any], name: str, content: bytes, detected: str
) -> None:
    with pytest.raises(
        TextError, match=rf"{name} is read as .*, but it looks like {detected}\. .*--as-named"
    ):
        read(content, name)


def test_forced_format_follows_file_name() -> None:
    assert parse_sentences(JSONL, "a.txt", as_named=True) == tuple(JSONL.decode().splitlines())
    assert parse_sentences(CSV, "a.txt", as_named=True)[0] == "text,label"
    assert parse_sentences(b"What did you like?\nAll.\n", "a.csv", "What did you like?") == ("All.",)


@pytest.mark.parametrize(
    "content",
    [
        b"Hello, world\nGoodbye, world\n",
        b"One\n",
        b"[CLS] is a token.\n[SEP] is one too.\n",
        b'{not json}\n{"nor": this\n',
        b"good\tI like it\nbad\tI do not\n",
        b"We left\nThey came\nYou stayed\n",
        b"1. first\n2. second\n",
        b"#hashtag one\n\n#hashtag two\n",
        b"a < b\n<tag> of a text\n",
        b"Yes, no\n" * 60,
    ],
)
def test_plain_text_is_read(content: bytes) -> None:
    assert len(parse_sentences(content, "a.txt")) == len([line for line in content.splitlines() if line])


def test_json_lines_are_a_table() -> None:
    dataset = parse_labeled_texts(JSONL, "a.jsonl")
    assert dataset.digest == parse_labeled_texts(CSV, "a.csv").digest
    assert [row.line for row in dataset.rows] == [1, 2]
    assert column_names(JSONL, "a.NDJSON") == ("text", "label")
    assert parse_sentences(JSONL, "a.jsonl") == ("a nice day", "a bad day")
    assert parse_sentences(JSONL, "a.jsonl", "label") == ("good", "bad")
    assert parse_sentences(b'"One\\ntwo"\n\n"Three"\n', "a.jsonl") == ("One two", "Three")


def test_missing_numbers_of_json_lines_are_null() -> None:
    def dataset(value: str) -> str:
        row = f'{{"text": "x", "label": "a", "group": {value}}}\n{{"text": "y", "label": "b", "group": "g"}}'
        return parse_labeled_texts(row.encode(), "a.jsonl").digest

    assert dataset("NaN") == dataset("null")
    several = b'{"text": "x", "labels": NaN}\n{"text": "y", "labels": "a"}'
    assert [row.label for row in parse_labeled_texts(several, "a.jsonl").rows] == [(), ("a",)]
    assert parse_sentences(b'{"text": NaN}\n{"text": "Two"}\n{"text": 3}', "a.jsonl") == ("Two", "3")
    with pytest.raises(InvalidFileError, match="line 1: positive is empty"):
        parse_similarity_examples(b'{"anchor": "a", "positive": NaN}', "a.jsonl")


def test_infinite_numbers_of_json_lines_are_refused() -> None:
    with pytest.raises(TextError, match="line 2: the text is an infinite number, but must be a string"):
        parse_sentences(b'"One"\n{"text": 1e400}', "a.jsonl")
    with pytest.raises(InvalidFileError, match="line 1: positive is an infinite number"):
        parse_similarity_examples(b'{"anchor": "a", "positive": -Infinity}', "a.jsonl")


@pytest.mark.parametrize(
    ("values", "kind", "labels"),
    [
        (("1", "2"), "classes", ["1", "2"]),
        (("1.5", "-2e3"), "number", [1.5, -2000.0]),
        (("true", "false"), "classes", ["true", "false"]),
        (('"a|b"', '"c"'), "several", [("a", "b"), ("c",)]),
        (('["b", "a"]', "[]"), "several", [("a", "b"), ()]),
    ],
)
def test_values_of_json_lines_are_labels(values: tuple[str, str], kind: str, labels: list[Any]) -> None:
    key = "labels" if kind == "several" else "label"
    lines = [
        f'{{"text": "t{number}", "{key}": {value}, "more": {{}}}}' for number, value in enumerate(values)
    ]
    dataset = parse_labeled_texts("\n".join(lines).encode(), "a.jsonl")
    assert (dataset.kind, [row.label for row in dataset.rows]) == (kind, labels)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text": {"en": "x"}, "label": "a"}', "line 2: text is an object"),
        ('{"text": "x", "label": [1]}', "line 2: label is a list with a value that is not a string"),
        ('{"text": "x"}', "line 2: no label"),
        ('{"text": null, "label": "a"}', "line 2: text is empty"),
        ('{"text": "x", "label": NaN}', "line 2: no label"),
        ('{"text": NaN, "label": "a"}', "line 2: text is empty"),
        ('{"text": Infinity, "label": "a"}', "line 2: text is an infinite number"),
        ('{"text": "x", "label": -Infinity}', "line 2: label is an infinite number"),
        ('{"text": "x", "label": "a", "group": 1e400}', "line 2: group is an infinite number"),
        ('{"text": "x", "label": "a", "group": {"id": 1}}', "line 2: group is an object"),
        ('{"text": "x", "label": "a"', "invalid in line 2: Expecting"),
        ("7", "invalid in line 2: the value is neither an object nor a string"),
        ('{"text": "\\u0000", "label": "a"}', "line 2: a text contains a NUL"),
        (
            '{"text": "\\ud800", "label": "a"}',
            "line 2: a text contains a NUL character or an unpaired surrogate",
        ),
        (f'{{"text": {"9" * 5000}}}', "line 2: a number has too many digits"),
        ("[" * 100_000, "line 2: a number has too many digits"),
    ],
)
def test_invalid_json_line_is_reported(line: str, reason: str) -> None:
    first = '{"text": "first", "label": "b", "group": ""}\n'
    with pytest.raises(TextError, match=reason):
        parse_labeled_texts(f"{first}{line}\n".encode(), "a.jsonl")


@pytest.mark.parametrize("read", [parse_sentences, parse_labeled_texts])
def test_json_lines_convert_only_the_cells_that_are_read(
    read: Callable[[bytes, str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = 400
    first = json.dumps({"text": "a day", "label": "a"} | {str(key): 1 for key in range(keys)})
    content = "\n".join([first, *['{"text": "a day", "label": "b"}'] * keys])
    converted: list[str] = []

    def convert(key: str, *rest: Any) -> str:
        converted.append(key)
        return cell(key, *rest)

    cell = formats._cell
    monkeypatch.setattr(formats, "_cell", convert)
    read(content.encode(), "a.jsonl")
    # Each reader converts a cell a few times. Converting every key in every line would take 161,202 calls.
    assert set(converted) <= {"text", "label"}
    assert len(converted) <= 8 * (keys + 1)


def test_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(CSV)
    lines_of = sentence_files.lines_of

    def appending(*arguments: Any, **options: Any) -> Any:
        yield from lines_of(*arguments, **options)
        with file.open("ab") as stream:
            stream.write(b"one more,bad\n")

    for read in (read_sentences, read_labeled_texts):
        module = __import__(read.__module__, fromlist=["lines_of"])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "lines_of", appending)
            with pytest.raises(TextError, match=r"a\.csv was changed while it was being read"):
                read(file)
        assert read(file)


def test_pipe_is_read_completely() -> None:
    source, sink = os.pipe()
    os.write(sink, b"One\nTwo\n")
    os.close(sink)
    try:
        assert read_sentences(f"/dev/fd/{source}") == ("One", "Two")
    finally:
        os.close(source)


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


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("content", ["> a\n" + "1\n" * 20_000, ">\n" * 20_000, "?\n" + ">a\nMK\n" * 10_000])
def test_errors_of_many_lines_need_little_memory(content: str) -> None:
    lines, peaks = content.splitlines(), []
    for _ in range(3):  # a thread of another test may allocate memory at the same time
        with measure_peak() as peak:
            with pytest.raises(InvalidFileError) as caught:
                parse_fasta(lines, "x.fasta")
            peaks.append(peak())
        assert caught.value.count >= 10_000
    assert min(peaks) < 300_000  # 15 bytes per line
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
        "contains '1', but may contain only letters and the characters . - *",
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
