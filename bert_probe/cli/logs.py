"""Log files of long commands: one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bert_probe.errors import ExportError

_LOG_STARTS = (b'{"seconds": ', b'{"step": ')
"""First bytes of the log of a corpus run and of a training."""


@contextmanager
def open_log(file: Path | None, mode: str) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yield a function that writes an event to a log at once; without a file it does nothing.

    Args:
        file: the log.
        mode: "x" to create the file, "w" to replace a log, "a" to append to a log.

    Raises:
        ExportError: if the file cannot be written, exists although `mode` is "x", or is not a log.
    """
    if file is None:
        yield lambda _: None
        return
    try:
        check_log(file)
        if file.exists() and not file.is_file():  # a pipe or a device
            mode = "w"
        with file.open(mode, encoding="utf-8") as stream:

            def write(event: Mapping[str, Any]) -> None:
                stream.write(json.dumps(event) + "\n")
                stream.flush()

            yield write
    except OSError as error:
        raise ExportError(f"{file} cannot be written: {error.strerror}. Choose another place.") from None


def check_log(file: Path) -> None:
    """Refuse a file that exists and is not a log, for example the data that the command reads.

    Raises:
        ExportError: if it is not a log, or cannot be read.
    """
    if not file.is_file():  # does not exist, or is a pipe or a device
        return
    try:
        with file.open("rb") as stream:
            start = stream.read(max(map(len, _LOG_STARTS)))
    except OSError as error:
        raise ExportError(f"{file} cannot be read: {error.strerror}. Choose another place.") from None
    if start and not start.startswith(_LOG_STARTS):
        raise ExportError(f"{file} exists and is not a log. Choose another name for the log.")
