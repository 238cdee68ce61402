"""Routes of the HTTP API, which the app serves next to its pages.

The routes use plain Starlette, like the rest of the server, because schemas and validation are derived from
the fields of the questions. FastAPI would need a second set of types for the questions, and its import would
delay the start of the app.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import psutil
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from bert_probe.api import errors
from bert_probe.api.errors import Problem
from bert_probe.core.extras import long_lived_imports
from bert_probe.model.progress import Cancelled, Progress
from bert_probe.runtime import jobs, permissions, shared_cache
from bert_probe.runtime.jobs import SLOTS, Job, Semaphore
from bert_probe.runtime.permissions import Permissions

_STATIC: Final = Path(__file__).with_name("static")
_NO_STORE: Final = {"Cache-Control": "no-store"}
_CLIENT_CLOSED_REQUEST: Final = 499
"""HTTP status in the metrics for a request whose client closed the connection."""

_log = logging.getLogger(__name__)

SMALL_BYTES: Final = 100_000
"""Maximum size in bytes of request bodies that are parsed without waiting for others."""
_PARSING: Final = Semaphore(1)
COMPRESSED_BYTES: Final = 100_000
"""Maximum size in bytes of responses that Streamlit compresses."""
_COMPRESSION_LEVEL: Final = 4

Handler = Callable[[Request], Awaitable[Response]]
Authorize = Callable[[Request], Problem | None]
"""A function that returns the problem to respond with if it rejects a request, and None otherwise."""
Work = Callable[[Progress], Response]
"""A function that computes a response in a thread and reports its progress."""


class Endpoint:
    """The handler of a URL, with the allowed HTTP method ("" for any method) and the authorization."""

    def __init__(self, method: str, handler: Handler, authorize: Authorize | None = None) -> None:
        self._method, self._handler, self._authorize = method, handler, authorize

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the method and authorization of a request, then answer the request."""
        request = Request(scope, receive)
        answer = await self._answer(request)
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if self._method and request.method not in (self._method, "HEAD" if self._method == "GET" else ""):
            problem = Problem(
                errors.METHOD_NOT_ALLOWED,
                f"The method {request.method[:20]} is not allowed for this URL. Use {self._method}.",
                headers={"Allow": self._method},
            )
            return problem_response(problem)
        refusal = self._authorize(request) if self._authorize else None
        return problem_response(refusal) if refusal else await self._handler(request)


def problem_response(problem: Problem) -> Response:
    """Return a problem response with headers that prevent caching."""
    headers = {**_NO_STORE, **problem.headers}
    return Response(problem.content, problem.kind.status, headers, errors.MEDIA_TYPE)


def _busy_response(detail: str) -> Response:
    return problem_response(Problem(errors.BUSY, detail, headers={"Retry-After": "1"}))


def _not_found(sentence: str) -> Response:
    return problem_response(Problem(errors.NOT_FOUND, f"{sentence} See {errors.API_PAGE}."))


class Api:
    """Answers questions, counts the responses and limits the number of concurrent requests."""

    def __init__(self) -> None:
        self.requests = RequestMetrics()
        self._bodies = BodyReader()
        self._answering = 0  # number of requests whose client is waiting
        self._working = 0  # number of computing threads, including those of disconnected clients
        self._lock = threading.Lock()
        self._opening: Job[Any] | None = None

    async def ask(self, request: Request) -> Response:
        """Answer a question over HTTP, and record the response in the metrics."""
        name, start = request.path_params["analysis"], time.monotonic()
        if name not in await _questions():
            return _not_found(f"{name[:100]!r} is not the name of a question.")
        try:
            answer = await self._answer(name, request)
        except ClientDisconnect:
            answer = Response(status_code=_CLIENT_CLOSED_REQUEST)
        self.requests.record(name, answer.status_code, time.monotonic() - start)
        return answer

    async def _answer(self, name: str, request: Request) -> Response:
        """Return the response to a question, or a problem response.

        Raises:
            ClientDisconnect: the client closed the connection before the body was complete.
        """
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media != "application/json" or "content-encoding" in request.headers:
            problem = Problem(
                errors.UNSUPPORTED_MEDIA_TYPE, "Send uncompressed JSON with Content-Type: application/json."
            )
            return problem_response(problem)
        content = await self._bodies.read(request)
        if isinstance(content, Problem):
            return problem_response(content)
        # Cancelled work continues until its next progress report, so the limit also counts threads.
        if max(self._answering, self._working) >= permissions.MAX_REQUESTS:
            detail = f"{permissions.MAX_REQUESTS} requests are being answered already. Try again in a moment."
            return _busy_response(detail)
        self._answering += 1
        try:
            work = self._counted(lambda progress: _answer_table(name, content, request, progress))
            return await _run_until_disconnect(work, request)
        finally:
            self._answering -= 1

    def _counted(self, work: Work) -> Work:
        """Wrap work so that `_working` includes the thread that runs the work."""

        def counted(progress: Progress) -> Response:
            with self._lock:
                self._working += 1
            try:
                return work(progress)
            finally:
                with self._lock:
                    self._working -= 1

        return counted

    async def readyz(self, _request: Request) -> Response:
        """Report whether the default model is open; the first request starts opening the model."""
        job = self._opening
        if job is not None and job.state == "done":
            return JSONResponse({"status": "ready"}, headers=_NO_STORE)
        detail = "The model is being opened. Try again in a moment."
        if job is not None and job.over:
            detail = f"The model could not be opened, and the server tries again: {job.error}"
        if job is None or job.over:
            self._opening = Job("ready", _open_built_in, queued=False)
        return problem_response(Problem(errors.NOT_READY, detail, headers={"Retry-After": "1"}))

    async def metrics(self, _request: Request) -> Response:
        """Return the metrics in the Prometheus text format."""
        return Response(
            render_metrics(self.requests), headers=_NO_STORE | {"Content-Type": METRICS_MEDIA_TYPE}
        )


def compressed_response(
    request: Request, content: bytes, headers: Mapping[str, str], media_type: str
) -> Response:
    """Return a response that is compressed if it is large and the client accepts gzip.

    Compression is slow, so this function must not be called on the event loop. Streamlit's own compression
    would run on the event loop, and keep the original until the client has received the response.
    """
    if len(content) > COMPRESSED_BYTES and "gzip" in request.headers.get("accept-encoding", ""):
        content = gzip.compress(content, _COMPRESSION_LEVEL)
        headers = {**headers, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return Response(content, headers=headers, media_type=media_type)


def _answer_table(name: str, content: bytes, request: Request, progress: Progress) -> Response:
    """Answer a question and serialize the table of its result; runs in a thread."""
    from bert_probe.api import body
    from bert_probe.api.registry import registered_questions

    media = body.choose_media_type(",".join(request.headers.getlist("accept")))
    question = registered_questions()[name]
    # Parsed JSON can take 25 times its size, so one large body at a time is parsed and checked.
    with nullcontext() if len(content) <= SMALL_BYTES else _PARSING.turn(lambda: progress(0, 0)):
        query = body.read_body(question, body.parse_json(content))
    table = query.answer(progress, lambda result: body.serialize(result, media))
    return compressed_response(request, table, _NO_STORE, media)


async def _run_until_disconnect(work: Work, request: Request) -> Response:
    """Run the work in a thread until it ends, the client disconnects, or `MAX_ANSWER_SECONDS` have passed."""
    if jobs.stopping.is_set():
        return _stopping_response()
    loop = asyncio.get_running_loop()
    finished, disconnected = loop.create_future(), asyncio.ensure_future(_disconnected(request))

    def on_end() -> None:
        with suppress(RuntimeError):  # the server may have stopped in the meantime
            loop.call_soon_threadsafe(finished.cancel)

    job = Job(request.scope["path"], work, queued=False, ended=on_end)
    try:
        await asyncio.wait(
            [finished, disconnected],
            timeout=permissions.MAX_ANSWER_SECONDS,
            return_when=asyncio.FIRST_COMPLETED,
        )
    finally:
        is_gone = disconnected.done()
        disconnected.cancel()
        job.cancel()  # has no effect if the job has ended
    if job.state == "done":
        return job.value()
    if job.error is None or isinstance(job.error, Cancelled):
        if jobs.stopping.is_set():
            return _stopping_response()
        detail = (
            f"The answer took more than {permissions.MAX_ANSWER_SECONDS:.0f} seconds. Request a smaller "
            "result, or use the command line."
        )
        return (
            Response(status_code=_CLIENT_CLOSED_REQUEST)
            if is_gone
            else problem_response(Problem(errors.ANSWER_TIMEOUT, detail))
        )
    problem = errors.problem_for(job.error)
    if problem is None:
        _log.error("Unexpected error while answering a question.", exc_info=job.error)
        problem = Problem(errors.INTERNAL_ERROR, "Unexpected error in the app. Its log has the details.")
    return problem_response(problem)


def _stopping_response() -> Response:
    detail = "The app is stopping. Send the request again after it has started."
    return problem_response(Problem(errors.STOPPING, detail))


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _open_built_in(progress: Progress) -> None:
    _import_questions()
    shared_cache.open_checkpoint(permissions.current().default_model, "", progress)


async def _questions() -> Mapping[str, Any]:
    """Return `registered_questions`; the first call imports all analyses in a thread."""
    is_imported = _import_questions.cache_info().currsize > 0
    return (_import_questions() if is_imported else await run_in_threadpool(_import_questions))()


@cache
def _import_questions() -> Callable[[], Mapping[str, Any]]:
    """Import all analyses, which takes seconds, and return the function `registered_questions`."""
    with long_lived_imports():
        from bert_probe.api.registry import registered_questions
    registered_questions()
    return registered_questions


@cache
def _openapi(version: str, _permissions: Permissions) -> bytes:
    _import_questions()
    from bert_probe.api import schema

    return json.dumps(schema.document(version), ensure_ascii=False).encode()


def routes(authorize: Authorize, version: str) -> list[BaseRoute]:
    """Return all routes of the API, the most specific first."""
    api = Api()

    async def healthz(_request: Request) -> Response:
        return JSONResponse({"status": "ok", "version": version}, headers=_NO_STORE)

    async def document(_request: Request) -> Response:
        content = await run_in_threadpool(_openapi, version, permissions.current())
        return Response(content, headers={"Cache-Control": "no-cache"}, media_type="application/json")

    async def page(_request: Request) -> Response:
        text = (_STATIC / "api.html").read_text(encoding="utf-8")
        return HTMLResponse(text, headers={"Cache-Control": "no-cache"})

    async def script(_request: Request) -> Response:
        text = (_STATIC / "api.js").read_text(encoding="utf-8")
        return Response(text, headers={"Cache-Control": "no-cache"}, media_type="text/javascript")

    async def missing(request: Request) -> Response:
        return _not_found(f"The path {request.url.path[:100]!r} does not exist.")

    monitoring: list[BaseRoute] = [
        Route("/healthz", Endpoint("GET", healthz)),
        Route("/readyz", Endpoint("GET", api.readyz)),
        Route("/metrics", Endpoint("GET", api.metrics, authorize)),
    ]
    if not permissions.current().has_api:
        return monitoring
    return [
        *monitoring,
        Route("/api/v1/{analysis}", Endpoint("POST", api.ask, authorize)),
        Route("/api/openapi.json", Endpoint("GET", document)),
        Route("/api/page.js", Endpoint("GET", script)),
        Route("/api", Endpoint("GET", page)),
        Route("/api/", Endpoint("GET", page)),
        Route("/api/{path:path}", Endpoint("", missing)),
    ]


METRICS_MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Samples = Iterable[tuple[Mapping[str, str], float]]
"""Samples of a metric, each with its labels and its value."""


class RequestMetrics:
    """Counts and durations of API responses, by question and HTTP status."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, int]] = Counter()
        self._seconds: Counter[str] = Counter()
        self._lock = threading.Lock()

    def record(self, analysis: str, status: int, seconds: float) -> None:
        """Record a response: name of the question, HTTP status, and duration."""
        with self._lock:
            self._counts[analysis, status] += 1
            self._seconds[analysis] += seconds  # type: ignore[assignment]

    def lines(self) -> Iterator[str]:
        """Yield the metrics in the Prometheus text format."""
        with self._lock:
            counts, seconds = dict(self._counts), dict(self._seconds)
        responses = [({"analysis": name, "status": str(code)}, n) for (name, code), n in counts.items()]
        yield from _family("api_requests_total", "counter", "Number of responses of the HTTP API.", responses)
        durations = [({"analysis": name}, duration) for name, duration in seconds.items()]
        yield from _family(
            "api_request_seconds_total",
            "counter",
            "Total duration of the requests to the HTTP API, in seconds.",
            durations,
        )


def render_metrics(requests: RequestMetrics) -> str:
    """Return all metrics in the Prometheus text format."""
    return "\n".join([*_queues(), *_caches(), *_memory(), *requests.lines(), ""])


def _queues() -> Iterator[str]:
    queues = {"passes": shared_cache.passes, "long": SLOTS}
    started = [({"queue": name}, queue.acquisitions) for name, queue in queues.items()]
    yield from _family("queue_started_total", "counter", "Number of jobs that have started.", started)
    waited = [({"queue": name}, queue.waited) for name, queue in queues.items()]
    yield from _family(
        "queue_waited_seconds_total", "counter", "Total time that jobs have waited, in seconds.", waited
    )
    waiting = [({"queue": name}, queue.waiting) for name, queue in queues.items()]
    yield from _family("queue_waiting", "gauge", "Number of jobs that are waiting now.", waiting)


def _caches() -> Iterator[str]:
    caches = shared_cache.caches()
    lookups = [({"cache": name}, cache.lookups) for name, cache in caches.items()]
    yield from _family("cache_lookups_total", "counter", "Number of cache lookups.", lookups)
    misses = [({"cache": name}, cache.misses) for name, cache in caches.items()]
    yield from _family("cache_misses_total", "counter", "Number of cache misses.", misses)
    contents = {name: cache.contents for name, cache in caches.items()}
    entries = [({"cache": name}, count) for name, (count, _) in contents.items()]
    yield from _family(
        "cache_entries",
        "gauge",
        "Number of entries in each cache; an entry of the checkpoints cache is an open model.",
        entries,
    )
    sizes = [({"cache": name}, size) for name, (_, size) in contents.items() if name != "checkpoints"]
    yield from _family("cache_bytes", "gauge", "Size of the cache entries, in bytes.", sizes)


def _memory() -> Iterator[str]:
    resident = psutil.Process().memory_info().rss
    yield from _family(
        "resident_memory_bytes", "gauge", "Resident memory of the app, in bytes.", [({}, resident)]
    )


def _family(name: str, kind: str, description: str, samples: Samples) -> Iterator[str]:
    metric = f"bert_probe_{name}"
    yield f"# HELP {metric} {description}"
    yield f"# TYPE {metric} {kind}"
    for labels, value in samples:
        pairs = ",".join(f'{label}="{label_value}"' for label, label_value in labels.items())
        yield f"{metric}{{{pairs}}} {value:.16g}" if pairs else f"{metric} {value:.16g}"


# If the connection stayed open, the server would parse the unread body as a request.
_CLOSE = {"Connection": "close"}


class BodyReader:
    """Reads request bodies; limits the total size of incomplete bodies per client and for all clients."""

    def __init__(self) -> None:
        self._bytes: Counter[str] = Counter()  # bytes received so far, by client

    async def read(self, request: Request) -> bytes | Problem:
        """Return the body of a request, or a problem if the body is too large or arrives too slowly.

        Raises:
            ClientDisconnect: the client closed the connection.
        """
        client = permissions.client_name(request.client.host if request.client else "")
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(permissions.MAX_BODY_SECONDS):
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
                f"Only {size:,} bytes of the body arrived in {permissions.MAX_BODY_SECONDS:g} seconds. "
                "Send the complete body at once.",
                headers=_CLOSE,
            )
        finally:
            self._bytes[client] -= size
            if not self._bytes[client]:
                del self._bytes[client]
        return b"".join(parts)

    def _refusal(self, client: str, size: int) -> Problem | None:
        maximum = min(permissions.MAX_BODY_BYTES, permissions.current().max_file_bytes)
        if size > maximum:
            return Problem(
                errors.TOO_LARGE,
                f"The body has more than {maximum:,} bytes. Send a smaller body.",
                headers=_CLOSE,
            )
        if (
            self._bytes[client] > permissions.MAX_CLIENT_BYTES
            or self._bytes.total() > permissions.MAX_INCOMING_BYTES
        ):
            return Problem(
                errors.BUSY,
                f"More than {permissions.MAX_CLIENT_BYTES:,} bytes from one client, or "
                f"{permissions.MAX_INCOMING_BYTES:,} from all, are arriving at once. Try again in a moment.",
                headers={"Retry-After": "1", **_CLOSE},
            )
        return None
