"""Patch Streamlit's storage of generated files so that a download is complete and never another file.

When the user clicks a download button whose content is a function, Streamlit stores the file and sends its
URL to the browser. No session references such a file: Streamlit deletes it after the next two script runs of
any session, which may end before the browser has requested the URL.

The URL contains a hash of the file. For files larger than 1 MB, Streamlit hashes only the beginning, the
middle and the end, so the vectors of two lists of texts may have the same URL and the same content.
"""

from __future__ import annotations

import hashlib
import time
from functools import wraps
from typing import Any, Final
from weakref import WeakKeyDictionary

from streamlit.runtime import memory_media_file_storage
from streamlit.runtime.media_file_storage import MediaFileKind
from streamlit.runtime.memory_media_file_storage import MemoryMediaFileStorage

KEPT_SECONDS: Final = 60.0
"""Number of seconds for which a download stays available after Streamlit has deleted it."""
KEPT_BYTES: Final = 100_000_000
"""Maximum total size in bytes of the deleted downloads that stay available; the last one always does."""

_MARK: Final = "bert_probe_downloads"

# For each storage: the id of each file to be deleted -> when Streamlit deleted it, oldest first.
_deleted: WeakKeyDictionary[MemoryMediaFileStorage, dict[str, float]] = WeakKeyDictionary()


def keep_downloads() -> None:
    """Patch Streamlit's storage, once per process: postpone deletions, and hash all bytes of each file."""
    if not hasattr(MemoryMediaFileStorage, _MARK):
        setattr(MemoryMediaFileStorage, _MARK, True)
        memory_media_file_storage._calculate_file_id = file_id
        _postpone_deletions()


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
