"""Write the logs of long commands: files with a line of JSON for each event."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from bert_probe.cli.options import reserve_outputs
from bert_probe.errors import ExportError, SelectionError
from bert_probe.text.sentence_files import is_file

Keys = Sequence[tuple[str, ...]]
"""The possible keys of the lines of a log, in order."""

_LINE_BYTES = 10_000
"""Maximum size of a line. A line of a log has only a few numbers."""


@contextmanager
def reserve_log(file: Path | None, out: Path, overwrite: bool, keys: Keys) -> Iterator[None]:
    """Reserve a log for the duration of the block, in which `open_log` can open it.

    Args:
        file: the log; None, a pipe or a device is not reserved.
        out: the output folder of the command.
        overwrite: whether the log may exist.
        keys: see `check_log`.

    Raises:
        ExportError: see `reserve_outputs` and `check_log`.
        SelectionError: the log is the output folder, or is in it.
    """
    logs = [] if file is None or _is_special(file) else [file]
    for log in logs:
        folder, path = Path(os.path.realpath(out)), Path(os.path.realpath(log))
        if path.is_relative_to(folder):
            relation = "is" if path == folder else "is in"
            raise SelectionError(
                f"The log {log} {relation} the output folder {out}. Choose another path for the log."
            )
    with reserve_outputs(logs, overwrite):
        for log in logs:
            check_log(log, keys)
        yield


@contextmanager
def open_log(file: Path | None, mode: str, keys: Keys) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Yield a function that appends an event to a log; without a file, the function does nothing.

    If an event cannot be written, for example because the disk is full, the function prints a warning and
    does nothing from then on, so that the work of the command is not lost.

    Args:
        file: the log.
        mode: "x" to create a file, "w" to replace a log, "a" to append to a log.
        keys: see `check_log`.

    Raises:
        ExportError: the file cannot be opened, exists although `mode` is "x", or is not such a log.
    """
    if file is None:
        yield lambda _: None
        return
    try:
        check_log(file, keys)
        if _is_special(file):  # a pipe cannot be created or replaced, only written
            mode = "w"
        stream = file.open(f"{mode}b", buffering=0)
    except OSError as error:
        raise ExportError(f"{file} cannot be written: {error.strerror}. Choose another path.") from None
    is_open = True

    def write(event: Mapping[str, Any]) -> None:
        nonlocal is_open
        line, written = json.dumps(event).encode() + b"\n", 0
        try:
            while is_open and written < len(line):
                written += stream.write(line[written:])
        except OSError as error:
            is_open = False
            with suppress(OSError):  # Remove the incomplete line, so that the log can be continued.
                stream.truncate(stream.seek(0, os.SEEK_END) - written)
            reason = f"{file} cannot be written: {error.strerror}"
            click.echo(f"Warning: {reason}. The command continues without the log.", err=True)

    with stream:
        yield write


def _is_special(file: Path) -> bool:
    """Return whether a path exists and is not a regular file, such as a pipe or a device."""
    return os.path.exists(file) and not is_file(file)  # noqa: PTH110 - see `is_file`


def check_log(file: Path, keys: Keys) -> None:
    """Raise an error if a file exists and has a line that is not an event of this command.

    Args:
        file: the log. An empty file is a log, and so are a pipe and a device.
        keys: the possible keys of an event, in order.

    Raises:
        ExportError: the file is not such a log, or cannot be read.
    """
    if not is_file(file):
        return
    try:
        with file.open("rb") as stream:
            is_log = all(_keys(line) in keys for line in iter(lambda: stream.readline(_LINE_BYTES), b""))
    except OSError as error:
        raise ExportError(f"{file} cannot be read: {error.strerror}. Choose another file.") from None
    if not is_log:
        raise ExportError(
            f"{file} exists and is not a log that this command wrote. Choose another path for the log."
        )


def _keys(line: bytes) -> tuple[str, ...] | None:
    """Return the keys of a JSON object; None for other lines and for a line without a line break."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return tuple(event) if isinstance(event, dict) and line.endswith(b"\n") else None
