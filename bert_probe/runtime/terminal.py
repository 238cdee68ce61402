"""What reaches a terminal: text and line ends, and nothing that would steer it."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO

from bert_probe.errors import ExportError

_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Controls (C0, DEL, C1), line separators, marks that turn the order of writing, half surrogates."""


def visible(text: str, kept: str = "") -> str:
    """A text with what would steer a terminal written out, as in ``\\x1b``; one line.

    Args:
        kept: characters that stay as they are.
    """
    return _STEERING.sub(
        lambda found: found[0] if found[0] in kept else found[0].encode("unicode_escape").decode(), text
    )


@contextmanager
def streams() -> Iterator[None]:
    """Standard output and error become `SafeStream`s while the block lasts; a closed one stays closed."""
    out = None if sys.stdout is None else SafeStream(sys.stdout, "Standard output")
    err = None if sys.stderr is None else SafeStream(sys.stderr)
    with redirect_stdout(out), redirect_stderr(err):
        yield


class SafeStream(io.TextIOBase):
    """A text stream on which names, errors and warnings of any origin are safe to write.

    Attributes:
        direct: the stream behind it, for what draws with control characters of its own.
    """

    def __init__(self, direct: TextIO, name: str = "") -> None:
        """Write to ``direct``; where that fails, say so under this name, or without one leave it."""
        self.direct = direct
        self._name = name

    def write(self, text: str) -> int:
        """Write a text, line ends and tabs as they are."""
        encoding = self.direct.encoding or "utf-8"
        shown = visible(text, kept="\n\t").encode(encoding, "backslashreplace").decode(encoding)
        if shown:  # click tries a stream with nothing, and lets what that raises go unheard
            with self._failing():
                self.direct.write(shown)
        return len(text)

    def write_bytes(self, content: bytes) -> None:
        """Write data, exactly, and send them off."""
        with self._failing():
            self.direct.flush()
            self.direct.buffer.write(content)
            self.direct.buffer.flush()

    def flush(self) -> None:
        """Send off what is written.

        Raises:
            ExportError: it cannot be; a reader that has seen enough (``| head``) is no error.
        """
        with self._failing():
            self.direct.flush()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # Nothing more can be written, not even what is still buffered at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.direct.fileno())
            if self._name and not isinstance(error, BrokenPipeError):
                raise ExportError(f"{self._name} cannot be written: {error.strerror}.") from None

    def isatty(self) -> bool:
        """Never: who writes colours for a terminal is to leave them out."""
        return False

    def fileno(self) -> int:
        """That of the stream behind it."""
        return self.direct.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """That of the stream behind it."""
        return self.direct.encoding

    def writable(self) -> bool:
        """Always."""
        return True


def direct(stream: Any) -> Any:
    """The stream behind a `SafeStream`; any other is its own."""
    return stream.direct if isinstance(stream, SafeStream) else stream
