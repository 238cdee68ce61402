"""The HTTP API under those who mean it no good, or who give up: nothing comes back at length or piles up."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest
from mcp import types
from starlette.testclient import TestClient

from bert_probe.api import agents, limits, problems
from bert_probe.api.alone import Alone
from bert_probe.api.body import Body
from bert_probe.api.served import served
from bert_probe.run import slots
from bert_probe.web import store
from tests.helpers.http import TOKENS, asking, problem
from tests.helpers.waiting import until

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def here() -> Iterator[TestClient]:
    """A program of this machine."""
    with asking() as client:
        yield client


@pytest.mark.parametrize("where", ["text", "pair", "model", "truncate", "question"])
def test_however_deep_a_body_is_it_is_told_and_no_mistake_of_the_app(where: str, here: TestClient) -> None:
    for depth in range(900, 1000, 4):  # some can be read and not be written again
        content = f'{{"text": "a", "{where}": {"[" * depth}{"]" * depth}}}'.replace(
            '"text": "a", "text"', '"text"'
        )
        answer = here.post("/api/v1/tokens", content=content, headers=JSON)
        assert len(problem(answer, 400, "no-json")) < 400


@pytest.mark.parametrize("given", [10**4000, "9" * 1_000_000, ["x" * 100] * 10_000])
def test_what_was_given_is_not_sent_back_at_length_and_the_remedy_stays(
    given: object, here: TestClient
) -> None:
    answer = here.post("/api/v1/attention", json=TOKENS | {"question": {"layer": given}})
    assert len(problem(answer, 422, "selection")) < problems.MOST_DETAIL + 10
    answer = here.post("/api/v1/attention", json=TOKENS | {"question": {"layer": 10**4000}})
    assert answer.json()["detail"].endswith("Give one of them or last.")


@pytest.mark.parametrize(
    "name", ["X-Forwarded-Proto", "X-Forwarded-Port", "CF-Connecting-IP", "True-Client-IP", "X-Original-Host"]
)
def test_whatever_a_proxy_adds_makes_a_request_one_from_elsewhere(name: str, here: TestClient) -> None:
    problem(here.post("/api/v1/tokens", json=TOKENS, headers={name: "1"}), 403, "not-from-here")


def test_who_waits_for_a_pass_and_gives_up_waits_no_more(
    here: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "EVERY", 0.02)
    here.post("/api/v1/tokens", json=TOKENS)
    monkeypatch.setattr(limits, "SECONDS", 0.1)
    with store.passes, store.passes:
        problem(here.post("/api/v1/tokens", json={"text": "A text of its own."}), 504, "took-too-long")
        until(lambda: store.passes.waiting == 0)


def test_work_that_goes_on_for_nobody_counts_among_those_at_once(
    here: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()

    def silent(*_: object) -> None:
        go.wait(20)

    with monkeypatch.context() as patched:
        patched.setattr(Body, "answer", silent)
        patched.setattr(limits, "SECONDS", 0.1)
        patched.setattr(limits, "AT_ONCE", 1)
        problem(here.post("/api/v1/tokens", json=TOKENS), 504, "took-too-long")
        problem(here.post("/api/v1/tokens", json=TOKENS), 503, "busy")
        go.set()
        until(lambda: here.post("/api/v1/tokens", json=TOKENS).status_code != 503)
    assert here.post("/api/v1/tokens", json=TOKENS).status_code == 200


def test_the_page_is_there_with_a_slash_too(here: TestClient) -> None:
    assert here.get("/api/").text == here.get("/api").text


def test_agents_may_write_whole_numbers_as_json_may() -> None:
    def told(layer: object) -> types.CallToolResult:
        given = {**TOKENS, "question": {"layer": layer}}
        return agents.answer(served()["attention"], given, shared, threading.Event())

    shared = Alone()
    assert told(2.0).structured_content == told(2).structured_content
    assert told(2).structured_content is not None
    assert told(float("inf")).is_error
    assert json.dumps(told(2).structured_content)
