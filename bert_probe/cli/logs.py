"""What happens during long work, in a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bert_probe.errors import ExportError

_LOG_STARTS = (b'{"seconds": ', b'{"step": ')
"""The first bytes of a log, of a corpus and of a training."""


@contextmanager
def lines_of_json(file: Path | None, mode: str) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Writes what it is called with into a file as it comes, a line each; without a file nothing.

    Args:
        mode: "x" to create the file, "w" to begin a log anew, "a" to append to a log.

    Raises:
        ExportError: if it cannot be written, exists and must not, or is something else than such lines.
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
    """Refuse to write into a file of another kind, for example into the data that are read.

    Raises:
        ExportError: if it is one, or cannot be read.
    """
    if not file.is_file():  # a new one, a pipe or a device
        return
    try:
        with file.open("rb") as stream:
            start = stream.read(max(map(len, _LOG_STARTS)))
    except OSError as error:
        raise ExportError(f"{file} cannot be read: {error.strerror}. Choose another place.") from None
    if start and not start.startswith(_LOG_STARTS):
        raise ExportError(f"{file} exists and is not a log. Choose another name for the log.")
