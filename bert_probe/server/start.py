"""Start the app from any folder and open it in a browser; used by `bert-probe app`."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import tempfile
import threading
import webbrowser
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from urllib.parse import urlencode

import streamlit as st
from uvicorn.config import LOGGING_CONFIG

from bert_probe.errors import AddressError
from bert_probe.model import lengths
from bert_probe.runtime import permissions, shared_cache
from bert_probe.runtime.permissions import Permissions
from bert_probe.runtime.terminal import exit_on_sigterm
from bert_probe.server import access, asgi, paths, sessions

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # loopback address for each wildcard address


def start(
    port: int,
    host: str | None = None,
    names: Sequence[str] = (),
    browser: bool = True,
    view: bytes | None = None,
    token_file: Path | None = None,
    corpora: Sequence[Path] = (),
    allowed: Permissions | None = None,
    playground: str = "",
) -> None:
    """Serve the app until Ctrl+C, with the settings of `paths.settings_file`.

    Args:
        port: TCP port, 1 to 65535.
        host: Address to listen on; by default the address in the settings, which serves this machine only.
        names: Additional allowed host names; see `access`.
        browser: Whether to open a browser, if there is a display.
        view: Content of a view file that the printed URL opens, see `view_files`.
        token_file: File with the token that other machines need for the API.
        corpora: Corpus stores, or folders of stores, that the pages can open; see `paths.stores`.
        allowed: Permissions of the users; by default those of an app on the user's own machine.
        playground: URL of the playground to which the pages link; see `paths.playground`.

    Raises:
        AddressError: The address does not belong to this machine, the port is in use, a host name, the token
            or a URL is invalid, or a folder of stores does not exist.
    """
    allowed = Permissions() if allowed is None else allowed
    permissions.set_current(allowed)
    shared_cache.limit_traces(allowed.trace_bytes)
    lengths.limit_tasks(allowed.task_bytes)
    if allowed.is_public:
        os.environ["FORWARDED_ALLOW_IPS"] = ""  # do not trust X-Forwarded-For from local clients
        _keep_caches_in(_temporary_folder())
    host = paths.settings()["server.address"] if host is None else host
    _check(host, port)
    paths.set_store_folders(corpora)
    paths.set_playground(playground)
    address = "" if host in _WILDCARDS else host
    answers_to = list(
        dict.fromkeys((*access.own_names(), *filter(None, [address]), *access.additional_names(names)))
    )
    # Streamlit reads the settings file next to the started script last.
    # Its settings therefore override the settings in the current folder and in the home folder.
    sys.argv = [str(paths.root_folder() / "app.py")]
    LOGGING_CONFIG["loggers"]["uvicorn.error"]["level"] = "WARNING"
    url = _url(host, port)
    if view is not None:
        name = sessions.store_text(view.decode("utf-8-sig"))
        url += "/?" + urlencode({sessions.text_parameter("view"): name})
    message = f"BERT Probe is at {url} (Ctrl+C stops it)"
    if host in _WILDCARDS:
        message += (
            "\nThe server listens on all addresses of this machine, but answers only requests to "
            f"{', '.join(answers_to)}. Add other host names with --allow or {access.HOSTS_VARIABLE}."
        )
    if allowed.is_public:
        message += (
            f"\nThe server is public: users can open {', '.join(allowed.models)}, and nothing is saved."
        )
    lifespan = _announcing_lifespan(message, url, browser and _has_display())
    app = st.App(**asgi.app_arguments(names, token_file, address) | {"lifespan": lifespan})
    _end_on_hangup()
    # uvicorn ends the process by the signal it received, unless the signal has a handler.
    with exit_on_sigterm(), suppress(KeyboardInterrupt):
        app.run(
            config={
                "server.address": host,
                "server.port": port,
                "server.allowedHosts": answers_to,
                "server.maxUploadSize": allowed.max_file_bytes // 1_000_000,
                "logger.hideWelcomeMessage": True,
            }
        )


def _end_on_hangup() -> None:
    """Handle SIGHUP, which a closed terminal sends, like SIGTERM; uvicorn does not handle it."""
    # Processes started by nohup ignore the signal. Only the main thread may set handlers.
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, lambda _number, _frame: signal.raise_signal(signal.SIGTERM))


@cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Create a folder that is deleted when the app ends."""
    return tempfile.TemporaryDirectory(prefix="bert-probe-caches-")


def _keep_caches_in(folder: tempfile.TemporaryDirectory[str]) -> None:
    """Make libraries write their caches (fonts, compiled functions) to `folder` instead of HOME."""
    for variable in ("MPLCONFIGDIR", "NUMBA_CACHE_DIR"):
        os.environ.setdefault(variable, folder.name)


def _check(host: str, port: int) -> None:
    # Streamlit treats an empty address as the wildcard address.
    if not host.strip():
        raise AddressError("The address in --host is empty. Pass an address, such as --host 127.0.0.1.")
    # Try to bind the address as Streamlit does, because Streamlit would report errors as tracebacks.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as trial:
            if os.name != "nt":
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((host, port))
            trial.listen()
    except (OSError, UnicodeError, TypeError) as error:  # TypeError: the name is not UTF-8
        raise AddressError(_reason(error, host, port)) from None


def _reason(error: Exception, host: str, port: int) -> str:
    if isinstance(error, OSError):
        if error.errno == errno.EADDRINUSE:
            return f"Port {port} of {host} is already in use. Choose another port with --port."
        if error.errno == errno.EACCES:
            return f"Port {port} cannot be opened: {error.strerror}. Choose --port 1024 or higher."
    return (
        f"This machine does not have the address {host!r}. Pass --host 127.0.0.1 to serve this machine only, "
        "or --host 0.0.0.0 for all of its addresses."
    )


def _url(host: str, port: int) -> str:
    host = _WILDCARDS.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _has_display() -> bool:
    """Return whether a browser can open a window. Without a display, Python might open a text browser."""
    if sys.platform in ("win32", "darwin"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


def _announcing_lifespan(
    message: str, url: str, browser: bool
) -> Callable[[st.App], AbstractAsyncContextManager[None]]:
    """Return a lifespan that prints a message and opens the browser once the port is bound."""

    @asynccontextmanager
    async def lifespan(app: st.App) -> AsyncIterator[None]:
        async with asgi.lifespan(app):
            print(message, flush=True)
            if browser:
                threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
            yield

    return lifespan
