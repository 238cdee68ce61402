"""Ctrl+C as a wish that work ends at its next report, with what it has; SIGTERM that cleans up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from bert_probe.model.progress import Cancelled, Progress


@contextmanager
def ending_on_interrupt(report: Progress) -> Iterator[Progress]:
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


@contextmanager
def cleaning_up_on_sigterm() -> Iterator[None]:
    """Raise SystemExit on SIGTERM and SIGHUP, so that temporary files and reservations are removed.

    By default both end the process at once. Outside the main thread, which alone may set handlers, nothing
    changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, _exit) for number in numbers if _ends_process(number)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ends_process(number: int) -> bool:
    """Return whether a signal is handled by default, and not ignored as nohup does it."""
    return signal.getsignal(number) is signal.SIG_DFL


def _exit(number: int, _frame: Any) -> NoReturn:
    raise SystemExit(128 + number)
