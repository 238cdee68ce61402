"""Patch Streamlit's files so that a download is complete, is never another file, and takes limited memory.

When the user clicks a download button whose content is a function, Streamlit calls the function, stores the
file and sends its URL to the browser. No session references such a file: Streamlit deletes it after the next
two script runs of any session, which may end before the browser has requested the URL, or may never happen.
The function itself is deleted when a script run of another session ends while the session's own script runs.
All functions run at once, each of which takes a multiple of the size of its file.

The URL contains a hash of the file. For files larger than 1 MB, Streamlit hashes only the beginning, the
middle and the end, so the vectors of two lists of texts may have the same URL and the same content.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable
from functools import wraps
from pathlib import PurePosixPath
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from streamlit.proto.BackMsg_pb2 import BackendOperationRequest
from streamlit.proto.ForwardMsg_pb2 import BackendOperationResponse, DeferredFileResponsePayload
from streamlit.runtime import media_file_manager, memory_media_file_storage
from streamlit.runtime.backend_operation_handler import DeferredFileHandler
from streamlit.runtime.media_file_manager import MediaFileManager
from streamlit.runtime.media_file_storage import MediaFileStorageError
from streamlit.runtime.memory_media_file_storage import MemoryMediaFileStorage

from bert_probe.errors import ProbeError
from bert_probe.server import callbacks, sessions

KEPT_SECONDS: Final = 60.0
"""Number of seconds for which a generated file is available, regardless of script runs."""
KEPT_BYTES: Final = 100_000_000
"""Maximum total size of the generated files in bytes; the last one is always available."""
AT_ONCE: Final = 2
"""Maximum number of files that are generated at the same time, at most one for each client."""
MAX_WAITING: Final = 20
"""Maximum number of files that a session can request at the same time."""

_MARK: Final = "bert_probe_downloads"

_generated: WeakKeyDictionary[MediaFileManager, dict[str, float]] = WeakKeyDictionary()
"""For each manager: the id of each generated file -> time of its generation in seconds, oldest first."""
_running: set[str] = set()
"""IDs of the sessions whose script is running."""
_slots: Final = asyncio.Semaphore(AT_ONCE)
_client_locks: Final[WeakValueDictionary[str, asyncio.Lock]] = WeakValueDictionary()
_waiting: Final[Counter[str]] = Counter()
"""Number of requests for files that each session is waiting for."""
_generating: Final[Counter[str]] = Counter()
"""Number of requests that are generating each file; its function is not removed in the meantime."""
_session_locks: Final[WeakValueDictionary[str, asyncio.Lock]] = WeakValueDictionary()


def keep_downloads() -> None:
    """Patch Streamlit, once per process."""
    manager: Any = MediaFileManager
    if hasattr(manager, _MARK):
        return
    setattr(manager, _MARK, True)
    memory_media_file_storage._calculate_file_id = file_id
    DeferredFileHandler.handle = _handle_in_turn  # type: ignore[method-assign]
    manager.execute_deferred = _generate_and_keep(manager.execute_deferred)
    manager._delete_file = _delete_unless_kept(manager._delete_file)
    manager.clear_session_refs = _note_start(manager.clear_session_refs)
    manager.remove_orphaned_files = _note_end(manager.remove_orphaned_files)
    manager._remove_orphaned_deferred_callables = _remove_functions


def file_id(data: bytes, mimetype: str, filename: str | None = None) -> str:
    """Return the id of a file: a hash of its content, its MIME type and its name."""
    digest = hashlib.sha256(data)
    for text in (mimetype, filename or ""):
        digest.update(b"\0" + text.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


async def _handle_in_turn(
    self: DeferredFileHandler, request: BackendOperationRequest, session_id: str
) -> BackendOperationResponse:
    """Generate a file after the callbacks of its session, and return its URL or why there is no file."""
    manager, name = self._get_media_file_mgr(), request.deferred_file.file_id
    function = manager._deferred_callables.get(name)
    if function is None:
        return _refusal(request, "This file is no longer available. Reload the page.")
    if function["session_id"] != session_id:
        return _refusal(request, "This file belongs to another session.")
    if _waiting[session_id] >= MAX_WAITING:
        return _refusal(request, "Too many files were requested at the same time. Try again.")
    of_client = _client_locks.setdefault(sessions.client(session_id), asyncio.Lock())
    _waiting[session_id] += 1
    try:
        async with _session_locks.setdefault(session_id, asyncio.Lock()):
            await callbacks.callbacks_finished(session_id)
        async with of_client, _slots:
            with manager._lock:  # a script run in the meantime may have removed the function
                manager._deferred_callables.setdefault(name, function)
                _generating[name] += 1
            try:
                url = await asyncio.to_thread(manager.execute_deferred, name)
            finally:
                with manager._lock:
                    _generating[name] -= 1
                    if not _generating[name]:
                        del _generating[name]
    except MediaFileStorageError as error:
        if isinstance(error.__cause__, ProbeError):
            return _refusal(request, str(error.__cause__))
        raise
    finally:
        _waiting[session_id] -= 1
        if not _waiting[session_id]:
            del _waiting[session_id]
    return BackendOperationResponse(
        request_id=request.request_id, deferred_file=DeferredFileResponsePayload(url=url)
    )


def _refusal(request: BackendOperationRequest, problem: str) -> BackendOperationResponse:
    return BackendOperationResponse(request_id=request.request_id, error_msg=problem)


def _generate_and_keep(generate: Callable[[MediaFileManager, str], str]) -> Any:
    @wraps(generate)
    def generate_and_keep(self: MediaFileManager, file_id: str) -> str:
        url = generate(self, file_id)
        name = PurePosixPath(url).stem
        with self._lock:
            files = _generated.setdefault(self, {})
            files.pop(name, None)
            files[name] = time.monotonic()  # at the end of the dictionary
            _remove_outdated(self)
        return url

    return generate_and_keep


def _remove_outdated(manager: MediaFileManager) -> None:
    """Remove generated files after `KEPT_SECONDS` or beyond `KEPT_BYTES`. The caller holds the lock."""
    files = _generated.get(manager)
    if not files:
        return
    storage = manager._storage
    assert isinstance(storage, MemoryMediaFileStorage)
    sizes = {name: storage.get_file(name).content_size for name in files}
    unused = manager._get_inactive_file_ids()
    for name, since in [*files.items()]:
        is_excess = sum(sizes.values()) > KEPT_BYTES and len(files) > 1
        if is_excess or time.monotonic() - since > KEPT_SECONDS:
            del files[name], sizes[name]
            # Streamlit does not delete a file again of which it has forgotten the metadata.
            if name in unused or name not in manager._file_metadata:
                manager._file_metadata.pop(name, None)
                storage.delete_file(name)


def _delete_unless_kept(delete: Callable[[MediaFileManager, str], None]) -> Any:
    @wraps(delete)
    def delete_unless_kept(self: MediaFileManager, file_id: str) -> None:
        if file_id not in _generated.get(self, {}):
            delete(self, file_id)

    return delete_unless_kept


def _note_start(clear: Callable[[MediaFileManager, str | None], None]) -> Any:
    @wraps(clear)
    def clear_references(self: MediaFileManager, session_id: str | None = None) -> None:
        if session_id is None:  # the script of this thread's session starts
            _running.add(media_file_manager._get_session_id())
        else:  # the session ends
            _running.discard(session_id)
        clear(self, session_id)

    return clear_references


def _note_end(remove: Callable[[MediaFileManager], None]) -> Any:
    @wraps(remove)
    def remove_files(self: MediaFileManager) -> None:
        _running.discard(media_file_manager._get_session_id())
        remove(self)
        with self._lock:
            _remove_outdated(self)

    return remove_files


def _remove_functions(manager: MediaFileManager) -> None:
    """Remove the functions of download buttons that no session references.

    A function is kept while it generates a file. It is also kept while the script of its session runs,
    because Streamlit clears the references of the session when the script starts. The caller holds the lock.
    """
    used = {name for files in manager._files_by_session_and_coord.values() for name in files.values()}
    for name, function in [*manager._deferred_callables.items()]:
        is_needed = name in used or name in _generating or function["session_id"] in _running
        if not is_needed:
            manager._drop_deferred_id(name)
