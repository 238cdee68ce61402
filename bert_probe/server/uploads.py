"""A bound on all uploaded files together; Streamlit bounds each one alone."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Final, cast

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from streamlit import runtime
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager

from bert_probe.server import sessions
from bert_probe.server.responses import sentence

SESSION_BYTES: Final = 20_000_000
"""Of the files that are kept for one session."""
ALL_BYTES: Final = 200_000_000
"""Of the files that are kept for all sessions together."""
SECONDS: Final = 60.0
"""In which a file must arrive; until then room is set aside for it."""

_PATH: Final = re.compile(r"/_stcore/upload_file/([^/]+)/[^/]+$")
_LENGTH: Final = re.compile(r"[0-9]{1,18}")


class BoundedUploads:
    """ASGI middleware that refuses a file for which there is no room, before it is read.

    Room is set aside for as long as the file is on its way, by the length that its request states.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._coming: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer why not."""
        found = _PATH.search(scope["path"]) if scope["type"] == "http" else None
        if found is None or scope["method"] != "PUT":
            await self.app(scope, receive, send)
            return
        session, stated = found[1], Headers(scope=scope).get("content-length", "")
        if not _LENGTH.fullmatch(stated):
            await sentence("A file is taken only with its length in Content-Length.", 411)(
                scope, receive, send
            )
            return
        refusal = self._refusal(session, int(stated))
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        self._coming[session] += int(stated)
        try:
            async with asyncio.timeout(SECONDS):
                await self.app(scope, receive, send)
        except TimeoutError:
            late = sentence(f"The file did not arrive within {SECONDS:g} seconds. Try again.", 408)
            late.headers["Connection"] = "close"
            await late(scope, receive, send)
        finally:
            self._coming[session] -= int(stated)
            self._coming += Counter()  # what is at 0 goes

    def _refusal(self, session: str, size: int) -> PlainTextResponse | None:
        """Why there is no room for so many bytes, or None where there is."""
        if _kept()[session] + self._coming[session] + size > SESSION_BYTES:
            return sentence(
                f"The files of this page would be more than {SESSION_BYTES / 1e6:.0f} MB together. "
                "Remove one, or reload the page.",
                413,
            )
        if not self._fits(size):
            _let_go_of_the_gone()
        if not self._fits(size):
            return sentence(
                f"The files of all readers would be more than {ALL_BYTES / 1e6:.0f} MB together. "
                "Try again when others are done, or use the command line.",
                413,
            )
        return None

    def _fits(self, size: int) -> bool:
        return _kept().total() + self._coming.total() + size <= ALL_BYTES


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
