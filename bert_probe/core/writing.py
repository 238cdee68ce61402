"""Reserve output files before a computation, and write them completely or not at all.

A path is reserved by an operating system lock on a hidden file next to it. The system releases the locks of a
process when the process ends, even if it is killed.
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
"""Error numbers of file systems without locks, on which concurrent writers are not detected."""
_WAIT = 5.0
"""Seconds that `write` waits for another writer. Writers normally hold their lock for milliseconds."""

_reserved: ContextVar[frozenset[Path]] = ContextVar("reserved", default=frozenset())
"""Paths that the current thread or task has reserved but has not started to write."""


@contextmanager
def reserved(files: Iterable[Path], overwrite: bool) -> Iterator[None]:
    """Reserve output files for the duration of the block, in which `write` may write them.

    Enter the block before a long computation, so that an unwritable file fails early.

    Raises:
        ExportError: a file cannot be written, is listed twice, is being written by another command, or must
            not be overwritten.
    """
    paths: dict[Path, Path] = {}
    for file in files:
        with _system_errors(file):
            path = _target(file)
        if path in paths:
            raise ExportError(f"{file} is the path of two output files. Choose different paths.")
        paths[path] = file
    with ExitStack() as stack:
        for path, file in sorted(paths.items()):
            with _system_errors(file):
                if path.is_file() or not path.exists():  # pipes and devices are not locked
                    stack.enter_context(locked([path], reserve=True))
        if not overwrite:
            _check_new(paths.values())
        yield


@contextmanager
def locked(paths: Iterable[Path], reserve: bool = False, wait: float = 0.0) -> Iterator[None]:
    """Lock paths against other processes and threads that use this function.

    Args:
        paths: resolved paths of files or folders, which need not exist.
        reserve: whether to reserve the paths for a writer that is called inside the block. The writer calls
            this function without `reserve`, in the same context, and then uses the existing lock.
        wait: seconds to wait for another writer.

    Raises:
        ExportError: another process or thread has locked one of the paths.
        OSError: no lock file can be created, because the folder is not writable.
    """
    reserved_before, requested = _reserved.get(), frozenset(paths)
    with ExitStack() as stack:
        # Lock in sorted order, so that two writers cannot deadlock.
        for path in sorted(requested - reserved_before):
            stack.enter_context(_lock(path, wait))
        token = _reserved.set(reserved_before | requested if reserve else reserved_before - requested)
        try:
            yield
        finally:
            _reserved.reset(token)


def is_reserved(path: Path) -> bool:
    """Return whether the current context has reserved a path."""
    return path in _reserved.get()


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
    paths: dict[Path, bytes] = {}
    for file, content in contents.items():
        with _system_errors(file):
            path = _target(file)
            if path.exists() and not path.is_file():
                if not overwrite:
                    _check_new([file])
                path.write_bytes(content)
            else:
                paths[path] = content
    if not paths:
        return
    with _system_errors(next(iter(contents))), locked(paths, wait=_WAIT):
        if not overwrite:
            _check_new(paths)
        _write_together(paths, overwrite)


def _write_together(contents: Mapping[Path, bytes], overwrite: bool) -> None:
    temporaries: dict[Path, Path] = {}
    published: list[Path] = []
    try:
        for path, content in contents.items():
            temporaries[path] = path.with_name(f".{secrets.token_hex(6)}.part")
            with _system_errors(path):
                _write_new(temporaries[path], content, path)
        if overwrite:
            for path in list(temporaries)[1:]:
                path.unlink(missing_ok=True)
        for path in list(temporaries):
            with _system_errors(path):
                _publish(temporaries[path], path, overwrite)
            published.append(path)
            del temporaries[path]
    except BaseException:
        if not overwrite:
            for path in published:
                path.unlink(missing_ok=True)
        raise
    finally:
        for temporary in temporaries.values():
            with suppress(OSError):  # the temporary file may not exist
                temporary.unlink()


def _publish(temporary: Path, path: Path, overwrite: bool) -> None:
    """Rename a completely written temporary file to its final path."""
    if overwrite:
        temporary.replace(path)
        return
    try:
        os.link(temporary, path)  # unlike a rename, a hard link fails if the file exists
    except FileExistsError:
        raise _exists(path) from None
    except OSError:  # The file system does not support hard links.
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        except FileExistsError:
            raise _exists(path) from None
        temporary.replace(path)
        return
    temporary.unlink()


def _check_new(files: Iterable[Path]) -> None:
    for file in files:
        if file.exists():
            raise _exists(file)


def _exists(file: Path) -> ExportError:
    return ExportError(f"{file} already exists. Choose another name, or replace it with --force.")


@contextmanager
def _lock(path: Path, wait: float) -> Iterator[None]:
    from filelock import FileLock, Timeout  # imported here because filelock imports asyncio, which is slow

    lock = FileLock(_lock_file(path), timeout=wait, thread_local=False)
    try:
        try:
            lock.acquire()
        except Timeout:
            # filelock also times out if the lock file cannot be created. Create it here to raise the OSError.
            with suppress(FileExistsError):
                os.close(os.open(lock.lock_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
                os.unlink(lock.lock_file)  # noqa: PTH108 - a str
            raise ExportError(
                f"{path} is being written by another command. Wait until that command has ended, or choose "
                "another name."
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        except BaseException:  # a signal, possibly between the creation of the file and its lock
            with suppress(OSError):  # Timeout, if another process holds the lock
                lock.acquire(timeout=0)
            raise
        yield
    finally:
        if lock.is_locked:
            # Deleting the locked file is safe, because filelock rejects locks on unlinked files.
            with suppress(OSError):
                os.unlink(lock.lock_file)  # noqa: PTH108 - a str
            lock.release()


def _lock_file(path: Path) -> Path:
    """Return the lock file of a path: next to the path, or inside a folder whose parent is not writable."""
    digest = hashlib.sha256(os.fsencode(path.name)).hexdigest()[:16]
    parent = path if path.is_dir() and not os.access(path.parent, os.W_OK) else path.parent
    return parent / f"{_LOCK_PREFIX}{digest}{_LOCK_SUFFIX}"


def _target(file: Path) -> Path:
    """Return the path of a file with all symbolic links resolved.

    Raises:
        OSError: no file can be written at this path.
    """
    path = Path(os.path.realpath(file))
    with suppress(FileNotFoundError):
        os.lstat(path)  # raises an OSError if the name is too long or a parent is a file
    if path.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if not path.parent.is_dir():  # raise an error here, because filelock would create the folder
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    if path.is_dir():
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    # Check the permissions of the file, because a rename ignores them.
    if path.exists() and not os.access(path, os.W_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    return path


def _write_new(file: Path, content: bytes, original: Path) -> None:
    """Create a file with this content and, if the file `original` exists, with its permissions."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as stream:
        stream.write(content)
    if original.exists():
        file.chmod(stat.S_IMODE(original.stat().st_mode))


@contextmanager
def _system_errors(file: Path) -> Iterator[None]:
    """Convert an error of the operating system to an ExportError that names the file."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError is raised if the name contains a NUL.
        reason = getattr(error, "strerror", None) or error
        raise ExportError(f"{file} cannot be written: {reason}. Choose another path.") from None
