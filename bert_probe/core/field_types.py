"""Types of the fields of a `Question`. A field type checks, resolves, parses and writes the field's values.

URLs, command lines, JSON and provenance of a question are derived from the types of its fields. In all of
them, layers and heads count from 1; in Python, they count from 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from bert_probe.errors import SelectionError
from bert_probe.model.lengths import MAX_CHARACTERS, check_text
from bert_probe.model.trace import Trace, resolve_index
from bert_probe.text.words import find_token, find_word, truncate_text

Schema: TypeAlias = dict[str, Any]
"""A JSON Schema, draft 2020-12."""

MAX_NUMBER = 999_999_999_999
"""Largest number that `Number` parses from a string or JSON."""
_MAX_INDEX = 999_999_999  # largest accepted layer or head number


class Dimensions(Protocol):
    """Protocol for objects with a model's numbers of layers and attention heads, such as `Trace`."""

    @property
    def layers(self) -> int:
        """Number of layers."""
        ...

    @property
    def heads(self) -> int:
        """Number of attention heads per layer."""
        ...


class FieldType:
    """Base class of all field types, and the type of string fields."""

    metavar = "TEXT"

    def check(self, name: str, value: Any) -> Any:
        """Validate a value, and return it in the type that the question stores.

        Raises:
            SelectionError: the value has the wrong type or is out of range.
        """
        if not isinstance(value, str):
            raise SelectionError(f"{name} must be a string, not {value!r}.")
        return value

    def resolve(self, name: str, value: Any, trace: Trace) -> Any:  # noqa: ARG002
        """Return the value for one text, with indices that count from 0 and token positions instead of words.

        Raises:
            SelectionError: the text or its model does not have the layer, head, token or word.
        """
        return value

    def write(self, value: Any) -> str:
        """Return the value as a string for a URL or a command line."""
        return str(value)

    def read(self, name: str, text: str, sizes: Dimensions) -> Any:  # noqa: ARG002
        """Parse a value from a string in the format of `write`.

        Raises:
            SelectionError: the string is invalid, or the model does not have the layer or head.
        """
        return self.check(name, text)

    def to_json(self, value: Any) -> Any:
        """Return the value in its JSON form; layers and heads count from 1."""
        return value

    @property
    def schema(self) -> Schema:
        """The JSON Schema of the values that `to_json` returns."""
        return {"type": "string"}

    def from_json(self, name: str, value: Any, sizes: Dimensions) -> Any:  # noqa: ARG002
        """Parse a value from the JSON form that `to_json` returns.

        Raises:
            SelectionError: the value is invalid, or the model does not have the layer or head.
        """
        return self.check(name, value)

    def options(self, option: str, value: Any) -> list[str]:
        """Return the command-line arguments that set an option to the value."""
        return [option, self.write(value)]


class FileName(FieldType):
    """A string that is the name of a file."""

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
        """Check the type and range of a number, and return it as int or float."""
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
        """Parse a decimal number."""
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
        """The JSON Schema of an integer or a number, with its bounds."""
        bounds = {"minimum": self.minimum, "maximum": min(self.maximum, MAX_NUMBER)}
        return {"type": "integer" if self.integer else "number", **bounds}

    def from_json(self, name: str, value: Any, sizes: Dimensions) -> int | float:  # noqa: ARG002
        """Check and return a number from JSON; numbers above `MAX_NUMBER` are rejected."""
        number = self.check(name, value)
        if number > MAX_NUMBER:
            raise SelectionError(f"{name} is larger than {MAX_NUMBER}. Pass a smaller number.")
        return number

    def write(self, value: Any) -> str:
        """Return the shortest string that parses to the same number."""
        return repr(value)


class Index(FieldType):
    """A layer or an attention head. Python counts from 0; strings and JSON count from `first`.

    Args:
        axis: "layer" or "head".
        first: the number of index 0 in strings and JSON. It is 1, or 0 for layers of hidden states, where
            layer 0 is the output of the embeddings.
        mean: whether "mean", the mean over all layers or heads, is also accepted.
    """

    def __init__(self, axis: str, first: int = 1, *, mean: bool = False) -> None:
        self.axis, self.first, self.mean = axis, first, mean
        self.metavar = "N|mean" if mean else "N|last"

    def count(self, sizes: Dimensions) -> int:
        """Return the number of heads or layers; if `first` is 0, the embeddings count as a layer."""
        return sizes.heads if self.axis == "head" else sizes.layers + 1 - self.first

    def check(self, name: str, value: Any) -> Any:
        """Return an integer or "mean" unchanged; `resolve` checks whether the model has this index."""
        if self.mean and value == "mean":
            return value
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise SelectionError(f"{name} must be a whole number, not {value!r}.")
        return int(value)

    def resolve(self, name: str, value: Any, trace: Trace) -> Any:
        """Return the 0-based index of a layer or head; a negative index counts from the end."""
        return value if value == "mean" else resolve_index(value, self.count(trace), name)

    def to_json(self, value: Any) -> Any:
        """Return an index as a number, "last" for -1, "last-1" for -2, or "mean"."""
        if value == "mean":
            return value
        return value + self.first if value >= 0 else "last" if value == -1 else f"last{value + 1}"

    @property
    def schema(self) -> Schema:
        """The JSON Schema of a number, or of the words "last", "last-N" and, if accepted, "mean"."""
        word = "^(last(-[0-9]{1,9})?|mean)$" if self.mean else "^last(-[0-9]{1,9})?$"
        number = {"type": "integer", "minimum": self.first, "maximum": _MAX_INDEX}
        return {"anyOf": [number, {"type": "string", "pattern": word}]}

    def from_json(self, name: str, value: Any, sizes: Dimensions) -> Any:
        """Parse an index from a number or a word such as "last"; a number in a string is rejected."""
        is_word = isinstance(value, str) and not value.isdigit()
        if not is_word and (isinstance(value, bool) or not isinstance(value, int)):
            raise SelectionError(f"{name} must be a number or {self.metavar[2:]}, not {value!r}.")
        return self.read(name, str(value), sizes)

    def write(self, value: Any) -> str:
        """Return an index as a string, in the format of `to_json`."""
        return str(self.to_json(value))

    def read(self, name: str, text: str, sizes: Dimensions) -> Any:  # noqa: ARG002
        """Parse an index from a string: a number, "last", "last-N" or "mean"."""
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
                f"{self.first + count - 1}. Use one of these, or {'mean' if self.mean else 'last'}."
            )
        return number - self.first


class Flag(FieldType):
    """A boolean: 1 or 0 in URLs, and an option without a value on the command line."""

    def check(self, name: str, value: Any) -> bool:
        """Return the value as a bool.

        Raises:
            SelectionError: the value is not a bool.
        """
        if not isinstance(value, bool | np.bool_):
            raise SelectionError(f"{name} must be True or False, not {value!r}.")
        return bool(value)

    def write(self, value: Any) -> str:
        """Return "1" for True and "0" for False."""
        return "1" if value else "0"

    def read(self, name: str, text: str, sizes: Dimensions) -> bool:  # noqa: ARG002
        """Return True for "1" and False for "0"."""
        if text not in ("0", "1"):
            raise SelectionError(f"{name} must be 1 or 0, not {text!r}.")
        return text == "1"

    @property
    def schema(self) -> Schema:
        """The JSON Schema of a boolean."""
        return {"type": "boolean"}

    def options(self, option: str, value: Any) -> list[str]:  # noqa: ARG002
        """Return the option without a value. Callers omit the option if the value is the default."""
        return [option]


class Name(FieldType):
    """A name that a checkpoint defines, such as a prompt name. The method `of` checks whether it exists."""

    metavar = "NAME"

    def check(self, name: str, value: Any) -> str:
        """Return the value if it is a string of 1 to 200 characters."""
        if not isinstance(value, str) or not 0 < len(value) <= 200:
            raise SelectionError(f"{name} must be a string of 1 to 200 characters, not {str(value)[:100]!r}.")
        return value

    @property
    def schema(self) -> Schema:
        """The JSON Schema of a string of 1 to 200 characters."""
        return {"type": "string", "minLength": 1, "maxLength": 200}


class Text(FieldType):
    """A text that a model reads, such as a query."""

    metavar = "TEXT"

    def check(self, name: str, value: Any) -> str:
        """Return the value if it is a string that is not blank.

        Raises:
            SelectionError: the value is not a string, or is blank.
            TextError, TooLongError: see `check_text`.
        """
        if not isinstance(value, str) or not value.strip():
            raise SelectionError(f"{name} must be a non-blank string, not {str(value)[:100]!r}.")
        check_text(value)
        return value

    @property
    def schema(self) -> Schema:
        """The JSON Schema of a string that is not blank."""
        return {"type": "string", "minLength": 1, "maxLength": MAX_CHARACTERS, "pattern": "\\S"}


class Choice(FieldType):
    """One of several allowed words.

    Args:
        options: the words, or a function that returns them if they are not known at import time.
    """

    def __init__(self, options: Sequence[str] | Mapping[str, Any] | Callable[[], Iterable[str]]) -> None:
        self._options = options

    @property
    def words(self) -> tuple[str, ...]:
        """The allowed words."""
        return tuple(self._options() if callable(self._options) else self._options)

    @property
    def metavar(self) -> str:  # type: ignore[override]
        """The allowed words, separated by vertical bars, for help texts."""
        return "|".join(self.words)

    def check(self, name: str, value: Any) -> str:
        """Return the value if it is one of the allowed words."""
        if not isinstance(value, str) or value not in self.words:
            *first_words, last = self.words
            allowed = f"{', '.join(first_words)} or {last}" if first_words else last
            raise SelectionError(f"{name} must be {allowed}, not {value!r}.")
        return value

    @property
    def schema(self) -> Schema:
        """The JSON Schema of a string that is one of the allowed words."""
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
        """Return None, or the value in the JSON form of the wrapped type."""
        return None if value is None else self.kind.to_json(value)

    @property
    def schema(self) -> Schema:
        """The JSON Schema of null or a value of the wrapped type."""
        return {"anyOf": [self.kind.schema, {"type": "null"}]}

    def from_json(self, name: str, value: Any, sizes: Dimensions) -> Any:
        """Return None for null; parse any other value with the wrapped type."""
        return None if value is None else self.kind.from_json(name, value, sizes)

    def write(self, value: Any) -> str:
        """Return "" for None; let the wrapped type write any other value."""
        return "" if value is None else self.kind.write(value)

    def read(self, name: str, text: str, sizes: Dimensions) -> Any:
        """Return None for ""; parse any other string with the wrapped type."""
        return None if text == "" else self.kind.read(name, text, sizes)

    def options(self, option: str, value: Any) -> list[str]:
        """Return [] for None; otherwise return the command-line arguments of the wrapped type."""
        return [] if value is None else self.kind.options(option, value)


MAX_ITEMS = 1000
"""Maximum number of entries in a list, which bounds the cost of an analysis."""


def check_item_count(name: str, value: Sequence[Any], maximum: int = MAX_ITEMS) -> None:
    """Raise an error if a list has more than `maximum` entries.

    Raises:
        SelectionError: the list is too long.
    """
    if len(value) > maximum:
        raise SelectionError(f"{name} has {len(value):,} entries, but at most {maximum:,} are allowed.")


POSITION: Schema = {"type": "integer", "minimum": 0, "maximum": 999_999_999}
"""JSON Schema of a token position, which counts from 0."""


class WordList(FieldType):
    """A list of zero or more words.

    In strings, commas separate the words. A backslash escapes a comma or a backslash within a word.
    """

    metavar = "WORD,…"

    def check(self, name: str, value: Any) -> tuple[str, ...]:
        """Return the words as a tuple without duplicates; raise an error for an empty word."""
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise SelectionError(f"{name} must be a list of words, not {value!r}.")
        check_item_count(name, value)
        for word in value:
            if not isinstance(word, str) or not word:
                raise SelectionError(f"{name} must be a list of words, but contains {word!r}.")
        return tuple(dict.fromkeys(value))

    def to_json(self, value: Any) -> Any:
        """Return the words as a list."""
        return list(value)

    @property
    def schema(self) -> Schema:
        """The JSON Schema of an array of words."""
        return {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": MAX_ITEMS}

    def write(self, value: Any) -> str:
        """Return the words as a comma-separated string."""
        return ",".join(re.sub(r"([\\,])", r"\\\1", word) for word in value)

    def read(self, name: str, text: str, sizes: Dimensions) -> Any:  # noqa: ARG002
        """Parse words from a comma-separated string."""
        escaped_words = re.findall(r"(?:^|,)((?:[^\\,]|\\.|\\$)*)", text, flags=re.DOTALL) if text else []
        return self.check(name, [re.sub(r"\\(.)", r"\1", word, flags=re.DOTALL) for word in escaped_words])


class Choices(WordList):
    """One or more of several allowed words.

    Args:
        options: the words.
    """

    def __init__(self, options: Sequence[str] | Mapping[str, Any]) -> None:
        self.words = tuple(options)

    @property
    def metavar(self) -> str:  # type: ignore[override]
        """The allowed words, separated by vertical bars, for help texts."""
        return f"{'|'.join(self.words)},…"

    def check(self, name: str, value: Any) -> tuple[str, ...]:
        """Return the words as a tuple; reject an empty list, unknown words and duplicates."""
        words = super().check(name, value)
        unknown = [word for word in words if word not in self.words]
        if unknown or not words:
            problem = repr(unknown[0][:100]) if unknown else "empty"
            raise SelectionError(f"{name} must be one or more of {', '.join(self.words)}, but is {problem}.")
        if len(words) < len(value):
            duplicate = next(word for word in words if list(value).count(word) > 1)
            raise SelectionError(f"{name} has {duplicate!r} more than once. Pass each word once.")
        return words

    @property
    def schema(self) -> Schema:
        """The JSON Schema of an array of the allowed words."""
        return {"type": "array", "items": {"enum": list(self.words)}, "minItems": 1, "uniqueItems": True}


class TokenSelector(FieldType):
    """A token: its position from 0, or a word that is a single token; see `find_token`."""

    metavar = "WORD|N"

    def check(self, name: str, value: Any) -> Any:
        """Return the value as an int if it is a position, or as a string if it is a word."""
        if isinstance(value, bool) or not isinstance(value, int | np.integer | str):
            raise SelectionError(f"{name} must be a position or a word, not {value!r}.")
        # Like `find_token`, parse digits as a position, unless they exceed the length of any text.
        digits = not isinstance(value, str) or re.fullmatch("[0-9]{1,9}", value)
        return int(value) if digits else str(value)

    @property
    def schema(self) -> Schema:
        """The JSON Schema of a token position or a word."""
        return {"anyOf": [POSITION, {"type": "string"}]}

    def from_json(self, name: str, value: Any, sizes: Dimensions) -> Any:  # noqa: ARG002
        """Parse a token position or a word from JSON. Only Python accepts negative positions."""
        if isinstance(value, int) and not 0 <= value <= POSITION["maximum"]:
            raise SelectionError(f"{name} must be a position from 0 or a word, not {value}.")
        return self.check(name, value)

    def resolve(self, name: str, value: Any, trace: Trace) -> int:  # noqa: ARG002
        """Return the position of the selected token in a text."""
        if isinstance(value, str) or value >= 0:
            return find_token(trace, str(value)).position
        return resolve_index(value, len(trace.tokens), "token")


class WordSelector(TokenSelector):
    """A word: the position of any of its tokens, or the word itself; see `find_word`."""

    def resolve(self, name: str, value: Any, trace: Trace) -> int:
        """Return the position of a word's first token; return a position unchanged."""
        return (
            find_word(trace, value).position
            if isinstance(value, str)
            else super().resolve(name, value, trace)
        )
