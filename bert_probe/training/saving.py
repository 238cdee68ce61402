"""A folder written whole or not at all: beside its place first, then renamed into it."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from safetensors import SafetensorError

from bert_probe.errors import ExportError
from bert_probe.model.memory import in_words

_PART, _OLD = ".part", ".old"


def check_place(place: Path, size: int, replaces: bool) -> None:
    """Refuse a place where a folder of about so many bytes cannot be written, before anything is computed.

    Raises:
        ExportError: something is there that is not to be replaced, or no folder; no folder above it that can
            be written; a disk too full.
    """
    try:
        with suppress(FileNotFoundError):
            os.lstat(place)  # a name that no file can have is refused here
        if place.exists() and not place.is_dir():
            raise ExportError(f"{place} is a file, and a folder is to be written. Choose another name.")
        holds = place.is_dir() and any(place.iterdir())
        if holds and not replaces:
            raise ExportError(
                f"{place} is there already. Choose another name, or have it replaced (--force)."
            )
        if holds and not (place / "config.json").is_file():
            raise ExportError(
                f"{place} holds other things than a model, which are not replaced. Choose another name."
            )
        above = place.absolute().parent
        if not above.is_dir():
            raise ExportError(f"There is no folder {above}. Make it, or choose another place.")
        if not os.access(above, os.W_OK):
            raise ExportError(f"Nothing can be written in {above}. Choose another place.")
        free = shutil.disk_usage(above).free
    except (OSError, ValueError) as error:  # a ValueError where the name holds a NUL
        raise _refused(place, error) from None
    if free < size:
        raise ExportError(
            f"{place} needs about {in_words(size)}, and {in_words(free)} are free on its disk. Make room, or "
            "choose another place."
        )


def leftovers(place: Path) -> list[str]:
    """What processes that were ended while they wrote a place left beside it, a sentence each."""
    found = []
    with suppress(OSError, ValueError):
        for one in sorted(place.absolute().parent.glob(f".{_plain(place.name)}.*")):
            if one.suffix == _PART:
                found.append(f"{one} was left half-written by a process that was ended. Delete it.")
            elif one.suffix == _OLD and place.exists():
                found.append(f"{one} is what {place} held before. Delete it.")
            elif one.suffix == _OLD:
                found.append(f"{one} is what {place} held before it was to be replaced. Rename it back.")
    return found


def _plain(name: str) -> str:
    """A name in which no character means more than itself to a search for files."""
    return "".join(f"[{one}]" if one in "*?[" else one for one in name)


def write_folder(place: Path, fill: Callable[[Path], None], replaces: bool = False) -> None:
    """Make a folder; one that is there is replaced only when the new one is complete.

    Args:
        fill: writes into an empty folder.

    Raises:
        ExportError: it cannot be written; nothing of it is left, and what was there is as it was.
    """
    check_place(place, 0, replaces)
    name = f".{place.name}.{secrets.token_hex(6)}"
    part, old = (place.absolute().with_name(name + end) for end in (_PART, _OLD))
    try:
        part.mkdir()
        fill(part)
        _kept(part)
        if place.exists():
            place.replace(old)
            try:
                part.replace(place)
            except BaseException:
                old.replace(place)
                raise
        else:
            part.replace(place)
    except (OSError, ValueError, SafetensorError) as error:
        raise _refused(place, error) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
        if place.exists():
            shutil.rmtree(old, ignore_errors=True)


def write_zip(file: BinaryIO, name: str, fill: Callable[[Path], None], size: int) -> None:
    """A folder as a zip, by way of a temporary one; not compressed, as weights do not shrink.

    Args:
        name: of the folder within.
        size: bytes that it takes, about.

    Raises:
        ExportError: it cannot be written; nothing of it is left but what is in the file.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="bert-probe-") as above:
            free = shutil.disk_usage(above).free
            if free < 2 * size:
                raise ExportError(
                    f"To be packed the model needs about {in_words(2 * size)}, and {in_words(free)} are free "
                    f"in {above}. Make room, or save it in a folder."
                )
            folder = Path(above) / name
            folder.mkdir()
            fill(folder)
            with zipfile.ZipFile(file, "w") as packed:
                for one in sorted(folder.rglob("*")):
                    packed.write(one, one.relative_to(above))
                    if one.is_file():
                        one.unlink()
    except (OSError, ValueError, SafetensorError) as error:
        raise ExportError(f"The model cannot be packed: {_reason(error)}. Save it in a folder.") from None


def _kept(folder: Path) -> None:
    """See that what is written is on the disk before it takes the place of anything, and for whom it is: the
    writer of weights lets nobody else read them, whatever the person's own settings."""
    mode = stat.S_IMODE(folder.stat().st_mode) & 0o666
    for file in folder.rglob("*"):
        if file.is_file():
            file.chmod(mode)
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _refused(place: Path, error: Exception) -> ExportError:
    return ExportError(f"{place} cannot be written: {_reason(error)}. Choose another place.")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error).rstrip(".")
