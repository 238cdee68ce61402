"""Texts in the address; one that is too long for it is kept here, and the address bears its name.

The server answers an address of more than 64 KB with a bare 400, and Chromium leaves one of more than 2 MB
as it was, in silence. A Chinese character takes nine bytes there.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import sys
import threading
from typing import Final
from urllib.parse import quote_plus

from cachetools import LRUCache

from bert_probe.errors import TextError
from bert_probe.web import state

IN_ADDRESS: Final = 6_000
"""Characters, as an address writes them, of one text in it. There may be seven."""

KEPT_BYTES: Final = 64_000_000
"""Of all texts that are kept, for all sessions; the one longest unasked for goes first."""

_LARGEST: Final = KEPT_BYTES // 8
"""Bytes of a text that is kept: one larger cannot be read anyhow."""

# Names are the same for the same text, and nobody can work one out.
_SECRET: Final = secrets.token_bytes(32)
_kept: LRUCache[str, str] = LRUCache(KEPT_BYTES, getsizeof=sys.getsizeof)
_lock = threading.Lock()


def remember(key: str, text: str | None) -> None:
    """Put a text into the address, by its name if it is long; None takes it out."""
    short = text is None or fits(text)
    state.remember(key, text if short else None)
    state.remember(_parameter(key), None if text is None or short else _keep(text))


def recall(key: str) -> str | None:
    """The text that the address holds or names; None where it does neither, or names one that is gone."""
    given = state.address()
    name = given.get(_parameter(key))
    if key in given or name is None:
        return given.get(key)
    with _lock:
        return _kept.get(name)


def gone(*keys: str) -> dict[str, str]:
    """Parameters of the address that name a text which is not kept here any more, with their values."""
    named = {_parameter(key): key for key in keys if recall(key) is None}
    return {name: value for name, value in state.address().items() if name in named}


def check(*keys: str) -> None:
    """Refuse an address that names a text which is gone, lest another one is shown for it.

    Raises:
        TextError: it does.
    """
    if gone(*keys):
        raise TextError(
            "The text of this address is too long to stand in it, and is not kept any more: the app was "
            "started anew, or many long texts came after it. Paste it again."
        )


def fits(text: str) -> bool:
    """Whether a text is short enough for an address."""
    return len(text) <= IN_ADDRESS and len(quote_plus(text, errors="replace")) <= IN_ADDRESS


def _parameter(key: str) -> str:
    return f"{key}_kept"


def _keep(text: str) -> str:
    """The name of a text, which is kept unless nothing could be done with it."""
    name = hmac.new(_SECRET, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:32]
    if sys.getsizeof(text) <= _LARGEST:
        with _lock:
            _kept[name] = text
    return name
