"""Reading request bodies within limits of time and memory."""

from __future__ import annotations

import asyncio
from collections import Counter

from starlette.requests import Request

from bert_probe.api import errors, limits
from bert_probe.api.errors import Problem

_CLOSE = {"Connection": "close"}  # Otherwise the unread part of the body would be read as the next request.


class BodyReader:
    """Reads bodies. Those that are arriving count against a limit per client and one for all clients."""

    def __init__(self) -> None:
        self._bytes: Counter[str] = Counter()  # client → bytes received so far

    async def read(self, request: Request) -> bytes | Problem:
        """Return the body, or the problem because of which it was not read.

        Raises:
            ClientDisconnect: the client closed the connection.
        """
        client = request.client.host if request.client else ""
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(limits.MAX_BODY_SECONDS):
                async for part in request.stream():
                    size += len(part)
                    self._bytes[client] += len(part)
                    refusal = self._refusal(client, size)
                    if refusal is not None:
                        return refusal
                    parts.append(part)
        except TimeoutError:
            return Problem(
                errors.BODY_TIMEOUT,
                f"Only {size:,} bytes of the body arrived in {limits.MAX_BODY_SECONDS:g} seconds. "
                "Send the complete body at once.",
                headers=_CLOSE,
            )
        finally:
            self._bytes[client] -= size
            if not self._bytes[client]:
                del self._bytes[client]
        return b"".join(parts)

    def _refusal(self, client: str, size: int) -> Problem | None:
        if size > limits.MAX_BODY_BYTES:
            return Problem(
                errors.TOO_LARGE,
                f"The body has more than {limits.MAX_BODY_BYTES:,} bytes. Send less.",
                headers=_CLOSE,
            )
        if self._bytes[client] > limits.MAX_CLIENT_BYTES or self._bytes.total() > limits.MAX_INCOMING_BYTES:
            return Problem(
                errors.BUSY,
                f"More than {limits.MAX_CLIENT_BYTES:,} bytes from one client, or "
                f"{limits.MAX_INCOMING_BYTES:,} from all, are arriving at once. Try again in a moment.",
                headers={"Retry-After": "1", **_CLOSE},
            )
        return None
