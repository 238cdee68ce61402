"""Texts in the URL. A text that is too long is stored on the server under a name that the URL contains.

Long links do not work everywhere, because mail and chat programs truncate them. Even a short text can make a
link long: a Chinese character takes nine characters in a URL. A view that does not fit into a URL is shared
as a view file (`ui/view_files`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote_plus, urlencode

from bert_probe.errors import TextError
from bert_probe.server.sessions import store_text, stored_text, text_parameter
from bert_probe.ui import state

MAX_LINK: Final = 2_000
"""Maximum length of a link in characters."""

MAX_URL: Final = 1_500
"""Maximum length of the URL parameters in characters, which leaves room for the host within `MAX_LINK`."""

TEXTS: Final = (
    "a",
    "b",
    "model",
    "revision",
    "sentences",
    "documents",
    "search_query",
    "context",
    "context_words",
    "near_text",
    "sql",
    "tray",
    "view",
)
"""URL parameters whose text is stored under a name if it is too long for the URL."""


def remember(key: str, text: str | None, *, named: bool = False) -> None:
    """Write a text to the URL, or the name of the text if it is too long. None removes the text.

    Args:
        named: whether to store the text and write its name to the URL even if the text is short.
    """
    is_short = text is None or (not named and fits(key, text))
    state.remember(key, text if is_short else None)
    state.remember(text_parameter(key), None if text is None or is_short else store_text(text))


def recall(key: str) -> str | None:
    """Return a text from the URL or from the store; None if it is missing or no longer stored."""
    parameters = state.url_parameters()
    name = parameters.get(text_parameter(key))
    if key in parameters or name is None:
        return parameters.get(key)
    return stored_text(name)


def missing(*keys: str) -> dict[str, str]:
    """Return the URL parameters, with their values, that name texts that are no longer stored."""
    names = {text_parameter(key): key for key in keys if recall(key) is None}
    return {name: value for name, value in state.url_parameters().items() if name in names}


def check(*keys: str) -> None:
    """Raise TextError if the URL names a text that is no longer stored."""
    if missing(*keys):
        raise TextError(_MISSING)


_MISSING: Final = (
    "The text of this URL is no longer stored, because the app was restarted or newer texts replaced it. "
    "Paste the text again, or open its view file."
)


def fits(key: str, text: str) -> bool:
    """Return whether the URL can contain a text without exceeding `MAX_URL`."""
    if len(text) > MAX_URL or any("\ud800" <= character <= "\udfff" for character in text):
        return False
    other = {
        name: value
        for name, value in state.url_parameters().items()
        if name not in (key, text_parameter(key))
    }
    return length(other | {key: text}) <= MAX_URL


def length(parameters: Mapping[str, str]) -> int:
    """Return the length of URL parameters in characters, when encoded."""
    return len(urlencode(parameters, quote_via=quote_plus, errors="replace"))


def has_stored(parameters: Mapping[str, str], except_for: Sequence[str] = ()) -> bool:
    """Return whether URL parameters contain the name of a stored text. Ignore keys in ``except_for``."""
    return any(name in parameters for name, key in _KEYS.items() if key not in except_for)


def expand(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return URL parameters with the names of stored texts replaced by the texts, as in a view file.

    Raises:
        TextError: a text is no longer stored.
    """
    expanded = {name: value for name, value in parameters.items() if name not in _KEYS}
    for name in _KEYS.keys() & parameters.keys():
        text = stored_text(parameters[name])
        if text is None:
            raise TextError(_MISSING)
        expanded[_KEYS[name]] = text
    return expanded


_KEYS: Final = {text_parameter(key): key for key in TEXTS}
"""URL parameter that contains the name of a stored text → URL parameter of the text itself."""
