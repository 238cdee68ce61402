"""Test the input files of questions: the file name determines the format, which the question must accept."""

from __future__ import annotations

import pytest

from bert_probe.core.inputs import TABLE, TAGGED, FileInput
from bert_probe.text.labeled_texts import LabeledTexts

LABELED = b'{"text": "A boat.", "label": "x"}\n{"text": "A tree.", "label": "y"}\n'
PAIRS = b'{"text_a": "A", "text_b": "B", "score": 1}\n{"text_a": "C", "text_b": "D", "score": 2}\n'
TAGS = b"A DET\nboat NOUN\n"


@pytest.mark.parametrize(
    ("formats", "content", "name", "expected"),
    [
        ((TABLE,), LABELED, "a.jsonl", LabeledTexts),
        ((TABLE,), PAIRS, "a.jsonl", LabeledTexts),
        ((TABLE, TAGGED), LABELED, "a.jsonl", LabeledTexts),
        ((TABLE, TAGGED), b"text,label\nA,x\nB,y\n", "a.csv", LabeledTexts),
        ((TABLE, TAGGED), TAGS, "a.conll", tuple),
        ((TAGGED,), TAGS, "a.csv", tuple),
    ],
)
def test_format_is_that_of_the_file_name(
    formats: tuple[str, ...], content: bytes, name: str, expected: type
) -> None:
    assert isinstance(FileInput(formats=formats).parse(content, name), expected)
