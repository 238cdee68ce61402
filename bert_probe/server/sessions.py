"""Streamlit sessions, and what their pages request by URL.

The URL of a component's script contains a hash of the script, so that browsers can cache the script forever.
The other URLs are unguessable and expire with a session. Layers of a head view have URLs, so that a change of
layer does not rerun the page's script. Previews of reports are shown in sandboxed frames that can reach
neither the app nor the network. Trained models are ZIP files, which are created on disk on request and
deleted after sending.

Texts that are too long for a URL are stored in memory, and the URL contains an unguessable name instead.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import secrets
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Generic, TypeVar
from weakref import ReferenceType, WeakSet, WeakValueDictionary, ref

from cachetools import LRUCache
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit import runtime
from streamlit.runtime.memory_session_storage import MemorySessionStorage
from streamlit.runtime.scriptrunner import get_script_run_ctx
from streamlit.runtime.session_manager import SessionInfo
from streamlit.runtime.websocket_session_manager import WebsocketSessionManager

from bert_probe.errors import ProbeError
from bert_probe.runtime import permissions, shared_cache
from bert_probe.runtime.jobs import clear_frames
from bert_probe.server.access import text_response
from bert_probe.views import built

if TYPE_CHECKING:
    from bert_probe.analyses.attention.heads import Labels
    from bert_probe.model.trace import Trace
    from bert_probe.training.training_result import TrainingResult
    from bert_probe.views.head_view import HeadViewData

T = TypeVar("T")

_CLOSES: Final = "closes_disconnected"
"""Attribute of Streamlit's class of session managers after `close_disconnected`."""


def current() -> str:
    """Return the id of the session whose script runs in this thread, or "" outside of a session."""
    context = get_script_run_ctx()
    return "" if context is None else context.session_id


def client(session: str) -> str:
    """Return the name of the client of a session, see `permissions.client_name`; "" if it is unknown."""
    info = runtime.get_instance().get_client(session) if runtime.exists() else None
    context = None if info is None else info.client_context
    return permissions.client_name((context and context.remote_ip) or "")


def is_connected(session: str) -> bool:
    """Return whether a session's browser is connected; always True without a server. Thread-safe."""
    return not runtime.exists() or runtime.get_instance().is_active_session(session)


def is_kept(session: str) -> bool:
    """Return whether a session's browser is connected or can return to the session. Thread-safe."""
    return session in _disconnected or is_connected(session)


_disconnected: set[str] = set()
"""IDs of the sessions that are kept after they were disconnected. Some may be connected again."""
LEFT_SECONDS: Final = 115.0
"""Number of seconds after which a session is closed whose page the user left."""
LOST_SECONDS: Final = 3600.0
"""Number of seconds in which a browser that lost its connection, for example because the computer was asleep,
can return to its session. On a public server, this is `LEFT_SECONDS`.
"""
MAX_LOST: Final = 128
"""Maximum number of sessions that are kept after they were disconnected. The oldest one is closed first."""
_LEFT_CODES: Final = (1000, 1001)
"""WebSocket close codes that browsers send when the user closes a page or opens another one."""
_CLOSING: Final = "bert_probe.closing"
"""Key of a WebSocket's scope: a dict with the code with which the browser closed the connection."""


class ClosingNoted:
    """ASGI middleware that notes the code with which a browser closes a WebSocket.

    Args:
        app: the ASGI app.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request, and note the code with which the browser closes a WebSocket."""
        if scope["type"] != "websocket":
            await self.app(scope, receive, send)
            return
        closing = scope[_CLOSING] = dict[str, Any]()

        async def receive_noted() -> Message:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                closing["code"] = message.get("code")
            return message

        await self.app(scope, receive_noted, send)


def close_disconnected() -> None:
    """Patch Streamlit, once per process, to close sessions some time after they were disconnected.

    A session is closed `LEFT_SECONDS` after the user left the page, or `LOST_SECONDS` after the connection
    was lost. Otherwise, Streamlit keeps both for 120 seconds, and longer if no other session is disconnected,
    and keeps their objects, which may include models, until the garbage collector runs.
    """
    manager: Any = WebsocketSessionManager
    if not hasattr(manager, _CLOSES):
        setattr(manager, _CLOSES, True)
        manager.disconnect_session = _close_later(manager.disconnect_session)


def _close_later(
    disconnect: Callable[[WebsocketSessionManager, str], None],
) -> Callable[[WebsocketSessionManager, str], None]:
    @wraps(disconnect)
    def disconnect_session(manager: WebsocketSessionManager, session_id: str) -> None:
        storage: Any = manager._session_storage
        if storage._cache.ttl < LOST_SECONDS:  # Streamlit's own storage forgets a session after 120 seconds
            manager._session_storage = MemorySessionStorage(MAX_LOST + 1, int(LOST_SECONDS) + 60)
        active = manager._active_session_info_by_id.get(session_id)
        disconnect(manager, session_id)
        info = manager._session_storage.get(session_id)
        if info is not None:
            _disconnected.add(session_id)
            # The browser sends them again when it returns. They can have 16 MB.
            info.session._client_state.ClearField("widget_states")
            info.session._client_state.DiscardUnknownFields()
            client: Any = active and active.client
            # The code can arrive later. The client is not kept: it can have a large incomplete message.
            closing = client._websocket.scope.get(_CLOSING, {}) if client is not None else {}
            asyncio.get_running_loop().call_later(LEFT_SECONDS, close_if_left, manager, ref(info), closing)
        stored = manager._session_storage.list()
        for oldest in stored[: max(0, len(stored) - MAX_LOST)]:
            close(manager, oldest)

    def close_if_left(
        manager: WebsocketSessionManager, reference: ReferenceType[SessionInfo], closing: dict[str, Any]
    ) -> None:
        if closing.get("code") in _LEFT_CODES or permissions.current().is_public:
            close(manager, reference())
        else:
            asyncio.get_running_loop().call_later(
                LOST_SECONDS - LEFT_SECONDS, lambda: close(manager, reference())
            )

    def close(manager: WebsocketSessionManager, info: SessionInfo | None) -> None:
        # Unless the browser has returned since then.
        if info is not None and manager._session_storage.get(info.session.id) is info:
            manager.close_session(info.session.id)
            _disconnected.discard(info.session.id)
            # Free what callbacks of widgets and fragments refer to without the garbage collector, which never
            # collects the objects of the first session; see `core.extras.long_lived_imports`.
            info.session._fragment_storage.clear()
            info.session._session_state._new_widget_state.widget_metadata.clear()
            info.session._session_state.clear()

    return disconnect_session


def is_restarted() -> bool:
    """Return, in the first run of a session, whether the browser shows a page of an earlier session."""
    context = get_script_run_ctx()
    return context is not None and bool(context.session_state._state._new_widget_state.states)


class FairLock:
    """A lock that threads acquire in the order in which they ask for it, unlike `threading.Lock`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._asked = self._served = 0

    def __enter__(self) -> None:
        with self._changed:
            number, self._asked = self._asked, self._asked + 1
            self._changed.wait_for(lambda: self._served == number)

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._served += 1
            self._changed.notify_all()


class ReadingQueue:
    """Lets only one session read a file at a time, to limit the memory that reading takes.

    A file of 5 MB can take 500 MB before it is refused. At most one file of each client waits in the common
    queue; the other files of the client wait for this file. A client is therefore not delayed by many files
    of another client.
    """

    def __init__(self) -> None:
        self._lock = FairLock()
        self._client_locks: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for the turn of this thread's session. Within the context, no other session reads a file."""
        with self._client_locks.setdefault(client(current()), threading.Lock()), self._lock:
            yield


MAX_VALUE_BYTES: Final = 400_000_000
"""Maximum total size in bytes of the `SessionValue` values of all sessions."""
MAX_CLIENT_VALUE_BYTES: Final = 200_000_000
"""The same for the sessions of one client."""
_PROTECTED_SECONDS: Final = 60.0
"""Number of seconds in which a value is not dropped for another value of the same session."""


class SessionValue(Generic[T]):
    """A value that a session keeps, such as the content of an uploaded file.

    If the values of a client or of all clients are too large, the values of the client with the largest
    values are dropped, the least recently used one first. They can be read or computed again.

    Args:
        value: the value.
        session: id of the session.
        size: size of the value in bytes; by default, it is counted, which takes long for many objects.
    """

    def __init__(self, value: T, session: str, size: int | None = None) -> None:
        from bert_probe.core.result import count_bytes  # imports pandas

        self._value: T | None = value
        self._session, self._client = session, client(session)
        parts = vars(value).values() if is_dataclass(value) else value if isinstance(value, tuple) else ()
        for part in parts:
            if isinstance(part, BaseException):  # why the file was refused
                clear_frames(part)
        self._size = count_bytes(value) if size is None else size
        self._used = time.monotonic()
        with _values_lock:
            _values.add(self)
            self._make_room()

    @property
    def value(self) -> T | None:
        """The value; None if it was dropped."""
        self._used = time.monotonic()
        return self._value

    def _make_room(self) -> None:
        """Drop other values until the limits are met."""
        now = time.monotonic()
        while True:
            sizes: Counter[str] = Counter()
            for stored in _values:
                sizes[stored._client] += stored._size
            largest, size = sizes.most_common(1)[0]
            if size <= MAX_CLIENT_VALUE_BYTES and sizes.total() <= MAX_VALUE_BYTES:
                return
            candidates = [
                stored
                for stored in _values
                if stored._client == largest
                and stored is not self
                and (stored._session != self._session or now - stored._used > _PROTECTED_SECONDS)
            ]
            if not candidates:
                return
            oldest = min(candidates, key=lambda stored: stored._used)
            _values.discard(oldest)
            oldest._value = None


_values: WeakSet[SessionValue[Any]] = WeakSet()
_values_lock = threading.Lock()


CAPACITY_BYTES: Final = 64_000_000
"""Capacity for the stored texts of all sessions, in bytes; the least recently used text is dropped first."""

_LARGEST_TEXT: Final = CAPACITY_BYTES // 8
"""Maximum size of a stored text in bytes; larger texts exceed the limit of every model."""

# Secret key for computing the names of texts. A name is the same in every session, but unguessable.
_SECRET: Final = secrets.token_bytes(32)
_texts: LRUCache[str, str] = LRUCache(CAPACITY_BYTES, getsizeof=sys.getsizeof)
_texts_lock = threading.Lock()


def text_parameter(key: str) -> str:
    """Return the URL parameter that contains the name of a stored text instead of the text in ``key``."""
    return f"{key}_kept"


def store_text(text: str) -> str:
    """Store a text unless it is too large, and return its name."""
    name = hmac.new(_SECRET, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:32]
    if sys.getsizeof(text) <= _LARGEST_TEXT:
        with _texts_lock:
            _texts[name] = text
    return name


def stored_text(name: str) -> str | None:
    """Return the text that is stored under a name; None if it is not stored."""
    with _texts_lock:
        return _texts.get(name)


def script_path(name: str) -> str:
    """Return the URL path of a component's script; the path contains a hash of the script."""
    return f"/script/{built.file_name(name)}"


def _script_route(name: str) -> Route:
    async def serve(_request: Request) -> Response:
        # The path changes with the content, so the browser can cache it forever.
        headers = {"Cache-Control": "public, max-age=31536000, immutable"}
        return Response(built.script(name), media_type="text/javascript", headers=headers)

    return Route(script_path(name), serve)


class LayerLink:
    """An unguessable URL for the layers of a head view in the current session.

    The URL is valid as long as this object is referenced, the session's browser is connected, and the trace
    is in memory; only a weak reference to the trace is stored.

    Attributes:
        address: URL path prefix, to be followed by the layer number (from 1).
    """

    def __init__(self, data: HeadViewData) -> None:
        self._session, self._trace = current(), ref(data.trace)
        self._options = {
            field.name: getattr(data, field.name) for field in fields(data) if field.name != "trace"
        }
        name = secrets.token_urlsafe(24)
        self.address = f"/layers/{name}/"
        _layer_links[name] = self

    @property
    def data(self) -> HeadViewData | None:
        """The head view, or None if the link has expired."""
        from bert_probe.views.head_view import HeadViewData  # The caller has already imported this module.

        trace = self._trace()
        return (
            None if trace is None or not is_connected(self._session) else HeadViewData(trace, **self._options)
        )

    def serves(self, data: HeadViewData) -> bool:
        """Return whether this link serves the attention weights of a head view."""
        own = self.data
        return own is not None and _source(own) == _source(data)


LABELS: Final = "labels"
"""Path segment that replaces the layer number in a request for the head labels, which are too slow for the
first paint.
"""

_layer_links: WeakValueDictionary[str, LayerLink] = WeakValueDictionary()


def _source(data: HeadViewData) -> tuple[object, ...]:
    """Return all values that determine the weights of a head view. Traces are compared by identity."""
    return data.trace, data.measure, data.words, data.residual


def head_labels(trace: Trace) -> Labels:
    """Return the one-word labels of the attention heads of each layer; () if the text is too long."""
    from bert_probe.views.head_view import compute_labels

    return compute_labels(trace, shared_cache.answers.of)


def _serve_layer(request: Request) -> Response:
    link = _layer_links.get(request.path_params["name"])
    data = None if link is None else link.data
    name = request.path_params["layer"]
    names = [] if data is None else [str(layer + 1) for layer in range(data.trace.layers)]
    headers = {"Cache-Control": "no-store"}
    if data is None and name == LABELS:
        # This is not an error, because the user may leave the page before the browser requests labels.
        return Response(status_code=204, headers=headers)
    if data is None or name not in (*names, LABELS):
        return PlainTextResponse(
            "The data for this layer are no longer available. Reload the page.",
            status_code=404,
            headers=headers,
        )
    from bert_probe.views import head_view  # fast, because `LayerLink.data` has already imported this module

    try:
        if name == LABELS:
            return JSONResponse(head_labels(data.trace), headers=headers)
    except ProbeError as error:
        return PlainTextResponse(str(error), status_code=409, headers=headers)
    layer = names.index(name)
    if data.what.takes_long(data.trace, layer):
        # On status 204, the browser requests this layer from the page's script, which starts a job.
        return Response(status_code=204, headers=headers)
    try:
        payload = head_view.payload(data, layer, key="", ask=shared_cache.answers.of)
    except ProbeError as error:
        return PlainTextResponse(str(error), status_code=409, headers=headers)
    # Floats do not compress well, so Streamlit's gzip would take more time than it saves.
    headers["Content-Encoding"] = "identity"
    return Response(payload, media_type="application/octet-stream", headers=headers)


def preview_policy() -> str:
    """Return the Content-Security-Policy for previews of reports."""
    return "; ".join(
        (
            # The frame has an opaque origin, but its buttons may download files.
            "sandbox allow-scripts allow-downloads",
            "default-src 'none'",
            "script-src 'unsafe-inline'",
            "style-src 'unsafe-inline'",
            "img-src data: blob:",
            f"frame-ancestors {permissions.current().frame_sources}",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


class Preview:
    """An unguessable URL for a report in the current session.

    The URL is valid as long as this object is referenced and the session's browser is connected.

    Attributes:
        page: The report as HTML.
        address: URL path of the report.
    """

    def __init__(self, page: bytes) -> None:
        self.page, self._session = page, current()
        name = secrets.token_urlsafe(24)
        self.address = f"/report-preview/{name}"
        _previews[name] = self

    @property
    def is_there(self) -> bool:
        """Whether the session's browser is still connected."""
        return is_connected(self._session)


_previews: WeakValueDictionary[str, Preview] = WeakValueDictionary()


def _serve_preview(request: Request) -> Response:
    preview = _previews.get(request.path_params["name"])
    if preview is None or not preview.is_there:
        return PlainTextResponse(
            "This preview has expired. Create the report again.",
            status_code=404,
            headers={"Content-Security-Policy": "sandbox; default-src 'none'; frame-ancestors 'self'"},
        )
    return HTMLResponse(
        preview.page, headers={"Content-Security-Policy": preview_policy(), "Cache-Control": "no-store"}
    )


MAX_CONCURRENT_DOWNLOADS: Final = 2
"""Maximum number of concurrent downloads of all sessions."""
_ZIP_NAME: Final = "trained-model"
_CHUNK: Final = 1 << 20
_CHUNK_SECONDS: Final = 60.0
"""Time limit for sending a chunk, in seconds, because a slow client blocks the downloads of other users."""


class Download:
    """An unguessable download URL for a trained model in the current session.

    The URL is valid as long as this object is referenced and the session's browser is connected.

    Attributes:
        address: URL path of the ZIP file.
    """

    def __init__(self, result: TrainingResult) -> None:
        self._session, self._result = current(), result
        name = secrets.token_urlsafe(24)
        self.address = f"/trained/{name}/{_ZIP_NAME}.zip"
        _downloads[name] = self

    @property
    def trained(self) -> TrainingResult | None:
        """The trained model, or None if the session has ended."""
        return self._result if is_connected(self._session) else None


_downloads: WeakValueDictionary[str, Download] = WeakValueDictionary()
_slots = threading.BoundedSemaphore(MAX_CONCURRENT_DOWNLOADS)


def _serve_download(request: Request) -> Response:
    link = _downloads.get(request.path_params["name"])
    result = None if link is None else link.trained
    if result is None:
        return text_response("This model is no longer available. Train the model again.", 404)
    if not _slots.acquire(blocking=False):
        return text_response(
            f"{MAX_CONCURRENT_DOWNLOADS} other downloads are in progress. Try again in a minute.", 503
        )
    with ExitStack() as resources:
        resources.callback(_slots.release)
        file = resources.enter_context(tempfile.TemporaryFile())
        try:
            result.save_zip(file, _ZIP_NAME)
        except ProbeError as error:
            return text_response(str(error), 507)
        return _FileResponse(file, resources.pop_all())


class _FileResponse(Response):
    """A response that streams a file and closes `resources` after success or failure."""

    media_type = "application/zip"

    def __init__(self, file: BinaryIO, resources: ExitStack) -> None:
        self._file, self._resources = file, resources
        headers = {
            "Cache-Control": "no-store",
            "Content-Disposition": f'attachment; filename="{_ZIP_NAME}.zip"',
            "Content-Encoding": "identity",  # no compression, because weights do not compress well
            "Content-Length": str(file.seek(0, os.SEEK_END)),
        }
        super().__init__(headers=headers)

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send the file in chunks, and release its resources."""
        try:
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            self._file.seek(0)
            # After a timeout, the server closes the connection, because the response is incomplete.
            with suppress(TimeoutError):
                while part := await run_in_threadpool(self._file.read, _CHUNK):
                    async with asyncio.timeout(_CHUNK_SECONDS):
                        await send({"type": "http.response.body", "body": part, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        finally:
            self._resources.close()


def routes() -> list[BaseRoute]:
    """Return the routes for component scripts and for URLs that expire with a session."""
    trained = Route("/trained/{name}/{file}", _serve_download, methods=["GET"])
    return [
        *map(_script_route, built.COMPONENTS),
        Route("/layers/{name}/{layer}", _serve_layer),
        *([trained] if permissions.current().can_train else []),
        Route("/report-preview/{name}", _serve_preview, methods=["GET"]),
    ]
