"""The questions as tools for agents, by the Model Context Protocol: tables as structured content, PNG."""

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
"""In one answer: an agent reads all of it."""

INSTRUCTIONS: Final = (
    "What a BERT-family encoder does with a text: attention, vectors, what a trained head answers and why. "
    "Layers and heads count from 1, tokens from 0. Without a model the built-in all-MiniLM-L6-v2 is asked."
)

_POSITIVE_INTEGER: Final[Schema] = {"type": "integer", "minimum": 1, "default": 1}
_ROW_ARGUMENTS: Final[dict[str, Schema]] = {
    "first_row": _POSITIVE_INTEGER | {"description": "Of the rows that are told."},
    "most_rows": _POSITIVE_INTEGER | {"default": DEFAULT_ROWS, "description": "How many are told."},
    "picture": {"type": "boolean", "default": False, "description": "As PNG too, if there is one."},
}
_OUTPUT_SCHEMA: Final[Schema] = {
    "type": "object",
    "required": ["columns", "rows", "first_row", "provenance"],
    "properties": {
        **schema.TABLE["properties"],
        "rows": {"type": "integer", "description": "How many there are in all."},
        "first_row": {"type": "integer", "description": "The first of those that are here, from 1."},
        "more": {"type": "string", "description": "How to get the others."},
    },
}


def select_questions(names: Sequence[str]) -> dict[str, RegisteredQuestion]:
    """The questions of these names; all of them where none is given.

    Raises:
        SelectionError: there is no such question.
    """
    for name in names:
        if name not in registered_questions():
            raise SelectionError(
                f"There is no question {name}; there are {', '.join(registered_questions())}."
            )
    return {name: one for name, one in registered_questions().items() if not names or name in names}


def input_schema(one: RegisteredQuestion) -> Schema:
    """What a tool takes: the body, and which rows."""
    taken = schema.body_schema(one)
    # That there is one text or a list of them is told when it is not so: some agents know no choice up here.
    taken.pop("oneOf", None)
    return {**taken, "properties": {**taken["properties"], **_ROW_ARGUMENTS}}


def select_rows(result: Result, first: int, most: int) -> dict[str, Any]:
    """The rows of a table that an agent asks for, and how many there are.

    Raises:
        SelectionError: it begins behind the last row.
        TooLargeError: see `formats.table_of`.
    """
    frame = formats.build_table(result)
    if first > max(1, len(frame)):
        raise SelectionError(f"There is no row {first}; the table has {len(frame)}. Begin with one of them.")
    most = max(1, min(most, MAX_CELLS // max(1, frame.shape[1])))
    part: pd.DataFrame = frame.iloc[first - 1 : first - 1 + most]
    part.attrs = frame.attrs
    answer: dict[str, Any] = json.loads(files.to_bytes(part, "json"))
    last = first - 1 + len(part)
    more = {"more": f"Ask again with first_row {last + 1}."} if last < len(frame) else {}
    counts = {"rows": len(frame), "first_row": first}
    return {"columns": answer["columns"], **counts, **more, "provenance": answer["provenance"]}


def call_tool(
    one: RegisteredQuestion, given: dict[str, Any], shared: body.ModelServices, gone: threading.Event
) -> types.CallToolResult:
    """What a tool returns; a problem is told as one, so that the agent can mend it."""

    def report(_done: int, _total: int) -> None:
        if gone.is_set():
            raise Cancelled

    try:
        rows = {
            name: _check_argument(name, given.pop(name, taken["default"]))
            for name, taken in _ROW_ARGUMENTS.items()
        }
        # As over HTTP: in JSON 5.0 is 5, and nothing is infinite.
        result = body.read_body(one, body.parse_json(json.dumps(given).encode())).answer(shared, report)
        record = select_rows(result, rows["first_row"], rows["most_rows"])
        picture = _picture(result) if rows["picture"] else []
    except Exception as error:
        problem = errors.problem_for(error)
        if problem is None:
            raise
        return types.CallToolResult(content=[_text_content(problem.detail)], is_error=True)
    # For clients that know no structured content, too.
    return types.CallToolResult(
        content=[_text_content(json.dumps(record, ensure_ascii=False)), *picture], structured_content=record
    )


def _check_argument(name: str, given: Any) -> Any:
    if type(given) is not type(_ROW_ARGUMENTS[name]["default"]) or (name != "picture" and given < 1):
        wanted = "true or false" if name == "picture" else "1 or more"
        raise BodyError(f"{name} must be {wanted}, not {given!r}.")
    return given


def _text_content(text: str) -> types.TextContent:
    return types.TextContent(type="text", text=text)


def _picture(result: Result) -> list[types.ImageContent]:
    from bert_probe.views import pictures  # which imports all analyses with a picture

    if not pictures.is_drawn(result):
        return []
    drawn = base64.b64encode(pictures.page(result).png()).decode("ascii")
    return [types.ImageContent(type="image", data=drawn, mime_type="image/png")]


def build_server(
    shared: body.ModelServices, questions: dict[str, RegisteredQuestion], version: str
) -> Server[Any]:
    """The server of these questions."""

    async def tools(_context: Any, _asked: Any) -> types.ListToolsResult:
        every = [
            types.Tool(
                name=name,
                title=one.question.analysis,
                description=one.summary,
                input_schema=input_schema(one),
                output_schema=_OUTPUT_SCHEMA,
                annotations=types.ToolAnnotations(read_only_hint=True, open_world_hint=False),
            )
            for name, one in questions.items()
        ]
        return types.ListToolsResult(tools=every)

    async def call(_context: Any, asked: types.CallToolRequestParams) -> types.CallToolResult:
        if asked.name not in questions:
            sentence = f"There is no tool {asked.name[:100]!r}; there are {', '.join(questions)}."
            return types.CallToolResult(content=[_text_content(sentence)], is_error=True)
        gone = threading.Event()
        one, given = questions[asked.name], dict(asked.arguments or {})
        try:
            return await to_thread.run_sync(call_tool, one, given, shared, gone, abandon_on_cancel=True)
        finally:
            gone.set()

    return Server(
        "bert-probe", version=version, instructions=INSTRUCTIONS, on_list_tools=tools, on_call_tool=call
    )
