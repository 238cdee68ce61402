"""Test the classification of vocabulary tokens for each type of tokenizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.pieces import (
    KINDS,
    BoundaryMarks,
    kind_of,
    marks_of,
    read,
    script_of,
    visible,
    vocabulary_tokens,
)
from tests.helpers import families
from tests.helpers.families import BERT, ROBERTA

WORDPIECE, BYTES, SPACES = (
    BoundaryMarks("##", "", False),
    BoundaryMarks("", "Ġ", True),
    BoundaryMarks("", "▁", False),
)


@pytest.mark.parametrize(
    ("marks", "name", "text", "kind", "script"),
    [
        (WORDPIECE, "river", "river", "word", "Latin"),
        (WORDPIECE, "##ing", "ing", "continuation", "Latin"),
        (WORDPIECE, "##!", "!", "continuation", "none"),
        (WORDPIECE, "##", "##", "signs", "none"),
        (WORDPIECE, "a", "a", "character", "Latin"),
        (WORDPIECE, "東", "東", "character", "Han"),
        (WORDPIECE, "7", "7", "digits", "none"),
        (WORDPIECE, "1990", "1990", "digits", "none"),
        (WORDPIECE, "٣٤", "٣٤", "digits", "none"),
        (WORDPIECE, "1st", "1st", "signs", "Latin"),
        (WORDPIECE, "...", "...", "signs", "none"),
        (WORDPIECE, "½", "½", "character", "none"),
        (WORDPIECE, "[unused7]", "[unused7]", "unused", "none"),
        (WORDPIECE, "unused", "unused", "word", "Latin"),
        (WORDPIECE, "", "", "unused", "none"),
        (WORDPIECE, "हिन्दी", "हिन्दी", "word", "Devanagari"),
        (WORDPIECE, "aж", "aж", "word", "several"),
        (WORDPIECE, "ꕉꕉ", "ꕉꕉ", "word", "other"),
        (BYTES, "Ġriver", "river", "word", "Latin"),
        (BYTES, "river", "river", "continuation", "Latin"),
        (BYTES, "Ġ", "␣", "character", "none"),
        (BYTES, ".", ".", "character", "none"),
        (BYTES, "Ġ...", "...", "signs", "none"),
        (BYTES, "Ġ2024", "2024", "digits", "none"),
        (BYTES, "19", "19", "continuation", "none"),
        (BYTES, "ĠÃ©tÃ©", "été", "word", "Latin"),
        (BYTES, "ðŁ", "⟨F0 9F⟩", "bytes", "none"),
        (BYTES, "âŁ¨", "⟨", "character", "none"),
        (BYTES, "madeupword0001", "madeupword0001", "unused", "none"),
        (SPACES, "▁river", "river", "word", "Latin"),
        (SPACES, "ing", "ing", "continuation", "Latin"),
        (SPACES, "中国", "中国", "continuation", "Han"),
        (SPACES, "▁Привет", "Привет", "word", "Cyrillic"),
        (SPACES, "▁", "␣", "character", "none"),
        (SPACES, ",", ",", "character", "none"),
        (SPACES, "<0x0A>", "<0x0A>", "bytes", "none"),
        (SPACES, "▁10", "10", "digits", "none"),
    ],
)
def test_token_is_classified(marks: BoundaryMarks, name: str, text: str, kind: str, script: str) -> None:
    readable, begins = read(name, marks)
    assert readable == text
    assert kind_of(name, readable, begins, marks) == kind
    if kind not in ("unused", "bytes"):
        assert script_of(readable) == script


@pytest.mark.parametrize(
    ("make_model", "special", "marks", "name"),
    [
        (families.wordpiece, BERT, WORDPIECE, "WordPiece"),
        (families.byte_level, ROBERTA, BYTES, "byte-level"),
        (families.metaspace, ROBERTA, SPACES, "SentencePiece"),
    ],
)
def test_word_boundary_marks_are_detected(
    make_model: Any, special: Any, marks: BoundaryMarks, name: str
) -> None:
    detected = marks_of(families.fast(make_model(special), special))
    assert (detected, detected.name) == (marks, name)


def test_built_in_vocabulary_is_classified(minilm: Checkpoint) -> None:
    pieces = vocabulary_tokens(minilm.encoder, 30_522)
    counts = Counter(pieces.kinds)
    assert set(counts) <= set(KINDS)
    assert (counts["special"], counts["unused"], counts["bytes"]) == (5, 994, 0)
    assert counts["continuation"] == sum(name.startswith("##") for name in pieces.names)
    assert sum(counts.values()) == len(pieces) == 30_522
    assert all(pieces.ids[name] == number for number, name in enumerate(pieces.names))
    assert pieces.texts[pieces.ids["##an"]] == "an"
    assert vocabulary_tokens(minilm.encoder, 30_522) is pieces


def test_rows_without_tokens_are_unused(
    family: Callable[[str], Checkpoint],
) -> None:
    encoder = family("bert").encoder
    count = len(encoder.tokenizer)
    more = vocabulary_tokens(encoder, count + 3)
    assert more.names[-3:] == ("", "", "")
    assert more.kinds[-3:] == ("unused",) * 3
    fewer = vocabulary_tokens(encoder, count - 10)
    assert len(fewer) == count - 10
    assert max(fewer.ids.values()) == count - 11


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("river", "river"),
        ("a\u202eb", "a⟨U+202E⟩b"),
        ("\x00", "⟨U+0000⟩"),
        ("\u200b", "⟨U+200B⟩"),
        ("  ", "␣␣"),
        ("a b", "a b"),
        ("<script>", "<script>"),
    ],
)
def test_invisible_characters_are_shown_as_code_points(text: str, expected: str) -> None:
    assert visible(text) == expected
