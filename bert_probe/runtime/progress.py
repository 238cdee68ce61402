"""Terminal progress bars, cancellation by Ctrl+C at the next progress report, and handling of SIGTERM."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TextIO

from tqdm import tqdm

from bert_probe.model.progress import Cancelled, Progress, no_progress
from bert_probe.runtime import terminal

PATIENCE = 1.0
"""Seconds before a progress bar appears, so that short tasks do not show a bar."""


@contextmanager
def terminal_bar(label: str, unit: str) -> Iterator[Progress]:
    """Show a progress bar on standard error within the context, and erase it at the end.

    The bar appears after `PATIENCE` seconds, and only if standard error is a terminal. The displayed rate
    excludes work that was already done at the first report, for example by an earlier run.

    Args:
        label: description in front of the bar.
        unit: unit of the counts; "B" for bytes, which are shown as MB.
    """
    screen = terminal.direct(sys.stderr)
    if screen is None or not screen.isatty():
        yield no_progress
        return
    in_bytes = unit == "B"
    with tqdm(
        desc=label,
        unit=unit if in_bytes else f" {unit}",
        unit_scale=in_bytes,
        delay=PATIENCE,
        smoothing=0,
        miniters=0,
        leave=False,
        position=0,  # by default, tqdm would draw below the hub client's invisible bars
        ncols=_columns(screen) - 1,
        nrows=24,  # by default, tqdm writes nothing if the terminal reports 0 rows
        file=screen,
    ) as bar:
        bar.initial = None

        def progress(done: int, total: int) -> None:
            if bar.initial is None:
                bar.initial = done
            bar.n, bar.total = done, total or None
            bar.update(0)

        yield progress


def _columns(screen: TextIO) -> int:
    """Return the width of the terminal in columns, or 80 if it is unknown."""
    try:
        return os.get_terminal_size(screen.fileno()).columns or 80
    except OSError:
        return 80


@contextmanager
def cancel_on_interrupt(progress: Progress) -> Iterator[Progress]:
    """Yield a callback that raises `Cancelled` after Ctrl+C; a second Ctrl+C interrupts immediately.

    Only the main thread receives interrupts; in other threads, the original callback is yielded.
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
    previous_handlers = {
        number: signal.signal(number, _exit)
        for number in numbers
        if signal.getsignal(number) is signal.SIG_DFL  # custom handlers are not replaced
    }
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


def _exit(number: int, _frame: Any) -> NoReturn:
    raise SystemExit(128 + number)
