"""Test the limits of the API: the enforced limits equal the documented ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bert_probe.analyses.evaluation import label_evaluation, retrieval_evaluation
from bert_probe.analyses.outputs import fill_mask, find_answer
from bert_probe.api import body, schema
from bert_probe.api.errors import BodyError
from bert_probe.api.registry import registered_questions
from bert_probe.errors import UnavailableError
from bert_probe.model import lengths
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import no_progress
from bert_probe.runtime import permissions, shared_cache
from bert_probe.runtime.tables import limited_table

DOCUMENT = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
LIMITS = " ".join(DOCUMENT.partition("\n## Limits\n")[2].partition("\n## ")[0].split())


@pytest.mark.parametrize(
    "statement",
    [
        f"A body has at most {permissions.MAX_BODY_BYTES / 1e6:g} MB",
        f"a text {lengths.MAX_CHARACTERS:,} characters",
        f"a list {permissions.MAX_SENTENCES:,} sentences",
        f"a table {permissions.MAX_CELLS:,} cells",
        f"{permissions.MAX_TABLE_CHARACTERS:,} characters of texts",
        f"requests with more than {body.SMALL_CHARACTERS} characters",
        f"A body must arrive within {permissions.MAX_BODY_SECONDS:g} seconds",
        f"{permissions.MAX_CLIENT_BYTES / 1e6:g} MB for one client",
        f"{permissions.MAX_INCOMING_BYTES / 1e6:g} MB for all",
        f"A request may take {permissions.MAX_ANSWER_SECONDS:g} seconds",
        f"At most {permissions.MAX_REQUESTS} requests are processed at once",
        f"at most {retrieval_evaluation.MAX_QUERIES:,} queries",
        f"{retrieval_evaluation.MAX_SCORES:,} pairs of a query and a document",
        f"{label_evaluation.MAX_PROBABILITIES:,} texts × classes",
        f"at most {fill_mask.MAX_PREDICTIONS:,} predictions",
        f"at most {fill_mask.MAX_LOGITS:,} logits",
        f"at most {find_answer.MAX_WINDOWS} windows with at most {find_answer.MAX_SPANS:,} spans",
        f"{permissions.MAX_LIST_LINES:,} lines",
        f"{permissions.MAX_FILE_LINES:,} lines",
    ],
)
def test_documentation_states_the_limit(statement: str) -> None:
    assert statement in LIMITS


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("label-evaluation", {"texts": ("a.csv", "text,label\na,x\nb,x\nc,y\nd,y\n")}),
        (
            "retrieval-evaluation",
            {
                "documents": ("d.jsonl", '{"_id": "d", "text": "a"}'),
                "queries": ("q.jsonl", '{"_id": "q", "text": "a"}\n{"_id": "r", "text": "b"}'),
                "judgments": ("qrels.tsv", "q\td\t1\n"),
            },
        ),
    ],
)
def test_evaluations_of_too_much_data_are_refused(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch, name: str, files: dict[str, tuple[str, str]]
) -> None:
    monkeypatch.setattr(label_evaluation, "MAX_PROBABILITIES", 4)
    monkeypatch.setattr(retrieval_evaluation, "MAX_SCORES", 1)
    members = {key: {"file": file, "content": content} for key, (file, content) in files.items()}
    monkeypatch.setattr(shared_cache, "open_checkpoint", lambda *_: minilm)
    request = body.read_body(registered_questions()[name], {"files": members})
    with pytest.raises(UnavailableError, match=r"evaluates at most .*, or the command line"):
        request.answer(no_progress, limited_table)


def test_schema_states_the_limit_of_a_text() -> None:
    properties = schema.body_schema(registered_questions()["tokens"])["properties"]
    assert properties["text"]["maxLength"] == lengths.MAX_CHARACTERS


@pytest.mark.parametrize(
    ("name", "members", "limit"),
    [
        ("probe", {"files": {"data": {"file": "a.csv"}}}, permissions.MAX_FILE_LINES),
        ("search", {"documents": {"file": "a.jsonl"}}, permissions.MAX_LIST_LINES),
        ("sentences", {"sentences": {"file": "a.txt"}}, permissions.MAX_LIST_LINES),
    ],
)
def test_files_with_too_many_lines_are_refused_unread(name: str, members: Any, limit: int) -> None:
    file = members["documents"] if "documents" in members else members.get("sentences")
    file = members["files"]["data"] if file is None else file
    for content in ("a,b\n" * (limit + 1), "a,b\r" * (limit + 1)):
        file["content"] = content
        with pytest.raises(BodyError, match=f"has {limit + 1:,} lines. Send at most {limit:,}"):
            body.read_body(registered_questions()[name], members)
