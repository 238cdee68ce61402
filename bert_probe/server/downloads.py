"""A model that was taught as a zip, for a reader whose browser is on another machine.

It is made when it is asked for, on the disk and not in memory, and is gone when it is sent.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, BinaryIO, Final
from weakref import WeakValueDictionary

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from bert_probe.errors import ProbeError
from bert_probe.server import sessions
from bert_probe.server.responses import sentence

if TYPE_CHECKING:
    from bert_probe.training.training_result import TrainingResult

AT_ONCE: Final = 2
"""Zips that there are at the same time, for all sessions."""
_NAME: Final = "taught-model"
_CHUNK: Final = 1 << 20
_CHUNK_SECONDS: Final = 60.0
"""In which a reader must take a chunk; a slower one would keep others from downloading."""


class Download:
    """Where one session's browser fetches a model, under a name that nobody can guess.

    It leads somewhere as long as somebody holds it and its session's browser is connected.

    Attributes:
        address: of the zip.
    """

    def __init__(self, taught: TrainingResult) -> None:
        """A link for the session whose script is running."""
        self._session, self._taught = sessions.current(), taught
        name = secrets.token_urlsafe(24)
        self.address = f"/taught/{name}/{_NAME}.zip"
        _links[name] = self

    @property
    def taught(self) -> TrainingResult | None:
        """What it leads to, or None if nothing any more."""
        return self._taught if sessions.is_here(self._session) else None


_links: WeakValueDictionary[str, Download] = WeakValueDictionary()
_room = threading.BoundedSemaphore(AT_ONCE)


def _serve(request: Request) -> Response:
    link = _links.get(request.path_params["name"])
    taught = None if link is None else link.taught
    if taught is None:
        return sentence("There is no such model, or no longer. Save it, or train it again.", 404)
    if not _room.acquire(blocking=False):
        return sentence("Other models are being downloaded just now. Try again in a minute.", 503)
    with ExitStack() as held:
        held.callback(_room.release)
        file = held.enter_context(tempfile.TemporaryFile())
        try:
            taught.save_zip(file, _NAME)
        except ProbeError as error:
            return sentence(str(error), 507)
        return _Sent(file, held.pop_all())


class _Sent(Response):
    """A file in pieces; it and the room that it takes go when it is sent, or its reader has gone."""

    media_type = "application/zip"

    def __init__(self, file: BinaryIO, held: ExitStack) -> None:
        self._file, self._held = file, held
        headers = {
            "Cache-Control": "no-store",
            "Content-Disposition": f'attachment; filename="{_NAME}.zip"',
            "Content-Encoding": "identity",  # weights do not shrink
            "Content-Length": str(file.seek(0, os.SEEK_END)),
        }
        super().__init__(headers=headers)

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            self._file.seek(0)
            with suppress(TimeoutError):  # the server closes the connection, as the response is incomplete
                while part := await run_in_threadpool(self._file.read, _CHUNK):
                    async with asyncio.timeout(_CHUNK_SECONDS):
                        await send({"type": "http.response.body", "body": part, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        finally:
            self._held.close()


ROUTES: Final[list[BaseRoute]] = [Route("/taught/{name}/{file}", _serve, methods=["GET"])]
