"""The app on a free port, and the Chromium that drives it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
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
    """Path of a Chromium, or None where there is none."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _BROWSERS)), None)


@contextmanager
def served() -> Iterator[str]:
    """The app's address, until the block ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", "app.py", f"--server.port={port}"]
    process = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await_health(process, f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}"
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
