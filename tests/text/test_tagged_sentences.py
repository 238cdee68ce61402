"""Test tagged sentences and treebanks: parsing, and errors listed together."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from bert_probe.errors import EmptyTextError, TextError
from bert_probe.text import sentence_files, tagged_sentences
from bert_probe.text.tagged_sentences import (
    ROOT,
    TaggedSentence,
    parse_tagged_sentences,
    read_tagged_sentences,
)


def row(number: object, form: str, tag: str, head: object = "_", relation: str = "_", misc: str = "_") -> str:
    return "\t".join(map(str, (number, form, "_", tag, "_", "_", head, relation, "_", misc)))


def treebank(*rows: str) -> tuple[TaggedSentence, ...]:
    return parse_tagged_sentences("\n".join(rows).encode(), "a.conllu")


SHIP = (row(1, "Ships", "NOUN", 2, "nsubj"), row(2, "sail", "VERB", 0, "root", "SpaceAfter=No"))


def test_conll_tag_is_last_column() -> None:
    content = b"-DOCSTART- -X- O\n\n# genre = log\nShips NNS O\nof  IN O\n\n\nRhodes NNP B-LOC\r\n"
    first, second = parse_tagged_sentences(content, "a.conll")
    assert (first.words, first.tags, first.text) == (("Ships", "of"), ("O", "O"), "Ships of")
    assert (first.spans, first.heads, first.relations) == (((0, 5), (6, 8)), (), ())
    assert (dict(first.metadata), first.line) == ({"genre": "log"}, 4)
    assert (second.words, second.tags, second.line) == (("Rhodes",), ("B-LOC",), 8)


def test_conll_with_tabs_may_have_spaces_in_words() -> None:
    (only,) = parse_tagged_sentences(b"New York\tLOC\n#\tO\n# a = b\tO", "a.tsv")
    assert (only.words, only.tags) == (("New York", "#", "# a = b"), ("LOC", "O", "O"))
    assert [only.text[start:end] for start, end in only.spans] == list(only.words)


def test_conllu_sentence_has_tree(tmp_path: Path) -> None:
    rows = ("# text = Ships sail.", "# genre = log", *SHIP, row(3, ".", "PUNCT", 2, "punct"), "", "")
    file = tmp_path / "a.conllu.gz"
    file.write_bytes(gzip.compress("\n".join(rows).encode()))
    (only,) = read_tagged_sentences(file)
    assert only.words == ("Ships", "sail", ".")
    assert (only.tags, only.heads) == (("NOUN", "VERB", "PUNCT"), (1, ROOT, 1))
    assert only.relations == ("nsubj", "root", "punct")
    assert (only.text, only.spans) == ("Ships sail.", ((0, 5), (6, 10), (10, 11)))
    assert (dict(only.metadata), only.line) == ({"genre": "log"}, 3)


def test_text_is_joined_words_if_the_comment_does_not_match() -> None:
    end = row(3, ".", "PUNCT", 2, "punct")
    for comments in ((), ("# text = Boats sail.",), ("# text = Ships sail. Away",)):
        (only,) = treebank(*comments, *SHIP, end)
        assert (only.text, only.spans) == ("Ships sail.", ((0, 5), (6, 10), (10, 11)))


def test_contracted_words_share_a_span_and_empty_nodes_are_skipped() -> None:
    (only,) = treebank(
        row("1-2", "cannot", "_"),
        row(1, "can", "AUX", 2, "aux"),
        row(2, "not", "PART", 0, "root"),
        row("2.1", "go", "VERB"),
        row("3-4", "del", "_", misc="SpaceAfter=No"),
        row(3, "de", "ADP", 4, "case"),
        row(4, "el", "DET", 2, "obl"),
        row(5, "!", "PUNCT", 2, "punct"),
    )
    assert only.text == "cannot del!"
    assert only.words == ("can", "not", "de", "el", "!")
    assert only.spans == ((0, 3), (3, 6), (7, 10), (7, 10), (10, 11))
    assert only.heads == (1, ROOT, 3, 1, 1)


def test_treebank_without_trees_is_read() -> None:
    (only,) = treebank(row(1, "Ships", "NOUN"), row(2, "sail", "VERB"))
    assert (only.tags, only.heads, only.relations) == (("NOUN", "VERB"), (), ())


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((row(1, "a", "X", 2, "x"), row(2, "b", "X", 1, "x")), "line 1: the heads form a cycle"),
        (
            (row(1, "a", "X", 0, "x"), row(2, "b", "X", 3, "x")),
            "line 2: the head is 3, but the sentence has 2 words",
        ),
        ((row(1, "a", "X", 1, "x"),), "line 1: a word is its own head"),
        ((row(1, "a", "X", 0, "x"), row(2, "b", "X")), "line 2: the word has no head, but other words"),
        (
            (row(2, "a", "X", 0, "x"), row(3, "b", "X")),
            "has an error: line 1: the line has word 2, but word 1 was expected",
        ),
        ((row("one", "a", "X", 0, "x"),), "line 1: “one” with head “0”, but"),
        ((row("9" * 5000, "a", "X"),), "but a word and its head must be numbers"),
        ((row(1, "a", "X", "two", "x"),), "line 1: “1” with head “two”, but"),
        ((row(1, " ", "X"),), "line 1: a word has no form"),
        (("1\ta\tX",), "line 1: the line has 3 tab-separated columns, but CoNLL-U has 10"),
    ],
)
def test_invalid_treebank_is_refused(rows: tuple[str, ...], message: str) -> None:
    with pytest.raises(TextError) as refused:
        treebank(*rows)
    assert message in str(refused.value)


def test_all_errors_are_listed() -> None:
    with pytest.raises(
        TextError, match=r"a\.txt has 3 errors: line 2: “sail” has no tag.*line 4: the line has 3 columns, "
    ):
        parse_tagged_sentences(b"Ships NOUN\nsail\n\nNew York LOC\n\nx\t\n", "a.txt")
    rows = "\n\n".join([row(1, "a", "X", 5, "x")] * 12)
    with pytest.raises(TextError, match=r"12 errors: line 1: .*; line 19: [^;]*; and 2 more\. Correct"):
        treebank(rows)


@pytest.mark.parametrize(
    ("content", "name", "error", "message"),
    [
        (b"", "a.conll", EmptyTextError, "a.conll has no sentences"),
        (b"# text = x\n\n-DOCSTART- O\n", "a.conll", EmptyTextError, "has no sentences"),
        (b"# text = x\n\n", "a.conllu", EmptyTextError, "has no sentences"),
        (b"no archive", "a.conllu.gz", TextError, "a.conllu.gz cannot be decompressed"),
        (
            gzip.compress(b"Ships NOUN\n" * 999, mtime=0)[:-9],
            "a.conll.gz",
            TextError,
            "cannot be decompressed",
        ),
        (gzip.compress(b"\xff", mtime=0), "a.conll.gz", TextError, "a.conll.gz is not UTF-8, because line 1"),
    ],
)
def test_unreadable_files_raise_error(
    content: bytes, name: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as refused:
        parse_tagged_sentences(content, name)
    assert message in str(refused.value)


def test_decompressed_size_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzip.compress(b"a O\n\n" * 100)
    monkeypatch.setattr(tagged_sentences, "MAX_WORDS", 99)
    with pytest.raises(TextError, match=r"a\.gz has more than 99 words"):
        parse_tagged_sentences(packed, "a.gz")
    monkeypatch.setattr(tagged_sentences, "MAX_SENTENCES", 98)
    with pytest.raises(TextError, match=r"a\.gz has more than 98 sentences"):
        parse_tagged_sentences(packed, "a.gz")
    monkeypatch.setattr(sentence_files, "MAX_BYTES", 499)
    with pytest.raises(TextError, match=r"a\.gz is larger than 0 MB"):
        parse_tagged_sentences(packed, "a.gz")
