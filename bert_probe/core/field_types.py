"""Kinds of fields: how one is checked, found in a text, and written for people, who count from 1.

Each way of writing a question (address, shell, JSON, provenance) asks the kinds of its fields, nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from bert_probe.errors import SelectionError
from bert_probe.model.trace import Trace, resolve_index
from bert_probe.text.truncation import truncate_text

Schema: TypeAlias = dict[str, Any]
"""What JSON may hold, as JSON Schema 2020-12 says it."""

MAX_NUMBER = 999_999_999_999
"""The largest number that is read: a larger one was not meant, nor can everything compute with it."""
_MAX_INDEX = 999_999_999


class Dimensions(Protocol):
    """What numbers of layers and heads are read against: a trace, or a checkpoint's description."""

    @property
    def layers(self) -> int:
        """Number of layers."""
        ...

    @property
    def heads(self) -> int:
        """Heads in a layer."""
        ...


class FieldType:
    """A field that is a text; the base of all others."""

    metavar = "TEXT"

    def check(self, name: str, value: Any) -> Any:
        """The value as the question holds it.

        Raises:
            SelectionError: not of this kind.
        """
        if not isinstance(value, str):
            raise SelectionError(f"{name} must be a text, not {value!r}.")
        return value

    def resolve(self, name: str, value: Any, trace: Trace) -> Any:  # noqa: ARG002
        """The same for this text: last becomes a number, a word its position.

        Raises:
            SelectionError: the text or its model has no such thing.
        """
        return value

    def write(self, value: Any) -> str:
        """As it stands in an address and on a command line."""
        return str(value)

    def read(self, name: str, text: str, sizes: Dimensions) -> Any:  # noqa: ARG002
        """What `write` wrote.

        Raises:
            SelectionError: it is not to be had.
        """
        return self.check(name, text)

    def to_json(self, value: Any) -> Any:
        """As it stands in JSON; layers and heads count from 1."""
        return value

    @property
    def schema(self) -> Schema:
        """What `plain` may give."""
        return {"type": "string"}

    def from_json(self, name: str, value: Any, sizes: Dimensions) -> Any:  # noqa: ARG002
        """What `plain` gave.

        Raises:
            SelectionError: it is not to be had.
        """
        return self.check(name, value)

    def options(self, option: str, value: Any) -> list[str]:
        """The words of a command line."""
        return [option, self.write(value)]


class FileName(FieldType):
    """The name of a file."""

    metavar = "FILE"


_NUMBER_PATTERN = re.compile(r"[+-]?[0-9]{1,100}(\.[0-9]{1,100})?(e[+-]?[0-9]{1,3})?", re.IGNORECASE)


class Number(FieldType):
    """A whole number, or a share, within bounds."""

    metavar = "N"

    def __init__(self, least: float, most: float = float("inf"), *, whole: bool = True) -> None:
        self.least, self.most, self.whole = least, most, whole

    def check(self, name: str, value: Any) -> int | float:
        """Within the bounds."""
        kinds = int | np.integer if self.whole else int | float | np.integer | np.floating
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise SelectionError(f"{name} must be a {'whole ' if self.whole else ''}number, not {value!r}.")
        if not self.least <= value <= self.most:
            raise SelectionError(f"{name} is {value}; {self._bounds} can be given.")
        return int(value) if self.whole else float(value)

    @property
    def _bounds(self) -> str:
        return f"{self.least:g} to {self.most:g}" if np.isfinite(self.most) else f"{self.least:g} or more"

    def read(self, name: str, text: str, sizes: Dimensions) -> int | float:  # noqa: ARG002
        """Digits alone: int() would also read 1_0."""
        if not _NUMBER_PATTERN.fullmatch(text):
            raise SelectionError(f"{name} is {truncate_text(text)!r}, which is no number.")
        if self.whole and not re.fullmatch("[+-]?[0-9]+", text):
            raise SelectionError(
                f"{name} is {truncate_text(text)}; a whole number in digits can be given, {self._bounds}."
            )
        if not abs(float(text)) <= MAX_NUMBER:  # more than can be meant, even where there is no bound
            raise SelectionError(f"{name} is {truncate_text(text)}; {self._bounds} can be given.")
        return self.check(name, int(text) if self.whole else float(text))

    @property
    def schema(self) -> Schema:
        """Its bounds."""
        bounds = {"minimum": self.least, "maximum": min(self.most, MAX_NUMBER)}
        return {"type": "integer" if self.whole else "number", **bounds}

    def from_json(self, name: str, value: Any, sizes: Dimensions) -> int | float:  # noqa: ARG002
        """A number that is not too large to be meant."""
        number = self.check(name, value)
        if number > MAX_NUMBER:
            raise SelectionError(f"{name} is larger than {MAX_NUMBER}. Give a smaller number.")
        return number

    def write(self, value: Any) -> str:
        """In the fewest digits that read the same."""
        return repr(value)


class Index(FieldType):
    """A layer or a head: an index from 0 in Python, from ``first`` for people.

    Args:
        first: what people call index 0: 1; or 0 for layers of vectors, where 0 is the embeddings' output.
        mean: "mean" may be given instead, for the mean over all.
    """

    def __init__(self, what: str, first: int = 1, *, mean: bool = False) -> None:
        self.what, self.first, self.mean = what, first, mean
        self.metavar = "N|mean" if mean else "N|last"

    def count(self, sizes: Dimensions) -> int:
        """How many indices there are."""
        return sizes.heads if self.what == "head" else sizes.layers + 1 - self.first

    def check(self, name: str, value: Any) -> Any:
        """A whole number; the bounds depend on the model."""
        if self.mean and value == "mean":
            return value
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise SelectionError(f"{name} must be a whole number, not {value!r}.")
        return int(value)

    def resolve(self, name: str, value: Any, trace: Trace) -> Any:
        """Negative ones count from the end."""
        return value if value == "mean" else resolve_index(value, self.count(trace), name)

    def to_json(self, value: Any) -> Any:
        """From 1; last, and last-1 the one before."""
        if value == "mean":
            return value
        return value + self.first if value >= 0 else "last" if value == -1 else f"last{value + 1}"

    @property
    def schema(self) -> Schema:
        """A number as people count, or a word for it."""
        word = "^(last(-[0-9]{1,9})?|mean)$" if self.mean else "^last(-[0-9]{1,9})?$"
        number = {"type": "integer", "minimum": self.first, "maximum": _MAX_INDEX}
        return {"anyOf": [number, {"type": "string", "pattern": word}]}

    def from_json(self, name: str, value: Any, sizes: Dimensions) -> Any:
        """The same; in JSON a number is no text."""
        words = isinstance(value, str) and not value.isdigit()
        if not words and (isinstance(value, bool) or not isinstance(value, int)):
            raise SelectionError(f"{name} must be a number or {self.metavar[2:]}, not {value!r}.")
        return self.read(name, str(value), sizes)

    def write(self, value: Any) -> str:
        """As `plain`."""
        return str(self.to_json(value))

    def read(self, name: str, text: str, sizes: Dimensions) -> Any:  # noqa: ARG002
        """A number as people count, or a word for it."""
        if self.mean and text == "mean":
            return text
        count = self.count(sizes)
        back = re.fullmatch(r"last(?:-([0-9]{1,9}))?", text)
        if back and int(back[1] or 0) < count:
            return -1 - int(back[1] or 0)
        # Plain digits alone: int() would also read "1_0" or " 3".
        number = int(text) if re.fullmatch("[0-9]{1,9}", text) else -1
        if not self.first <= number < self.first + count:
            raise SelectionError(
                f"There is no {self.what} {text}: this model has {self.what}s {self.first} to "
                f"{self.first + count - 1}. Give one of them or {'mean' if self.mean else 'last'}."
            )
        return number - self.first


class Flag(FieldType):
    """Yes or no."""

    def check(self, name: str, value: Any) -> bool:
        """A truth value and nothing that is only like one."""
        if not isinstance(value, bool | np.bool_):
            raise SelectionError(f"{name} must be True or False, not {value!r}.")
        return bool(value)

    def write(self, value: Any) -> str:
        """1 or 0."""
        return "1" if value else "0"

    def read(self, name: str, text: str, sizes: Dimensions) -> bool:  # noqa: ARG002
        """1 or 0."""
        if text not in ("0", "1"):
            raise SelectionError(f"{name} is {text!r}; 1 or 0 can be given.")
        return text == "1"

    @property
    def schema(self) -> Schema:
        """A truth value."""
        return {"type": "boolean"}

    def options(self, option: str, value: Any) -> list[str]:  # noqa: ARG002
        """The option alone; it is asked for only where the value is not the usual one."""
        return [option]


class Choice(FieldType):
    """One of a few words.

    Args:
        options: the words; a function where they are found only later.
    """

    def __init__(self, options: Sequence[str] | Mapping[str, Any] | Callable[[], Iterable[str]]) -> None:
        self._options = options

    @property
    def words(self) -> tuple[str, ...]:
        """What can be chosen."""
        return tuple(self._options() if callable(self._options) else self._options)

    @property
    def metavar(self) -> str:  # type: ignore[override]
        """All of them."""
        return "|".join(self.words)

    def check(self, name: str, value: Any) -> str:
        """One of the words."""
        if not isinstance(value, str) or value not in self.words:
            *first, last = self.words
            raise SelectionError(
                f"There is no {name.replace('_', ' ')} {value}; use {', '.join(first)} or {last}."
                if first
                else f"There is no {name.replace('_', ' ')} {value}; use {last}."
            )
        return value

    @property
    def schema(self) -> Schema:
        """The words."""
        return {"type": "string", "enum": list(self.words)}


class Optional(FieldType):
    """Something, or None."""

    def __init__(self, kind: FieldType) -> None:
        self.kind, self.metavar = kind, kind.metavar

    def check(self, name: str, value: Any) -> Any:
        """None, or as the kind has it."""
        return None if value is None else self.kind.check(name, value)

    def resolve(self, name: str, value: Any, trace: Trace) -> Any:
        """As the kind does."""
        return None if value is None else self.kind.resolve(name, value, trace)

    def to_json(self, value: Any) -> Any:
        """As the kind does."""
        return None if value is None else self.kind.to_json(value)

    @property
    def schema(self) -> Schema:
        """As the kind has it, or null."""
        return {"anyOf": [self.kind.schema, {"type": "null"}]}

    def from_json(self, name: str, value: Any, sizes: Dimensions) -> Any:
        """As the kind does."""
        return None if value is None else self.kind.from_json(name, value, sizes)

    def write(self, value: Any) -> str:
        """As the kind does; an empty text for None."""
        return "" if value is None else self.kind.write(value)

    def read(self, name: str, text: str, sizes: Dimensions) -> Any:
        """As the kind does."""
        return None if text == "" else self.kind.read(name, text, sizes)

    def options(self, option: str, value: Any) -> list[str]:
        """Nothing for None."""
        return [] if value is None else self.kind.options(option, value)
