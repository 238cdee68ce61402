"""Field types of questions, which check, resolve, parse and write the values.

URLs, command lines, JSON and provenance of a question are derived from the types of its fields. In all of
them, layers and heads count from 1; in Python, they count from 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from bert_probe.errors import SelectionError
from bert_probe.model.trace import Trace, resolve_index
from bert_probe.text.words import find_token, find_word, truncate_text

Schema: TypeAlias = dict[str, Any]
"""A JSON Schema, draft 2020-12."""

MAX_NUMBER = 999_999_999_999
"""Largest number that is accepted; some computations do not support larger numbers."""
_MAX_INDEX = 999_999_999  # largest number of a layer or head


class Dimensions(Protocol):
    """Numbers of layers and heads of a model; a `Trace` and a checkpoint's `Description` have them."""

    @property
    def layers(self) -> int:
        """Number of layers."""
        ...

    @property
    def heads(self) -> int:
        """Number of heads per layer."""
        ...


class FieldType:
    """Base class of all field types, and the type of a field that contains text."""

    metavar = "TEXT"

    def check(self, name: str, value: Any) -> Any:
        """Return the validated value in the form that the question stores.

        Raises:
            SelectionError: the value has the wrong type or is out of range.
        """
        if not isinstance(value, str):
            raise SelectionError(f"{name} must be a text, not {value!r}.")
        return value

    def resolve(self, name: str, value: Any, trace: Trace) -> Any:  # noqa: ARG002
        """Return the value for one text: indices from 0, and positions in place of words.

        Raises:
            SelectionError: the text or its model does not have this layer, head, token or word.
        """
        return value

    def write(self, value: Any) -> str:
        """Return the value as text for a URL or a command line."""
        return str(value)

    def read(self, name: str, text: str, sizes: Dimensions) -> Any:  # noqa: ARG002
        """Parse the text that `write` returns.

        Raises:
            SelectionError: the text is invalid, or the model does not have the layer or head.
        """
        return self.check(name, text)

    def to_json(self, value: Any) -> Any:
        """Return the value for JSON; layers and heads count from 1."""
        return value

    @property
    def schema(self) -> Schema:
        """JSON Schema of the values that `to_json` returns."""
        return {"type": "string"}

    def from_json(self, name: str, value: Any, sizes: Dimensions) -> Any:  # noqa: ARG002
        """Parse a value that `to_json` returns.

        Raises:
            SelectionError: the value is invalid, or the model does not have the layer or head.
        """
        return self.check(name, value)

    def options(self, option: str, value: Any) -> list[str]:
        """Return the command-line arguments that set the value."""
        return [option, self.write(value)]


class FileName(FieldType):
    """The name of a file."""

    metavar = "FILE"


_NUMBER_PATTERN = re.compile(r"[+-]?[0-9]{1,100}(\.[0-9]{1,100})?(e[+-]?[0-9]{1,3})?", re.IGNORECASE)


class Number(FieldType):
    """A number within bounds.

    Args:
        minimum: the smallest value.
        maximum: the largest value.
        integer: whether only whole numbers are accepted.
    """

    metavar = "N"

    def __init__(self, minimum: float, maximum: float = float("inf"), *, integer: bool = True) -> None:
        self.minimum, self.maximum, self.integer = minimum, maximum, integer

    def check(self, name: str, value: Any) -> int | float:
        """Return the number as int or float."""
        types = int | np.integer if self.integer else int | float | np.integer | np.floating
        if isinstance(value, bool) or not isinstance(value, types):
            raise SelectionError(f"{name} must be a {'whole ' if self.integer else ''}number, not {value!r}.")
        if not self.minimum <= value <= self.maximum:
            raise SelectionError(f"{name} must be {self._bounds}, not {value}.")
        return int(value) if self.integer else float(value)

    @property
    def _bounds(self) -> str:
        if np.isfinite(self.maximum):
            return f"{self.minimum:g} to {self.maximum:g}"
        return f"{self.minimum:g} or more"

    def read(self, name: str, text: str, sizes: Dimensions) -> int | float:  # noqa: ARG002
        """Parse a number in decimal digits."""
        # int() and float() alone would also accept "1_0" and " 3".
        if not _NUMBER_PATTERN.fullmatch(text):
            raise SelectionError(f"{name} must be a number, not {truncate_text(text)!r}.")
        if self.integer and not re.fullmatch("[+-]?[0-9]+", text):
            raise SelectionError(
                f"{name} must be a whole number in digits, {self._bounds}, not {truncate_text(text)}."
            )
        if not abs(float(text)) <= MAX_NUMBER:
            raise SelectionError(f"{name} must be {self._bounds}, not {truncate_text(text)}.")
        return self.check(name, int(text) if self.integer else float(text))

    @property
    def schema(self) -> Schema:
        """An integer or a number with its bounds."""
        bounds = {"minimum": self.minimum, "maximum": min(self.maximum, MAX_NUMBER)}
        return {"type": "integer" if self.integer else "number", **bounds}

    def from_json(self, name: str, value: Any, sizes: Dimensions) -> int | float:  # noqa: ARG002
        """Return the number if it is not larger than `MAX_NUMBER`."""
        number = self.check(name, value)
        if number > MAX_NUMBER:
            raise SelectionError(f"{name} is larger than {MAX_NUMBER}. Give a smaller number.")
        return number

    def write(self, value: Any) -> str:
        """Return the shortest text that is parsed as the same number."""
        return repr(value)


class Index(FieldType):
    """A layer or a head: an index from 0 in Python; text and JSON count from `first`.

    Args:
        axis: "layer" or "head".
        first: the number of index 0 in text and JSON: 1, or 0 for layers of hidden states, where 0 is the
            output of the embeddings.
        mean: whether "mean", the mean over all layers or heads, is accepted too.
    """

    def __init__(self, axis: str, first: int = 1, *, mean: bool = False) -> None:
        self.axis, self.first, self.mean = axis, first, mean
        self.metavar = "N|mean" if mean else "N|last"

    def count(self, sizes: Dimensions) -> int:
        """Return the number of layers or heads to choose from."""
        return sizes.heads if self.axis == "head" else sizes.layers + 1 - self.first

    def check(self, name: str, value: Any) -> Any:
        """Return the integer, or "mean"; the model's bounds are checked in `resolve`."""
        if self.mean and value == "mean":
            return value
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise SelectionError(f"{name} must be a whole number, not {value!r}.")
        return int(value)

    def resolve(self, name: str, value: Any, trace: Trace) -> Any:
        """Return the index from 0; a negative index counts from the end."""
        return value if value == "mean" else resolve_index(value, self.count(trace), name)

    def to_json(self, value: Any) -> Any:
        """Return the number, "last" for -1, "last-1" for -2, or "mean"."""
        if value == "mean":
            return value
        return value + self.first if value >= 0 else "last" if value == -1 else f"last{value + 1}"

    @property
    def schema(self) -> Schema:
        """A number, or one of the words "last", "last-N" and "mean"."""
        word = "^(last(-[0-9]{1,9})?|mean)$" if self.mean else "^last(-[0-9]{1,9})?$"
        number = {"type": "integer", "minimum": self.first, "maximum": _MAX_INDEX}
        return {"anyOf": [number, {"type": "string", "pattern": word}]}

    def from_json(self, name: str, value: Any, sizes: Dimensions) -> Any:
        """Parse a number or a word; a number in a string is rejected."""
        is_word = isinstance(value, str) and not value.isdigit()
        if not is_word and (isinstance(value, bool) or not isinstance(value, int)):
            raise SelectionError(f"{name} must be a number or {self.metavar[2:]}, not {value!r}.")
        return self.read(name, str(value), sizes)

    def write(self, value: Any) -> str:
        """Return the value of `to_json` as text."""
        return str(self.to_json(value))

    def read(self, name: str, text: str, sizes: Dimensions) -> Any:  # noqa: ARG002
        """Return the index for a number, "last", "last-N" or "mean"."""
        if self.mean and text == "mean":
            return text
        count = self.count(sizes)
        from_end = re.fullmatch(r"last(?:-([0-9]{1,9}))?", text)
        if from_end and int(from_end[1] or 0) < count:
            return -1 - int(from_end[1] or 0)
        # int() alone would also accept "1_0" and " 3".
        number = int(text) if re.fullmatch("[0-9]{1,9}", text) else -1
        if not self.first <= number < self.first + count:
            raise SelectionError(
                f"There is no {self.axis} {text}: this model has {self.axis}s {self.first} to "
                f"{self.first + count - 1}. Give one of them or {'mean' if self.mean else 'last'}."
            )
        return number - self.first


class Flag(FieldType):
    """A boolean; 1 or 0 in URLs, an option without a value on the command line."""

    def check(self, name: str, value: Any) -> bool:
        """Return the boolean."""
        if not isinstance(value, bool | np.bool_):
            raise SelectionError(f"{name} must be True or False, not {value!r}.")
        return bool(value)

    def write(self, value: Any) -> str:
        """Return 1 or 0."""
        return "1" if value else "0"

    def read(self, name: str, text: str, sizes: Dimensions) -> bool:  # noqa: ARG002
        """Parse 1 or 0."""
        if text not in ("0", "1"):
            raise SelectionError(f"{name} must be 1 or 0, not {text!r}.")
        return text == "1"

    @property
    def schema(self) -> Schema:
        """A boolean."""
        return {"type": "boolean"}

    def options(self, option: str, value: Any) -> list[str]:  # noqa: ARG002
        """Return the option without a value; only called for values that are not the default."""
        return [option]


class Choice(FieldType):
    """One of several words.

    Args:
        options: the words, or a function that returns them if they are not known at import time.
    """

    def __init__(self, options: Sequence[str] | Mapping[str, Any] | Callable[[], Iterable[str]]) -> None:
        self._options = options

    @property
    def words(self) -> tuple[str, ...]:
        """The words to choose from."""
        return tuple(self._options() if callable(self._options) else self._options)

    @property
    def metavar(self) -> str:  # type: ignore[override]
        """The words, separated by bars."""
        return "|".join(self.words)

    def check(self, name: str, value: Any) -> str:
        """Return the word."""
        if not isinstance(value, str) or value not in self.words:
            *first_words, last = self.words
            allowed = f"{', '.join(first_words)} or {last}" if first_words else last
            raise SelectionError(f"{name} must be {allowed}, not {value!r}.")
        return value

    @property
    def schema(self) -> Schema:
        """An enumeration of the words."""
        return {"type": "string", "enum": list(self.words)}


class Optional(FieldType):
    """A value of another type, or None."""

    def __init__(self, kind: FieldType) -> None:
        self.kind, self.metavar = kind, kind.metavar

    def check(self, name: str, value: Any) -> Any:
        """Return None, or the value checked by the wrapped type."""
        return None if value is None else self.kind.check(name, value)

    def resolve(self, name: str, value: Any, trace: Trace) -> Any:
        """Return None, or the value resolved by the wrapped type."""
        return None if value is None else self.kind.resolve(name, value, trace)

    def to_json(self, value: Any) -> Any:
        """Return None, or the value as JSON of the wrapped type."""
        return None if value is None else self.kind.to_json(value)

    @property
    def schema(self) -> Schema:
        """The wrapped type's schema, or null."""
        return {"anyOf": [self.kind.schema, {"type": "null"}]}

    def from_json(self, name: str, value: Any, sizes: Dimensions) -> Any:
        """Parse null, or a value of the wrapped type."""
        return None if value is None else self.kind.from_json(name, value, sizes)

    def write(self, value: Any) -> str:
        """Return an empty text for None."""
        return "" if value is None else self.kind.write(value)

    def read(self, name: str, text: str, sizes: Dimensions) -> Any:
        """Return None for an empty text."""
        return None if text == "" else self.kind.read(name, text, sizes)

    def options(self, option: str, value: Any) -> list[str]:
        """Return no arguments for None."""
        return [] if value is None else self.kind.options(option, value)


POSITION: Schema = {"type": "integer", "minimum": 0, "maximum": 999_999_999}
"""JSON Schema of a token position, from 0."""


class WordList(FieldType):
    """A list of words, which may be empty. In text they are separated by commas; a comma or backslash within
    a word is escaped by a backslash.
    """

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
        # Digits are a position, as in `find_token`. A number larger than any text length is a word.
        digits = not isinstance(value, str) or re.fullmatch("[0-9]{1,9}", value)
        return int(value) if digits else str(value)

    @property
    def schema(self) -> Schema:
        """A position or a word."""
        return {"anyOf": [POSITION, {"type": "string"}]}

    def from_json(self, name: str, value: Any, sizes: Dimensions) -> Any:  # noqa: ARG002
        """Parse a position or a word; negative positions are accepted only in Python."""
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
