"""The names that the app answers to, however it was started.

A page elsewhere can make its own name lead to this machine (DNS rebinding) and then read what is answered
here. But it cannot choose what a browser sends as Host and Origin, so these are looked at before all else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import cache
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from bert_probe.errors import AddressError
from bert_probe.server import paths
from bert_probe.server.responses import may_be_answered, sentence

VARIABLE: Final = "BERT_PROBE_HOSTS"
"""Environment variable with further names that the app answers to, with commas between."""

_REMEDY: Final = f"start it with the name in {VARIABLE}, or with bert-probe app --allow"
_NAME: Final = r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\]"
_HOST: Final = re.compile(rf"({_NAME})\.?(?::[0-9]{{0,5}})?", re.IGNORECASE)
_GIVEN: Final = re.compile(rf"(?:\*\.)?(?:{_NAME})|[0-9a-f:.]+:[0-9a-f:.]*", re.IGNORECASE)


@cache
def own() -> tuple[str, ...]:
    """The names of this machine that the settings list: what the app answers to unless it is told more."""
    return tuple(paths.settings()["server.allowedHosts"])


def given(names: Sequence[str] = ()) -> tuple[str, ...]:
    """Further names that the app answers to: those of `VARIABLE`, and ``names``; each once, in small letters.

    ``*.example.org`` stands for every name beneath it.

    Raises:
        AddressError: something that is no name of a machine.
    """
    listed = [name.strip() for name in os.environ.get(VARIABLE, "").split(",")]
    every = [*filter(None, listed), *(name.strip() for name in names)]
    for name in every:
        if not _GIVEN.fullmatch(name):
            raise AddressError(
                f"{name[:200]!r} is no name to answer to. Give one as it stands in the browser's address, "
                "without http:// and port: lab.example.org, or *.example.org for all beneath it."
            )
    return tuple(dict.fromkeys(name.lower().strip("[]") for name in every))


class AllowedHosts:
    """ASGI middleware that refuses requests to foreign names, and connections from foreign pages.

    A connection (websocket) may come from a page of the very host and port that it goes to, or of a name that
    was given, as behind a proxy which changes Host; or from a program, which sends no Origin.

    Args:
        names: what the app answers to beside `own`.
        address: where the app listens, which it answers to as well. Pages of other ports of it are foreign.
    """

    def __init__(self, app: ASGIApp, names: Sequence[str], address: str = "") -> None:
        self.app = app
        self._given = names
        self._every = (*own(), *names, address.lower())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer why not."""
        if scope["type"] in ("http", "websocket"):
            refusal = self._refusal(scope)
            if refusal is not None:
                await _refuse(refusal, scope, receive, send)
                return
        if scope["type"] == "websocket":
            scope = _same_origin(scope)
        await self.app(scope, receive, send)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or not _is_among(hosts[0], self._every):
            said = f"the name {_shown(hosts[0])}" if len(hosts) == 1 else f"{len(hosts)} names at once"
            return sentence(
                f"BERT Probe does not answer to {said}. Open it as localhost, or, if that name is yours, "
                f"{_REMEDY}.",
                421,
            )
        if scope["type"] == "http" or not origins:
            return None
        if is_same_page(origins, hosts[0], self._given, is_secure=scope.get("scheme") == "wss"):
            return None
        page = _shown(", ".join(origins))
        return sentence(
            f"BERT Probe takes no connection from a page of {page}. Open the app itself, or, if that name is "
            f"yours, {_REMEDY}.",
            403,
        )


def is_same_page(origins: Sequence[str], host: str, names: Sequence[str], is_secure: bool) -> bool:
    """Return whether a request comes from a page of the same host and port, or of one of `names`.

    The names of this machine do not count among `names`: at another port they belong to another program.

    Args:
        is_secure: whether the request came over TLS. Then a page of the same host must be https. Without TLS
            it may be either, as a proxy may add TLS.
    """
    scheme, _, origin = origins[0].lower().partition("://")
    if len(origins) != 1 or scheme not in ("http", "https"):
        return False
    if origin == host.lower():
        return scheme == "https" or not is_secure
    return _is_among(origin, names) and not is_own(origin)


def is_own(host: str) -> bool:
    """Whether this is one of the names that a machine has for itself."""
    return _is_among(host, own())


def _is_among(host: str, names: Sequence[str]) -> bool:
    """Whether a host, with any port, has one of these names."""
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    name = found[1].lower().strip("[]")
    return any(name.endswith(one[1:]) if one.startswith("*.") else name == one for one in names)


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 100 else f"{text[:100]}...")


def _same_origin(scope: Scope) -> Scope:
    """A connection that was let in, as one to the host of its page.

    Where the two differ Streamlit would ask a server outside for this machine's address, to compare with.
    """
    headers = MutableHeaders(raw=list(scope["headers"]))
    if "origin" in headers:
        headers["host"] = headers["origin"].partition("://")[2]
    return {**scope, "headers": headers.raw}


async def _refuse(refusal: PlainTextResponse, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http" or may_be_answered(scope):
        await refusal(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1008})
