"""Measure latency and throughput of the HTTP API with one client and with eight concurrent clients."""

from __future__ import annotations

import http.client
import json
import os
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from typing import Final

import psutil

from benchmarks import running_app
from benchmarks.pairs import Line

CLIENTS: Final = 8
ROUNDS: Final = 5
"""Number of rounds. Each measures one client, then `CLIENTS` clients, so that other load affects both."""
SECONDS: Final = 6.0
"""Duration of one measurement in seconds."""
PAUSE: Final = 0.25
"""Seconds that a client waits between a response and its next request."""
TARGET: Final = 3.0

_WORDS: Final = ("small", "boat", "crosses", "wide", "river", "under", "bridge", "at", "night", "with")
_numbers = count()
_lock = threading.Lock()


@dataclass
class Turns:
    """Measurements with a fixed number of concurrent clients, summed over all rounds.

    Attributes:
        took: Response times in seconds.
        seconds: Total duration of the measurements.
        worked: CPU time that the app used during the measurements, in seconds.
    """

    took: list[float] = field(default_factory=list)
    seconds: float = 0.0
    worked: float = 0.0

    @property
    def p95(self) -> float:
        """The 95th percentile of the response times in seconds."""
        return statistics.quantiles(self.took, n=20)[-1]

    @property
    def each(self) -> float:
        """CPU seconds per response."""
        return self.worked / len(self.took)


def lines() -> Iterator[Line]:
    with running_app.started() as app:
        _client(app.port, 0.0, 0.0)  # the first request imports modules and opens the model
        for pause, who in (
            (PAUSE, f"each pausing {PAUSE:.2f} s after a response"),
            (0.0, "without pauses"),
        ):
            alone, together = _measured(app, pause)
            ratio = together.p95 / alone.p95
            yield Line(
                f"HTTP: attention of a new text of {len(_WORDS)} words, {CLIENTS} clients, {who}",
                "one such client, p95",
                f"{ratio:.2f} × ({together.p95 * 1e3:.0f} ms ÷ {alone.p95 * 1e3:.0f} ms; "
                f"{len(together.took) / together.seconds:.0f} responses per second; "
                f"{_work(alone, together, pause)})",
                f"at most {TARGET:g} ×",
                ratio <= TARGET,
            )


def _work(alone: Turns, together: Turns, pause: float) -> str:
    """Describe the CPU time per response and, without pauses, the best ratio of p95 that the cores allow."""
    cost = f"{together.each * 1e3:.0f} ms of CPU time per response"
    if pause:
        return cost
    cores = os.cpu_count() or 1
    lower_limit = CLIENTS * together.each / cores / alone.p95
    return f"{cost}, so that {cores} idle cores can reach at best {lower_limit:.1f} ×"


def _measured(app: running_app.Served, pause: float) -> tuple[Turns, Turns]:
    """Measure one client and `CLIENTS` concurrent clients alternately, and return both measurements."""
    process, measurements = psutil.Process(app.process.pid), {1: Turns(), CLIENTS: Turns()}
    for _ in range(ROUNDS):
        for clients, turns in measurements.items():
            began, before = time.monotonic(), _busy(process)
            with ThreadPoolExecutor(clients) as pool:
                futures = [pool.submit(_client, app.port, SECONDS, pause) for _ in range(clients)]
            turns.seconds += time.monotonic() - began
            turns.worked += _busy(process) - before
            turns.took += [took for future in futures for took in future.result()]
    return measurements[1], measurements[CLIENTS]


def _busy(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _client(port: int, seconds: float, pause: float) -> list[float]:
    """Send requests on one connection for `seconds`, and return the response times in seconds."""
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
    """Return a different text on each call, so that the app cannot use its cache."""
    with _lock:
        number = next(_numbers)
    return " ".join(_WORDS[(number // len(_WORDS) ** place) % len(_WORDS)] for place in range(len(_WORDS)))
