"""Test the HTTP API: invalid requests, response formats, limits, documentation and metrics."""

from __future__ import annotations

import asyncio
import io
import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import jsonschema
import pandas as pd
import pyarrow.ipc
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient
from starlette.types import Message

import bert_probe
from bert_probe.api import body, routes, schema
from bert_probe.api.body import FORMATS, LARGE_SLOTS, Body
from bert_probe.api.registry import registered_questions
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Cancelled, Progress
from bert_probe.runtime import jobs, permissions, shared_cache
from bert_probe.runtime.jobs import SLOTS
from bert_probe.server import asgi, security_headers
from tests.helpers.http import TEXT, TOKENS, api_client, problem_detail


@pytest.fixture(scope="module")
def here() -> Iterator[TestClient]:
    """Return an API client whose requests come from the local machine."""
    with api_client() as client:
        yield client


# ---------------------------------------------------------------- invalid requests


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "The body is not JSON in UTF-8"),
        (b"{", "The body is not JSON in UTF-8"),
        (b"\xff", "The body is not JSON in UTF-8"),
        (b'{"text": NaN}', "NaN is not a number in JSON"),
        (b"[" * 100_000, "The body is not JSON in UTF-8"),
        (b"1" * 5000, "The body is not JSON in UTF-8"),
        (b"[]", "The body must be an object"),
        (b'{"text": "a", "text": "b"}', 'In the body the key "text" occurs twice; write the key once.'),
        (b'{"text": "a", "question": {"layer": 1, "layer": 2}}', 'the key "layer" occurs twice'),
        (b"{}", "The member text is missing. Add this member."),
        (b'{"text": 1}', "text must be a string, not 1."),
        (b'{"text": "a", "pair": 1}', "pair must be a string"),
        (
            b'{"text": "a", "texts": ["a"]}',
            'The body must not have a member "texts". Allowed members: question, model, revision, text, pair',
        ),
        (b'{"text": "a", "truncate": 1}', "truncate must be true or false"),
        (b'{"text": "a", "model": 1}', "model must be a string"),
        (b'{"text": "a", "question": []}', "question must be an object"),
        (json.dumps({"text": "a" * 250_001}).encode(), "text has 250,001 characters. Send at most 250,000."),
        (
            json.dumps({"text": "a", "model": "a" * 1001}).encode(),
            "model has 1,001 characters. Send at most 1,000.",
        ),
    ],
)
def test_invalid_body_is_a_problem(content: bytes, message: str, here: TestClient) -> None:
    headers = {"Content-Type": "application/json"}
    assert message in problem_detail(
        here.post("/api/v1/tokens", content=content, headers=headers), 400, "no-json"
    )


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("attention", {"question": {"layer": 7}}, "There is no layer 7"),
        ("attention", {"question": {"layer": 0}}, "There is no layer 0"),
        ("attention", {"question": {"layer": "5"}}, "layer must be a number or last"),
        ("attention", {"question": {"layer": True}}, "layer must be a number"),
        ("attention", {"question": {"layer": 1.5}}, "layer must be a number"),
        ("attention", {"question": {"head": 13}}, "There is no head 13"),
        ("attention", {"question": {"words": 1}}, "words must be True or False"),
        ("attention", {"question": {"measure": "none"}}, "not 'none'."),
        ("attention", {"question": {"lair": 1}}, "attention has no field 'lair'. Its fields are: "),
        (
            "attention",
            {"question": {"analysis": "tokens"}},
            "analysis must be 'attention' or omitted, not 'tokens'.",
        ),
        ("attention-long-form", {"question": {"layers": [1, 9]}}, "There is no layer 9"),
        ("attention-long-form", {"question": {"layers": 1}}, "must be all or a list"),
        ("head-ablation", {"question": {"heads": ["1"] * 2, "specials": None}}, "specials must be"),
        (
            "head-ablation",
            {"question": {"heads": ["1.1,2.2"]}},
            "'1.1,2.2' is not a head. Write layer.head, for example 8.10.",
        ),
        ("head-ablation", {"question": {}}, "needs a value for heads"),
        ("token-rollout", {"question": {"token": -1}}, "position from 0"),
        ("token-rollout", {"question": {"token": "whale"}}, "whale"),
        ("find-heads", {"question": {"pairs": [["boat"]]}}, "must be a list of (query, key)"),
        ("pooler", {"question": {"layer": 1}}, "pooler has no field 'layer'. Its fields are: none."),
        (
            "heads",
            {"question": {"words": True, "count": 10**13}},
            "heads has no field 'count'. Its fields are: ",
        ),
        ("lens", {"question": {"top": 10**13}}, "is larger than 999999999999"),
    ],
)
def test_invalid_field_is_a_problem(name: str, body: dict[str, Any], message: str, here: TestClient) -> None:
    assert message in problem_detail(here.post(f"/api/v1/{name}", json=TOKENS | body), 422, "selection")


@pytest.mark.parametrize(
    ("name", "body", "kind"),
    [
        ("tokens", {"text": ""}, "text"),
        ("tokens", {"text": "\udc00"}, "text"),
        ("tokens", {"text": "boat " * 600}, "text"),
        ("tokens", {"text": TEXT, "model": "/nowhere\x00"}, "model"),
        ("tokens", {"text": TEXT, "model": "no/such-model"}, "model"),
        ("tokens", {"text": TEXT, "revision": "main"}, "model"),
        ("tokens", {"text": TEXT, "model": "Fine-tuned bert (0123456789abcdef)"}, "model"),
        ("fill-mask", {"text": TEXT}, "unavailable"),
        ("minimal-pair", {"texts": [TEXT, {"text": TEXT, "pair": ""}]}, "text"),
        ("sentences", {"sentences": []}, "text"),
        ("evaluation", {"files": {"rows": {"file": "a.csv", "content": "text\n"}}}, "text"),
    ],
)
def test_problem_has_the_type_of_the_error(
    name: str, body: dict[str, Any], kind: str, here: TestClient
) -> None:
    # JSON can contain a lone surrogate, which UTF-8 cannot encode.
    content = json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    problem_detail(here.post(f"/api/v1/{name}", content=content, headers=headers), 422, kind)


def test_problem_lists_errors_of_a_file_with_lines(here: TestClient) -> None:
    file = {"file": "a.csv", "content": "text,label\nA boat.,\n,B\nOne,C\n"}
    answer = here.post("/api/v1/evaluation", json={"files": {"rows": file}})
    problem_detail(answer, 422, "text")
    assert [fault["line"] for fault in answer.json()["faults"]] == [2, 3]
    assert answer.json()["count"] == 2


def test_field_with_a_server_file_is_refused(here: TestClient) -> None:
    body = TOKENS | {"question": {"tuned": "/etc/passwd"}}
    message = "tuned is the path of a file, which only the command line and Python accept. Omit tuned."
    assert problem_detail(here.post("/api/v1/lens", json=body), 400, "no-json") == message
    assert registered_questions()["lens"].file_fields == {"tuned"}
    assert not any(
        question.file_fields for name, question in registered_questions().items() if name != "lens"
    )


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "X"])
def test_wrong_method_is_refused_with_the_allowed_one(method: str, here: TestClient) -> None:
    answer = here.request(method, "/api/v1/tokens")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    if method != "HEAD":
        problem_detail(answer, 405, "wrong-method")
    if method not in ("GET", "HEAD"):
        assert here.request(method, "/metrics").headers["allow"] == "GET"


@pytest.mark.parametrize(
    "path", ["/api/v1/none", "/api/v1/Tokens", "/api/v1/train", "/api/v1/why", "/api/v1/", "/api/none.json"]
)
def test_unknown_path_is_not_found(path: str, here: TestClient) -> None:
    assert "See /api." in problem_detail(here.post(path, json=TOKENS), 404, "no-such-thing")


# ---------------------------------------------------------------- formats


def test_formats_hold_the_same_table(here: TestClient, minilm: Checkpoint) -> None:
    body = TOKENS | {"question": {"layer": 2, "head": 3}}
    table = bert_probe.Attention(layer=1, head=2).of(minilm.trace(TEXT)).table()
    contents = {}
    for media in FORMATS:
        answer = here.post("/api/v1/attention", json=body, headers={"Accept": media})
        assert answer.headers["content-type"].partition(";")[0] == media
        contents[media.rpartition(".")[2]] = answer.content
    record = json.loads(contents["application/json"])
    provenance = json.loads(json.dumps(table.attrs["provenance"]))
    assert record["provenance"] == provenance
    frames = [
        pd.DataFrame(record["columns"]),
        pd.read_csv(io.BytesIO(contents["text/csv"])),
        pd.read_parquet(io.BytesIO(contents["parquet"])),
    ]
    arrow = pyarrow.ipc.open_stream(contents["stream"]).read_all()
    assert json.loads(arrow.schema.metadata[b"bert_probe"]) == provenance
    for frame in [*frames, arrow.to_pandas()]:
        numbers = frame.drop(columns="token").to_numpy("float32")
        assert numbers.tobytes() == table.to_numpy("float32").tobytes()


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        ("", "application/json"),
        (" , ", "application/json"),
        ("*/*", "application/json"),
        ("application/*", "application/json"),
        ("text/*", "text/csv"),
        ("TEXT/CSV", "text/csv"),
        ("text/html, text/csv;q=0.5, application/json;q=0.4", "text/csv"),
        ("application/json;q=0, */*;q=0.1", "text/csv"),
        ("text/csv;header=present;q=0.1, application/vnd.apache.parquet", "application/vnd.apache.parquet"),
    ],
)
def test_accept_header_chooses_the_format(accept: str, media: str, here: TestClient) -> None:
    answer = here.post("/api/v1/tokens", json=TOKENS, headers={"Accept": accept})
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, media)


@pytest.mark.parametrize(("encodings", "encoding"), [("gzip, br", "gzip"), ("identity", None)])
def test_large_table_is_compressed_in_the_thread_of_the_answer(
    encodings: str, encoding: str | None, here: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "COMPRESSED_BYTES", 100)
    answer = here.post("/api/v1/tokens", json=TOKENS, headers={"Accept-Encoding": encodings})
    assert answer.headers.get("content-encoding") == encoding
    monkeypatch.undo()
    assert answer.json() == here.post("/api/v1/tokens", json=TOKENS).json()


@pytest.mark.parametrize("accept", ["text/html", "application/json;q=0", "nonsense", "*/*;q=0"])
def test_unavailable_format_is_a_problem(accept: str, here: TestClient) -> None:
    answer = here.post("/api/v1/tokens", json=TOKENS, headers={"Accept": accept})
    assert "text/csv" in problem_detail(answer, 406, "no-such-form")


# ---------------------------------------------------------------- limits


def test_too_large_body_is_refused(here: TestClient) -> None:
    read = []

    def parts() -> Iterator[bytes]:
        for number in range(20):
            read.append(number)
            yield b" " * 1_000_000

    answer = here.post("/api/v1/tokens", content=parts(), headers={"Content-Type": "application/json"})
    assert "5,000,000 bytes" in problem_detail(answer, 413, "too-large")


def test_too_large_table_is_not_sent(here: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bert_probe.runtime.tables.MAX_CELLS", 50)
    for name in ("tokens", "attention-long-form"):
        answer = here.post(f"/api/v1/{name}", json=TOKENS)
        assert "command line" in problem_detail(answer, 413, "too-large")


def test_too_many_requests_are_refused(here: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permissions, "MAX_REQUESTS", 0)
    answer = here.post("/api/v1/tokens", json=TOKENS)
    problem_detail(answer, 503, "busy")
    assert answer.headers["retry-after"] == "1"


class EndlessWork:
    """A computation that runs until it is cancelled, and records that it has ended."""

    def __init__(self) -> None:
        self.started, self.ended = threading.Event(), threading.Event()

    def answer(self, _body: Body, progress: Progress, _finish: object) -> None:
        self.started.set()
        try:
            while True:
                time.sleep(0.01)
                progress(0, 0)
        except Cancelled:
            self.ended.set()
            raise


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> EndlessWork:
    """Replace the computation of every question by an endless one."""
    work = EndlessWork()
    monkeypatch.setattr(Body, "answer", lambda *arguments: work.answer(*arguments))
    return work


def test_slow_answer_is_cancelled(
    here: TestClient, endless: EndlessWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(permissions, "MAX_ANSWER_SECONDS", 0.1)
    problem_detail(here.post("/api/v1/tokens", json=TOKENS), 504, "took-too-long")
    assert endless.ended.wait(5)


def test_work_for_a_disconnected_client_is_cancelled(endless: EndlessWork) -> None:
    app = Starlette(routes=asgi.routes())
    body = [{"type": "http.request", "body": json.dumps(TOKENS).encode(), "more_body": False}]
    sent: list[Message] = []

    async def receive() -> Message:
        if body:
            return body.pop()
        await asyncio.to_thread(endless.started.wait, 5)
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/api/v1/tokens", "headers": headers}
    asyncio.run(app(scope | {"client": ("127.0.0.1", 1), "query_string": b""}, receive, send))
    assert endless.ended.wait(5)
    assert sent[0]["status"] == 499


def test_requests_are_cancelled_when_the_app_stops(here: TestClient, endless: EndlessWork) -> None:
    try:
        with ThreadPoolExecutor() as pool:
            answer = pool.submit(here.post, "/api/v1/tokens", json=TOKENS)
            assert endless.started.wait(5)
            jobs.cancel_all()
            problem_detail(answer.result(), 503, "stopping")
        problem_detail(here.post("/api/v1/tokens", json=TOKENS), 503, "stopping")
    finally:
        jobs.stopping.clear()


def test_long_work_shares_the_slots_of_the_pages(here: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        pass

    monkeypatch.setattr(permissions, "MAX_ANSWER_SECONDS", 0.7)
    with SLOTS.turn(check), SLOTS.turn(check):
        waited = here.post("/api/v1/head-ablation-sweep", json=TOKENS)
        quick = here.post("/api/v1/attention", json=TOKENS)
    problem_detail(waited, 504, "took-too-long")
    assert quick.status_code == 200


def test_requests_with_large_traces_or_tables_wait_for_each_other(
    here: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check() -> None:
        pass

    monkeypatch.setattr(permissions, "MAX_ANSWER_SECONDS", 0.7)
    long_text = {"text": "boat " * 101}
    with ExitStack() as slots:
        for _ in range(LARGE_SLOTS.limit):
            slots.enter_context(LARGE_SLOTS.turn(check))
        waited = [
            here.post("/api/v1/attention", json=long_text),
            here.post("/api/v1/attention-long-form", json=TOKENS),
        ]
        monkeypatch.setattr(permissions, "MAX_ANSWER_SECONDS", 60)
        quick = here.post("/api/v1/attention", json=TOKENS)
    for answer in waited:
        problem_detail(answer, 504, "took-too-long")
    assert quick.status_code == 200
    assert here.post("/api/v1/attention", json=long_text).status_code == 200


def test_large_bodies_are_parsed_in_turn(here: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "SMALL_BYTES", 1_000)
    active, most = 0, 0
    parse = body.parse_json

    def counted(content: bytes) -> object:
        nonlocal active, most
        active += 1
        most = max(most, active)
        time.sleep(0.02)
        active -= 1
        return parse(content)

    monkeypatch.setattr(body, "parse_json", counted)
    post = partial(here.post, "/api/v1/tokens")
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda number: post(json={"text": f"{number} " * 500}), range(4)))
    assert {answer.status_code for answer in answers} <= {200, 400, 413, 422}
    assert most == 1


def test_unexpected_error_hides_its_message(
    here: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise ValueError("a secret text")

    monkeypatch.setattr(Body, "answer", fails)
    answer = here.post("/api/v1/tokens", json=TOKENS)
    problem_detail(answer, 500, "failed")
    assert "secret" not in answer.text
    assert "a secret text" in caplog.text


# ---------------------------------------------------------------- documentation and metrics


def test_openapi_document_lists_every_question(here: TestClient) -> None:
    document = here.get("/api/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    paths = {path.removeprefix("/api/v1/") for path in document["paths"] if path.startswith("/api/v1/")}
    assert paths == set(registered_questions())
    for path, operations in document["paths"].items():
        if "post" in operations:
            content = operations["post"]["requestBody"]["content"]["application/json"]
            jsonschema.Draft202012Validator.check_schema(content["schema"])
            jsonschema.Draft202012Validator(content["schema"]).validate(content["example"])
            assert operations["post"]["description"], path


SLOW = (
    "activation-patching",
    "attribution-faithfulness",
    "faithfulness-summary",
    "highlights",
    "similarity-attribution",
)
"""Questions whose examples take more than ten seconds on a slow machine."""
WITHOUT_HEAD = {
    "evaluation",
    "fill-mask",
    "head-pruning",
    "lens",
    "mask-evaluation",
    "next-sentence-prediction",
    "question-answering",
    "text-classification",
    "token-classification",
    "tuned-lens",
}
"""Questions that need a task head that the built-in model lacks."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.prove] if name in SLOW else [])
        for name in registered_questions()
    ],
)
def test_examples_of_the_schema_are_answered(name: str, here: TestClient) -> None:
    answer = here.post(f"/api/v1/{name}", json=schema.example(registered_questions()[name]))
    if name in WITHOUT_HEAD:
        assert "has no trained head" in problem_detail(answer, 422, "unavailable")
    else:
        assert answer.status_code == 200, answer.text
        jsonschema.Draft202012Validator(schema.TABLE).validate(answer.json())


def test_page_loads_nothing_from_other_hosts(here: TestClient) -> None:
    page, script = here.get("/api"), here.get("/api/page.js")
    assert page.headers["content-security-policy"] == security_headers.headers()["Content-Security-Policy"]
    assert script.headers["content-type"].startswith("text/javascript")
    assert not re.search(r"https?://|//[a-z]+\.", page.text)
    assert "innerHTML" not in script.text


def test_health_and_readiness_are_reported() -> None:
    with api_client(address="10.0.0.7") as other:
        assert other.get("/healthz").json() == {"status": "ok", "version": bert_probe.__version__}
        first = other.get("/readyz")
        assert problem_detail(first, 503, "not-ready")
        assert first.headers["retry-after"] == "1"
        end = time.monotonic() + 60
        while (answer := other.get("/readyz")).status_code == 503 and time.monotonic() < end:
            time.sleep(0.02)
        assert answer.json() == {"status": "ready"}
    assert shared_cache.cached_checkpoint("", "") is not None


def test_metrics_count_requests_queues_caches_and_memory(here: TestClient) -> None:
    def numbers() -> dict[str, float]:
        answer = here.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
        for line in lines:
            assert re.fullmatch(r'bert_probe_\w+(\{(\w+="[\w -]+",?)+\})? [0-9.e+-]+', line), line
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    text = f"A text that no cache holds yet, {time.time_ns()}."
    here.post("/api/v1/tokens", json={"text": text})
    before = numbers()
    here.post("/api/v1/tokens", json={"text": text})
    here.post("/api/v1/tokens", json={"text": f"{text} More."})
    here.post("/api/v1/tokens", json={"text": ""})
    after = numbers()
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown['bert_probe_api_requests_total{analysis="tokens",status="200"}'] == 2
    assert grown['bert_probe_api_requests_total{analysis="tokens",status="422"}'] == 1
    assert grown['bert_probe_cache_lookups_total{cache="traces"}'] == 3
    assert grown['bert_probe_cache_misses_total{cache="traces"}'] == 2  # two new texts, one of them refused
    assert grown['bert_probe_queue_started_total{queue="passes"}'] >= 2
    assert grown['bert_probe_cache_entries{cache="traces"}'] == 1
    assert grown['bert_probe_cache_bytes{cache="traces"}'] > 1000
    assert after["bert_probe_resident_memory_bytes"] > 1e8
    assert after['bert_probe_queue_waiting{queue="passes"}'] == 0
    assert after['bert_probe_cache_entries{cache="checkpoints"}'] >= 1
