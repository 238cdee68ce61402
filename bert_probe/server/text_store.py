"""An in-memory store for texts that are too long for a URL, under unguessable names."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import sys
import threading
from typing import Final

from cachetools import LRUCache

CAPACITY_BYTES: Final = 64_000_000
"""Capacity for the texts of all sessions, in bytes; the least recently used text is dropped first."""

_LARGEST: Final = CAPACITY_BYTES // 8
"""Maximum size of a stored text in bytes; larger texts exceed the limit of every model."""

# Secret key for computing the names of texts. A name is the same in every session, but unguessable.
_SECRET: Final = secrets.token_bytes(32)
_texts: LRUCache[str, str] = LRUCache(CAPACITY_BYTES, getsizeof=sys.getsizeof)
_lock = threading.Lock()


def parameter_name(key: str) -> str:
    """Return the URL parameter for the name of a stored text, which replaces the text."""
    return f"{key}_kept"


def put(text: str) -> str:
    """Store a text unless it is too large, and return its name."""
    name = hmac.new(_SECRET, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:32]
    if sys.getsizeof(text) <= _LARGEST:
        with _lock:
            _texts[name] = text
    return name


def get(name: str) -> str | None:
    """Return the text that is stored under a name; None if it is not stored."""
    with _lock:
        return _texts.get(name)
