"""JSON that somebody else wrote, taken apart key by key: what is wrong is refused in a sentence."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeVar

from bert_probe.errors import ReportError
from bert_probe.text import strict_json
from bert_probe.text.strict_json import DuplicateKeyError
from bert_probe.text.truncation import truncate_text

W = TypeVar("W", bound=str)

_BLOCK: Final = 1_000_000

MOST_BYTES: Final = 5_000_000
"""Of a view file: as large as a file that a page takes."""

MAX_DEPTH: Final = 64
"""Levels of nesting that are parsed."""
MAX_CONTAINERS: Final = 1_000_000
"""Arrays and objects that are parsed; an empty one takes 60 times as many bytes in memory as in a file."""
MAX_NAMES: Final = 500
"""Texts by name: many times the fields of a question, or the parameters of an address."""
_CONTAINER: Final = re.compile(rb"[\[:,]\s*[\[{]")


def parse_json(content: bytes) -> Any:
    """Return the value of an untrusted JSON document that every parser reads in the same way.

    Raises:
        ValueError: invalid JSON, a name that an object has twice, a number that is not finite or not a 64-bit
            integer, more than `MAX_DEPTH` levels, or more than `MAX_CONTAINERS` arrays and objects.
    """
    if sum(1 for _ in islice(_CONTAINER.finditer(content), MAX_CONTAINERS + 1)) > MAX_CONTAINERS:
        raise ValueError(f"it has more than {MAX_CONTAINERS:,} arrays and objects")
    try:
        parsed = strict_json.loads(content.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep") from None
    level = [parsed]
    for _ in range(MAX_DEPTH):
        level = [value for container in level for value in _containers_in(container)]
        if not level:
            return parsed
    raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _containers_in(value: Any) -> Iterator[Any]:
    """Yield the arrays and objects directly within a value.

    Raises:
        ValueError: a number directly within it is not finite or does not fit into 64 bits.
    """
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]:
        if isinstance(child, dict | list):
            yield child
        elif isinstance(child, float) and not math.isfinite(child):
            raise ValueError("a number is too large for a 64-bit float")
        elif isinstance(child, int) and not -(2**63) <= child < 2**64:
            raise ValueError("a number is too large for a 64-bit integer")


@contextmanager
def given(held: Any, what: str) -> Iterator[JsonObject]:
    """An object whose keys are all taken within the block.

    Raises:
        ReportError: it is none, or holds what nobody takes, which would be passed over in silence.
    """
    one = JsonObject(held, what)
    yield one
    one.done()


class JsonObject:
    """An object of JSON; each key can be taken once."""

    def __init__(self, held: Any, what: str) -> None:
        if not isinstance(held, dict):
            raise ReportError(f"{what} is {_short(held)}, and must be an object.")
        self._held, self._what = dict(held), what

    def text(self, name: str) -> str:
        """A text; "" where it is not said."""
        found: str = self._take(name, str, "a text", "")
        return found

    def optional(self, name: str) -> str | None:
        """A text; None where it is not said."""
        return None if self._held.get(name) is None else self.text(name)

    def flag(self, name: str) -> bool:
        """Yes or no; no where it is not said."""
        found: bool = self._take(name, bool, "true or false", False)
        return found

    def choice(self, name: str, known: Sequence[W]) -> W:
        """One of a few words."""
        found = self.text(name)
        for one in known:
            if found == one:
                return one
        raise ReportError(f"{self._what} says {_short(found)} as its {name}; {', '.join(known)} can be.")

    def number(self, name: str) -> float:
        """A number that has an end."""
        found = self._take(name, int | float, "a number", None)
        if isinstance(found, bool) or not math.isfinite(found):
            raise ReportError(f"{self._what} says {_short(found)} as its {name}, which must be a number.")
        return float(found)

    def integer(self, name: str) -> int:
        """Return a whole number."""
        value = self._take(name, int, "a whole number", None)
        if isinstance(value, bool):
            raise ReportError(
                f"{self._what} says {_short(value)} as its {name}, which must be a whole number."
            )
        return int(value)

    def several(self, name: str) -> list[Any]:
        """A list; empty where it is not said."""
        found: list[Any] = self._take(name, list, "a list", [])
        return found

    def strings(self, name: str) -> list[str]:
        """A list of texts."""
        found = self.several(name)
        for one in found:
            self._check_text(name, one)
        return found

    def texts(self, name: str) -> dict[str, str]:
        """Texts by name."""
        found: dict[str, str] = self._take(name, dict, "an object", {})
        if len(found) > MAX_NAMES:
            raise ReportError(
                f"{self._what} has {len(found):,} names in its {name}; at most {MAX_NAMES} are read."
            )
        for one in found.values():
            self._check_text(name, one)
        return found

    def record(self, name: str) -> dict[str, Any]:
        """Anything by name."""
        found: dict[str, Any] = self._take(name, dict, "an object", {})
        return found

    def _check_text(self, name: str, one: Any) -> None:
        if not isinstance(one, str):
            raise ReportError(f"{self._what} has {_short(one)} in its {name}, where texts must be.")

    def _take(self, name: str, kind: Any, called: str, usual: Any) -> Any:
        found = self._held.pop(name, usual)
        if not isinstance(found, kind):
            raise ReportError(f"{self._what} says {_short(found)} as its {name}, which must be {called}.")
        return found

    def done(self) -> None:
        """Refuse what is left.

        Raises:
            ReportError: something is.
        """
        for name in self._held:
            raise ReportError(
                f"{self._what} says {_short(name)}, which is unknown here. Update BERT Probe, or take it out."
            )


def contents(content: bytes, name: str, kind: str, known: int) -> dict[str, Any]:
    """What a JSON file of a kind holds, its format looked at and taken away.

    Raises:
        ReportError: it is none, too large, of a later format, or an object of it has a key twice.
    """
    if len(content) > MOST_BYTES:
        raise ReportError(
            f"{name} is larger than {MOST_BYTES / 1e6:.0f} MB, which no view file is. Choose another file."
        )
    try:
        held = parse_json(content)
    except DuplicateKeyError as error:
        raise ReportError(f"In {name} {error}.") from None
    except ValueError:
        raise ReportError(f"{name} is no JSON, which a view file is. Choose another file.") from None
    if not isinstance(held, dict) or kind not in held:
        raise ReportError(f"{name} is no view file: it has no {kind}. Choose another file.")
    form = held.pop(kind)
    if type(form) is not int or form < 1:
        raise ReportError(f"{name} names {form!r} as its format, which is no number.")
    if form > known:
        raise ReportError(
            f"{name} was written by a later BERT Probe: format {form}, and this one reads {known}. Update it."
        )
    return held


def bytes_of(path: Path, most: int) -> bytes:
    """What a file holds, up to a byte more than may be read of it.

    Raises:
        ReportError: it cannot be read.
    """
    try:
        with path.open("rb") as stream:
            # A single read would allocate all that it may read.
            blocks = iter(lambda: stream.read(_BLOCK), b"")
            return b"".join(islice(blocks, most // _BLOCK + 1))[: most + 1]
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ReportError(f"{path} cannot be read: {reason}. Check the path.") from None


def _short(value: Any) -> str:
    return truncate_text(json.dumps(value, ensure_ascii=False, default=str), 60)
