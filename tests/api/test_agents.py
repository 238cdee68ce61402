"""Test questions as tools for agents, called by a client of the `mcp` package."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mcp import Client, types
from PIL import Image

from bert_probe.api import agents
from bert_probe.api.registry import registered_questions
from bert_probe.errors import SelectionError
from bert_probe.model import lengths
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.loading import load
from bert_probe.model.progress import Cancelled
from bert_probe.model.sources import BUILT_IN
from bert_probe.runtime import permissions
from tests.helpers.command_line import bert_probe
from tests.helpers.families import build
from tests.helpers.gate import prove_unless

TEXT = "The small boat crosses the wide river."


def run_client(action: Callable[[Client], Awaitable[Any]], *questions: str) -> Any:
    """Run an action with an MCP client connected to a server in this process, and return its result."""

    async def run() -> Any:
        async with Client(agents.build_server(agents.select_questions(questions), "0")) as client:
            return await action(client)

    return asyncio.run(run())


def call_tool(name: str, arguments: dict[str, Any]) -> Any:
    """Call a tool and return its result."""
    return run_client(lambda client: client.call_tool(name, arguments))


def test_tool_returns_the_table_of_the_command_line(minilm: Checkpoint) -> None:
    body = {"text": TEXT, "question": {"layer": 2, "head": 3}}
    answer = call_tool("attention", body).structured_content
    header, *lines = bert_probe("attention", TEXT, "--layer", "2", "--head", "3", built_in=minilm).rows
    tokens, *numbers = answer["columns"].values()
    assert tokens == [line[0] for line in lines]
    # A word occurs twice in the text, so the column names start with a number to be unique.
    assert [name.partition(" ")[2] for name in answer["columns"]][1:] == header[1:]
    assert numbers == [[float(line[column]) for line in lines] for column in range(1, len(header))]
    assert answer["provenance"]["question"]["layer"] == 2


def test_every_question_is_a_tool() -> None:
    tools = run_client(lambda client: client.list_tools()).tools
    assert [tool.name for tool in tools] == list(registered_questions())
    for tool in tools:
        assert not tool.input_schema.keys() & {"oneOf", "anyOf", "allOf"}
        assert tool.description
        assert {"first_row", "most_rows", "picture"} <= tool.input_schema["properties"].keys()
    selected = run_client(lambda client: client.list_tools(), "heads", "attention").tools
    assert [tool.name for tool in selected] == ["attention", "heads"]
    with pytest.raises(
        SelectionError,
        match=r"'head' is not a question. Available questions: activation-patching, ",
    ):
        agents.select_questions(["head"])


def test_long_table_is_returned_in_parts(minilm: Checkpoint) -> None:
    records = bert_probe("heads", TEXT, built_in=minilm).records
    result = call_tool("heads", {"text": TEXT, "most_rows": 40})
    first = result.structured_content
    assert (first["rows"], first["first_row"], len(first["columns"]["head"])) == (72, 1, 40)
    assert first["more"] == "Call the tool again with first_row 41."
    second = call_tool("heads", {"text": TEXT, "first_row": 41, "most_rows": 40}).structured_content
    assert "more" not in second
    columns = {name: [*first["columns"][name], *second["columns"][name]] for name in first["columns"]}
    assert [str(column) for column in columns["label"]] == [row["label"] for row in records]
    assert columns["entropy_bits"] == [float(row["entropy_bits"]) for row in records]
    assert json.loads(result.content[0].text) == first


def test_wide_table_is_limited_to_fewer_rows() -> None:
    result = call_tool("hidden-states", {"text": " ".join(["boat"] * 100), "most_rows": 1000})
    answer = result.structured_content
    assert len(answer["columns"]["token"]) == agents.MAX_CELLS // 384
    assert answer["rows"] == 102


def test_picture_is_png() -> None:
    contents = call_tool("attention", {"text": TEXT, "picture": True}).content
    assert [content.type for content in contents] == ["text", "image"]
    assert contents[1].mime_type == "image/png"
    with Image.open(io.BytesIO(base64.b64decode(contents[1].data))) as picture:
        assert picture.format == "PNG"
        assert min(picture.size) > 200
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 20
    assert len(call_tool("tokens", {"text": TEXT, "picture": True}).content) == 1


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("attention", {"text": TEXT, "question": {"layer": 9}}, "There is no layer 9"),
        ("attention", {}, "text is missing"),
        (
            "attention",
            {"text": TEXT, "lair": 1},
            'The body must not have a member "lair". Allowed members: question, model, revision, text, pair',
        ),
        ("attention", {"text": TEXT, "first_row": 0}, "first_row must be a whole number of 1 or more, not 0"),
        ("attention", {"text": TEXT, "most_rows": 1.5}, "must be a whole number of 1 or more, not 1.5"),
        (
            "attention",
            {"text": TEXT, "first_row": 900},
            "first_row must be from 1 to 10, not 900.",
        ),
        ("attention", {"text": TEXT, "most_rows": True}, "most_rows must be a whole number of 1 or more"),
        ("attention", {"text": TEXT, "picture": 1}, "picture must be true or false"),
        ("fill-mask", {"text": TEXT}, "has no trained head"),
        ("none", {}, "'none' is not a tool. Available tools: "),
    ],
)
def test_invalid_call_is_an_error_result(
    name: str,
    arguments: dict[str, Any],
    message: str,
) -> None:
    answer = call_tool(name, arguments)
    assert answer.is_error
    assert message in answer.content[0].text


def test_cancelled_call_ends() -> None:
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(Cancelled):
        agents.call_tool(registered_questions()["head-ablation-sweep"], {"text": TEXT}, cancelled)


def test_messages_are_read_while_all_threads_for_calls_are_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    is_answered = threading.Event()

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            if '"id":99' in text:
                is_answered.set()
            return super().write(text)

    def wait(*_arguments: object) -> types.CallToolResult:
        is_answered.wait(5)
        return types.CallToolResult(content=[])

    monkeypatch.setattr(agents, "call_tool", wait)
    start = message(id=0, method="initialize", params=INITIALIZATION)
    calls = [message(id=i, method="tools/call", params={"name": "tokens"}) for i in range(1, 60)]
    ids = [answer["id"] for answer in answers(start, *calls, message(id=99, method="ping"), out=Stream())]
    assert ids[:2] == [0, 99]


def test_replaced_model_is_opened_again(tmp_path: Path) -> None:
    arguments = {"model": str(tmp_path / "model"), "text": TEXT, "question": {"layer": 1, "head": 1}}
    answers = []
    for seed in (0, 1):
        shutil.rmtree(tmp_path / "model", ignore_errors=True)
        build("bert", tmp_path / "model", seed)
        _, *columns = call_tool("attention", arguments).structured_content["columns"].values()
        answers.append(columns)
        raw = load(tmp_path / "model").trace(TEXT).attention(0, 0)
        np.testing.assert_allclose(np.array(columns).T, raw, atol=1e-6)
    assert answers[0] != answers[1]


def test_texts_that_need_too_much_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths, "MAX_TRACE_BYTES", 1_000_000)
    answer = call_tool("padding-effect", {"texts": [f"{TEXT} {number}" for number in range(40)]})
    assert answer.is_error
    assert "Use fewer or shorter texts." in answer.content[0].text


def test_models_option_applies_the_limits_of_a_public_server() -> None:
    with permissions.using(replace(permissions.public([BUILT_IN]), max_job_seconds=0)):
        error = agents.refusal(message(id=1, method="ping").ljust(1_000_001))
        answer = call_tool("head-ablation-sweep", {"text": TEXT})
    assert error is not None
    assert "more than 1,000,000 bytes" in error.error.message
    assert answer.is_error
    assert "The answer took more than 0 seconds" in answer.content[0].text


def test_command_without_the_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bert_probe.core.extras.find_spec", lambda _name: None)
    refusal = bert_probe("mcp").refusal
    assert refusal == 'mcp is not installed. Install it with pip install "bert-probe[mcp]".'


PARSE_ERROR, INVALID_REQUEST = -32700, -32600


def message(**members: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}).encode()


REFUSED: tuple[tuple[bytes, int, object, str], ...] = (
    (b"{", PARSE_ERROR, None, "not JSON in UTF-8"),
    (b'{"id": 1} x', PARSE_ERROR, None, "not JSON in UTF-8"),
    (b'{"a": "\xff"}', PARSE_ERROR, None, "not JSON in UTF-8"),
    (b'{"id": 7, "x": {"a": 1, "a": 1}, x', PARSE_ERROR, None, 'the key "a" occurs twice'),
    (
        b'{"id": 7, "x": {"a": 1, "a": 1}, "y": ' + b"[" * 100_000,
        PARSE_ERROR,
        None,
        'the key "a" occurs twice',
    ),
    (b'{"id": 7, "x": {"a": 1, "a": 1}, "y": ' + b"1" * 5_000 + b"}", PARSE_ERROR, None, "occurs twice"),
    (b"[" * 100_000, PARSE_ERROR, None, "nested too deeply"),
    (
        b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"a": ' + b"[" * 300 + b"]" * 300 + b"}}",
        PARSE_ERROR,
        1,
        "nested too deeply",
    ),
    (b"1" * 5_000, PARSE_ERROR, None, "a number has 5,000 digits, but at most 4,300 are allowed."),
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
    (b" " * 5_000_010 + message(id=1, method="ping"), INVALID_REQUEST, None, "more than 5,000,000 bytes"),
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


INITIALIZATION: dict[str, object] = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "0"},
}


def answers(*lines: bytes, out: io.StringIO | None = None) -> list[dict[str, Any]]:
    """Return the messages that the server writes in response to lines of standard input."""
    out = io.StringIO() if out is None else out
    server = agents.build_server(agents.select_questions(["tokens"]), "0")
    asyncio.run(agents.serve(server, io.BytesIO(b"\n".join(lines) + b"\n"), out))
    return [json.loads(line) for line in out.getvalue().splitlines()]


@pytest.mark.parametrize(("line", "code", "name", "sentence"), REFUSED)
def test_line_that_is_not_a_message_is_refused(line: bytes, code: int, name: object, sentence: str) -> None:
    error = agents.refusal(line)
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
        message(id=1, method="ping").ljust(5_000_000) + b"\r\n",
    ],
)
def test_message_is_not_refused(line: bytes) -> None:
    assert agents.refusal(line) is None


def test_server_answers_every_line_and_goes_on() -> None:
    start = message(id=0, method="initialize", params=INITIALIZATION)
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


@pytest.mark.prove
def test_ctrl_c_ends_the_server_during_a_call() -> None:
    command = [sys.executable, "-m", "bert_probe", "mcp"]
    start = message(id=0, method="initialize", params=INITIALIZATION)
    arguments = {"texts": [f"{TEXT} {number}" for number in (1, 2)]}
    call = message(
        id=1, method="tools/call", params={"name": "similarity-attribution", "arguments": arguments}
    )
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(
                start + b"\n" + message(method="notifications/initialized") + b"\n" + call + b"\n"
            )
            process.stdin.flush()
            assert process.stdout.readline()

            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=30) == -signal.SIGINT
        finally:
            process.kill()
