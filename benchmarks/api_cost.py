"""What a program waits for an answer over HTTP: one that asks alone, and eight that ask at once."""

from __future__ import annotations

import http.client
import json
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Final

from benchmarks import running_app
from benchmarks.pairs import Line

CLIENTS: Final = 8
ROUNDS: Final = 5
"""In which one and eight ask in turn, so that a busy machine is equally unkind to both."""
SECONDS: Final = 6.0
"""Of each turn."""
PAUSE: Final = 0.25
"""Seconds in which a client does something with an answer before it asks again."""
TARGET: Final = 3.0

_WORDS: Final = ("small", "boat", "crosses", "wide", "river", "under", "bridge", "at", "night", "with")
_numbers = count()
_lock = threading.Lock()


def lines() -> Iterator[Line]:
    with running_app.started() as app:
        _client(app.port, 0.0, 0.0)  # imports, and opens the model
        for pause, who in (
            (PAUSE, f"each pausing {PAUSE:.2f} s after an answer"),
            (0.0, "each asking on at once"),
        ):
            alone, together = _measured(app.port, pause)
            ratio = _p95(together) / _p95(alone)
            yield Line(
                f"HTTP: attention of a new text of {len(_WORDS)} words, {CLIENTS} clients, {who}",
                "one client of the same kind, p95",
                f"{ratio:.2f} × ({_p95(together) * 1e3:.0f} ms ÷ {_p95(alone) * 1e3:.0f} ms; "
                f"{len(together) / (ROUNDS * SECONDS):.0f} answers a second)",
                f"at most {TARGET:g} ×" if pause else "",
                ratio <= TARGET if pause else None,
            )


def _measured(port: int, pause: float) -> tuple[list[float], list[float]]:
    """Seconds of each answer, for one client and for eight."""
    alone: list[float] = []
    together: list[float] = []
    for _ in range(ROUNDS):
        alone += _client(port, SECONDS, pause)
        with ThreadPoolExecutor(CLIENTS) as pool:
            asked = [pool.submit(_client, port, SECONDS, pause) for _ in range(CLIENTS)]
        together += [took for one in asked for took in one.result()]
    return alone, together


def _client(port: int, seconds: float, pause: float) -> list[float]:
    """Ask on one connection until the time is over."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    took: list[float] = []
    end = time.monotonic() + seconds
    while not took or time.monotonic() < end:
        body = json.dumps({"text": _text(), "question": {"layer": 2, "head": 3}})
        began = time.perf_counter()
        connection.request("POST", "/api/v1/attention", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        took.append(time.perf_counter() - began)
        if answer.status != 200:
            raise RuntimeError(content.decode())
        time.sleep(pause)
    connection.close()
    return took


def _text() -> str:
    """A text that nobody asked about before."""
    with _lock:
        number = next(_numbers)
    return " ".join(_WORDS[(number // len(_WORDS) ** place) % len(_WORDS)] for place in range(len(_WORDS)))


def _p95(took: list[float]) -> float:
    return statistics.quantiles(took, n=20)[-1]
