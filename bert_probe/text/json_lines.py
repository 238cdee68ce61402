"""JSON lines as a table: an object a line, whose keys are the columns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain, islice

from bert_probe.errors import EmptyTextError, TextError
from bert_probe.text import strict_json
from bert_probe.text.strict_json import DuplicateKeyError

_SAMPLE = 100
"""Lines at the beginning whose keys are the header."""


LIST_COLUMNS = ("label", "labels")
"""Columns whose cells may be lists of texts."""


class LabelList(str):
    """A cell whose value is a list of texts, with | between them."""

    __slots__ = ()


class NonTextCell(str):
    """A cell whose value is neither text nor a number; it reads as what it is, such as "an object"."""

    __slots__ = ()


def json_table(written: Iterator[str], name: str) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """Return header and rows, each row with its line; a text alone is a row of the column text.

    A number becomes its digits, null an empty cell, and a list of labels these with | between.

    Raises:
        TextError: if a line is not JSON; EmptyTextError: if there is none.
    """
    objects = (
        (number, _object(line, name, number)) for number, line in enumerate(written, 1) if line.strip()
    )
    start = list(islice(objects, _SAMPLE))
    if not start:
        raise EmptyTextError(f"{name} is empty. Give an object with a text in each line.")
    header = list(dict.fromkeys(key for _, value in start for key in value))
    rows = (
        (number, [_cell(key, value.get(key), name, number) for key in header])
        for number, value in chain(start, objects)
    )
    return header, rows


def _object(line: str, name: str, number: int) -> dict[str, object]:
    try:
        value = strict_json.loads(line)
    except json.JSONDecodeError as error:
        reason = f"{error.msg}, at character {error.colno:,}"
    except DuplicateKeyError as error:
        reason = str(error)
    except (ValueError, RecursionError):  # a number of very many digits, or very many brackets
        reason = "a number or a nesting that is too long"
    else:
        if isinstance(value, str):
            return {"text": value}
        if isinstance(value, dict):
            return value
        reason = "neither an object nor a text"
    raise TextError(f"{name} is broken in line {number:,}: {reason}. Give an object a line.")


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
        if not all(isinstance(part, str) and "|" not in part for part in value):
            return NonTextCell("a list of other things than texts")
        value = LabelList("|".join(value))
    if not isinstance(value, str):
        return NonTextCell("an object")
    if "\0" in value or any("\ud800" <= sign <= "\udfff" for sign in value):
        raise TextError(f"{name}, line {number:,}: a NUL or half a character in a text. Remove it.")
    return value
