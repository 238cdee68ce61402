"""Sends requests to the server's ASGI applications without a running server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message

from bert_probe.server import asgi

Headers = Sequence[tuple[bytes, bytes]]
Answer = tuple[int, dict[str, str], bytes]


HOST: Headers = ((b"host", b"localhost:8501"),)


def answer(path: str, query: bytes = b"", headers: Headers = HOST) -> Answer:
    """Return the status, headers and body of a response from the app's routes, without Streamlit."""

    async def framed(_request: Request) -> PlainTextResponse:
        return PlainTextResponse("", headers={"Content-Security-Policy": "sandbox"})

    app = Starlette(routes=[Route("/framed", framed), *asgi.routes()], middleware=asgi.middleware())
    return answer_of(app, path, query, headers)


def answer_of(
    app: ASGIApp,
    path: str,
    query: bytes = b"",
    headers: Headers = HOST,
    method: str = "GET",
    sent: list[Message] | None = None,
    client: tuple[str, int] | None = None,
) -> Answer:
    """Return the status, headers and body of an application's response.

    If the application fails, ``sent`` contains the messages it has sent so far.
    """
    sent = [] if sent is None else sent

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": headers,
        "query_string": query,
        "client": client,
    }
    run_in_thread(app(scope, receive, send))
    header_pairs = [(name.decode(), value.decode()) for name, value in sent[0]["headers"]]
    assert len(header_pairs) == len(dict(header_pairs)), "a header is sent twice"
    return sent[0]["status"], dict(header_pairs), b"".join(part.get("body", b"") for part in sent[1:])


def run_in_thread(work: Awaitable[None]) -> None:
    """Run an awaitable in a separate thread, because browser tests run an event loop in the main thread."""

    async def done() -> None:
        await work

    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, done()).result()
