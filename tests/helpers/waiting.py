"""Waiting for what nothing tells of: conditions looked at again and again, and servers that start."""

from __future__ import annotations

import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

Fetched = tuple[int, dict[str, str], bytes]
"""Status, headers by their names in small letters, and body."""


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    """Wait until something is so; fail when it is not within so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"it never came true within {seconds:g} seconds"
        time.sleep(0.005)


def until_it_answers(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Wait until a server that was started answers; fail with its log when it ends, or in three minutes."""

    def answers() -> bool:
        assert process.poll() is None, f"it did not start:\n{log.read_text()}"
        try:
            return fetch(url)[0] == 200
        except OSError:
            return False

    until(answers, 180)


def fetch(url: str) -> Fetched:
    """What a server on this machine answers, whatever proxy is set."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as response:
        headers = {name.lower(): value for name, value in response.headers.items()}
        return response.status, headers, response.read()
