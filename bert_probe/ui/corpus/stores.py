"""Which stores a page may open: those in folders that whoever starts the app named, and those made on a page.

An address names a store, and what it names is looked up among these; it is never read as a path.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from bert_probe.corpus.store import Store, open_corpus
from bert_probe.errors import StoreError
from bert_probe.runtime.cache import Cache
from bert_probe.server import sessions, store_paths

MADE: Final = "made-"
"""Begins the names of stores that were made on a page; nobody can guess what follows."""

ALL_BYTES: Final = 2_000_000_000
"""Of all stores that were made on pages together."""

GRACE: Final = 60.0
"""Seconds for which a store is kept when no page shows it: a reload comes back within them."""

_OPEN: Final = 8
"""Stores that are kept open: their lists of shards, and no rows."""

_made: dict[str, _BuiltStore] = {}
_lock = threading.Lock()
_opened: Cache[tuple[Any, ...], Store] = Cache(_OPEN)


@dataclass
class _BuiltStore:
    """A store that was made on a page.

    Attributes:
        title: for its readers.
        folder: where it lies.
        size: of its files.
        sessions: whose pages have it open.
        seen: when one of these was last there.
    """

    title: str
    folder: Path
    size: int
    sessions: set[str] = field(default_factory=set)
    seen: float = field(default_factory=time.monotonic)


def offered(asked: str = "") -> dict[str, str]:
    """Names by which this session may open stores, and what they are called: those of the folders by name,
    then those that it made.

    Args:
        asked: in an address; whoever has the name of a store that was made here may open it.
    """
    _made_folder(asked)
    names = {name: name for name in store_paths.stores()}
    session = sessions.current()
    with _lock:
        own = {name: one.title for name, one in _made.items() if session in one.sessions}
    return names | own


def opened(name: str) -> Store:
    """The store of a name, opened anew when it has changed.

    Raises:
        StoreError: there is none of that name here, or it cannot be read.
    """
    folder = _made_folder(name) if name.startswith(MADE) else store_paths.stores().get(name)
    if folder is None:
        raise StoreError(missing(name))
    return _opened.once((folder, _stamp(folder)), lambda: open_corpus(folder))


def missing(name: str) -> str:
    """Why there is no store of a name, in a sentence or two."""
    if name.startswith(MADE):
        return "The store of this address was made on a page that was closed, and is gone. Make it again."
    return f"There is no store {name[:60]} here. Start the app with --corpus and the folder that holds it."


def is_made(store: Store) -> bool:
    """Whether it was made on a page, and goes with it."""
    return store.folder.parent.parent == _place()


def room() -> int:
    """Bytes that another store may have; those that nobody shows any more are let go of first."""
    with _lock:
        _sweep()
        free = shutil.disk_usage(_place()).free // 2
        return max(0, min(ALL_BYTES - sum(one.size for one in _made.values()), free))


def new_folder(title: str) -> Path:
    """Where a store can be made; its name tells files and provenance what it holds."""
    kept = "".join(sign if sign.isalnum() or sign in "-_" else "-" for sign in title)[:60].strip("-")
    return _place() / secrets.token_hex(16) / (kept or "store")


def discard(folder: Path) -> None:
    """Take away what was begun in a `new_folder`."""
    shutil.rmtree(folder.parent, ignore_errors=True)


def keep(title: str, folder: Path, session: str) -> str:
    """The name by which a store that a session made in a `new_folder` is opened."""
    name = MADE + folder.parent.name
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    with _lock:
        _made[name] = _BuiltStore(title, folder, size, {session})
    return name


def _made_folder(name: str) -> Path | None:
    """Of a store made here; whoever has its name shows it from now on."""
    with _lock:
        _sweep()
        one = _made.get(name)
        if one is None:
            return None
        one.sessions.add(sessions.current())
        one.seen = time.monotonic()
        return one.folder


def _sweep() -> None:
    """Take away those that no page has shown for a while."""
    now = time.monotonic()
    for name, one in list(_made.items()):
        one.sessions = {session for session in one.sessions if sessions.is_here(session)}
        if one.sessions:
            one.seen = now
        elif now - one.seen > GRACE:
            del _made[name]
            discard(one.folder)


def _stamp(folder: Path) -> str:
    """Return what changes when a file of a store does."""
    stamp = hashlib.blake2b()
    with suppress(OSError):  # opening the store says what is wrong
        for table in sorted(os.scandir(folder), key=lambda entry: entry.name):
            for entry in os.scandir(table) if table.is_dir() else [table]:
                status = entry.stat()
                about = (entry.path, status.st_size, status.st_mtime_ns, status.st_ino)
                stamp.update(repr(about).encode("utf-8", "surrogateescape"))
    return stamp.hexdigest()


@cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    """Deleted when the app ends."""
    return tempfile.TemporaryDirectory(prefix="bert-probe-corpora-")


def _place() -> Path:
    return Path(_temporary().name)
