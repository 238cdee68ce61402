"""Test requests that attack the app's memory, response time or data of users, and invalid MCP messages."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
from requests import Session

from benchmarks import running_app
from benchmarks.pairs import Line
from benchmarks.proof.theme import Run
from tests.api.test_agents import REFUSED
from tests.text.test_matching import HOSTILE

SECONDS = 10.0
"""Time limit in seconds for a hostile regular expression, and for a request during an attack."""
GROWTH = 400_000_000
"""Limit in bytes on the memory that hostile regular expressions take; RE2 caches the last 128 expressions."""
HALVES = 64
_ROOT = Path(__file__).parents[2]
_BODY = b'{"text": "a boat"}'


def lines(run: Run) -> Iterator[Line]:
    with running_app.started(run.folder / "app.log") as app:
        session = Session()
        session.trust_env = False
        yield _expressions(run, session, app.origin, psutil.Process(app.process.pid))
        yield _half_sent(run, session, app.origin, app.port)
        yield _origins(run, session, app.origin, app.port)
    yield _messages(run)


def _expressions(run: Run, session: Session, origin: str, server: psutil.Process) -> Line:
    address = f"{origin}/api/v1/vocabulary"
    session.post(address, json={"question": {"search": "a", "match": "regex"}}, timeout=120)
    before, slowest, statuses = server.memory_info().rss, 0.0, set()
    for expression in HOSTILE:
        begun = time.monotonic()
        body = json.dumps({"question": {"search": expression, "match": "regex"}})
        headers = {"Content-Type": "application/json"}
        answer = session.post(address, data=body, headers=headers, timeout=120)
        slowest = max(slowest, time.monotonic() - begun)
        statuses.add(answer.status_code)
    grown = server.memory_info().rss - before
    met = slowest < SECONDS and grown < GROWTH and statuses <= {200, 422}
    if not met:
        run.failed(f"Hostile expressions: {slowest:.1f} s, {grown / 1e6:.0f} MB, statuses {statuses}.")
    return Line(
        "Hostile regular expressions searched for in the vocabulary",
        f"{len(HOSTILE)} over HTTP, one after the other",
        f"at most {slowest:.1f} s each; {grown / 1e6:+.0f} MB",
        f"{SECONDS:g} s, {GROWTH / 1e6:.0f} MB",
        met,
    )


def _half_sent(run: Run, session: Session, origin: str, port: int) -> Line:
    head = (
        f"POST /api/v1/tokens HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        "Content-Length: 1000\r\n\r\n"
    )
    with ExitStack() as stack:
        for _ in range(HALVES):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.sendall(head.encode() + _BODY)
        begun = time.monotonic()
        answer = session.post(f"{origin}/api/v1/tokens", json=json.loads(_BODY), timeout=120)
        took = time.monotonic() - begun
    met = answer.status_code == 200 and took < SECONDS
    if not met:
        run.failed(f"With {HALVES} incomplete requests, another got {answer.status_code} after {took:.1f} s.")
    return Line(
        "A request while others have sent only half of their body",
        f"{HALVES} connections",
        f"{answer.status_code} after {took:.1f} s",
        f"200 within {SECONDS:g} s",
        met,
    )


def _origins(run: Run, session: Session, origin: str, port: int) -> Line:
    foreign = [
        *(f"http://{name}:{port + 1}" for name in ("127.0.0.1", "localhost", "[::1]")),
        "http://127.0.0.1",
        "null",
        "http://evil.com",
    ]
    wrong = []
    for page in foreign:
        headers = {"Origin": page}
        response = session.post(
            f"{origin}/api/v1/tokens", json=json.loads(_BODY), headers=headers, timeout=60
        )
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        key = {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
        joined = session.get(
            f"{origin}/_stcore/stream", headers=headers | upgrade | key, timeout=60, stream=True
        )
        joined.close()
        if (response.status_code, joined.status_code) != (403, 403):
            wrong.append(f"{page}: {response.status_code}, {joined.status_code}")
    for failure in wrong:
        run.failed(f"A foreign page was answered: {failure}.")
    return Line(
        "Pages of other ports, names and sites",
        f"{len(foreign)} origins, API and websocket",
        f"{len(foreign) - len(wrong)} refused with 403",
        "all",
        not wrong,
    )


def _messages(run: Run) -> Line:
    environment = os.environ | {"PYTHONPATH": str(_ROOT)}
    ping = b'{"jsonrpc": "2.0", "id": "after", "method": "ping"}\n'
    with subprocess.Popen(
        [sys.executable, "-m", "bert_probe", "mcp", "--only", "tokens"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"".join(line + b"\n" for line, *_ in REFUSED) + ping)
        process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for _ in range(len(REFUSED) + 1)]
        process.stdin.close()
    codes = sorted(answer["error"]["code"] for answer in answers if "error" in answer)
    went_on = any(answer.get("id") == "after" and "result" in answer for answer in answers)
    met = went_on and codes == sorted(code for _, code, *_ in REFUSED)
    if not met:
        run.failed(f"bert-probe mcp answered malformed messages with {codes}.")
    return Line(
        "Malformed messages to bert-probe mcp",
        f"{len(REFUSED)} lines, then a ping",
        f"{len(codes)} errors, {'and' if went_on else 'but not'} the ping",
        "an error each, and the ping",
        met,
    )
