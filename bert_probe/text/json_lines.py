"""JSON Lines as a table: one object per line, whose keys are the columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain, islice

from bert_probe.errors import EmptyTextError, TextError
from bert_probe.text import strict_json
from bert_probe.text.strict_json import DuplicateKeyError

_SAMPLE = 100
"""Number of initial lines whose keys form the header."""


LIST_COLUMNS = ("label", "labels")
"""Columns whose cells may be lists of strings."""


class LabelList(str):
    """A cell whose value is a list of strings, joined by |."""

    __slots__ = ()


class NonTextCell(str):
    """A cell whose value is neither text nor a number; its string describes the value, for example "an
    object".
    """

    __slots__ = ()


def json_table(lines: Iterator[str], name: str) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """Return the header, and an iterator over line numbers and rows. A bare string is a row with the column
    text.

    Numbers become digits, null an empty cell, and lists of labels are joined by |.

    Raises:
        TextError: a line is not JSON.
        EmptyTextError: there are no lines.
    """
    objects = ((number, _object(line, name, number)) for number, line in enumerate(lines, 1) if line.strip())
    sample = list(islice(objects, _SAMPLE))
    if not sample:
        raise EmptyTextError(f"{name} is empty. Write an object with a text on each line.")
    header = list(dict.fromkeys(key for _, value in sample for key in value))
    rows = (
        (number, [_cell(key, value.get(key), name, number) for key in header])
        for number, value in chain(sample, objects)
    )
    return header, rows


def _object(line: str, name: str, number: int) -> dict[str, object]:
    try:
        value = strict_json.loads(line)
    except json.JSONDecodeError as error:
        reason = f"{error.msg}, at character {error.colno:,}"
    except DuplicateKeyError as error:
        reason = str(error)
    except (ValueError, RecursionError):
        reason = "a number with too many digits, or objects nested too deeply"
    else:
        if isinstance(value, str):
            return {"text": value}
        if isinstance(value, dict):
            return value
        reason = "neither an object nor a text"
    raise TextError(f"{name} is invalid in line {number:,}: {reason}. Write one object per line.")


def _cell(key: str, value: object, name: str, number: int) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        if key.casefold() not in LIST_COLUMNS:
            return NonTextCell("a list")
        if not all(isinstance(item, str) and "|" not in item for item in value):
            return NonTextCell("a list with values that are not texts")
        value = LabelList("|".join(value))
    if not isinstance(value, str):
        return NonTextCell("an object")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise TextError(f"{name}, line {number:,}: a NUL or an unpaired surrogate in a text. Remove it.")
    return value
