"""Test many concurrent users with different texts: correct results, response times and memory."""

from __future__ import annotations

import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
import psutil
from websockets.exceptions import WebSocketException

from benchmarks import running_app
from benchmarks.pairs import Line
from benchmarks.proof.session import Session
from benchmarks.proof.theme import Run
from bert_probe import Heads, Tokens
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.loading import load
from bert_probe.runtime import shared_cache
from bert_probe.runtime.jobs import GRACE
from tests.helpers.exactness import ULP

READERS = 50
SECONDS = 600
"""Duration in seconds at scale 1."""
KILLED = 5
"""Number of browsers that are killed while their pages compute."""
PAGES = ("tokens", "heads", "attention", "steps", "similarity", "embeddings")
PATIENCE = 120.0
"""Time limit for a page in seconds."""
LIKE = 64
"""Relative tolerance of displayed values in ULP, because the app uses a different number of threads."""
SESSION_BYTES = 8_000_000
"""Memory limit of an open page in bytes, without caches; see docs/caching.md."""
BOUND = shared_cache.TRACE_BYTES + shared_cache.ANSWER_BYTES + READERS * SESSION_BYTES
"""Maximum of the memory of shared caches and all user sessions together, in bytes; see docs/caching.md."""
_NAMES = ("boat", "river", "bridge", "window", "garden", "forest", "street", "letter", "kitchen", "market")


class SessionLoad:
    """Simulates users of the app, and collects their results.

    Args:
        checkpoint: The model to compute the expected tables with.
        port: Port of the app on 127.0.0.1.
        end: Time at which users stop, on the clock of `time.monotonic`.

    Attributes:
        took: Page -> response times in seconds.
        wrong: Descriptions of wrong results.
    """

    def __init__(self, checkpoint: Checkpoint, port: int, end: float) -> None:
        self.checkpoint, self.port, self.end = checkpoint, port, end
        self.took: dict[str, list[float]] = defaultdict(list)
        self.wrong: list[str] = []
        self._computing = threading.Lock()

    def read(self, number: int) -> None:
        """Simulate a user who opens one page after another, each with a new text."""
        try:
            with Session(self.port) as session:
                turn = 0
                while time.monotonic() < self.end:
                    self._one(session, number, turn)
                    turn += 1
        except (OSError, TimeoutError, WebSocketException) as error:
            self.wrong.append(f"reader {number}: {type(error).__name__} {error}")

    def _one(self, session: Session, number: int, turn: int) -> None:
        page, text = PAGES[(number + turn) % len(PAGES)], _text(number, turn)
        start = time.monotonic()
        # A new value of `went` means "Back" or "Forward"; otherwise the session would keep its text.
        session.open(page, PATIENCE, a=text, went=str(turn))
        self.took[page].append(time.monotonic() - start)
        content = b"".join(message.SerializeToString() for message in session.messages)
        if session.raised() or text.encode() not in content:
            self.wrong.append(f"/{page}?a={text}: {session.raised() or 'the text of the user is missing'}")
        other = _mark((number + 1) % READERS).encode()
        if other in content:
            self.wrong.append(f"/{page}?a={text}: contains the text of another user")
        if page in ("tokens", "heads") and not self._right(page, text, session.tables()):
            self.wrong.append(f"/{page}?a={text}: the table differs from that of the library")

    def _right(self, page: str, text: str, tables: list[Any]) -> bool:
        with self._computing:
            trace = self.checkpoint.trace(text)
            ours = (Tokens() if page == "tokens" else Heads()).of(trace).table()
        same = _same_tokens if page == "tokens" else _same_heads
        return any(len(table) == len(ours) and same(table, ours) for table in tables)


def _same_tokens(displayed: pd.DataFrame, ours: pd.DataFrame) -> bool:
    return all(list(displayed[name]) == list(ours[name]) for name in ("id", "token"))


def _same_heads(displayed: pd.DataFrame, ours: pd.DataFrame) -> bool:
    displayed = displayed.sort_values(["layer", "head"])
    return _near(displayed["entropy_bits"], ours["entropy_bits"])


def _near(displayed: Any, ours: Any) -> bool:
    return bool(np.abs(np.asarray(displayed, np.float64) - ours).max() <= LIKE * ULP * np.abs(ours).max())


def _mark(number: int) -> str:
    return f"{_NAMES[number % 10]} {_NAMES[number // 10 % 10]} {number}x"


def _text(number: int, turn: int) -> str:
    return f"The {_mark(number)} crosses the wide river {turn} times at night."


def lines(run: Run) -> Iterator[Line]:
    seconds = run.times(SECONDS)
    log = run.folder / "app.log"
    with running_app.started(log) as app:
        server = psutil.Process(app.process.pid)
        with Session(app.port) as first:  # the first session imports modules and opens the model
            for page in PAGES:
                first.open(page, 300)
        warm = server.memory_info().rss
        crowd = SessionLoad(load(), app.port, time.monotonic() + seconds)
        readers = run.times(READERS)
        memory = _memory_while(crowd, server, readers)
        yield from _answers(run, crowd, f"{readers} readers for {seconds} s")
        yield _flat(run, memory, warm)
        yield _killed(run, app.port, server)


def _memory_while(crowd: SessionLoad, server: psutil.Process, readers: int) -> list[int]:
    """Simulate users, and return the memory of the server in bytes once per second meanwhile."""
    memory = []
    with ThreadPoolExecutor(readers) as pool:
        reading = [pool.submit(crowd.read, number) for number in range(readers)]
        while not all(future.done() for future in reading):
            memory.append(server.memory_info().rss)
            time.sleep(1.0)
    for future in reading:
        future.result()
    return memory


def _answers(run: Run, crowd: SessionLoad, who: str) -> Iterator[Line]:
    for wrong in crowd.wrong:
        run.failed(wrong)
    total = sum(map(len, crowd.took.values()))
    yield Line(
        "Responses, all correct and for the right session",
        f"{who}, one WebSocket each, a new text each time",
        f"{total:,}, {len(crowd.wrong)} wrong",
        "0 wrong",
        total > 0 and not crowd.wrong,
    )
    for page, took in sorted(crowd.took.items()):
        late = statistics.quantiles(took, n=20)[-1] if len(took) > 1 else took[0]
        yield Line(
            f"/{page}, from the request to its last element",
            "all sessions at once, without pauses",
            f"95 % within {late:.1f} s; median {statistics.median(took):.1f} s of {len(took):,}",
            "",
            None,
        )


def _flat(run: Run, memory: list[int], warm: int) -> Line:
    half = len(memory) // 2
    middle, last = (statistics.median(part) for part in (memory[half // 2 : half + 1], memory[half:]))
    grown, top = last - middle, max(memory) - warm
    is_met = top <= BOUND
    if not is_met:
        run.failed(f"The app's memory grew by {top / 1e6:.0f} MB.")
    return Line(
        "Memory of the app above that with an open model and one session",
        "resident, every second",
        f"at most {top / 1e6:.0f} MB; from the second quarter to the second half {grown / 1e6:+.0f} MB",
        f"{BOUND / 1e6:,.0f} MB: caches, and {SESSION_BYTES / 1e6:.0f} MB per session",
        is_met,
    )


def _killed(run: Run, port: int, server: psutil.Process) -> Line:
    """Abort connections during a job, as killed browsers would; check that the job stops."""
    sentences = "\n".join(f"We left the ground {number} times." for number in range(400))
    idle, before = server.num_threads(), server.memory_info().rss
    broken = []
    for number in range(run.times(KILLED)):
        session = Session(port)
        session.ask("sentences", sentences=f"{number}\n{sentences}"[:5_500])
        broken.append(session)
    time.sleep(1.0)
    for session in broken:
        with suppress(OSError):
            session.break_off()
    start = time.monotonic()
    while _busy(server) and time.monotonic() - start < 3 * GRACE:
        time.sleep(0.5)
    seconds = time.monotonic() - start
    if _busy(server):
        run.failed(f"Jobs still compute {3 * GRACE:.0f} s after their connections were closed.")
    with Session(port) as session:
        session.open("tokens", PATIENCE)
    more, new = server.memory_info().rss - before, server.num_threads() - idle
    return Line(
        "Connections dropped during jobs",
        f"{len(broken)} of them, without a close frame, as when a browser is killed",
        f"idle after {seconds:.1f} s; memory {more / 1e6:+.0f} MB, threads {new:+d}",
        f"idle within {3 * GRACE:.0f} s",
        seconds < 3 * GRACE,
    )


def _busy(server: psutil.Process) -> bool:
    return bool(server.cpu_percent(interval=1.0) > 20)
