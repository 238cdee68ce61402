"""JSON in which an object has no key twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from bert_probe.text.truncation import shortened


class DuplicateKeyError(ValueError):
    """Raised when an object has a key twice, of which Python would silently drop the first."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {shortened(json.dumps(key), 60)} is given twice; give it once")


def loads(
    text: str | bytes,
    parse_float: Callable[[str], Any] | None = None,
    parse_constant: Callable[[str], Any] | None = None,
) -> Any:
    """Return what a JSON text holds; see `json.loads`.

    Raises:
        DuplicateKeyError: an object has a key twice.
        ValueError: not JSON.
        RecursionError: nested too deeply.
    """
    return json.loads(
        text, parse_float=parse_float, parse_constant=parse_constant, object_pairs_hook=_without_duplicates
    )


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        keys = set()
        for key, _ in pairs:
            if key in keys:
                raise DuplicateKeyError(key)
            keys.add(key)
    return members
