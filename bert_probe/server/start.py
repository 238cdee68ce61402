"""Start the app from any folder, and show it in a browser: what `bert-probe app` does."""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlencode

import streamlit as st
from uvicorn.config import LOGGING_CONFIG

from bert_probe.errors import AddressError
from bert_probe.server import asgi, hosts, paths, store_paths, text_store

_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # and by which of them this machine calls itself


def start(
    port: int,
    host: str | None = None,
    names: Sequence[str] = (),
    browser: bool = True,
    view: bytes | None = None,
    token_file: Path | None = None,
    corpora: Sequence[Path] = (),
) -> None:
    """Serve the app until Ctrl+C, with the settings of `places.settings_file`.

    Args:
        port: 1 to 65535.
        host: address to listen at; the settings' own, this machine alone, if None. The app answers to it.
        names: further names that the app answers to, beside those of `hosts.VARIABLE`; see `hosts`.
        browser: open one, if there is a display to open it on.
        view: a view file that the address told of opens, see `view_files`.
        token_file: holds what other machines need to ask over HTTP.
        corpora: stores, and folders of stores, that the pages may open; see `shelves`.

    Raises:
        AddressError: there is no such address here, its port is taken, a name or token is none, or there is
            no such folder of stores.
    """
    host = paths.settings()["server.address"] if host is None else host
    _check(host, port)
    store_paths.serve_from(corpora)
    address = "" if host in _EVERY_ADDRESS else host
    answers_to = list(dict.fromkeys((*hosts.own(), *filter(None, [address]), *hosts.given(names))))
    # Streamlit takes its settings from beside the script that it believes was started, after those of the
    # current folder and of the home folder, which so cannot undo them.
    sys.argv = [str(paths.top() / "app.py")]
    LOGGING_CONFIG["loggers"]["uvicorn.error"]["level"] = "WARNING"
    url = _url(host, port)
    if view is not None:
        url += "/?" + urlencode({text_store.parameter("view"): text_store.put(view.decode("utf-8-sig"))})
    said = f"BERT Probe is at {url} (Ctrl+C stops it)"
    if host in _EVERY_ADDRESS:
        said += (
            f"\nIt listens at every address of this machine, and answers only to {', '.join(answers_to)}. "
            f"Give other names with --allow or {hosts.VARIABLE}."
        )
    told = _told(said, url, browser and _has_display())
    app = st.App(**asgi.parts(names, token_file, address) | {"lifespan": told})
    with suppress(KeyboardInterrupt):
        app.run(
            config={
                "server.address": host,
                "server.port": port,
                "server.allowedHosts": answers_to,
                "logger.hideWelcomeMessage": True,
            }
        )


def _check(host: str, port: int) -> None:
    # Streamlit takes an empty address for every address.
    if not host.strip():
        raise AddressError("An empty address is no place to listen at. Give --host 127.0.0.1.")
    # As Streamlit does it, whose own failures are tracebacks.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as trial:
            if os.name != "nt":
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((host, port))
            trial.listen()
    except (OSError, UnicodeError) as error:
        raise AddressError(_reason(error, host, port)) from None


def _reason(error: OSError | UnicodeError, host: str, port: int) -> str:
    if isinstance(error, OSError):
        if error.errno == errno.EADDRINUSE:
            return f"Port {port} of {host} is taken. Give another with --port."
        if error.errno == errno.EACCES:
            return f"Port {port} is not yours to take: {error.strerror}. Give --port 1024 or higher."
    return (
        f"This machine has no address {host!r}. Give --host 127.0.0.1 for this machine alone, "
        "or --host 0.0.0.0 for all of its addresses."
    )


def _url(host: str, port: int) -> str:
    host = _EVERY_ADDRESS.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _has_display() -> bool:
    """Whether a browser would have a window; without, Python may open one in the terminal."""
    if sys.platform in ("win32", "darwin"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


def _told(said: str, url: str, browser: bool) -> Callable[[st.App], AbstractAsyncContextManager[None]]:
    """Tell where the app is, once its port is its own; a browser that comes early is kept waiting there."""

    @asynccontextmanager
    async def lifespan(app: st.App) -> AsyncIterator[None]:
        async with asgi.lifespan(app):
            print(said, flush=True)
            if browser:
                threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
            yield

    return lifespan
