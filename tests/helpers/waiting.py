"""Waits for conditions by polling, and for servers that start."""

from __future__ import annotations

import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

Fetched = tuple[int, dict[str, str], bytes]
"""An HTTP response: status, headers with lower-case names, and body."""


def wait_until(condition: Callable[[], object], seconds: float = 20) -> None:
    """Wait until a condition is true; fail after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"it never came true within {seconds:g} seconds"
        time.sleep(0.005)


def wait_for_server(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Wait until a server responds. Fail with its log if it exits or does not respond for three minutes."""

    def answers() -> bool:
        assert process.poll() is None, f"it did not start:\n{log.read_text()}"
        try:
            return fetch(url)[0] == 200
        except OSError:
            return False

    wait_until(answers, 180)


def fetch(url: str) -> Fetched:
    """Return the response of a server on this machine, without any proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as response:
        headers = {name.lower(): value for name, value in response.headers.items()}
        return response.status, headers, response.read()
