"""Texts in the URL. A text that is too long is stored on the server, and the URL contains its name.

Some mail and chat programs truncate long links. Even a short text can make a link long, because a Chinese
character takes nine characters in a URL. A view that does not fit into a URL can be shared as a view file
(`ui/view_files`).
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
"""Maximum length of the URL parameters in characters. The rest of `MAX_LINK` is for the host and the path."""


def remember(key: str, text: str | None, *, named: bool = False) -> None:
    """Write a text to the URL, or store the text and write its name if it is too long.

    Args:
        text: the text; None to remove it from the URL.
        named: whether to store the text and write its name even if the text is short.
    """
    is_short = text is None or (not named and fits(key, text))
    state.remember(key, text if is_short else None)
    state.remember(text_parameter(key), None if text is None or is_short else store_text(text))


def recall(key: str) -> str | None:
    """Return the text of a URL parameter, or None if it is missing or the text is no longer stored."""
    parameters = state.url_parameters()
    name = parameters.get(text_parameter(key))
    if key in parameters or name is None:
        return parameters.get(key)
    return stored_text(name)


def missing(*keys: str) -> dict[str, str]:
    """Return the URL parameters that contain names of texts that are no longer stored: parameter → name.

    Args:
        keys: URL parameters of the texts.
    """
    names = {text_parameter(key): key for key in keys if recall(key) is None}
    return {name: value for name, value in state.url_parameters().items() if name in names}


def check(*keys: str) -> None:
    """Raise TextError if the URL contains the name of a text that is no longer stored."""
    if missing(*keys):
        raise TextError(_MISSING)


_MISSING: Final = (
    "The text of this URL is no longer stored, because the app was restarted or newer texts replaced it. "
    "Paste the text again, or open a view file that contains the text."
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
    """Return the number of characters of the encoded URL parameters."""
    return len(urlencode(parameters, quote_via=quote_plus, errors="replace"))


def has_stored(parameters: Mapping[str, str], except_for: Sequence[str] = ()) -> bool:
    """Return whether URL parameters contain names of stored texts, other than the texts ``except_for``."""
    return any(name in parameters for name, key in _KEYS.items() if key not in except_for)


def expand(parameters: Mapping[str, str]) -> dict[str, str]:
    """Replace each URL parameter that names a stored text by the parameter with the text itself.

    View files have parameters in this form.

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


_KEYS: Final = {text_parameter(key): key for key in state.TEXTS}
"""URL parameter that contains the name of a stored text → URL parameter of the text itself."""
