"""What happens during long work, in a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bert_probe.errors import ExportError

_LOG_START = b'{"seconds": '
"""The first bytes of a log that is appended to."""


@contextmanager
def lines_of_json(file: Path | None, mode: str) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Writes what it is called with into a file as it comes, a line each; without a file nothing.

    Args:
        mode: "w" to begin the file anew, "a" to append to a log.

    Raises:
        ExportError: if it cannot be written, or would be appended to something else than such lines.
    """
    if file is None:
        yield lambda _: None
        return
    try:
        if mode == "a":
            _check_log(file)
        with file.open(mode, encoding="utf-8") as stream:

            def write(event: Mapping[str, Any]) -> None:
                stream.write(json.dumps(event) + "\n")
                stream.flush()

            yield write
    except OSError as error:
        raise ExportError(f"{file} cannot be written: {error.strerror}. Choose another place.") from None


def _check_log(file: Path) -> None:
    """Refuse to append to a file of another kind, for example to the data that are read."""
    if not file.is_file():  # a new one, a pipe or a device
        return
    with file.open("rb") as stream:
        start = stream.read(len(_LOG_START))
    if start and start != _LOG_START:
        raise ExportError(f"{file} exists and is not a log. Choose another name for the log.")
