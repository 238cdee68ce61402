"""Questions as tools for agents (Model Context Protocol): tables as structured content, pictures as PNG."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Sequence
from typing import Any, Final

import pandas as pd
from anyio import to_thread
from mcp import types
from mcp.server import Server

from bert_probe.api import body, errors, formats, schema
from bert_probe.api.errors import BodyError
from bert_probe.api.registry import RegisteredQuestion, registered_questions
from bert_probe.core import files
from bert_probe.core.field_types import Schema
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError
from bert_probe.model.progress import Cancelled

DEFAULT_ROWS: Final = 50
MAX_CELLS: Final = 20_000
"""Maximum number of table cells in one answer; all of them enter the context of the agent."""

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
        "description": "Whether to also return the picture of the result as PNG, if it has one.",
    },
}
_OUTPUT_SCHEMA: Final[Schema] = {
    "type": "object",
    "required": ["columns", "rows", "first_row", "provenance"],
    "properties": {
        **schema.TABLE["properties"],
        "rows": {"type": "integer", "description": "Number of rows of the complete table."},
        "first_row": {"type": "integer", "description": "Number of the first row returned, from 1."},
        "more": {"type": "string", "description": "How to get the next rows."},
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
    # Some agents do not support oneOf at the top level; `read_body` rejects invalid uses of text and texts.
    body_schema.pop("oneOf", None)
    return {**body_schema, "properties": {**body_schema["properties"], **_ROW_ARGUMENTS}}


def select_rows(result: Result, first_row: int, max_rows: int) -> dict[str, Any]:
    """Return at most `max_rows` rows of a table, starting at `first_row`, and the total number of rows.

    Raises:
        SelectionError: `first_row` is after the last row.
        TooLargeError: see `formats.build_table`.
    """
    frame = formats.build_table(result)
    if first_row > max(1, len(frame)):
        raise SelectionError(f"first_row must be 1 to {len(frame)}, not {first_row}.")
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
    shared: body.ModelServices,
    cancelled: threading.Event,
) -> types.CallToolResult:
    """Call a tool and return its result; for an invalid request, return an error result for the agent."""

    def progress(_done: int, _total: int) -> None:
        if cancelled.is_set():
            raise Cancelled

    try:
        options = {
            name: _check_argument(name, arguments.pop(name, argument["default"]))
            for name, argument in _ROW_ARGUMENTS.items()
        }
        # The arguments are serialized and parsed so that the HTTP API's checks of numbers apply to them.
        content = body.parse_json(json.dumps(arguments).encode())
        result = body.read_body(question, content).answer(shared, progress)
        record = select_rows(result, options["first_row"], options["most_rows"])
        picture = _picture(result) if options["picture"] else []
    except Exception as error:
        problem = errors.problem_for(error)
        if problem is None:
            raise
        return types.CallToolResult(content=[_text_content(problem.detail)], is_error=True)
    # The table is sent as text too, for clients that do not support structured content.
    return types.CallToolResult(
        content=[_text_content(json.dumps(record, ensure_ascii=False)), *picture], structured_content=record
    )


def _check_argument(name: str, value: Any) -> Any:
    if type(value) is not type(_ROW_ARGUMENTS[name]["default"]) or (name != "picture" and value < 1):
        allowed = "true or false" if name == "picture" else "1 or more"
        raise BodyError(f"{name} must be {allowed}, not {value!r}.")
    return value


def _text_content(text: str) -> types.TextContent:
    return types.TextContent(type="text", text=text)


def _picture(result: Result) -> list[types.ImageContent]:
    from bert_probe.views import pictures  # imported here because it imports many analyses

    if not pictures.is_drawn(result):
        return []
    png = base64.b64encode(pictures.page(result).png()).decode("ascii")
    return [types.ImageContent(type="image", data=png, mime_type="image/png")]


def build_server(
    shared: body.ModelServices, questions: dict[str, RegisteredQuestion], version: str
) -> Server[Any]:
    """Return an MCP server with one tool for each question."""

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
                call_tool, question, arguments, shared, cancelled, abandon_on_cancel=True
            )
        finally:
            cancelled.set()

    return Server(
        "bert-probe", version=version, instructions=INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call
    )
