"""Read untrusted JSON key by key, with an error message for anything unexpected."""

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
from bert_probe.text.words import truncate_text

W = TypeVar("W", bound=str)

_BLOCK: Final = 1_000_000

MAX_BYTES: Final = 5_000_000
"""Maximum size of a view file in bytes, equal to the limit of file uploads."""

MAX_DEPTH: Final = 64
"""Maximum nesting depth of a JSON document."""
MAX_CONTAINERS: Final = 1_000_000
"""Maximum number of arrays and objects; an empty object takes 60 times as many bytes in memory as in JSON."""
MAX_KEYS: Final = 3_000_000
"""Maximum number of keys of all objects; a short key and its value take 30 times as many bytes in memory."""
MAX_STRINGS: Final = 8_000_000
"""Maximum number of strings in arrays; a short string takes 15 times as many bytes in memory."""
MAX_NAMES: Final = 500
"""Maximum number of entries in a text map; questions and URLs have far fewer fields and parameters."""
_CONTAINER: Final = re.compile(rb"[\[:,]\s*[\[{]")
_QUOTE: Final = rb'(?<!\\)(?:\\\\)*"'  # not one that is escaped within a string
_KEY: Final = re.compile(_QUOTE + rb"\s*:")
_STRING: Final = re.compile(_QUOTE + rb"\s*,")


def parse_json(content: bytes) -> Any:
    """Parse an untrusted JSON document; reject documents that JSON parsers may interpret differently.

    Raises:
        ValueError: invalid JSON, a duplicate key in an object, a number that does not fit into a 64-bit float
            or integer, more than `MAX_DEPTH` levels, or more values than `check_counts` allows.
    """
    check_counts(content)
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


def check_counts(content: bytes) -> None:
    """Check the numbers of arrays and objects, of keys and of strings in JSON, without parsing it.

    Raises:
        ValueError: there are more than `MAX_CONTAINERS`, `MAX_KEYS` or `MAX_STRINGS`.
    """
    for pattern, limit, items in (
        (_CONTAINER, MAX_CONTAINERS, "arrays and objects"),
        (_KEY, MAX_KEYS, "keys"),
        (_STRING, MAX_STRINGS, "strings"),
    ):
        if sum(1 for _ in islice(pattern.finditer(content), limit + 1)) > limit:
            raise ValueError(f"it has more than {limit:,} {items}")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _containers_in(value: Any) -> Iterator[Any]:
    """Yield the arrays and objects that are direct children of a value.

    Raises:
        ValueError: a direct child is a number that is not finite or does not fit into 64 bits.
    """
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]:
        if isinstance(child, dict | list):
            yield child
        elif isinstance(child, float) and not math.isfinite(child):
            raise ValueError("a number is too large for a 64-bit float")
        elif isinstance(child, int) and not -(2**63) <= child < 2**64:
            raise ValueError("a number is too large for a 64-bit integer")


@contextmanager
def parse_object(value: Any, description: str) -> Iterator[JsonObject]:
    """Yield a `JsonObject`; on exit, raise an error if the caller has not read all keys.

    Args:
        value: a value of a JSON document.
        description: subject of error messages, such as "A note in the report".

    Raises:
        ReportError: the value is not an object, or has unknown keys.
    """
    parsed = JsonObject(value, description)
    yield parsed
    parsed.check_complete()


class JsonObject:
    """An untrusted JSON object; each method reads and removes a key, and checks the type of its value."""

    def __init__(self, value: Any, description: str) -> None:
        if not isinstance(value, dict):
            raise ReportError(f"{description} is {_short(value)}, but must be an object.")
        self._unread, self._description = dict(value), description

    def text(self, name: str) -> str:
        """Read a string; return "" if the key is missing."""
        value: str = self._read(name, str, "a string", "")
        return value

    def optional_text(self, name: str) -> str | None:
        """Read a string; return None if the key is missing or null."""
        return None if self._unread.get(name) is None else self.text(name)

    def flag(self, name: str) -> bool:
        """Read a boolean; return False if the key is missing."""
        value: bool = self._read(name, bool, "true or false", False)
        return value

    def choice(self, name: str, choices: Sequence[W]) -> W:
        """Read a string that must be one of the choices."""
        value = self.text(name)
        for choice in choices:
            if value == choice:
                return choice
        raise self._error(name, value, f"one of {', '.join(choices)}")

    def number(self, name: str) -> float:
        """Read a finite number as a float.

        Raises:
            ReportError: the key is missing, or its value is not a finite number.
        """
        value = self._read(name, int | float, "a number", None)
        if isinstance(value, bool) or not math.isfinite(value):
            raise self._error(name, value, "a number")
        return float(value)

    def integer(self, name: str) -> int:
        """Read an integer."""
        value = self._read(name, int, "an integer", None)
        if isinstance(value, bool):
            raise self._error(name, value, "an integer")
        return int(value)

    def array(self, name: str) -> list[Any]:
        """Read a list; return an empty list if the key is missing."""
        value: list[Any] = self._read(name, list, "a list", [])
        return value

    def strings(self, name: str) -> list[str]:
        """Read a list of strings; return an empty list if the key is missing."""
        value = self.array(name)
        for item in value:
            self._check_text(name, item)
        return value

    def text_map(self, name: str) -> dict[str, str]:
        """Read an object with strings as values; return an empty dictionary if the key is missing."""
        value = self.mapping(name)
        if len(value) > MAX_NAMES:
            raise ReportError(
                f"{self._description} has {len(value):,} names in its {name}, but at most {MAX_NAMES} "
                "are allowed."
            )
        for item in value.values():
            self._check_text(name, item)
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        """Read an object with values of any type; return an empty dictionary if the key is missing."""
        value: dict[str, Any] = self._read(name, dict, "an object", {})
        return value

    def _check_text(self, name: str, item: Any) -> None:
        if not isinstance(item, str):
            raise ReportError(
                f"{self._description} has {_short(item)} in its {name}, but all entries must be strings."
            )

    def _read(self, name: str, types: Any, expected: str, default: Any) -> Any:
        value = self._unread.pop(name, default)
        if not isinstance(value, types):
            raise self._error(name, value, expected)
        return value

    def _error(self, name: str, value: Any, expected: str) -> ReportError:
        return ReportError(
            f"{self._description} has {_short(value)} as its {name}, but the value must be {expected}."
        )

    def check_complete(self) -> None:
        """Check that all keys of the object were read.

        Raises:
            ReportError: a key was not read, so it is unknown.
        """
        for name in self._unread:
            raise ReportError(
                f"{self._description} has an unknown key {_short(name)}. Update BERT Probe, or remove the "
                "key."
            )


def parse_document(content: bytes, name: str, key: str, max_format: int) -> dict[str, Any]:
    """Parse a view file or draft; return its JSON object without the key that identifies the file format.

    Args:
        content: the JSON document.
        name: the name of the file, for error messages.
        key: the key that identifies the file format; its value is the version of the format.
        max_format: the latest version that can be read.

    Raises:
        ReportError: the document has another format or a later version, is too large or invalid, or
            contains an object with a duplicate key.
    """
    if len(content) > MAX_BYTES:
        raise ReportError(
            f"{name} is larger than {MAX_BYTES / 1e6:.0f} MB, the limit for a view file. Choose another file."
        )
    try:
        value = parse_json(content)
    except DuplicateKeyError as error:
        raise ReportError(f"In {name} {error}.") from None
    except ValueError:
        raise ReportError(
            f"{name} is not valid JSON, so it is not a view file. Choose another file."
        ) from None
    if not isinstance(value, dict) or key not in value:
        raise ReportError(f"{name} is not a view file: it has no {key}. Choose another file.")
    version = value.pop(key)
    if type(version) is not int or version < 1:
        raise ReportError(
            f"{name} has the format {version!r}, but the format must be a number. Choose another file."
        )
    if version > max_format:
        raise ReportError(
            f"{name} was written by a later version of BERT Probe: format {version}, but this version reads "
            f"{max_format}. Update BERT Probe."
        )
    return value


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """Return the first `max_bytes` + 1 bytes of a file, so that the caller can detect a larger file.

    Raises:
        ReportError: the file cannot be read.
    """
    try:
        with path.open("rb") as stream:
            # Read in blocks, because a single read would allocate `max_bytes` bytes.
            blocks = iter(lambda: stream.read(_BLOCK), b"")
            return b"".join(islice(blocks, max_bytes // _BLOCK + 1))[: max_bytes + 1]
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ReportError(f"{path} cannot be read: {reason}. Check the path.") from None


def _short(value: Any) -> str:
    return truncate_text(json.dumps(value, ensure_ascii=False, default=str), 60)
