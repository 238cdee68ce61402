"""Kinds of fields that hold words, or tokens by their name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_probe.core.field_types import Dimensions, FieldType, Schema
from bert_probe.errors import SelectionError
from bert_probe.model.trace import Trace, resolve_index
from bert_probe.text.words import find_token, find_word

POSITION: Schema = {"type": "integer", "minimum": 0, "maximum": 999_999_999}
"""Of a token, from 0."""


class WordList(FieldType):
    """Some words, perhaps none; written with commas between, and a comma of their own after a backslash."""

    metavar = "WORD,…"

    def check(self, name: str, value: Any) -> tuple[str, ...]:
        """A tuple of words that are not empty, each once."""
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise SelectionError(f"{name} must be a list of words, not {value!r}.")
        for one in value:
            if not isinstance(one, str) or not one:
                raise SelectionError(f"{name} must be a list of words, not of {one!r}.")
        return tuple(dict.fromkeys(value))

    def to_json(self, value: Any) -> Any:
        """A list."""
        return list(value)

    @property
    def schema(self) -> Schema:
        """A list of words."""
        return {"type": "array", "items": {"type": "string", "minLength": 1}}

    def write(self, value: Any) -> str:
        """With commas between."""
        return ",".join(re.sub(r"([\\,])", r"\\\1", one) for one in value)

    def read(self, name: str, text: str, sizes: Dimensions) -> Any:  # noqa: ARG002
        """What `write` wrote."""
        found = re.findall(r"(?:^|,)((?:[^\\,]|\\.|\\$)*)", text, flags=re.DOTALL) if text else []
        return self.check(name, [re.sub(r"\\(.)", r"\1", one, flags=re.DOTALL) for one in found])


class TokenSelector(FieldType):
    """A token: its position from 0, or a word that is a single token; see `find_token`."""

    metavar = "WORD|N"

    def check(self, name: str, value: Any) -> Any:
        """A position or a name."""
        if isinstance(value, bool) or not isinstance(value, int | np.integer | str):
            raise SelectionError(f"{name} must be a position or a word, not {value!r}.")
        # As `find_token` has it: digits are a position. More of them than any text has tokens stay a word.
        digits = not isinstance(value, str) or re.fullmatch("[0-9]{1,9}", value)
        return int(value) if digits else str(value)

    @property
    def schema(self) -> Schema:
        """A position or a name."""
        return {"anyOf": [POSITION, {"type": "string"}]}

    def from_json(self, name: str, value: Any, sizes: Dimensions) -> Any:  # noqa: ARG002
        """The same; only Python counts from the end."""
        if isinstance(value, int) and not 0 <= value <= POSITION["maximum"]:
            raise SelectionError(f"{name} is {value}; a position from 0 can be given, or a word.")
        return self.check(name, value)

    def resolve(self, name: str, value: Any, trace: Trace) -> int:  # noqa: ARG002
        """The position."""
        if isinstance(value, str) or value >= 0:
            return find_token(trace, str(value)).position
        return resolve_index(value, len(trace.tokens), "token")


class WordSelector(TokenSelector):
    """A word: the position of any of its tokens, or its name; see `find_word`."""

    def resolve(self, name: str, value: Any, trace: Trace) -> int:
        """The position of its first token; a position as it is."""
        return (
            find_word(trace, value).position
            if isinstance(value, str)
            else super().resolve(name, value, trace)
        )
