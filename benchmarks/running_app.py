"""Start the app on a free port, and find Chromium."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

FLAGS = [
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--proxy-server=http://127.0.0.1:9",
    "--proxy-bypass-list=127.0.0.1;localhost",
]

_ROOT = Path(__file__).parents[1]
_BROWSERS = ("chromium", "google-chrome")


def browser() -> str | None:
    """Return the path of Chromium, or None if it is not installed."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _BROWSERS)), None)


@dataclass(frozen=True)
class Served:
    """A running app server.

    Attributes:
        process: The server process.
        port: Port on 127.0.0.1.
    """

    process: subprocess.Popen[bytes]
    port: int

    @property
    def origin(self) -> str:
        """The URL of the app without a path."""
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def served() -> Iterator[str]:
    """Run the app within the context, and yield its URL without a path."""
    with started() as app:
        yield app.origin


@contextmanager
def started(
    log: Path | None = None, *, cwd: Path = _ROOT, options: Sequence[str] = (), **variables: str
) -> Iterator[Served]:
    """Start the app, yield it when it responds, and stop it at the end of the context.

    Args:
        log: File for the output of the app. By default, the output is discarded.
        cwd: Working directory of the app.
        options: Options of `bert-probe app`. Without options, `streamlit run app.py` starts the app.
        variables: Additional environment variables.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", "app.py", f"--server.port={port}"]
    if options:
        command = [sys.executable, "-m", "bert_probe", "app", "--no-browser", f"--port={port}", *options]
    with Path(log or os.devnull).open("wb") as output:
        process = subprocess.Popen(command, cwd=cwd, env=os.environ | variables, stdout=output, stderr=output)
    try:
        app = Served(process, port)
        _await_health(process, app.origin)
        yield app
    finally:
        process.terminate()
        process.wait(timeout=20)


def _await_health(process: subprocess.Popen[bytes], origin: str) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + 90
    while time.monotonic() < end and process.poll() is None:
        try:
            with opener.open(f"{origin}/_stcore/health", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("The app did not start. Try make run to see why.")
