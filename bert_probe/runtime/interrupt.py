"""Handle Ctrl+C as a request to stop at the next progress report, and clean up on SIGTERM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from bert_probe.model.progress import Cancelled, Progress


@contextmanager
def cancel_on_interrupt(progress: Progress) -> Iterator[Progress]:
    """Yield a callback that raises `Cancelled` after the first Ctrl+C; the second Ctrl+C interrupts
    immediately.

    Only the main thread receives interrupts; in any other thread, yield the callback unchanged.
    """
    interrupted = threading.Event()

    def on_interrupt(number: int, frame: Any) -> None:
        if interrupted.is_set():
            signal.default_int_handler(number, frame)
        interrupted.set()

    def cancellable_progress(done: int, total: int) -> None:
        if interrupted.is_set():
            raise Cancelled
        progress(done, total)

    if threading.current_thread() is not threading.main_thread():
        yield progress
        return
    previous_handler = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield cancellable_progress
    finally:
        signal.signal(signal.SIGINT, previous_handler)


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Raise SystemExit on SIGTERM and SIGHUP, so that temporary files and reservations are removed.

    By default, both signals end the process immediately. Only the main thread may set handlers; in any other
    thread, this function has no effect.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    previous_handlers = {number: signal.signal(number, _exit) for number in numbers if _ends_process(number)}
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


def _ends_process(number: int) -> bool:
    """Return whether a signal ends the process, that is, has its default handler."""
    return signal.getsignal(number) is signal.SIG_DFL


def _exit(number: int, _frame: Any) -> NoReturn:
    raise SystemExit(128 + number)
