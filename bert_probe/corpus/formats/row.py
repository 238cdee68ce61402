"""A row of a file: a text, or why there is none."""

from __future__ import annotations

from typing import NamedTuple

from bert_probe.corpus.lines import MAX_LINE
from bert_probe.text.sentence_files import lines
from bert_probe.text.tagged_sentences import TaggedSentence


class FileRow(NamedTuple):
    """A row of a file, wherever it is one of.

    Attributes:
        line: that it begins on, from 1; of Parquet, which has no lines, the number of the row.
        text: None where it cannot be read.
        tagged: its words with their tags, where the format has them.
        trouble: why there is no text, as a sentence; else "".
    """

    line: int
    text: str | None
    tagged: TaggedSentence | None = None
    trouble: str = ""


def refused(line: int, trouble: str) -> FileRow:
    """A row without a text."""
    return FileRow(line, None, trouble=trouble)


def row_of(line: int, value: object) -> FileRow:
    """A cell as a row: without the spaces around it, and a space for each line break."""
    if not isinstance(value, str):
        return refused(line, "There is no text." if value is None else f"The text is {_called(value)}.")
    if len(value) > MAX_LINE:
        return refused(line, f"The text is longer than {MAX_LINE:,} characters.")
    text = " ".join(lines(value))
    if not text:
        return refused(line, "The text is empty.")
    if "\0" in text:
        return refused(line, "The text holds a NUL.")
    try:
        text.encode()
    except UnicodeEncodeError:
        return refused(line, "The text holds half a character, which UTF-8 has no bytes for.")
    return FileRow(line, text)


def _called(value: object) -> str:
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    return "true or false" if isinstance(value, bool) else "a number"
