"""The stores that a page may open: those in the folders named at startup, and those built on a page.

A URL names a store; the name is looked up among these and never interpreted as a path.
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

PREFIX: Final = "made-"
"""Prefix of the names of stores built on a page; a random part follows."""

MAX_TOTAL_BYTES: Final = 2_000_000_000
"""Maximum size of all stores built on pages together."""

GRACE: Final = 60.0
"""Seconds for which a store that no page shows is kept: a reload comes back within them."""

_MAX_OPEN: Final = 8
"""Maximum number of open stores; an open store holds its list of shards, but no rows."""

_built: dict[str, _BuiltStore] = {}
_lock = threading.Lock()
_open_stores: Cache[tuple[Any, ...], Store] = Cache(_MAX_OPEN)


@dataclass
class _BuiltStore:
    """A store that was built on a page.

    Attributes:
        size: of its files in bytes.
        sessions: that show the store.
        last_seen: when one of these sessions was last connected.
    """

    title: str
    folder: Path
    size: int
    sessions: set[str] = field(default_factory=set)
    last_seen: float = field(default_factory=time.monotonic)


def available(requested: str = "") -> dict[str, str]:
    """Return the stores that this session may open, name → title: those of the folders, then its own.

    Args:
        requested: a name from the URL; anyone with the name of a store that was built here may open it.
    """
    _built_folder(requested)
    names = {name: name for name in store_paths.stores()}
    session = sessions.current()
    with _lock:
        own = {name: store.title for name, store in _built.items() if session in store.sessions}
    return names | own


def open_store(name: str) -> Store:
    """Return a store; it is opened again after its files have changed.

    Raises:
        StoreError: there is no such store, or it cannot be read.
    """
    folder = _built_folder(name) if name.startswith(PREFIX) else store_paths.stores().get(name)
    if folder is None:
        raise StoreError(missing_message(name))
    return _open_stores.once((folder, _stamp(folder)), lambda: open_corpus(folder))


def missing_message(name: str) -> str:
    """Return why there is no store of this name."""
    if name.startswith(PREFIX):
        return "The store of this URL was built on a page that was closed, and was deleted. Build it again."
    return f"There is no store {name[:60]} here. Start the app with --corpus and the folder that contains it."


def is_temporary(store: Store) -> bool:
    """Return whether a store was built on a page and is deleted with it."""
    return store.folder.parent.parent == _root()


def free_bytes() -> int:
    """Return how large another store may be; stores that no page shows are deleted first."""
    with _lock:
        _delete_unused()
        free = shutil.disk_usage(_root()).free // 2
        return max(0, min(MAX_TOTAL_BYTES - sum(store.size for store in _built.values()), free))


def new_folder(title: str) -> Path:
    """Return a path for a new store; its last part appears in file names and provenance."""
    name = "".join(character if character.isalnum() or character in "-_" else "-" for character in title)
    return _root() / secrets.token_hex(16) / (name[:60].strip("-") or "store")


def discard(folder: Path) -> None:
    """Delete the contents of a `new_folder`."""
    shutil.rmtree(folder.parent, ignore_errors=True)


def register(title: str, folder: Path, session: str) -> str:
    """Register a store that a session built in a `new_folder`; return its name."""
    name = PREFIX + folder.parent.name
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    with _lock:
        _built[name] = _BuiltStore(title, folder, size, {session})
    return name


def _built_folder(name: str) -> Path | None:
    """Return the folder of a store built here, and record that this session shows it."""
    with _lock:
        _delete_unused()
        store = _built.get(name)
        if store is None:
            return None
        store.sessions.add(sessions.current())
        store.last_seen = time.monotonic()
        return store.folder


def _delete_unused() -> None:
    """Delete stores that no page has shown for `GRACE` seconds."""
    now = time.monotonic()
    for name, store in list(_built.items()):
        store.sessions = {session for session in store.sessions if sessions.is_connected(session)}
        if store.sessions:
            store.last_seen = now
        elif now - store.last_seen > GRACE:
            del _built[name]
            discard(store.folder)


def _stamp(folder: Path) -> str:
    """Return a digest that changes when a file of a store changes."""
    stamp = hashlib.blake2b()
    with suppress(OSError):  # opening the store reports the error
        for table in sorted(os.scandir(folder), key=lambda entry: entry.name):
            for entry in os.scandir(table) if table.is_dir() else [table]:
                status = entry.stat()
                properties = (entry.path, status.st_size, status.st_mtime_ns, status.st_ino)
                stamp.update(repr(properties).encode("utf-8", "surrogateescape"))
    return stamp.hexdigest()


@cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that is deleted when the app ends."""
    return tempfile.TemporaryDirectory(prefix="bert-probe-corpora-")


def _root() -> Path:
    return Path(_temporary().name)
