"""Parse JSON, but reject duplicate keys and very long integers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from bert_probe.text.words import truncate_text


class DuplicateKeyError(ValueError):
    """Raised for a JSON object with a duplicate key; Python's parser would silently keep the last value."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {truncate_text(json.dumps(key), 60)} occurs twice; write the key once")


class LongNumberError(ValueError):
    """Raised for a JSON integer that has more digits than Python can parse."""


def loads(
    text: str | bytes,
    parse_float: Callable[[str], Any] | None = None,
    parse_constant: Callable[[str], Any] | None = None,
) -> Any:
    """Parse JSON as `json.loads` does, but reject duplicate keys.

    Args:
        text: the JSON.
        parse_float, parse_constant: see `json.loads`.

    Raises:
        DuplicateKeyError: an object has a duplicate key.
        LongNumberError: an integer has too many digits.
        ValueError: the text is not valid JSON.
        RecursionError: the JSON is nested too deeply.
    """
    return json.loads(
        text,
        parse_float=parse_float,
        parse_int=parse_integer,
        parse_constant=parse_constant,
        object_pairs_hook=_without_duplicates,
    )


def parse_integer(text: str) -> int:
    """Parse an integer. The function is meant to be passed to `json.loads` as ``parse_int``.

    Raises:
        LongNumberError: the integer has too many digits.
    """
    try:
        return int(text)
    except ValueError:
        digits, limit = len(text.lstrip("-")), sys.get_int_max_str_digits()
        raise LongNumberError(f"a number has {digits:,} digits, but at most {limit:,} are allowed") from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        keys = set()
        for key, _ in pairs:
            if key in keys:
                raise DuplicateKeyError(key)
            keys.add(key)
    return members
