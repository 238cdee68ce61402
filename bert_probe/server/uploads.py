"""Limits on uploaded files per session, client (an IP address) and server, from `runtime.permissions`.

Streamlit limits only the size of each file.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Final, cast

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit import runtime
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager

from bert_probe.runtime import permissions
from bert_probe.server import sessions
from bert_probe.server.responses import text_response

UPLOAD_SECONDS: Final = 60.0
"""Time limit for an upload, in seconds."""
STALL_SECONDS: Final = 10.0
"""Number of seconds without data after which an upload is aborted."""

_PATH: Final = re.compile(r"/_stcore/upload_file/([^/]+)/([^/]+)$")
_LENGTH: Final = re.compile(r"[0-9]{1,18}")


class _RefusedError(Exception):
    """Raised to stop an upload in progress with an error response."""

    def __init__(self, response: PlainTextResponse) -> None:
        super().__init__()
        self.response = response


class BoundedUploads:
    """ASGI middleware that enforces the limits on uploads.

    The limit for a session counts the Content-Length of an upload, so that the server can reject the upload
    before reading it. The other limits count only received bytes; otherwise a client could block other
    clients with a false Content-Length.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._stated: Counter[str] = Counter()  # session → Content-Length of uploads in progress
        self._arrived: Counter[str] = Counter()  # session → received bytes of uploads in progress
        self._clients: dict[str, str] = {}  # session → IP address of its latest upload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or reject an upload that exceeds a limit."""
        match = _PATH.search(scope["path"]) if scope["type"] == "http" else None
        if match is None or scope["method"] != "PUT":
            await self.app(scope, receive, send)
            return
        session, stated = match[1], Headers(scope=scope).get("content-length", "")
        if not _LENGTH.fullmatch(stated):
            await text_response("The header Content-Length is required.", 411)(scope, receive, send)
            return
        self._assign(session, scope)
        size = int(stated)
        refusal = self._session_refusal(session, size) or self._refusal(session, size)
        if refusal is not None:
            await refusal(scope, receive, send)
            return

        async def check_name(message: Message) -> None:
            if message["type"] == "http.response.start":
                _reject_null(session, match[2])
            await send(message)

        await self._receive(session, size, scope, receive, check_name)

    async def _receive(self, session: str, size: int, scope: Scope, receive: Receive, send: Send) -> None:
        arrived = 0

        async def count() -> Message:
            nonlocal arrived
            async with asyncio.timeout(STALL_SECONDS):
                message = await receive()
            part = len(message.get("body", b""))
            refusal = self._refusal(session, part)
            if refusal is not None:
                raise _RefusedError(refusal)
            arrived += part
            self._arrived[session] += part
            return message

        self._stated[session] += size
        try:
            async with asyncio.timeout(UPLOAD_SECONDS):
                await self.app(scope, count, send)
        except TimeoutError:
            text = f"Timeout: only {arrived:,} of {size:,} bytes of the file arrived. Try again."
            await _end(text_response(text, 408))(scope, receive, send)
        except _RefusedError as error:
            await _end(error.response)(scope, receive, send)
        except ClientDisconnect:
            pass  # the client has disconnected
        finally:
            for counter, number in ((self._stated, size), (self._arrived, arrived)):
                counter[session] -= number
                if not counter[session]:
                    del counter[session]

    def _assign(self, session: str, scope: Scope) -> None:
        """Record the client of a session, and remove the clients of sessions without files."""
        active = _stored_bytes().keys() | self._stated.keys()
        self._clients = {name: client for name, client in self._clients.items() if name in active}
        self._clients[session] = (scope.get("client") or ("",))[0]

    def _session_refusal(self, session: str, size: int) -> PlainTextResponse | None:
        maximum = permissions.current().max_session_bytes
        if _stored_bytes()[session] + self._stated[session] + size <= maximum:
            return None
        return text_response(
            f"The files of this session would exceed {maximum / 1e6:.0f} MB. Remove a file or reload the "
            "page.",
            413,
        )

    def _refusal(self, session: str, size: int) -> PlainTextResponse | None:
        """Return an error response if `size` more bytes would exceed the client's or the server's limit."""
        if self._excess(session, size):
            _remove_closed_sessions()
        excess = self._excess(session, size)
        if not excess:
            return None
        return text_response(f"{excess} Try again later, or use the command line.", 413)

    def _excess(self, session: str, size: int) -> str:
        used, limits = _stored_bytes() + self._arrived, permissions.current()
        if used.total() + size > limits.max_upload_bytes:
            return f"The files of all users would exceed {limits.max_upload_bytes / 1e6:.0f} MB."
        client = self._clients[session]
        of_client = sum(used[name] for name in used if self._clients.get(name) == client)
        if of_client + size > limits.max_client_bytes:
            return f"The files from your IP address would exceed {limits.max_client_bytes / 1e6:.0f} MB."
        return ""


def _reject_null(session: str, file_id: str) -> None:
    """Remove a file whose name contains NUL, and raise `_RefusedError`.

    Otherwise Streamlit would fail in every run of the page.
    """
    if any("\0" in file.name for file in _manager().get_files(session, [file_id])):
        _manager().remove_file(session, file_id)
        raise _RefusedError(text_response("The file name contains a NUL character. Rename the file.", 400))


def _end(response: PlainTextResponse) -> PlainTextResponse:
    """Close the connection after the response, so that the server does not parse the rest as a request."""
    response.headers["Connection"] = "close"
    return response


def _manager() -> MemoryUploadedFileManager:
    return cast(MemoryUploadedFileManager, runtime.get_instance().uploaded_file_mgr)


def _stored_bytes() -> Counter[str]:
    """Return the total size of the stored files of each session, in bytes."""
    sessions_files = list(_manager().file_storage.items())
    return Counter(
        {session: sum(len(file.data) for file in list(files.values())) for session, files in sessions_files}
    )


def _remove_closed_sessions() -> None:
    """Remove files of closed sessions, which Streamlit stores for minutes in case the browser reconnects."""
    for session in _stored_bytes():
        if not sessions.is_connected(session):
            _manager().remove_session_files(session)
