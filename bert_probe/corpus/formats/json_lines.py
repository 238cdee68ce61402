"""JSON lines: an object a line, of which one value is the sentence, or the sentence alone as a string."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain, islice

from bert_probe.corpus.formats.row import FileRow, refused, row_of
from bert_probe.corpus.lines import InputLine
from bert_probe.text.sentence_files import column_of

LOOKED_AT = 100
"""Lines at the beginning whose keys are taken for the columns: there is no header."""


def rows(lines: Iterator[InputLine], name: str, column: str | None) -> Iterator[FileRow]:
    """The rows of a file. Blank lines are none.

    Raises:
        SelectionError: its first lines have no such key, or several and none is named.
    """
    first = list(islice(lines, LOOKED_AT))
    keys = _keys(first)
    key = keys[column_of([key.strip() for key in keys], column, name)] if keys else column
    every = chain(first, lines)
    return (_row(line, key) for line in every if line.trouble or (line.text and line.text.strip()))


def _keys(lines: list[InputLine]) -> list[str]:
    keys: dict[str, None] = {}
    for line in lines:
        value = None if line.trouble else _value(line.text or "")[0]
        if isinstance(value, dict):
            keys.update(dict.fromkeys(value))
    return list(keys)


def _row(line: InputLine, key: str | None) -> FileRow:
    if line.trouble or line.text is None:
        return refused(line.number, line.trouble)
    value, trouble = _value(line.text)
    if trouble:
        return refused(line.number, trouble)
    if not isinstance(value, dict):
        return row_of(line.number, value)
    if key is None:
        return refused(line.number, "It is an object, where the lines before are texts.")
    if key not in value:
        return refused(line.number, f"There is no {key[:40]} in it.")
    return row_of(line.number, value[key])


def _value(text: str) -> tuple[object, str]:
    """What a line says, and why it says nothing or ""."""
    try:
        return json.loads(text), ""
    except json.JSONDecodeError as error:
        return None, f"It is broken JSON: {error.msg}, at character {error.colno:,}."
    except ValueError:  # a number of more digits than Python reads
        return None, "It is JSON with a number that is too long."
    except RecursionError:
        return None, "It is JSON with too many brackets within each other."
