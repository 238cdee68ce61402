"""Download of a trained model as a zip file.

The zip is created on request, on disk instead of in memory, and deleted after it is sent.
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
from bert_probe.server.responses import text_response

if TYPE_CHECKING:
    from bert_probe.training.training_result import TrainingResult

MAX_CONCURRENT: Final = 2
"""Maximum number of concurrent downloads of all sessions."""
_NAME: Final = "trained-model"
_CHUNK: Final = 1 << 20
_CHUNK_SECONDS: Final = 60.0
"""Time limit for sending a chunk, in seconds, because a slow client blocks the downloads of other users."""


class Download:
    """An unguessable download URL of a trained model, for the current session.

    The URL is valid as long as this object is referenced and the session's browser is connected.

    Attributes:
        address: URL path of the zip.
    """

    def __init__(self, result: TrainingResult) -> None:
        self._session, self._result = sessions.current(), result
        name = secrets.token_urlsafe(24)
        self.address = f"/trained/{name}/{_NAME}.zip"
        _links[name] = self

    @property
    def trained(self) -> TrainingResult | None:
        """The trained model, or None if the session has ended."""
        return self._result if sessions.is_connected(self._session) else None


_links: WeakValueDictionary[str, Download] = WeakValueDictionary()
_slots = threading.BoundedSemaphore(MAX_CONCURRENT)


def _serve(request: Request) -> Response:
    link = _links.get(request.path_params["name"])
    result = None if link is None else link.trained
    if result is None:
        return text_response("This model does not exist or has expired. Train it again.", 404)
    if not _slots.acquire(blocking=False):
        return text_response(f"{MAX_CONCURRENT} other downloads are in progress. Try again in a minute.", 503)
    with ExitStack() as resources:
        resources.callback(_slots.release)
        file = resources.enter_context(tempfile.TemporaryFile())
        try:
            result.save_zip(file, _NAME)
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
            "Content-Disposition": f'attachment; filename="{_NAME}.zip"',
            "Content-Encoding": "identity",  # weights do not compress well
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
            with suppress(TimeoutError):  # the server closes the connection of an incomplete response
                while part := await run_in_threadpool(self._file.read, _CHUNK):
                    async with asyncio.timeout(_CHUNK_SECONDS):
                        await send({"type": "http.response.body", "body": part, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        finally:
            self._resources.close()


ROUTES: Final[list[BaseRoute]] = [Route("/trained/{name}/{file}", _serve, methods=["GET"])]
