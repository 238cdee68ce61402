"""File formats: contents that do not match the extension are refused unless forced."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bert_probe.errors import TextError
from bert_probe.text import formats, sentence_files
from bert_probe.text.labeled_texts import parse_labeled_texts, read_labeled_texts
from bert_probe.text.sentence_files import column_names, parse_sentences, read_sentences
from bert_probe.text.tagged_sentences import parse_tagged_sentences

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
        ('{"text": "x", "label": [1]}', "line 2: label is a list with values that are not strings"),
        ('{"text": "x"}', "line 2: no label"),
        ('{"text": null, "label": "a"}', "line 2: text is empty"),
        ('{"text": "x", "label": NaN}', "line 2: label nan, a missing"),
        ('{"text": "x", "label": "a"', "invalid in line 2: Expecting"),
        ("7", "invalid in line 2: neither an object nor a string"),
        ('{"text": "\\u0000", "label": "a"}', "line 2: a text contains a NUL"),
        ('{"text": "\\ud800", "label": "a"}', "line 2: a text contains a NUL or an unpaired surrogate"),
        (f'{{"text": {"9" * 5000}}}', "line 2: a number with too many digits"),
        ("[" * 100_000, "line 2: a number with too many digits"),
    ],
)
def test_invalid_json_line_is_reported(line: str, reason: str) -> None:
    first = '{"text": "first", "label": "b"}\n'
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
    # Each reader looks at a cell a few times; keys × lines would be 161,202.
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
            with pytest.raises(TextError, match=r"a\.csv was changed while it was read"):
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
