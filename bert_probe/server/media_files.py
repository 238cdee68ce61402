"""Patch Streamlit's storage of generated files so that a download is complete and never another file.

When the user clicks a download button whose content is a function, Streamlit stores the file and sends its
URL to the browser. No session references such a file: Streamlit deletes it after the next two script runs of
any session, which may end before the browser has requested the URL. The function itself is deleted when a
script run of another session ends while the session's own script runs.

The URL contains a hash of the file. For files larger than 1 MB, Streamlit hashes only the beginning, the
middle and the end, so the vectors of two lists of texts may have the same URL and the same content.
"""

from __future__ import annotations

import hashlib
import time
from functools import wraps
from typing import Any, Final
from weakref import WeakKeyDictionary

from streamlit.runtime import media_file_manager, memory_media_file_storage
from streamlit.runtime.media_file_manager import MediaFileManager
from streamlit.runtime.media_file_storage import MediaFileKind
from streamlit.runtime.memory_media_file_storage import MemoryMediaFileStorage

KEPT_SECONDS: Final = 60.0
"""Number of seconds for which a download stays available after Streamlit has deleted it."""
KEPT_BYTES: Final = 100_000_000
"""Maximum total size in bytes of the deleted downloads that stay available; the last one always does."""

_MARK: Final = "bert_probe_downloads"

# For each storage: the id of each file to be deleted -> when Streamlit deleted it, oldest first.
_deleted: WeakKeyDictionary[MemoryMediaFileStorage, dict[str, float]] = WeakKeyDictionary()

_running: set[str] = set()
"""IDs of the sessions whose script is running."""


def keep_downloads() -> None:
    """Patch Streamlit once per process: postpone deletions, and hash all bytes of each file."""
    if not hasattr(MemoryMediaFileStorage, _MARK):
        setattr(MemoryMediaFileStorage, _MARK, True)
        memory_media_file_storage._calculate_file_id = file_id
        _postpone_deletions()
        _keep_functions()


def file_id(data: bytes, mimetype: str, filename: str | None = None) -> str:
    """Return the id of a file: a hash of its content, its MIME type and its name."""
    digest = hashlib.sha256(data)
    for text in (mimetype, filename or ""):
        digest.update(b"\0" + text.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _postpone_deletions() -> None:
    """Delete downloads only after `KEPT_SECONDS`, or earlier if they exceed `KEPT_BYTES`.

    Streamlit calls both methods with a lock.
    """
    load, delete = MemoryMediaFileStorage.load_and_get_id, MemoryMediaFileStorage.delete_file

    @wraps(load)
    def load_again(self: MemoryMediaFileStorage, *args: Any, **options: Any) -> str:
        name = load(self, *args, **options)
        _deleted.get(self, {}).pop(name, None)
        return name

    @wraps(delete)
    def delete_later(self: MemoryMediaFileStorage, file_id: str) -> None:
        file, deleted = self._files_by_id.get(file_id), _deleted.setdefault(self, {})
        if file is None or file.kind != MediaFileKind.DOWNLOADABLE:
            delete(self, file_id)
            return
        now = time.monotonic()
        deleted.pop(file_id, None)
        deleted[file_id] = now  # at the end of the dictionary
        total = sum(self._files_by_id[name].content_size for name in deleted)
        for name, since in [*deleted.items()][:-1]:
            if now - since > KEPT_SECONDS or total > KEPT_BYTES:
                total -= self._files_by_id[name].content_size
                del deleted[name]
                delete(self, name)

    MemoryMediaFileStorage.load_and_get_id = load_again  # type: ignore[method-assign]
    MemoryMediaFileStorage.delete_file = delete_later  # type: ignore[method-assign]


def _keep_functions() -> None:
    """Keep the functions of a session's download buttons until the end of its next script run.

    Streamlit clears the references of a session when its script starts, and deletes all functions without
    references when any script ends.
    """
    clear, remove = MediaFileManager.clear_session_refs, MediaFileManager.remove_orphaned_files

    @wraps(clear)
    def clear_references(self: MediaFileManager, session_id: str | None = None) -> None:
        if session_id is None:  # the script of this thread's session starts
            _running.add(media_file_manager._get_session_id())
        else:  # the session ends
            _running.discard(session_id)
        clear(self, session_id)

    @wraps(remove)
    def remove_files(self: MediaFileManager) -> None:
        _running.discard(media_file_manager._get_session_id())
        remove(self)

    def remove_functions(self: MediaFileManager) -> None:
        used = {name for files in self._files_by_session_and_coord.values() for name in files.values()}
        for name, function in [*self._deferred_callables.items()]:
            if name not in used and function["session_id"] not in _running:
                self._drop_deferred_id(name)

    MediaFileManager.clear_session_refs = clear_references  # type: ignore[method-assign]
    MediaFileManager.remove_orphaned_files = remove_files  # type: ignore[method-assign]
    MediaFileManager._remove_orphaned_deferred_callables = remove_functions  # type: ignore[method-assign]
