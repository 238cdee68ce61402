"""Field types whose values are heads, or lists of layers, heads, words or other values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from bert_probe.core.field_types import (
    MAX_ITEMS,
    Choice,
    Dimensions,
    FieldType,
    Index,
    Schema,
    check_item_count,
)
from bert_probe.errors import SelectionError
from bert_probe.model.trace import Trace

MAX_INDICES = 10_000
"""Maximum number of layers or heads in a list, including repetitions."""
_INDEX_PATTERN = "(last(-[0-9]{1,9})?|[0-9]{1,9})"


class ListOf(FieldType):
    """A list of at most `MAX_ITEMS` values; on a command line, the option is repeated for each value."""

    def __init__(self, kind: FieldType, min_length: int = 1) -> None:
        self.kind, self.min_length, self.metavar = kind, min_length, kind.metavar

    def check(self, name: str, value: Any) -> tuple[Any, ...]:
        """Check each value, and return the values as a tuple."""
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise SelectionError(f"{name} must be a list, not {value!r}.")
        if len(value) < self.min_length:
            raise SelectionError(f"{name} has {len(value)} entries. Pass at least {self.min_length}.")
        check_item_count(name, value)
        return tuple(self.kind.check(name, item) for item in value)

    def resolve(self, name: str, value: Any, trace: Trace) -> Any:
        """Return the values, each resolved for the text."""
        return tuple(self.kind.resolve(name, item, trace) for item in value)

    def to_json(self, value: Any) -> Any:
        """Return the values as a list, each in its JSON form."""
        return [self.kind.to_json(item) for item in value]

    @property
    def schema(self) -> Schema:
        """The JSON Schema of an array of values with a minimum and a maximum length."""
        return {
            "type": "array",
            "items": self.kind.schema,
            "minItems": self.min_length,
            "maxItems": MAX_ITEMS,
        }

    def from_json(self, name: str, value: Any, sizes: Dimensions) -> Any:
        """Parse a list of values from JSON."""
        if not isinstance(value, list):
            raise SelectionError(f"{name} must be a list, not {value!r}.")
        check_item_count(name, value)
        return self.check(name, [self.kind.from_json(name, item, sizes) for item in value])

    def write(self, value: Any) -> str:
        """Return the values as a string, one per line."""
        return "\n".join(self.kind.write(item) for item in value)

    def read(self, name: str, text: str, sizes: Dimensions) -> Any:
        """Parse the values from a string with one value per line."""
        lines = text.split("\n")
        check_item_count(name, lines)
        return self.check(name, [self.kind.read(name, line, sizes) for line in lines])

    def options(self, option: str, value: Any) -> list[str]:
        """Return command-line arguments that repeat the option for each value."""
        return [word for item in value for word in self.kind.options(option, item)]


class ChoiceList(FieldType):
    """A list of one or more allowed words."""

    def __init__(self, options: Sequence[str]) -> None:
        self.choice = Choice(options)
        self.metavar = "WORD,…"

    def check(self, name: str, value: Any) -> tuple[str, ...]:
        """Return the words as a tuple without duplicates."""
        if isinstance(value, str) or not isinstance(value, Sequence) or not value:
            raise SelectionError(
                f"{name} must be a list of words from {', '.join(self.choice.words)}, not {value!r}."
            )
        check_item_count(name, value)
        return tuple(dict.fromkeys(self.choice.check(name, word) for word in value))

    def to_json(self, value: Any) -> Any:
        """Return the words as a list."""
        return list(value)

    @property
    def schema(self) -> Schema:
        """The JSON Schema of an array of distinct allowed words."""
        return {"type": "array", "items": self.choice.schema, "minItems": 1, "uniqueItems": True}

    def write(self, value: Any) -> str:
        """Return the words as a comma-separated string."""
        return ",".join(value)

    def read(self, name: str, text: str, sizes: Dimensions) -> Any:  # noqa: ARG002
        """Parse words from a comma-separated string."""
        return self.check(name, [word.strip() for word in text.split(",")])


class Indices(FieldType):
    """One or more layers or attention heads. In Python, None selects all of them."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.metavar = "N,…|all"

    def check(self, name: str, value: Any) -> Any:
        """Return the layers or heads as a nonempty tuple without duplicates, or None for all."""
        if value is None:
            return None
        if isinstance(value, str | int) or not isinstance(value, Sequence | range):
            raise SelectionError(f"{name} must be a list of numbers, not {value!r}.")
        if not len(value):
            raise SelectionError(f"No {self.index.axis} is selected. Select at least one {self.index.axis}.")
        check_item_count(name, value, MAX_INDICES)
        return tuple(dict.fromkeys(self.index.check(name, item) for item in value))

    def resolve(self, name: str, value: Any, trace: Trace) -> Any:
        """Return the 0-based indices of the layers or heads, without duplicates, or None for all."""
        if value is None:
            return None
        return tuple(dict.fromkeys(self.index.resolve(name, item, trace) for item in value))

    def to_json(self, value: Any) -> Any:
        """Return the layers or heads as a list, or "all"."""
        return "all" if value is None else [self.index.to_json(item) for item in value]

    @property
    def schema(self) -> Schema:
        """The JSON Schema of an array of layers or heads, or the string "all"."""
        indices = {"type": "array", "items": self.index.schema, "minItems": 1, "maxItems": MAX_INDICES}
        return {"anyOf": [{"const": "all"}, indices]}

    def from_json(self, name: str, value: Any, sizes: Dimensions) -> Any:
        """Parse a list of layers or heads from JSON; return None for "all"."""
        if value == "all":
            return None
        if not isinstance(value, list):
            raise SelectionError(f"{name} must be all or a list of numbers, not {value!r}.")
        check_item_count(name, value, MAX_INDICES)
        return self.check(name, [self.index.from_json(name, item, sizes) for item in value])

    def write(self, value: Any) -> str:
        """Return the layers or heads as a comma-separated string, or "all"."""
        return "all" if value is None else ",".join(map(self.index.write, value))

    def read(self, name: str, text: str, sizes: Dimensions) -> Any:
        """Parse layers or heads from a comma-separated string; return None for "all"."""
        if text == "all":
            return None
        items = text.split(",")
        check_item_count(name, items, MAX_INDICES)
        return tuple(dict.fromkeys(self.index.read(name, item, sizes) for item in items))


class HeadSet(FieldType):
    """Attention heads of any layers: 0-based (layer, head) pairs in Python, and "8.10,3.2" in strings.

    Args:
        whole_layers: whether "8" means all heads of layer 8. If False, a layer without a head is rejected.
    """

    metavar = "L.H,…"
    layer, head = Index("layer"), Index("head")

    def __init__(self, *, whole_layers: bool = False) -> None:
        self.whole_layers = whole_layers

    def check(self, name: str, value: Any) -> tuple[tuple[int, int], ...]:
        """Return the heads as (layer, head) pairs, without duplicates."""
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise SelectionError(f"{name} must be a list of (layer, head) pairs, not {value!r}.")
        if not len(value):
            raise SelectionError("The list of heads is empty. Pass at least one head.")
        check_item_count(name, value, MAX_INDICES)
        pairs = []
        for pair in value:
            if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
                raise SelectionError(f"{name} must be a list of (layer, head) pairs, but contains {pair!r}.")
            pairs.append((self.layer.check("layer", pair[0]), self.head.check("head", pair[1])))
        return tuple(dict.fromkeys(pairs))

    def resolve(self, name: str, value: Any, trace: Trace) -> Any:  # noqa: ARG002
        """Return the heads as 0-based (layer, head) pairs, without duplicates."""
        resolved = [
            (self.layer.resolve("layer", layer, trace), self.head.resolve("head", head, trace))
            for layer, head in value
        ]
        return tuple(dict.fromkeys(resolved))

    def to_json(self, value: Any) -> Any:
        """Return the heads as a list of strings such as "8.10"."""
        return [f"{self.layer.write(layer)}.{self.head.write(head)}" for layer, head in value]

    @property
    def schema(self) -> Schema:
        """The JSON Schema of an array of heads, which are strings such as "8.10"."""
        head = {"type": "string", "pattern": self._pattern}
        return {"type": "array", "items": head, "minItems": 1, "maxItems": MAX_INDICES}

    def from_json(self, name: str, value: Any, sizes: Dimensions) -> Any:
        """Parse heads from a list of strings such as "8.10"."""
        if not isinstance(value, list):
            raise SelectionError(f"{name} must be a list of heads such as 8.10, not {value!r}.")
        check_item_count(name, value, MAX_INDICES)  # before the patterns, which take longer
        for item in value:
            if not isinstance(item, str) or not re.fullmatch(self._pattern, item):
                raise SelectionError(_not_a_head(item))
        return self._read_items(name, value, sizes)

    @property
    def _pattern(self) -> str:
        return (
            rf"^{_INDEX_PATTERN}(\.{_INDEX_PATTERN})?$"
            if self.whole_layers
            else rf"^{_INDEX_PATTERN}\.{_INDEX_PATTERN}$"
        )

    def write(self, value: Any) -> str:
        """Return the heads as a comma-separated string."""
        return ",".join(self.to_json(value))

    def read(self, name: str, text: str, sizes: Dimensions) -> Any:
        """Parse heads from a comma-separated string."""
        return self._read_items(name, text.split(","), sizes)

    def _read_items(self, name: str, items: Sequence[str], sizes: Dimensions) -> Any:
        check_item_count(name, items, MAX_INDICES)
        heads: dict[tuple[int, int], None] = {}  # an ordered set
        for item in dict.fromkeys(items):
            layer, dot, head = item.strip().partition(".")
            if layer and not dot and self.whole_layers:
                layer_index = self.layer.read("layer", layer, sizes)
                heads |= dict.fromkeys((layer_index, head_index) for head_index in range(sizes.heads))
                continue
            if not dot:
                raise SelectionError(_not_a_head(item))
            heads[self.layer.read("layer", layer, sizes), self.head.read("head", head, sizes)] = None
        return self.check(name, [*heads])


class OneHead(FieldType):
    """An attention head of any layer.

    In Python, a (layer, head) pair, both from 0; in strings, such as "8.10", both from 1.
    """

    metavar = "L.H"
    layer, head = Index("layer"), Index("head")

    def check(self, name: str, value: Any) -> tuple[int, int]:
        """Return the head as a (layer, head) pair."""
        if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
            raise SelectionError(f"{name} must be a (layer, head) pair, not {value!r}.")
        return self.layer.check("layer", value[0]), self.head.check("head", value[1])

    def resolve(self, name: str, value: Any, trace: Trace) -> tuple[int, int]:  # noqa: ARG002
        """Return the head as a 0-based (layer, head) pair."""
        layer, head = value
        return self.layer.resolve("layer", layer, trace), self.head.resolve("head", head, trace)

    def to_json(self, value: Any) -> str:
        """Return the head as a string such as "8.10"."""
        return self.write(value)

    @property
    def schema(self) -> Schema:
        """The JSON Schema of a head, which is a string such as "8.10"."""
        return {"type": "string", "pattern": rf"^{_INDEX_PATTERN}\.{_INDEX_PATTERN}$"}

    def from_json(self, name: str, value: Any, sizes: Dimensions) -> tuple[int, int]:
        """Parse a head from a string such as "8.10"."""
        if not isinstance(value, str):
            raise SelectionError(f"{name} must be a head such as 8.10, not {value!r}.")
        return self.read(name, value, sizes)

    def write(self, value: Any) -> str:
        """Return the head as a string such as "8.10"."""
        return f"{self.layer.write(value[0])}.{self.head.write(value[1])}"

    def read(self, name: str, text: str, sizes: Dimensions) -> tuple[int, int]:  # noqa: ARG002
        """Parse a head from a string such as "8.10"."""
        layer, dot, head = text.strip().partition(".")
        if not dot:
            raise SelectionError(_not_a_head(text))
        return self.layer.read("layer", layer, sizes), self.head.read("head", head, sizes)


def _not_a_head(value: Any) -> str:
    return f"{value!r} is not a head. Write layer.head, for example 8.10."
