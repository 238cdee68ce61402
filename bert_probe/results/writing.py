"""Files written whole or not at all: beside their place first, then renamed into it."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from bert_probe.errors import ExportError


def check_new(files: list[Path]) -> None:
    """Refuse places where something is.

    Raises:
        ExportError: with the first of them.
    """
    for file in files:
        try:
            taken = file.exists()
        except (OSError, ValueError):  # a name too long, or with a NUL: told when it is written
            continue
        if taken:
            raise ExportError(f"{file} is there already. Choose another name, or have it replaced (--force).")


def write(contents: Mapping[Path, bytes]) -> None:
    """Put contents into files, all of them or none; what is there is replaced and keeps its permissions.

    A symbolic link stays, and the file that it names is written. What is no plain file, such as a pipe or a
    device, is written as it is. Of several files the later ones tell about the first: they are taken away
    before it is replaced, so that no table ever stands beside what belongs to another.

    Raises:
        ExportError: one that cannot be written; nothing half-written is left behind.
    """
    beside: dict[Path, Path] = {}
    try:
        for file, content in contents.items():
            with _told(file):
                place = _place(file)
                if place.exists() and not place.is_file():
                    place.write_bytes(content)
                    continue
                beside[place] = place.with_name(f".{secrets.token_hex(6)}.part")
                _write_new(beside[place], content, place)
        for place in list(beside)[1:]:
            place.unlink(missing_ok=True)
        for place in list(beside):
            with _told(place):
                beside[place].replace(place)
            del beside[place]
    finally:
        for left in beside.values():
            with suppress(OSError):  # it never came to be
                left.unlink()


def _place(file: Path) -> Path:
    """Where a file's content lies, behind all links."""
    place = Path(os.path.realpath(file))
    if place.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if place.is_dir():
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if place.exists() and not os.access(place, os.W_OK):  # a rename would not ask
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    return place


def _write_new(file: Path, content: bytes, like: Path) -> None:
    """A file that is not there yet, with the permissions of another where there is one."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as stream:
        stream.write(content)
    if like.exists():
        file.chmod(stat.S_IMODE(like.stat().st_mode))


@contextmanager
def _told(file: Path) -> Iterator[None]:
    """Whatever the system refuses within this block is a sentence about the file."""
    try:
        yield
    except (OSError, ValueError) as error:  # a ValueError where the name holds a NUL
        reason = getattr(error, "strerror", None) or error
        raise ExportError(f"{file} cannot be written: {reason}. Choose another place.") from None
