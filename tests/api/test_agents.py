"""The questions as tools: what a client of the `mcp` package sees and gets."""

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
from bert_probe.api.local_models import LocalModels
from bert_probe.api.registry import registered_questions
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Cancelled
from tests.helpers.command_line import bert_probe

TEXT = "The small boat crosses the wide river."


@pytest.fixture(scope="module")
def shared() -> LocalModels:
    """Whoever is asked, once for all tests."""
    return LocalModels()


def with_client(shared: LocalModels, ask: Callable[[Client], Awaitable[Any]], *only: str) -> Any:
    """What a client in this process gets."""

    async def asked() -> Any:
        async with Client(agents.server(shared, agents.chosen(only), "0")) as client:
            return await ask(client)

    return asyncio.run(asked())


def called(shared: LocalModels, name: str, arguments: dict[str, Any]) -> Any:
    """The result of one tool."""
    return with_client(shared, lambda client: client.call_tool(name, arguments))


def test_a_client_gets_the_table_of_the_command_line(shared: LocalModels, minilm: Checkpoint) -> None:
    body = {"text": TEXT, "question": {"layer": 2, "head": 3}}
    told = called(shared, "attention", body).structured_content
    header, *lines = bert_probe("attention", TEXT, "--layer", "2", "--head", "3", built_in=minilm).rows
    tokens, *numbers = told["columns"].values()
    assert tokens == [line[0] for line in lines]
    # The word stands twice in the text, so that columns are told apart by their numbers.
    assert [name.partition(" ")[2] for name in told["columns"]][1:] == header[1:]
    assert numbers == [[float(line[column]) for line in lines] for column in range(1, len(header))]
    assert told["provenance"]["question"]["layer"] == 2


def test_each_question_is_a_tool_that_takes_its_fields(shared: LocalModels) -> None:
    tools = with_client(shared, lambda client: client.list_tools()).tools
    assert [tool.name for tool in tools] == list(registered_questions())
    for tool in tools:
        assert not tool.input_schema.keys() & {"oneOf", "anyOf", "allOf"}
        assert tool.description
        assert {"first_row", "most_rows", "picture"} <= tool.input_schema["properties"].keys()
    only = with_client(shared, lambda client: client.list_tools(), "heads", "attention").tools
    assert [tool.name for tool in only] == ["attention", "heads"]
    with pytest.raises(SelectionError, match="There is no question head; there are ablation, "):
        agents.chosen(["head"])


def test_rows_are_told_in_parts_with_their_number(shared: LocalModels, minilm: Checkpoint) -> None:
    whole = bert_probe("heads", TEXT, built_in=minilm).records
    first = called(shared, "heads", {"text": TEXT, "most_rows": 40})
    told = first.structured_content
    assert (told["rows"], told["first_row"], len(told["columns"]["head"])) == (72, 1, 40)
    assert told["more"] == "Ask again with first_row 41."
    rest = called(shared, "heads", {"text": TEXT, "first_row": 41, "most_rows": 40}).structured_content
    assert "more" not in rest
    columns = {name: [*told["columns"][name], *rest["columns"][name]] for name in told["columns"]}
    assert [str(column) for column in columns["label"]] == [row["label"] for row in whole]
    assert columns["entropy_bits"] == [float(row["entropy_bits"]) for row in whole]
    assert json.loads(first.content[0].text) == told


def test_a_wide_table_is_told_in_few_rows(shared: LocalModels) -> None:
    told = called(shared, "vectors", {"text": " ".join(["boat"] * 100), "most_rows": 1000}).structured_content
    assert len(told["columns"]["token"]) == agents.MOST_CELLS // 384
    assert told["rows"] == 102


def test_a_picture_comes_as_png_where_there_is_one(shared: LocalModels) -> None:
    drawn = called(shared, "attention", {"text": TEXT, "picture": True}).content
    assert [one.type for one in drawn] == ["text", "image"]
    assert drawn[1].mime_type == "image/png"
    with Image.open(io.BytesIO(base64.b64decode(drawn[1].data))) as picture:
        assert picture.format == "PNG"
        assert min(picture.size) > 200
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 20
    assert len(called(shared, "tokens", {"text": TEXT, "picture": True}).content) == 1


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("attention", {"text": TEXT, "question": {"layer": 9}}, "There is no layer 9"),
        ("attention", {}, "text is missing"),
        ("attention", {"text": TEXT, "lair": 1}, "has no member"),
        ("attention", {"text": TEXT, "first_row": 0}, "first_row must be 1 or more"),
        ("attention", {"text": TEXT, "first_row": 900}, "There is no row 900; the table has"),
        ("attention", {"text": TEXT, "most_rows": True}, "most_rows must be 1 or more"),
        ("attention", {"text": TEXT, "picture": 1}, "picture must be true or false"),
        ("fill-mask", {"text": TEXT}, "has no trained head"),
        ("none", {}, "There is no tool"),
    ],
)
def test_what_cannot_be_answered_is_told_to_the_agent(
    name: str, arguments: dict[str, Any], said: str, shared: LocalModels
) -> None:
    answer = called(shared, name, arguments)
    assert answer.is_error
    assert said in answer.content[0].text


def test_work_that_nobody_waits_for_ends(shared: LocalModels) -> None:
    gone = threading.Event()
    gone.set()
    with pytest.raises(Cancelled):
        agents.answer(registered_questions()["ablation-of-each-head"], {"text": TEXT}, shared, gone)


def test_without_the_package_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bert_probe.core.extras.find_spec", lambda _name: None)
    said = bert_probe("mcp").refusal
    assert said == 'mcp is not installed. Install it with pip install "bert-probe[mcp]".'
