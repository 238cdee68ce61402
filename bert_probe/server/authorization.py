"""Authorize API requests. Programs on this machine can use the API; programs on other machines need a token.

Pages of other sites can make a user's browser send requests to the API. Such requests cannot contain JSON,
because no CORS header allows them to, and the browser names the site in the header Origin.
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
"""Name of the environment variable that contains the token."""
MIN_CHARACTERS: Final = 16
"""Minimum length of a token; shorter tokens can be guessed."""
MAX_CHARACTERS: Final = 512
_MIN_DISTINCT: Final = 8
_TOKEN: Final = re.compile(rf"[A-Za-z0-9._~+/-]{{{MIN_CHARACTERS},{MAX_CHARACTERS}}}={{0,2}}")
"""Syntax of a Bearer token (RFC 6750, section 2.1)."""

_PROXY_HEADER: Final = re.compile(
    r"forwarded|via|x-forwarded-.*|x-real-ip|x-(original|cluster|envoy)-.*|(x-|true-|cf-|fastly-)[a-z-]*-ip"
)
"""Matches the names of headers that a proxy adds to the requests of its clients."""


def token(file: Path | None = None) -> str:
    """Return the token from a file or, without a file, from the environment variable `VARIABLE`.

    Return "" if the variable is not set.

    Raises:
        AddressError: The file cannot be read, other users can read it, or it does not contain a token.
    """
    if file is None:
        text, source = os.environ.get(VARIABLE, "").strip(), VARIABLE
        if not text:
            return ""
    else:
        text, source = _read_token(file), str(file)
    if not _TOKEN.fullmatch(text) or len(set(text)) < _MIN_DISTINCT:
        raise AddressError(
            f"{source} contains {len(text):,} characters that are not a token. A token is a single line of "
            f"{MIN_CHARACTERS} to {MAX_CHARACTERS} characters, at least {_MIN_DISTINCT} of them different, "
            "from A-Z, a-z, 0-9 and . _ ~ + / = -. To generate one: "
            "python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    return text


def _read_token(file: Path) -> str:
    """Return the content of a token file without its line ending."""
    try:
        with file.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            content = stream.read(MAX_CHARACTERS + 3)
        text = content.decode("utf-8")
    except (OSError, ValueError) as error:
        raise AddressError(
            f"The token file {file} cannot be read: {_reason(error)}. Choose another file."
        ) from None
    if os.name == "posix" and mode & 0o077:
        raise AddressError(
            f"The token file {file} can be read or changed by other users of this machine (mode "
            f"{stat.S_IMODE(mode):o}). Restrict it: chmod 600 {file}"
        )
    return text.removesuffix("\n").removesuffix("\r")


def _reason(error: Exception) -> str:
    return error.strerror or "no reason given" if isinstance(error, OSError) else "it is not UTF-8"


class Authorization:
    """Decides for each request whether the API may answer it.

    Args:
        names: Allowed host names, in addition to the names of this machine.
        token: Token that requests from other machines need; if "", all such requests are rejected.
    """

    def __init__(self, names: Sequence[str], token: str) -> None:
        self._names, self._token = names, token.encode()

    def refusal(self, request: Request) -> Problem | None:
        """Return the problem for the response if the request is rejected; None if the request is allowed."""
        origins = request.headers.getlist("origin")
        host, is_secure = request.headers.get("host", ""), request.url.scheme == "https"
        if origins and not hosts.is_same_page(origins, host, self._names, is_secure):
            return Problem(
                errors.LOCAL_ONLY,
                "Pages of other sites cannot use the API. Send the request from a program or from a page of "
                "the app.",
            )
        if self._is_local(request) or self._has_token(request):
            return None
        if not self._token:
            return Problem(
                errors.LOCAL_ONLY,
                "The API answers only programs on this machine. To use it from elsewhere, start the app with "
                f"a token, in {VARIABLE} or with bert-probe app --token-file, and send it as "
                "Authorization: Bearer.",
            )
        return Problem(
            errors.TOKEN_REQUIRED,
            "Requests from other machines need the token. Send the header Authorization: Bearer <token>.",
            headers={"WWW-Authenticate": 'Bearer realm="BERT Probe"'},
        )

    def _is_local(self, request: Request) -> bool:
        """Return whether a program on this machine, other than a proxy, sent the request."""
        if any(map(_PROXY_HEADER.fullmatch, request.headers.keys())):
            return False
        return _is_loopback(request.client.host if request.client else "") and hosts.is_own(
            request.headers.get("host", "")
        )

    def _has_token(self, request: Request) -> bool:
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        # compare_digest takes constant time, so response times do not leak parts of the token.
        is_equal = hmac.compare_digest(credentials.strip().encode("utf-8", "replace"), self._token)
        return bool(self._token) and scheme.lower() == "bearer" and is_equal


def _is_loopback(address: str) -> bool:
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback
