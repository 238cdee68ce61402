"""Reserve output files before a computation, and write them completely or not at all.

A path is reserved by an operating system lock on a hidden file next to it. The system releases the lock of a
killed process, so no reservation outlives its owner.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from bert_probe.errors import ExportError

_LOCK_PREFIX, _LOCK_SUFFIX = ".bert-probe-", ".lock"
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""Error numbers of file systems without locks, where files are not protected against concurrent writers."""
_WAIT = 5.0
"""Seconds that `write` waits for another writer. Writers normally hold their lock for milliseconds."""

_reserved: ContextVar[frozenset[Path]] = ContextVar("reserved", default=frozenset())
"""Paths that the current context has reserved but has not started to write."""


@contextmanager
def reserved(files: Iterable[Path], overwrite: bool) -> Iterator[None]:
    """Reserve output files for the duration of the block, in which `write` may write them.

    Enter the block before a long computation, so that an unwritable file fails early.

    Raises:
        ExportError: a file cannot be written, is listed twice, is being written by another command, or must
            not be overwritten.
    """
    places: dict[Path, Path] = {}
    for file in files:
        with _system_errors(file):
            place = _target(file)
        if place in places:
            raise ExportError(f"{file} is the path of two output files. Choose different paths.")
        places[place] = file
    with ExitStack() as stack:
        for place, file in sorted(places.items()):
            with _system_errors(file):
                if place.is_file() or not place.exists():  # pipes and devices are not locked
                    stack.enter_context(locked([place], reserve=True))
        if not overwrite:
            _check_new(places.values())
        yield


@contextmanager
def locked(places: Iterable[Path], reserve: bool = False, wait: float = 0.0) -> Iterator[None]:
    """Lock paths against other processes and threads that use this function.

    Args:
        places: resolved paths of files or folders, which need not exist.
        reserve: reserve the paths for a writer that is called inside the block. The writer calls this
            function without `reserve`. In the same context, it takes over the lock.
        wait: seconds to wait for another writer.

    Raises:
        ExportError: another process or thread has locked one of the paths.
        OSError: no lock file can be created, because the folder is not writable.
    """
    reserved_before, requested = _reserved.get(), frozenset(places)
    with ExitStack() as stack:
        # Lock in sorted order, so that two writers cannot deadlock.
        for place in sorted(requested - reserved_before):
            stack.enter_context(_lock(place, wait))
        token = _reserved.set(reserved_before | requested if reserve else reserved_before - requested)
        try:
            yield
        finally:
            _reserved.reset(token)


def is_reserved(place: Path) -> bool:
    """Return whether the current context has reserved a path."""
    return place in _reserved.get()


def is_lock_file(file: Path) -> bool:
    """Return whether a file is a lock file of `locked`, even if a killed process left it behind."""
    return file.name.startswith(_LOCK_PREFIX) and file.name.endswith(_LOCK_SUFFIX)


def write(contents: Mapping[Path, bytes], overwrite: bool = True) -> None:
    """Write contents to files, all of them or none.

    A replaced file keeps its permissions. If a path is a symbolic link, the file that it points to is
    written. Pipes and devices are written directly. If there are several files, all but the first are
    metadata of the first. The metadata files are deleted before the first file is replaced, so that a
    table is never next to the metadata of another table.

    Args:
        overwrite: whether existing files are replaced. If False, files that another program creates during
            the call are not replaced either.

    Raises:
        ExportError: a file cannot be written, or exists and must not be overwritten.
    """
    places: dict[Path, bytes] = {}
    for file, content in contents.items():
        with _system_errors(file):
            place = _target(file)
            if place.exists() and not place.is_file():
                if not overwrite:
                    _check_new([file])
                place.write_bytes(content)
            else:
                places[place] = content
    if not places:
        return
    with _system_errors(next(iter(contents))), locked(places, wait=_WAIT):
        if not overwrite:
            _check_new(places)
        _write_together(places, overwrite)


def _write_together(contents: Mapping[Path, bytes], overwrite: bool) -> None:
    parts: dict[Path, Path] = {}
    published: list[Path] = []
    try:
        for place, content in contents.items():
            parts[place] = place.with_name(f".{secrets.token_hex(6)}.part")
            with _system_errors(place):
                _write_new(parts[place], content, place)
        if overwrite:
            for place in list(parts)[1:]:
                place.unlink(missing_ok=True)
        for place in list(parts):
            with _system_errors(place):
                _publish(parts[place], place, overwrite)
            published.append(place)
            del parts[place]
    except BaseException:
        if not overwrite:
            for place in published:
                place.unlink(missing_ok=True)
        raise
    finally:
        for part in parts.values():
            with suppress(OSError):  # ignored, because the temporary file may not exist
                part.unlink()


def _publish(part: Path, place: Path, overwrite: bool) -> None:
    """Rename a completely written temporary file to its final path."""
    if overwrite:
        part.replace(place)
        return
    try:
        os.link(part, place)  # a hard link fails if the file exists, while a rename would replace the file
    except FileExistsError:
        raise _exists(place) from None
    except OSError:  # The file system does not support hard links.
        try:
            os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        except FileExistsError:
            raise _exists(place) from None
        part.replace(place)
        return
    part.unlink()


def _check_new(files: Iterable[Path]) -> None:
    for file in files:
        if file.exists():
            raise _exists(file)


def _exists(file: Path) -> ExportError:
    return ExportError(f"{file} already exists. Choose another name, or replace it with --force.")


@contextmanager
def _lock(place: Path, wait: float) -> Iterator[None]:
    from filelock import FileLock, Timeout  # imported here because filelock imports asyncio, which is slow

    lock = FileLock(_lock_file(place), timeout=wait, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise ExportError(
            f"{place} is being written by another command. Wait until that command has ended, or choose "
            "another name."
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    try:
        yield
    finally:
        if lock.is_locked:
            # Deleting the locked file is safe, because filelock rejects locks on unlinked files.
            with suppress(OSError):
                os.unlink(lock.lock_file)  # noqa: PTH108 - a str
            lock.release()


def _lock_file(place: Path) -> Path:
    """Return the lock file of a path: next to it, or inside it for a folder with a read-only parent."""
    digest = hashlib.sha256(os.fsencode(place.name)).hexdigest()[:16]
    parent = place if place.is_dir() and not os.access(place.parent, os.W_OK) else place.parent
    return parent / f"{_LOCK_PREFIX}{digest}{_LOCK_SUFFIX}"


def _target(file: Path) -> Path:
    """Return the path of a file with all symbolic links resolved.

    Raises:
        OSError: no file can be written at this path.
    """
    place = Path(os.path.realpath(file))
    with suppress(FileNotFoundError):
        os.lstat(place)  # raises an error if the name is too long or a parent is a file
    if place.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if not place.parent.is_dir():  # raise an error here, because filelock would create the folder
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    if place.is_dir():
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    # Check the permissions of the file, because a rename ignores them.
    if place.exists() and not os.access(place, os.W_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    return place


def _write_new(file: Path, content: bytes, like: Path) -> None:
    """Create a file with this content, and copy the permissions of the file `like` if it exists."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as stream:
        stream.write(content)
    if like.exists():
        file.chmod(stat.S_IMODE(like.stat().st_mode))


@contextmanager
def _system_errors(file: Path) -> Iterator[None]:
    """Convert an error of the operating system to an ExportError that names the file."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError is raised if the name contains a NUL.
        reason = getattr(error, "strerror", None) or error
        raise ExportError(f"{file} cannot be written: {reason}. Choose another path.") from None
