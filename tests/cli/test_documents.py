"""Test documents as inputs of commands and HTTP requests: broken rows, folders and corpus stores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.command_line import bert_probe as run
from tests.helpers.http import api_client, problem_detail

CSV = "_id,text\nx,A boat sails.\ny,One,cell too many\nx,The same ID.\nz,The night sky.\n"
PROBLEMS = "line 3: the row has 3 cells, but the header has 2; line 4: the ID 'x' is also the ID of line 2"
SEARCH = ("search", "boat sky", "--scorers", "bm25", "--documents")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a file of documents and a folder of text files into a folder, and change to it."""
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text(CSV)
    Path("manual").mkdir()
    Path("manual/boats.md").write_text("A boat sails.")
    Path("manual/sky.txt").write_text("The night sky.")
    return tmp_path


def test_broken_rows_are_refused_or_skipped_and_stated() -> None:
    refusal = run(*SEARCH, "a.csv").refusal
    assert f"a.csv has 2 errors: {PROBLEMS}. Correct the file" in refusal
    assert "--skip-broken" in refusal
    answer = run(*SEARCH, "a.csv", "--skip-broken", "--out", "ranking.csv")
    assert answer.status == 0
    assert f"2 broken rows were skipped: {PROBLEMS}." in answer.err
    skipped = json.loads(Path("ranking.csv.meta.json").read_text())["skipped"]
    assert skipped["count"] == 2
    assert [row["line"] for row in skipped["first"]] == [3, 4]


def test_a_folder_is_searched() -> None:
    records = run(*SEARCH, "manual").records
    assert {record["document"] for record in records} == {"boats.md", "sky.txt"}


def test_broken_rows_of_a_request_are_refused_or_skipped() -> None:
    body: dict[str, dict[str, object]] = {
        "question": {"query": "boat sky", "scorers": ["bm25"]},
        "documents": {"file": "a.csv", "content": CSV},
    }
    with api_client() as client:
        refused = client.post("/api/v1/search", json=body)
        assert refused.json()["count"] == 2
        assert PROBLEMS in refused.json()["detail"]
        answer = client.post(
            "/api/v1/search", json={**body, "documents": {**body["documents"], "skip_broken": True}}
        )
        assert answer.json()["columns"]["document"] == ["x", "z"]
        assert answer.json()["provenance"]["skipped"]["count"] == 2
        wrong = {**body, "documents": {**body["documents"], "skip_broken": "yes"}}
        assert "skip_broken must be true or false" in problem_detail(
            client.post("/api/v1/search", json=wrong), 400, "no-json"
        )
