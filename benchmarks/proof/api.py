"""Test the HTTP API (attacks, and fuzzing based on its OpenAPI file) and the MCP server."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from mcp import Client, StdioServerParameters
from requests import Response, Session

from benchmarks import running_app
from benchmarks.pairs import Line
from benchmarks.proof import hostile_requests
from benchmarks.proof.theme import Run
from tests.helpers.command_line import bert_probe
from tests.helpers.fuzzing import fuzz

EXAMPLES = 20
"""Number of valid request bodies, and of invalid ones, for each question at scale 1."""
SECONDS = 130.0
"""Time limit for a response in seconds, slightly above the time limit of the app."""
TEXT = "The small boat crosses the wide river."
_ROOT = Path(__file__).parents[2]


def lines(run: Run) -> Iterator[Line]:
    yield from hostile_requests.lines(run)
    yield _fuzzed(run)
    yield _agents(run)


def _fuzzed(run: Run) -> Line:
    with running_app.started(run.folder / "app.log") as app:
        session = Session()
        session.trust_env = False  # do not use the proxies that the environment configures

        def send(method: str, path: str, body: bytes, headers: dict[str, str]) -> Response:
            address = f"{app.origin}{path}"
            return session.request(method, address, data=body, headers=headers, timeout=SECONDS)

        document = json.loads(send("GET", "/api/openapi.json", b"", {}).content)
        result = fuzz(document, send, run.times(EXAMPLES), left=lambda: run.left)
    for fault in result.faults:
        run.failed(fault)
    statuses = ", ".join(f"{status} {count}" for status, count in sorted(result.statuses.items()))
    return Line(
        "Request bodies generated from the API's OpenAPI file, valid and invalid",
        "schemathesis: no 5xx, no response that violates the schema",
        f"{result.statuses.total()}: {statuses}; {len(result.faults)} failures",
        "0 failures",
        not result.faults,
    )


def _agents(run: Run) -> Line:
    async def asked() -> tuple[int, pd.DataFrame]:
        environment = {"PYTHONPATH": str(_ROOT), "HF_HUB_OFFLINE": "1"}
        command = StdioServerParameters(
            command=sys.executable, args=["-m", "bert_probe", "mcp"], env=environment
        )
        async with Client(command) as client:
            tools = await client.list_tools()
            body = {"text": TEXT, "question": {"layer": 2, "head": 3}}
            answer = await client.call_tool("attention", body)
            return len(tools.tools), pd.DataFrame((answer.structured_content or {})["columns"])

    count, ours = asyncio.run(asked())
    printed = bert_probe("attention", TEXT, "--layer", "2", "--head", "3").text
    theirs = pd.read_csv(io.StringIO(printed))
    off = abs(ours.drop(columns="token").to_numpy() - theirs.drop(columns="token").to_numpy()).max()
    same = list(ours["token"]) == list(theirs["token"]) and bool(off < 64 * 2**-24)
    if not same:
        run.failed("The tool attention does not give the table of the command line.")
    return Line(
        f"bert-probe mcp over standard input: {count} tools, and an attention table",
        "largest difference from the command line",
        f"{off:.1e}",
        "float32 rounding",
        same,
    )
