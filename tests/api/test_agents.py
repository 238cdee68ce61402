"""Questions as agent tools, called by a client of the `mcp` package."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from mcp import Client
from PIL import Image

from bert_probe.api import agents
from bert_probe.api.mcp_stdio import LocalModels
from bert_probe.api.registry import registered_questions
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Cancelled
from tests.helpers.command_line import bert_probe

TEXT = "The small boat crosses the wide river."


@pytest.fixture(scope="module")
def shared() -> LocalModels:
    """Models and caches for all tests."""
    return LocalModels()


def run_client(shared: LocalModels, action: Callable[[Client], Awaitable[Any]], *questions: str) -> Any:
    """Return the result of an action of a client that is connected in this process."""

    async def run() -> Any:
        async with Client(agents.build_server(shared, agents.select_questions(questions), "0")) as client:
            return await action(client)

    return asyncio.run(run())


def call_tool(shared: LocalModels, name: str, arguments: dict[str, Any]) -> Any:
    """Return the result of a tool."""
    return run_client(shared, lambda client: client.call_tool(name, arguments))


def test_tool_returns_the_table_of_the_command_line(shared: LocalModels, minilm: Checkpoint) -> None:
    body = {"text": TEXT, "question": {"layer": 2, "head": 3}}
    answer = call_tool(shared, "attention", body).structured_content
    header, *lines = bert_probe("attention", TEXT, "--layer", "2", "--head", "3", built_in=minilm).rows
    tokens, *numbers = answer["columns"].values()
    assert tokens == [line[0] for line in lines]
    # A word occurs twice in the text, so the column names begin with a number.
    assert [name.partition(" ")[2] for name in answer["columns"]][1:] == header[1:]
    assert numbers == [[float(line[column]) for line in lines] for column in range(1, len(header))]
    assert answer["provenance"]["question"]["layer"] == 2


def test_every_question_is_a_tool(shared: LocalModels) -> None:
    tools = run_client(shared, lambda client: client.list_tools()).tools
    assert [tool.name for tool in tools] == list(registered_questions())
    for tool in tools:
        assert not tool.input_schema.keys() & {"oneOf", "anyOf", "allOf"}
        assert tool.description
        assert {"first_row", "most_rows", "picture"} <= tool.input_schema["properties"].keys()
    selected = run_client(shared, lambda client: client.list_tools(), "heads", "attention").tools
    assert [tool.name for tool in selected] == ["attention", "heads"]
    with pytest.raises(
        SelectionError, match=r"'head' is not a question. Available questions: activation-patching, "
    ):
        agents.select_questions(["head"])


def test_long_table_is_returned_in_parts(shared: LocalModels, minilm: Checkpoint) -> None:
    records = bert_probe("heads", TEXT, built_in=minilm).records
    result = call_tool(shared, "heads", {"text": TEXT, "most_rows": 40})
    first = result.structured_content
    assert (first["rows"], first["first_row"], len(first["columns"]["head"])) == (72, 1, 40)
    assert first["more"] == "Call the tool again with first_row 41."
    second = call_tool(shared, "heads", {"text": TEXT, "first_row": 41, "most_rows": 40}).structured_content
    assert "more" not in second
    columns = {name: [*first["columns"][name], *second["columns"][name]] for name in first["columns"]}
    assert [str(column) for column in columns["label"]] == [row["label"] for row in records]
    assert columns["entropy_bits"] == [float(row["entropy_bits"]) for row in records]
    assert json.loads(result.content[0].text) == first


def test_wide_table_is_limited_to_fewer_rows(shared: LocalModels) -> None:
    result = call_tool(shared, "hidden-states", {"text": " ".join(["boat"] * 100), "most_rows": 1000})
    answer = result.structured_content
    assert len(answer["columns"]["token"]) == agents.MAX_CELLS // 384
    assert answer["rows"] == 102


def test_picture_is_png(shared: LocalModels) -> None:
    contents = call_tool(shared, "attention", {"text": TEXT, "picture": True}).content
    assert [content.type for content in contents] == ["text", "image"]
    assert contents[1].mime_type == "image/png"
    with Image.open(io.BytesIO(base64.b64decode(contents[1].data))) as picture:
        assert picture.format == "PNG"
        assert min(picture.size) > 200
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 20
    assert len(call_tool(shared, "tokens", {"text": TEXT, "picture": True}).content) == 1


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("attention", {"text": TEXT, "question": {"layer": 9}}, "There is no layer 9"),
        ("attention", {}, "text is missing"),
        (
            "attention",
            {"text": TEXT, "lair": 1},
            'The body has no member "lair". Allowed members: question, model, revision, text, pair',
        ),
        ("attention", {"text": TEXT, "first_row": 0}, "first_row must be 1 or more"),
        ("attention", {"text": TEXT, "first_row": 900}, "first_row must be 1 to 10, not 900."),
        ("attention", {"text": TEXT, "most_rows": True}, "most_rows must be 1 or more"),
        ("attention", {"text": TEXT, "picture": 1}, "picture must be true or false"),
        ("fill-mask", {"text": TEXT}, "has no trained head"),
        ("none", {}, "'none' is not a tool. Available tools: "),
    ],
)
def test_invalid_call_is_an_error_result(
    name: str, arguments: dict[str, Any], message: str, shared: LocalModels
) -> None:
    answer = call_tool(shared, name, arguments)
    assert answer.is_error
    assert message in answer.content[0].text


def test_cancelled_call_ends(shared: LocalModels) -> None:
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(Cancelled):
        agents.call_tool(registered_questions()["head-ablation-sweep"], {"text": TEXT}, shared, cancelled)


def test_command_without_the_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bert_probe.core.extras.find_spec", lambda _name: None)
    refusal = bert_probe("mcp").refusal
    assert refusal == 'mcp is not installed. Install it with pip install "bert-probe[mcp]".'
