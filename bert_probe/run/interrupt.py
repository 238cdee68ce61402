"""Ctrl+C as a wish that work ends at its next report, with what it has."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bert_probe.model.progress import Cancelled, Report


@contextmanager
def ending_on_interrupt(report: Report) -> Iterator[Report]:
    """The same report, which raises `Cancelled` after the first Ctrl+C; the second one interrupts as ever.

    Elsewhere than in the main thread, which alone is interrupted, it is the report as it is.
    """
    wished = threading.Event()

    def heard(number: int, frame: Any) -> None:
        if wished.is_set():
            signal.default_int_handler(number, frame)
        wished.set()

    def asked(done: int, total: int) -> None:
        if wished.is_set():
            raise Cancelled
        report(done, total)

    if threading.current_thread() is not threading.main_thread():
        yield report
        return
    before = signal.signal(signal.SIGINT, heard)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
