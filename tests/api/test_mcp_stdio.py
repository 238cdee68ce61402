"""Messages of agents that are not JSON-RPC: each is answered with an error, and the server goes on."""

from __future__ import annotations

import asyncio
import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bert_probe.api import agents, mcp_stdio
from bert_probe.api.mcp_stdio import LocalModels
from tests.helpers.gate import prove_unless

PARSE_ERROR, INVALID_REQUEST = -32700, -32600


def message(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}).encode()


REFUSED: tuple[tuple[bytes, int, object, str], ...] = (
    (b"{", PARSE_ERROR, None, "not JSON in UTF-8"),
    (b'{"id": 1} x', PARSE_ERROR, None, "not JSON in UTF-8"),
    (b'{"a": "\xff"}', PARSE_ERROR, None, "not JSON in UTF-8"),
    (b'{"id": 7, "x": {"a": 1, "a": 1}, x', PARSE_ERROR, None, 'the key "a" is given twice'),
    (
        b'{"id": 7, "x": {"a": 1, "a": 1}, "y": ' + b"[" * 100_000,
        PARSE_ERROR,
        None,
        'the key "a" is given twice',
    ),
    (b'{"id": 7, "x": {"a": 1, "a": 1}, "y": ' + b"1" * 5_000 + b"}", PARSE_ERROR, None, "given twice"),
    (b"[" * 100_000, PARSE_ERROR, None, "nested too deeply"),
    (b"1" * 5_000, PARSE_ERROR, None, "a number has 5,000 digits; at most 4,300 are allowed."),
    (
        b'"' + b"a" * 5_000_000 + b'"',
        INVALID_REQUEST,
        None,
        "more than 5,000,000 bytes. Send a shorter message.",
    ),
    (
        b'"' + b"a" * 25_000_000 + b'"',
        INVALID_REQUEST,
        None,
        "more than 5,000,000 bytes. Send a shorter message.",
    ),
    (b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"a": NaN}}', PARSE_ERROR, None, "NaN"),
    (b"[]", INVALID_REQUEST, None, "not JSON-RPC 2.0"),
    (b"{}", INVALID_REQUEST, None, "not JSON-RPC 2.0"),
    (b'"ping"', INVALID_REQUEST, None, "not JSON-RPC 2.0"),
    (message(id=3, method="ping", params=[1]), INVALID_REQUEST, 3, "not JSON-RPC 2.0"),
    (message(id="x", method=5), INVALID_REQUEST, "x", "not JSON-RPC 2.0"),
    (message(id=None, method="ping"), INVALID_REQUEST, None, "not JSON-RPC 2.0"),
    (message(id=1.5, method="ping"), INVALID_REQUEST, None, "not JSON-RPC 2.0"),
    (message(id=True, method="ping"), INVALID_REQUEST, None, "not JSON-RPC 2.0"),
    (message(id=4, method="tools/call", params={"a": "\ud800"}), INVALID_REQUEST, 4, "surrogate"),
    (message(id="\ud800", method="ping"), INVALID_REQUEST, "?", "surrogate"),
    (
        b'{"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "a", "name": "b"}}',
        INVALID_REQUEST,
        5,
        'the key "name" occurs twice; write the key once.',
    ),
)


def answers(*lines: bytes) -> list[dict[str, Any]]:
    """Return what the server writes for lines of its standard input."""
    out = io.StringIO()
    server = agents.build_server(LocalModels(), agents.select_questions(["tokens"]), "0")
    asyncio.run(mcp_stdio.serve(server, io.BytesIO(b"\n".join(lines) + b"\n"), out))
    return [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.mark.parametrize(("line", "code", "name", "sentence"), REFUSED)
def test_line_that_is_not_a_message_is_refused(line: bytes, code: int, name: object, sentence: str) -> None:
    error = mcp_stdio.refusal(line)
    assert error is not None
    assert (error.error.code, error.id) == (code, name)
    assert sentence in error.error.message
    assert len(error.error.message) < 400
    error.model_dump_json()


@pytest.mark.parametrize(
    "line",
    [
        message(id=1, method="ping"),
        message(id="a", method="tools/call", params={"text": "é\U0001f600"}),
        message(method="notifications/initialized"),
        message(id=1, result={}),
        b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\r\n',
    ],
)
def test_message_is_not_refused(line: bytes) -> None:
    assert mcp_stdio.refusal(line) is None


def test_server_answers_every_line_and_goes_on() -> None:
    start = message(
        id=0,
        method="initialize",
        params={
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "0"},
        },
    )
    responses = answers(start, b"", *(line for line, *_ in REFUSED), message(id=99, method="ping"))
    errors = [answer["error"]["code"] for answer in responses if "error" in answer]
    assert errors == [code for _, code, *_ in REFUSED]
    assert {answer["id"] for answer in responses if "result" in answer} == {0, 99}


@pytest.mark.parametrize("redirection", prove_unless({"<&-"}, ["<&-", ">/dev/full"]))
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_unusable_streams_are_reported_in_one_sentence(redirection: str) -> None:
    line = f"echo '{{}}' | {shlex.quote(sys.executable)} -m bert_probe mcp {redirection}"
    ended = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2
    (sentence,) = ended.stderr.splitlines()
    assert re.match("bert-probe: Standard (input or output is closed|output cannot be written)", sentence)
