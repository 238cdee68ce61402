"""The terminal: output with escaped control characters, progress bars, Ctrl+C and SIGTERM."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, NoReturn, TextIO

from bert_probe.errors import ExportError
from bert_probe.model.progress import Cancelled, Progress, no_progress

PATIENCE = 1.0
"""Seconds before a progress bar appears, so that short tasks do not show a bar."""

_CONTROL_CHARACTERS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Matches C0, DEL and C1 controls, line separators, bidirectional controls and surrogates."""


def visible(text: str, allowed: str = "") -> str:
    r"""Escape control characters, as in ``\x1b``, so that the result fits on one line.

    Args:
        text: the text to escape.
        allowed: characters that are not escaped.
    """
    return _CONTROL_CHARACTERS.sub(
        lambda match: match[0] if match[0] in allowed else match[0].encode("unicode_escape").decode(), text
    )


@contextmanager
def use_safe_streams() -> Iterator[None]:
    """Replace standard output and error with `SafeStream`s in the context. A missing stream stays None."""
    out = None if sys.stdout is None else SafeStream(sys.stdout, "Standard output")
    err = None if sys.stderr is None else SafeStream(sys.stderr)
    with redirect_stdout(out), redirect_stderr(err):
        yield


class SafeStream(io.TextIOBase):
    """A text stream that is safe for names, errors and warnings from untrusted sources.

    Attributes:
        direct: the underlying stream, for output with its own control characters.
    """

    def __init__(self, direct: TextIO, name: str = "") -> None:
        """Create a stream that writes to ``direct``.

        Error messages about failed writes contain the name; without a name, write errors are ignored.
        """
        self.direct = direct
        self._name = name

    def write(self, text: str) -> int:
        """Write text with control characters escaped, except line ends and tabs."""
        encoding = self.direct.encoding or "utf-8"
        escaped = visible(text, allowed="\n\t").encode(encoding, "backslashreplace").decode(encoding)
        if escaped:  # click writes "" to test a stream and expects no error
            with self._write_errors():
                self.direct.write(escaped)
        return len(text)

    def write_bytes(self, content: bytes) -> None:
        """Write bytes and flush; for a terminal, control characters except line ends and tabs are escaped."""
        if self.direct.isatty():
            content = visible(content.decode("utf-8", "replace"), allowed="\r\n\t").encode()
        with self._write_errors():
            self.direct.flush()
            self.direct.buffer.write(content)
            self.direct.buffer.flush()

    def flush(self) -> None:
        """Flush the stream. If the reader closed the pipe (``| head``), discard all further output.

        Raises:
            ExportError: writing failed for another reason.
        """
        with self._write_errors():
            self.direct.flush()

    @contextmanager
    def _write_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # From now on, discard all output, including output that is still buffered at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.direct.fileno())
            if self._name and not isinstance(error, BrokenPipeError):
                raise ExportError(f"{self._name} cannot be written: {error.strerror}.") from None

    def isatty(self) -> bool:
        """Return False, so that programs write no colors."""
        return False

    def fileno(self) -> int:
        """Return the file descriptor of the underlying stream."""
        return self.direct.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Return the encoding of the underlying stream."""
        return self.direct.encoding

    def writable(self) -> bool:
        """Return True, because text can be written to the stream."""
        return True


def direct(stream: Any) -> Any:
    """Return the stream behind a `SafeStream`; other streams are returned unchanged."""
    return stream.direct if isinstance(stream, SafeStream) else stream


@contextmanager
def terminal_bar(label: str, unit: str) -> Iterator[Progress]:
    """Show a progress bar on standard error within the context, and erase it at the end.

    The bar appears after `PATIENCE` seconds, and only if standard error is a terminal. The displayed rate
    excludes work that was already done at the first report, for example by an earlier run.

    Args:
        label: description in front of the bar.
        unit: unit of the counts; "B" for bytes, which are shown as MB.
    """
    screen = direct(sys.stderr)
    if screen is None or not screen.isatty():
        yield no_progress
        return
    from tqdm import tqdm  # imported here, because `bert-probe --help` does not need it

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
            try:
                bar.update(0)
            except OSError:  # the terminal was closed
                bar.disable = True

        yield progress


def _columns(screen: TextIO) -> int:
    """Return the width of the terminal in columns, or 80 if it is unknown."""
    try:
        return os.get_terminal_size(screen.fileno()).columns or 80
    except OSError:
        return 80


@contextmanager
def cancel_on_interrupt(progress: Progress, names: Sequence[str] = ("SIGINT",)) -> Iterator[Progress]:
    """Yield a callback that raises `Cancelled` after Ctrl+C; a second Ctrl+C interrupts immediately.

    Only the main thread receives interrupts; in other threads, the original callback is yielded.

    Args:
        progress: the original callback.
        names: names of the signals that have this effect. Another signal, or a second SIGHUP, has no effect,
            because a terminal that is closed and a system that shuts down send several.
    """
    interrupted = threading.Event()
    received: set[int] = set()

    def on_signal(number: int, frame: Any) -> None:
        if number in received and number == signal.SIGINT:
            signal.default_int_handler(number, frame)
        if number in received and number == signal.SIGTERM:
            _exit(number, frame)
        received.add(number)
        interrupted.set()

    def cancellable_progress(done: int, total: int) -> None:
        if interrupted.is_set():
            raise Cancelled
        progress(done, total)

    if threading.current_thread() is not threading.main_thread():
        yield progress
        return
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    previous_handlers = {
        number: signal.signal(number, on_signal)
        for number in numbers
        if signal.getsignal(number) is not signal.SIG_IGN  # as with nohup
    }
    try:
        yield cancellable_progress
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


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
