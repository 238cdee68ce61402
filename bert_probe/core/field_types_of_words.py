"""Field types that hold words, or tokens given by position or word."""

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
"""JSON Schema of a token position, from 0."""


class WordList(FieldType):
    """Words, possibly none; separated by commas in text, where a comma in a word follows a backslash."""

    metavar = "WORD,…"

    def check(self, name: str, value: Any) -> tuple[str, ...]:
        """Return a tuple of distinct words, none of them empty."""
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise SelectionError(f"{name} must be a list of words, not {value!r}.")
        for word in value:
            if not isinstance(word, str) or not word:
                raise SelectionError(f"{name} must be a list of words, not of {word!r}.")
        return tuple(dict.fromkeys(value))

    def to_json(self, value: Any) -> Any:
        """Return the list of words."""
        return list(value)

    @property
    def schema(self) -> Schema:
        """An array of words."""
        return {"type": "array", "items": {"type": "string", "minLength": 1}}

    def write(self, value: Any) -> str:
        """Return the words, separated by commas."""
        return ",".join(re.sub(r"([\\,])", r"\\\1", word) for word in value)

    def read(self, name: str, text: str, sizes: Dimensions) -> Any:  # noqa: ARG002
        """Parse words that are separated by commas."""
        escaped_words = re.findall(r"(?:^|,)((?:[^\\,]|\\.|\\$)*)", text, flags=re.DOTALL) if text else []
        return self.check(name, [re.sub(r"\\(.)", r"\1", word, flags=re.DOTALL) for word in escaped_words])


class TokenSelector(FieldType):
    """A token: its position from 0, or a word that is a single token; see `find_token`."""

    metavar = "WORD|N"

    def check(self, name: str, value: Any) -> Any:
        """Return the position as int, or the word."""
        if isinstance(value, bool) or not isinstance(value, int | np.integer | str):
            raise SelectionError(f"{name} must be a position or a word, not {value!r}.")
        # Digits are a position, as in `find_token`. A number larger than any text length stays a word.
        digits = not isinstance(value, str) or re.fullmatch("[0-9]{1,9}", value)
        return int(value) if digits else str(value)

    @property
    def schema(self) -> Schema:
        """A position or a word."""
        return {"anyOf": [POSITION, {"type": "string"}]}

    def from_json(self, name: str, value: Any, sizes: Dimensions) -> Any:  # noqa: ARG002
        """Parse a position or a word; only Python accepts negative positions."""
        if isinstance(value, int) and not 0 <= value <= POSITION["maximum"]:
            raise SelectionError(f"{name} must be a position from 0 or a word, not {value}.")
        return self.check(name, value)

    def resolve(self, name: str, value: Any, trace: Trace) -> int:  # noqa: ARG002
        """Return the position of the token."""
        if isinstance(value, str) or value >= 0:
            return find_token(trace, str(value)).position
        return resolve_index(value, len(trace.tokens), "token")


class WordSelector(TokenSelector):
    """A word: the position of any of its tokens, or the word itself; see `find_word`."""

    def resolve(self, name: str, value: Any, trace: Trace) -> int:
        """Return the position of the word's first token, or the given position."""
        return (
            find_word(trace, value).position
            if isinstance(value, str)
            else super().resolve(name, value, trace)
        )
