"""Texts in the address; one that is too long for it is kept here, and the address bears its name.

A link is to fit wherever people put one: mail, chats and documents cut longer ones. What does not fit travels
as a view file (`ui/view_files`). A Chinese character takes nine characters of an address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote_plus, urlencode

from bert_probe.errors import TextError
from bert_probe.server.text_store import get, parameter, put
from bert_probe.ui import state

LINK: Final = 2_000
"""Characters of a link at most."""

IN_ADDRESS: Final = 1_500
"""Characters of an address, with the texts in it; what is left of a link is for the server's name and for
what is chosen later."""

TEXTS: Final = (
    "a",
    "b",
    "model",
    "revision",
    "sentences",
    "context",
    "context_words",
    "near_text",
    "sql",
    "tray",
    "view",
)
"""Parameters that may be kept by a name."""


def remember(key: str, text: str | None, *, named: bool = False) -> None:
    """Put a text into the address, by its name if it is long, or in any case; None takes it out."""
    short = text is None or (not named and fits(key, text))
    state.remember(key, text if short else None)
    state.remember(parameter(key), None if text is None or short else put(text))


def recall(key: str) -> str | None:
    """The text that the address holds or names; None where it does neither, or names one that is gone."""
    given = state.address()
    name = given.get(parameter(key))
    if key in given or name is None:
        return given.get(key)
    return get(name)


def gone(*keys: str) -> dict[str, str]:
    """Parameters of the address that name a text which is not kept here any more, with their values."""
    named = {parameter(key): key for key in keys if recall(key) is None}
    return {name: value for name, value in state.address().items() if name in named}


def check(*keys: str) -> None:
    """Refuse an address that names a text which is gone, lest another one is shown for it.

    Raises:
        TextError: it does.
    """
    if gone(*keys):
        raise TextError(_GONE)


_GONE: Final = (
    "The text of this address is too long to stand in it, and is not kept any more: the app was started "
    "anew, or many long texts came after it. Paste it again, or open its view file."
)


def fits(key: str, text: str) -> bool:
    """Whether the address can hold a text whole, and is short enough with it."""
    if len(text) > IN_ADDRESS or any("\ud800" <= sign <= "\udfff" for sign in text):
        return False
    others = {name: value for name, value in state.address().items() if name not in (key, parameter(key))}
    return length(others | {key: text}) <= IN_ADDRESS


def length(address: Mapping[str, str]) -> int:
    """Characters of an address, as it is written."""
    return len(urlencode(address, quote_via=quote_plus, errors="replace"))


def names(address: Mapping[str, str], but: Sequence[str] = ()) -> bool:
    """Whether an address names a text that is kept here, but for some."""
    return any(name in address for name, key in _NAMES.items() if key not in but)


def whole(address: Mapping[str, str]) -> dict[str, str]:
    """An address with all its texts, as a view file has it.

    Raises:
        TextError: one is gone.
    """
    found = {name: value for name, value in address.items() if name not in _NAMES}
    for name in _NAMES.keys() & address.keys():
        text = get(address[name])
        if text is None:
            raise TextError(_GONE)
        found[_NAMES[name]] = text
    return found


_NAMES: Final = {parameter(key): key for key in TEXTS}
