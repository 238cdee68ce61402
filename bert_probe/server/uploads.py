"""Limits on all uploaded files together; Streamlit limits each one alone."""

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

from bert_probe.server import sessions
from bert_probe.server.responses import sentence

SESSION_BYTES: Final = 20_000_000
"""Of the files that are kept for one session."""
CLIENT_BYTES: Final = 100_000_000
"""Of the files of one client, which is an IP address; behind a proxy all readers are one."""
ALL_BYTES: Final = 200_000_000
"""Of the files that are kept for all sessions together."""
SECONDS: Final = 60.0
"""In which a file must arrive."""
STALL_SECONDS: Final = 10.0
"""After which an upload ends of which nothing arrives."""

_PATH: Final = re.compile(r"/_stcore/upload_file/([^/]+)/([^/]+)$")
_LENGTH: Final = re.compile(r"[0-9]{1,18}")


class _RefusedError(Exception):
    """Raised to end an upload that was passed on with another response."""

    def __init__(self, response: PlainTextResponse) -> None:
        super().__init__()
        self.response = response


class BoundedUploads:
    """ASGI middleware that refuses files for which there is no room.

    For its session a file counts with the length that its request states, so that it is refused before it is
    read. For all others only the bytes that arrived count: a length costs nothing to state.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._stated: Counter[str] = Counter()  # session → stated bytes of the uploads in progress
        self._arrived: Counter[str] = Counter()  # session → received bytes of the uploads in progress
        self._clients: dict[str, str] = {}  # session → IP address of its latest upload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer why not."""
        match = _PATH.search(scope["path"]) if scope["type"] == "http" else None
        if match is None or scope["method"] != "PUT":
            await self.app(scope, receive, send)
            return
        session, stated = match[1], Headers(scope=scope).get("content-length", "")
        if not _LENGTH.fullmatch(stated):
            await sentence("A file is taken only with its length in Content-Length.", 411)(
                scope, receive, send
            )
            return
        self._assign(session, scope)
        size = int(stated)
        refusal = self._session_refusal(session, size) or self._refusal(session, size)
        if refusal is not None:
            await refusal(scope, receive, send)
            return

        async def check_name(message: Message) -> None:
            if message["type"] == "http.response.start":
                _refuse_null(session, match[2])
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
            async with asyncio.timeout(SECONDS):
                await self.app(scope, count, send)
        except TimeoutError:
            late = f"{arrived:,} of {size:,} bytes of the file arrived in time. Try again."
            await _end(sentence(late, 408))(scope, receive, send)
        except _RefusedError as error:
            await _end(error.response)(scope, receive, send)
        except ClientDisconnect:
            pass  # There is no client to answer.
        finally:
            for counter, number in ((self._stated, size), (self._arrived, arrived)):
                counter[session] -= number
                if not counter[session]:
                    del counter[session]

    def _assign(self, session: str, scope: Scope) -> None:
        """Note the client of a session, and forget those of sessions without files."""
        used = _kept().keys() | self._stated.keys()
        self._clients = {name: client for name, client in self._clients.items() if name in used}
        self._clients[session] = (scope.get("client") or ("",))[0]

    def _session_refusal(self, session: str, size: int) -> PlainTextResponse | None:
        if _kept()[session] + self._stated[session] + size <= SESSION_BYTES:
            return None
        return sentence(
            f"The files of this page would be more than {SESSION_BYTES / 1e6:.0f} MB together. "
            "Remove one, or reload the page.",
            413,
        )

    def _refusal(self, session: str, size: int) -> PlainTextResponse | None:
        """Return why so many more bytes do not fit next to the files of other sessions, None if they do."""
        if self._excess(session, size):
            _let_go_of_the_gone()
        excess = self._excess(session, size)
        if not excess:
            return None
        return sentence(f"{excess} Try again when others are done, or use the command line.", 413)

    def _excess(self, session: str, size: int) -> str:
        used = _kept() + self._arrived
        if used.total() + size > ALL_BYTES:
            return f"The files of all readers would be more than {ALL_BYTES / 1e6:.0f} MB together."
        client = self._clients[session]
        if sum(used[name] for name in used if self._clients.get(name) == client) + size > CLIENT_BYTES:
            return f"The files from your address would be more than {CLIENT_BYTES / 1e6:.0f} MB together."
        return ""


def _refuse_null(session: str, file_id: str) -> None:
    """Remove a file whose name holds a NUL: every run of the page would end with an error of Streamlit.

    Raises:
        _RefusedError: the name of the file holds a NUL.
    """
    if any("\0" in file.name for file in _manager().get_files(session, [file_id])):
        _manager().remove_file(session, file_id)
        raise _RefusedError(sentence("The name of the file holds a NUL character. Rename the file.", 400))


def _end(response: PlainTextResponse) -> PlainTextResponse:
    """Let the connection be closed: the remaining bytes of the file would be read as a request."""
    response.headers["Connection"] = "close"
    return response


def _manager() -> MemoryUploadedFileManager:
    return cast(MemoryUploadedFileManager, runtime.get_instance().uploaded_file_mgr)


def _kept() -> Counter[str]:
    """Bytes of the files of each session."""
    held = list(_manager().file_storage.items())
    return Counter({session: sum(len(file.data) for file in list(files.values())) for session, files in held})


def _let_go_of_the_gone() -> None:
    """Forget files of closed pages; Streamlit keeps them for some minutes, in case that they come back."""
    for session in _kept():
        if not sessions.is_here(session):
            _manager().remove_session_files(session)
