"""Kinds of fields that hold several things of one kind."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from bert_probe.core.field_types import Choice, Dimensions, FieldType, Index, Schema
from bert_probe.errors import SelectionError
from bert_probe.model.trace import Trace

_INDEX_PATTERN = "(last(-[0-9]{1,9})?|[0-9]{1,9})"


class ListOf(FieldType):
    """A list of things of one kind; on a command line the option is given again for each."""

    def __init__(self, kind: FieldType, least: int = 1) -> None:
        self.kind, self.least, self.metavar = kind, least, kind.metavar

    def check(self, name: str, value: Any) -> tuple[Any, ...]:
        """A tuple of at least so many."""
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise SelectionError(f"{name} must be a list, not {value!r}.")
        if len(value) < self.least:
            raise SelectionError(f"{name} holds {len(value)}; give {self.least} or more.")
        return tuple(self.kind.check(name, one) for one in value)

    def resolve(self, name: str, value: Any, trace: Trace) -> Any:
        """As the kind does."""
        return tuple(self.kind.resolve(name, one, trace) for one in value)

    def to_json(self, value: Any) -> Any:
        """A list."""
        return [self.kind.to_json(one) for one in value]

    @property
    def schema(self) -> Schema:
        """A list."""
        return {"type": "array", "items": self.kind.schema, "minItems": self.least}

    def from_json(self, name: str, value: Any, sizes: Dimensions) -> Any:
        """Each as the kind does."""
        if not isinstance(value, list):
            raise SelectionError(f"{name} must be a list, not {value!r}.")
        return self.check(name, [self.kind.from_json(name, one, sizes) for one in value])

    def write(self, value: Any) -> str:
        """A line each."""
        return "\n".join(self.kind.write(one) for one in value)

    def read(self, name: str, text: str, sizes: Dimensions) -> Any:
        """What `write` wrote."""
        return self.check(name, [self.kind.read(name, one, sizes) for one in text.split("\n")])

    def options(self, option: str, value: Any) -> list[str]:
        """The option again for each."""
        return [word for one in value for word in self.kind.options(option, one)]


class ChoiceList(FieldType):
    """Some of a few words, at least one."""

    def __init__(self, options: Sequence[str]) -> None:
        self.one = Choice(options)
        self.metavar = "WORD,…"

    def check(self, name: str, value: Any) -> tuple[str, ...]:
        """Each once."""
        if isinstance(value, str) or not isinstance(value, Sequence) or not value:
            raise SelectionError(f"{name} must be a list of {', '.join(self.one.words)}, not {value!r}.")
        return tuple(dict.fromkeys(self.one.check(name, one) for one in value))

    def to_json(self, value: Any) -> Any:
        """A list."""
        return list(value)

    @property
    def schema(self) -> Schema:
        """A list."""
        return {"type": "array", "items": self.one.schema, "minItems": 1, "uniqueItems": True}

    def write(self, value: Any) -> str:
        """With commas between."""
        return ",".join(value)

    def read(self, name: str, text: str, sizes: Dimensions) -> Any:  # noqa: ARG002
        """What `write` wrote."""
        return self.check(name, [one.strip() for one in text.split(",")])


class Indices(FieldType):
    """Several layers or heads; None for all of them."""

    def __init__(self, one: Index) -> None:
        self.one = one
        self.metavar = "N,…|all"

    def check(self, name: str, value: Any) -> Any:
        """A tuple, not empty."""
        if value is None:
            return None
        if isinstance(value, str | int) or not isinstance(value, Sequence | range):
            raise SelectionError(f"{name} must be a list of numbers, not {value!r}.")
        if not len(value):
            raise SelectionError(f"No {self.one.what} is chosen. Choose at least one.")
        return tuple(self.one.check(name, one) for one in value)

    def resolve(self, name: str, value: Any, trace: Trace) -> Any:
        """Each from 0, and each of them there."""
        if value is None:
            return None
        return tuple(self.one.resolve(name, one, trace) for one in value)

    def to_json(self, value: Any) -> Any:
        """A list, or all."""
        return "all" if value is None else [self.one.to_json(one) for one in value]

    @property
    def schema(self) -> Schema:
        """A list, or all."""
        listed = {"type": "array", "items": self.one.schema, "minItems": 1}
        return {"anyOf": [{"const": "all"}, listed]}

    def from_json(self, name: str, value: Any, sizes: Dimensions) -> Any:
        """Each of them there."""
        if value == "all":
            return None
        if not isinstance(value, list):
            raise SelectionError(f"{name} must be all or a list of numbers, not {value!r}.")
        return self.check(name, [self.one.from_json(name, one, sizes) for one in value])

    def write(self, value: Any) -> str:
        """With commas between."""
        return "all" if value is None else ",".join(map(self.one.write, value))

    def read(self, name: str, text: str, sizes: Dimensions) -> Any:
        """What `write` wrote."""
        if text == "all":
            return None
        return tuple(self.one.read(name, one, sizes) for one in text.split(","))


class HeadSet(FieldType):
    """Heads of any layers, as (layer, head) from 0; people write 8.10,3.2.

    Args:
        whole_layers: 8 is read as all heads of layer 8. Otherwise a forgotten head is refused.
    """

    metavar = "L.H,…"
    layer, head = Index("layer"), Index("head")

    def __init__(self, *, whole_layers: bool = False) -> None:
        self.whole_layers = whole_layers

    def check(self, name: str, value: Any) -> tuple[tuple[int, int], ...]:
        """Each once."""
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise SelectionError(f"{name} must be a list of (layer, head), not {value!r}.")
        if not len(value):
            raise SelectionError("No head is given. Name at least one.")
        pairs = []
        for one in value:
            if isinstance(one, str) or not isinstance(one, Sequence) or len(one) != 2:
                raise SelectionError(f"{name} must be a list of (layer, head), not of {one!r}.")
            pairs.append((self.layer.check("layer", one[0]), self.head.check("head", one[1])))
        return tuple(dict.fromkeys(pairs))

    def resolve(self, name: str, value: Any, trace: Trace) -> Any:  # noqa: ARG002
        """Each of them there."""
        resolved = [
            (self.layer.resolve("layer", layer, trace), self.head.resolve("head", head, trace))
            for layer, head in value
        ]
        return tuple(dict.fromkeys(resolved))

    def to_json(self, value: Any) -> Any:
        """Names as people write them."""
        return [f"{self.layer.write(layer)}.{self.head.write(head)}" for layer, head in value]

    @property
    def schema(self) -> Schema:
        """A list of names."""
        named = {"type": "string", "pattern": self._pattern}
        return {"type": "array", "items": named, "minItems": 1}

    def from_json(self, name: str, value: Any, sizes: Dimensions) -> Any:
        """Each of them there."""
        if not isinstance(value, list):
            raise SelectionError(f"{name} must be a list of heads such as 8.10, not {value!r}.")
        for one in value:
            if not isinstance(one, str) or not re.fullmatch(self._pattern, one):
                raise SelectionError(f"{one!r} names no head. Write layer.head, for example 8.10.")
        return self.check(name, [head for one in value for head in self.read(name, one, sizes)])

    @property
    def _pattern(self) -> str:
        return (
            rf"^{_INDEX_PATTERN}(\.{_INDEX_PATTERN})?$"
            if self.whole_layers
            else rf"^{_INDEX_PATTERN}\.{_INDEX_PATTERN}$"
        )

    def write(self, value: Any) -> str:
        """With commas between."""
        return ",".join(self.to_json(value))

    def read(self, name: str, text: str, sizes: Dimensions) -> Any:
        """What `write` wrote."""
        heads = []
        for one in text.split(","):
            layer, dot, head = one.strip().partition(".")
            if layer and not dot and self.whole_layers:
                whole = self.layer.read("layer", layer, sizes)
                heads += [(whole, head) for head in range(sizes.heads)]
                continue
            if not dot:
                raise SelectionError(f"{one!r} names no head. Write layer.head, for example 8.10.")
            heads.append((self.layer.read("layer", layer, sizes), self.head.read("head", head, sizes)))
        return self.check(name, heads)


class OneHead(FieldType):
    """A head of any layer, as (layer, head) from 0; people write 8.10."""

    metavar = "L.H"
    layer, head = Index("layer"), Index("head")

    def check(self, name: str, value: Any) -> tuple[int, int]:
        """Two whole numbers."""
        if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
            raise SelectionError(f"{name} must be (layer, head), not {value!r}.")
        return self.layer.check("layer", value[0]), self.head.check("head", value[1])

    def resolve(self, name: str, value: Any, trace: Trace) -> tuple[int, int]:  # noqa: ARG002
        """It is there."""
        layer, head = value
        return self.layer.resolve("layer", layer, trace), self.head.resolve("head", head, trace)

    def to_json(self, value: Any) -> str:
        """Its name as people write it."""
        return self.write(value)

    @property
    def schema(self) -> Schema:
        """Its name."""
        return {"type": "string", "pattern": rf"^{_INDEX_PATTERN}\.{_INDEX_PATTERN}$"}

    def from_json(self, name: str, value: Any, sizes: Dimensions) -> tuple[int, int]:
        """It is there."""
        if not isinstance(value, str):
            raise SelectionError(f"{name} must be a head such as 8.10, not {value!r}.")
        return self.read(name, value, sizes)

    def write(self, value: Any) -> str:
        """Layer and head with a dot between."""
        return f"{self.layer.write(value[0])}.{self.head.write(value[1])}"

    def read(self, name: str, text: str, sizes: Dimensions) -> tuple[int, int]:  # noqa: ARG002
        """What `write` wrote."""
        layer, dot, head = text.strip().partition(".")
        if not dot:
            raise SelectionError(f"{text!r} names no head. Write layer.head, for example 8.10.")
        return self.layer.read("layer", layer, sizes), self.head.read("head", head, sizes)
