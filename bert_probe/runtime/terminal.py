"""Safe terminal output, in which control characters are escaped."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO

from bert_probe.errors import ExportError

_CONTROL_CHARACTERS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Matches C0, DEL and C1 controls, line separators, bidirectional controls and surrogates."""


def visible(text: str, allowed: str = "") -> str:
    r"""Escape control characters, as in ``\x1b``, so that the result fits on one line.

    Args:
        allowed: characters that are not escaped.
    """
    return _CONTROL_CHARACTERS.sub(
        lambda match: match[0] if match[0] in allowed else match[0].encode("unicode_escape").decode(), text
    )


@contextmanager
def streams() -> Iterator[None]:
    """Replace standard output and error with `SafeStream`s during the block; a closed stream stays closed."""
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
        if escaped:  # the library click writes "" to test a stream, and ignores errors
            with self._write_errors():
                self.direct.write(escaped)
        return len(text)

    def write_bytes(self, content: bytes) -> None:
        """Write bytes unchanged and flush."""
        with self._write_errors():
            self.direct.flush()
            self.direct.buffer.write(content)
            self.direct.buffer.flush()

    def flush(self) -> None:
        """Flush the stream.

        Raises:
            ExportError: writing failed, unless the reader closed the pipe (``| head``).
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
