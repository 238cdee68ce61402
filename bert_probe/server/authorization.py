"""Who may ask over HTTP: programs of this machine, and from elsewhere those that have the token.

A page of another site can make a reader's browser send requests here. It cannot send JSON without being
allowed to, which nobody is, and says in Origin where it comes from.
"""

from __future__ import annotations

import hmac
import os
import re
import stat
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from starlette.requests import Request

from bert_probe.api import errors
from bert_probe.api.errors import Problem
from bert_probe.errors import AddressError
from bert_probe.server import hosts

VARIABLE: Final = "BERT_PROBE_TOKEN"
"""Environment variable with the token."""
LEAST: Final = 16
"""Characters of a token: a shorter one can be guessed."""
MOST: Final = 512
_LEAST_DIFFERENT: Final = 8
_TOKEN: Final = re.compile(rf"[A-Za-z0-9._~+/-]{{{LEAST},{MOST}}}={{0,2}}")
"""What may follow `Bearer` in a header (RFC 6750, section 2.1)."""

_PASSED_ON: Final = re.compile(
    r"forwarded|via|x-forwarded-.*|x-real-ip|x-(original|cluster|envoy)-.*|(x-|true-|cf-|fastly-)[a-z-]*-ip"
)
"""What a proxy adds to the requests of others."""


def token(file: Path | None = None) -> str:
    """Return the token of `file`, else of the environment variable `VARIABLE`; "" if there is none.

    Raises:
        AddressError: a file that cannot be read, that other users can read, or that holds no token.
    """
    if file is None:
        text, source = os.environ.get(VARIABLE, "").strip(), VARIABLE
        if not text:
            return ""
    else:
        text, source = _text_of(file), str(file)
    if not _TOKEN.fullmatch(text) or len(set(text)) < _LEAST_DIFFERENT:
        raise AddressError(
            f"{source} holds {len(text):,} characters that are not a token. A token is a single line of "
            f"{LEAST} to {MOST} characters, at least {_LEAST_DIFFERENT} different ones, of A-Z, a-z, 0-9 and "
            ". _ ~ + / = -. Use what this prints: python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    return text


def _text_of(file: Path) -> str:
    """Return the contents of a token file without the end of its line."""
    try:
        with file.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            content = stream.read(MOST + 3)
        text = content.decode("utf-8")
    except (OSError, ValueError) as error:
        raise AddressError(f"The token file {file} cannot be read: {_reason(error)}. Give another.") from None
    if os.name == "posix" and mode & 0o077:
        raise AddressError(
            f"The token file {file} can be read or changed by other users of this machine (mode "
            f"{stat.S_IMODE(mode):o}). Restrict it: chmod 600 {file}"
        )
    return text.removesuffix("\n").removesuffix("\r")


def _reason(error: Exception) -> str:
    return error.strerror or "no reason given" if isinstance(error, OSError) else "it is not UTF-8"


class Authorization:
    """Looks at each request.

    Args:
        names: what the app answers to beside the names of this machine.
        token: what others have to give; "" lets nobody else in.
    """

    def __init__(self, names: Sequence[str], token: str) -> None:
        self._names, self._token = names, token.encode()

    def refusal(self, request: Request) -> Problem | None:
        """Why this is not answered, or None."""
        origins = request.headers.getlist("origin")
        host, is_secure = request.headers.get("host", ""), request.url.scheme == "https"
        if origins and not hosts.is_same_page(origins, host, self._names, is_secure):
            return Problem(
                errors.NOT_FROM_HERE,
                "Pages of other sites may not ask. Ask from a program, or from a page of the app itself.",
            )
        if self._is_here(request) or self._has_token(request):
            return None
        if not self._token:
            return Problem(
                errors.NOT_FROM_HERE,
                f"The API answers to this machine alone. Start the app with a token, in {VARIABLE} or with "
                "bert-probe app --token-file, and send it as Authorization: Bearer.",
            )
        return Problem(
            errors.NO_TOKEN,
            "From another machine the token is needed. Send it as Authorization: Bearer, then the token.",
            headers={"WWW-Authenticate": 'Bearer realm="BERT Probe"'},
        )

    def _is_here(self, request: Request) -> bool:
        """Whether a program of this machine asks, and for itself: a proxy asks for others."""
        if any(map(_PASSED_ON.fullmatch, request.headers.keys())):
            return False
        return _is_loopback(request.client.host if request.client else "") and hosts.is_own(
            request.headers.get("host", "")
        )

    def _has_token(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # In the same time whatever is given, so that no part of it can be guessed by itself.
        right = hmac.compare_digest(given.strip().encode("utf-8", "replace"), self._token)
        return bool(self._token) and scheme.lower() == "bearer" and right


def _is_loopback(address: str) -> bool:
    try:
        found = ip_address(address)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback
