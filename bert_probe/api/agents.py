"""Serve questions as tools for agents (Model Context Protocol) over standard input and output.

Tables are returned as structured content, and figures as PNG images.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, BinaryIO, Final, TextIO

import anyio
import pandas as pd
from anyio import to_thread
from mcp import types
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.types import INVALID_REQUEST, PARSE_ERROR

from bert_probe.api import body, errors, schema
from bert_probe.api.errors import BodyError
from bert_probe.api.registry import RegisteredQuestion, registered_questions
from bert_probe.core import files
from bert_probe.core.field_types import Schema
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, StalledError
from bert_probe.model.progress import Cancelled
from bert_probe.runtime import permissions
from bert_probe.runtime.tables import limited_table
from bert_probe.text import strict_json
from bert_probe.text.strict_json import DuplicateKeyError

DEFAULT_ROWS: Final = 50
MAX_CELLS: Final = 20_000
"""Maximum number of table cells in one answer; all of them enter the context of the agent."""

MAX_CALLS: Final = 4
"""Maximum number of calls that are computed at once; further calls wait, and can be canceled."""

MAX_TRACE_BYTES: Final = 300_000_000
"""Size of the cache of traces in the process of an agent."""

INSTRUCTIONS: Final = (
    "Shows what a BERT-family encoder computes for a text: attention, vectors, predictions and their "
    "explanations. Layers and heads count from 1, tokens from 0. The default model is the built-in "
    "all-MiniLM-L6-v2."
)

_POSITIVE_INTEGER: Final[Schema] = {"type": "integer", "minimum": 1, "default": 1}
_ROW_ARGUMENTS: Final[dict[str, Schema]] = {
    "first_row": _POSITIVE_INTEGER | {"description": "First row of the table to return, from 1."},
    "most_rows": _POSITIVE_INTEGER
    | {"default": DEFAULT_ROWS, "description": "Maximum number of rows to return."},
    "picture": {
        "type": "boolean",
        "default": False,
        "description": "Whether to also return a PNG picture of the result, if there is one.",
    },
}
_OUTPUT_SCHEMA: Final[Schema] = {
    "type": "object",
    "required": ["columns", "rows", "first_row", "provenance"],
    "properties": {
        **schema.TABLE["properties"],
        "rows": {"type": "integer", "description": "Number of rows in the complete table."},
        "first_row": {"type": "integer", "description": "Number of the first row returned, from 1."},
        "more": {"type": "string", "description": "Instructions for requesting the next rows."},
    },
}


def select_questions(names: Sequence[str]) -> dict[str, RegisteredQuestion]:
    """Return the questions with these names, or all questions if `names` is empty.

    Raises:
        SelectionError: a name is unknown.
    """
    for name in names:
        if name not in registered_questions():
            raise SelectionError(
                f"{name!r} is not a question. Available questions: {', '.join(registered_questions())}."
            )
    questions = registered_questions()
    return {name: question for name, question in questions.items() if not names or name in names}


def input_schema(question: RegisteredQuestion) -> Schema:
    """Return the JSON Schema of a tool's arguments: the request body and the selection of rows."""
    body_schema = schema.body_schema(question)
    # Some agents do not support oneOf at the top level, so `read_body` checks the use of `text` and `texts`.
    body_schema.pop("oneOf", None)
    return {**body_schema, "properties": {**body_schema["properties"], **_ROW_ARGUMENTS}}


def select_rows(result: Result, first_row: int, max_rows: int) -> dict[str, Any]:
    """Return at most `max_rows` rows of a table, starting at `first_row`, and the total number of rows.

    Raises:
        SelectionError: `first_row` is after the last row.
        TooLargeError: see `limited_table`.
    """
    frame = limited_table(result)
    if first_row > max(1, len(frame)):
        raise SelectionError(f"first_row must be from 1 to {len(frame)}, not {first_row}.")
    max_rows = max(1, min(max_rows, MAX_CELLS // max(1, frame.shape[1])))
    part: pd.DataFrame = frame.iloc[first_row - 1 : first_row - 1 + max_rows]
    part.attrs = frame.attrs
    answer: dict[str, Any] = json.loads(files.to_bytes(part, "json"))
    last_row = first_row - 1 + len(part)
    more = {"more": f"Call the tool again with first_row {last_row + 1}."} if last_row < len(frame) else {}
    counts = {"rows": len(frame), "first_row": first_row}
    return {"columns": answer["columns"], **counts, **more, "provenance": answer["provenance"]}


def call_tool(
    question: RegisteredQuestion,
    arguments: dict[str, Any],
    cancelled: threading.Event,
) -> types.CallToolResult:
    """Call a tool and return its result; for invalid requests, return an error result for the agent."""

    start, limit = time.monotonic(), permissions.current().max_job_seconds

    def progress(_done: int, _total: int) -> None:
        if cancelled.is_set():
            raise Cancelled
        if limit is not None and time.monotonic() - start > limit:
            raise StalledError(
                f"The answer took more than {limit:.0f} seconds, the limit of this server. Use fewer or "
                "shorter texts."
            )

    try:
        options = {
            name: _check_argument(name, arguments.pop(name, argument["default"]))
            for name, argument in _ROW_ARGUMENTS.items()
        }
        # Serialize and parse the arguments to apply the same number checks as the HTTP API.
        content = body.parse_json(json.dumps(arguments).encode())

        def finish(result: Result) -> tuple[dict[str, Any], list[types.ImageContent]]:
            record = select_rows(result, options["first_row"], options["most_rows"])
            return record, _picture(result) if options["picture"] else []

        record, picture = body.read_body(question, content).answer(progress, finish)
    except Exception as error:
        problem = errors.problem_for(error)
        if problem is None:
            raise
        return types.CallToolResult(content=[_text_content(problem.detail)], is_error=True)
    # Some clients do not support structured content, so the table is also sent as text.
    return types.CallToolResult(
        content=[_text_content(json.dumps(record, ensure_ascii=False)), *picture], structured_content=record
    )


def _check_argument(name: str, value: Any) -> Any:
    if type(value) is not type(_ROW_ARGUMENTS[name]["default"]) or (name != "picture" and value < 1):
        allowed = "true or false" if name == "picture" else "a whole number of 1 or more"
        raise BodyError(f"{name} must be {allowed}, not {value!r}.")
    return value


def _text_content(text: str) -> types.TextContent:
    return types.TextContent(type="text", text=text)


def _picture(result: Result) -> list[types.ImageContent]:
    from bert_probe.views import pictures  # imported here because `pictures` imports many analyses

    if not pictures.is_drawn(result):
        return []
    png = base64.b64encode(pictures.page(result).png()).decode("ascii")
    return [types.ImageContent(type="image", data=png, mime_type="image/png")]


def build_server(questions: dict[str, RegisteredQuestion], version: str) -> Server[Any]:
    """Return an MCP server with one tool for each question."""
    # Calls have their own threads, so that messages are read and written while all of these are busy.
    threads = anyio.CapacityLimiter(MAX_CALLS)

    async def list_tools(_context: Any, _parameters: Any) -> types.ListToolsResult:
        tools = [
            types.Tool(
                name=name,
                title=question.question.analysis,
                description=question.summary,
                input_schema=input_schema(question),
                output_schema=_OUTPUT_SCHEMA,
                annotations=types.ToolAnnotations(read_only_hint=True, open_world_hint=False),
            )
            for name, question in questions.items()
        ]
        return types.ListToolsResult(tools=tools)

    async def call(_context: Any, parameters: types.CallToolRequestParams) -> types.CallToolResult:
        if parameters.name not in questions:
            sentence = f"{parameters.name[:100]!r} is not a tool. Available tools: {', '.join(questions)}."
            return types.CallToolResult(content=[_text_content(sentence)], is_error=True)
        cancelled = threading.Event()
        question, arguments = questions[parameters.name], dict(parameters.arguments or {})
        try:
            return await to_thread.run_sync(
                call_tool, question, arguments, cancelled, abandon_on_cancel=True, limiter=threads
            )
        finally:
            cancelled.set()

    return Server(
        "bert-probe", version=version, instructions=INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call
    )


async def serve(server: Server[Any], stdin: BinaryIO, stdout: TextIO) -> None:
    """Answer the messages from `stdin`, one per line, until the end of the stream."""
    answers = _Output(stdout)
    async with stdio_server(stdin=_Input(stdin, answers), stdout=answers) as (incoming, outgoing):  # type: ignore[arg-type]
        await server.run(incoming, outgoing, server.create_initialization_options())


class _Output:
    """A text stream with a lock, because the server and `_Input` both write lines to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._lock = anyio.wrap_file(stream), anyio.Lock()

    async def write(self, text: str) -> None:
        async with self._lock:
            await self._stream.write(text)

    async def flush(self) -> None:
        async with self._lock:
            await self._stream.flush()


_TOO_DEEP = "The message is nested too deeply. Use fewer nested arrays and objects."


class _Input:
    """Yields the lines of a stream that are messages, and answers all other lines with an error."""

    def __init__(self, stream: BinaryIO, answers: _Output) -> None:
        self._stream, self._answers = stream, answers

    async def __aiter__(self) -> AsyncIterator[str]:
        while line := await to_thread.run_sync(self._read_line):
            if line.isspace() and len(line) <= _max_bytes():
                continue
            refused = refusal(line)
            if refused is None:
                yield line.decode("utf-8")
            else:
                await self._answers.write(refused.model_dump_json(by_alias=True, exclude_unset=True) + "\n")
                await self._answers.flush()

    def _read_line(self) -> bytes:
        """Return the next line; if the line is too long, return only its first bytes."""
        size = _max_bytes() + len(b"\r\n") + 1
        line = part = self._stream.readline(size)
        while len(part) == size and not part.endswith(b"\n"):
            part = self._stream.readline(size)
        return line


def _max_bytes() -> int:
    """Return the maximum size of a message in bytes, without its line end."""
    return min(permissions.MAX_BODY_BYTES, permissions.current().max_file_bytes)


def refusal(line: bytes) -> types.JSONRPCError | None:
    """Return the JSON-RPC error for a line that is not a valid JSON-RPC message; None if it is valid."""
    if len(line.rstrip(b"\r\n")) > _max_bytes():
        return _error(
            INVALID_REQUEST, f"The message has more than {_max_bytes():,} bytes. Send a shorter message."
        )
    try:
        message = strict_json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    except DuplicateKeyError as error:
        sentence = f"The message is invalid: {error}."
        try:
            return _error(INVALID_REQUEST, sentence, json.loads(line))
        except (ValueError, RecursionError):  # After the duplicate key, the line is not valid JSON.
            return _error(PARSE_ERROR, sentence)
    except RecursionError:
        return _error(PARSE_ERROR, _TOO_DEEP)
    except ValueError as error:
        return _error(PARSE_ERROR, f"The message is not JSON in UTF-8: {str(error)[:200]}.")
    try:
        json.dumps(message, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        sentence = (
            "The message contains half of a surrogate pair, which is not a character. Send both halves."
        )
        return _error(INVALID_REQUEST, sentence, message)
    try:
        parsed = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError as error:
        if "recursion limit" in str(error):
            return _error(PARSE_ERROR, _TOO_DEEP, message)
        parsed = None
    is_request = isinstance(message, dict) and "method" in message and "id" in message
    if parsed is None or (is_request and not isinstance(parsed, types.JSONRPCRequest)):
        sentence = (
            "The message is not JSON-RPC 2.0. Send one object with jsonrpc, method, id (a string or a whole "
            "number) and params (an object)."
        )
        return _error(INVALID_REQUEST, sentence, message)
    return None


def _error(code: int, sentence: str, message: Any = None) -> types.JSONRPCError:
    """Return an error response, with the message's id if the id is valid."""
    message_id = message.get("id") if isinstance(message, dict) else None
    if type(message_id) not in (int, str):
        message_id = None
    if isinstance(message_id, str):
        message_id = message_id.encode("utf-8", "replace").decode("utf-8")
    return types.JSONRPCError(
        jsonrpc="2.0", id=message_id, error=types.ErrorData(code=code, message=sentence)
    )


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number in JSON")
