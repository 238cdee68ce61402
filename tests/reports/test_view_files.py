"""View files: what they hold, that they ask the same again, and that nothing wrong in them passes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bert_probe
from bert_probe.errors import ReportError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.reports.drafts import Draft, DraftEntry, read_any
from bert_probe.reports.json_reader import MOST_BYTES
from bert_probe.reports.view_files import FORMAT, KIND, ModelReference, TextInput, ViewFile, read, read_file
from bert_probe.text.labeled_texts import parse_labeled_texts
from tests.helpers.pages import HOSTILE
from tests.helpers.treebank import SAILING, SLEEPING, TAGGED

TEXT = "the small boat crosses the river"


@pytest.fixture
def small(family: Callable[[str], Checkpoint]) -> Checkpoint:
    """A tiny model in a folder of its own."""
    return family("bert")


def test_a_view_says_what_was_asked_of_whom(small: Checkpoint) -> None:
    view = ViewFile.of(bert_probe.Attention(1, 2).of(small.trace(TEXT, HOSTILE)))
    assert (view.question, view.asked["layer"], view.asked["head"]) == ("Attention", "2", "3")
    assert view.texts == (TextInput(TEXT, HOSTILE),)
    about = small.description
    assert view.models == (ModelReference(about.name, weights_sha256=about.weights_sha256),)
    assert not view.models[0].is_built_in
    held = json.loads(view.to_bytes())
    assert held[KIND] == FORMAT
    assert not any(isinstance(value, float) for value in held["asked"].values())


def test_usual_fields_are_written_too(small: Checkpoint) -> None:
    """A later version may mean something else where nothing is said."""
    view = ViewFile.of(bert_probe.Attention().of(small.trace(TEXT)))
    assert view.asked | {"specials": "1", "residual": "0.5", "drawn": "weights"} == view.asked


def test_a_view_reads_as_it_was_written(small: Checkpoint) -> None:
    view = ViewFile.of(bert_probe.Tokens().of(small.trace(HOSTILE)))
    view = view.on("tokens", {"a": HOSTILE, "of": "b", "model": "a folder's name in no encoding: \udcff"})
    assert read(view.to_bytes()) == view
    tray = Draft(HOSTILE, (DraftEntry(view, "{{1, id}} \r\n" + HOSTILE), DraftEntry(view)))
    assert read_any(tray.to_bytes(), "file") == tray


def test_a_view_asks_two_texts_of_two_models(family: Callable[[str], Checkpoint]) -> None:
    one, other = family("bert"), family("bert")
    result = bert_probe.HeadChange(words=True).of(one.trace(TEXT), other.trace(TEXT))
    view = read(ViewFile.of(result).to_bytes())
    assert len(view.models) == 2
    assert view.answer(one, other).result.table().equals(result.table())


def test_the_traces_of_an_answer_come_with_it(small: Checkpoint) -> None:
    view = ViewFile("Similarity", {"vector_layer": "1"}, texts=(TextInput(TEXT), TextInput("the wide river")))
    answered = view.answer(small)
    assert [trace.encoding.text for trace in answered.traces] == [TEXT, "the wide river"]
    alone = bert_probe.Similarity(1).of(*answered.traces)
    np.testing.assert_array_equal(answered.result.table(), alone.table())


def test_sentences_are_in_the_file(small: Checkpoint) -> None:
    result = bert_probe.Sentences().of(small, [TEXT, "the wide river"])
    view = read(ViewFile.of(result).to_bytes())
    assert view.sentences == (TEXT, "the wide river")
    assert view.answer(small).result.table().equals(result.table())


def test_what_cannot_be_opened_again_has_no_view_file(small: Checkpoint) -> None:
    trace = small.trace(TEXT)
    weights = [trace.attention(layer) for layer in range(trace.layers)]
    given = bert_probe.from_attention(weights, [str(token) for token in trace.tokens])
    with pytest.raises(UnavailableError, match="in memory"):
        ViewFile.of(bert_probe.Attention().of(given))
    with pytest.raises(UnavailableError, match="not at hand any more"):
        ViewFile.of(bert_probe.HeadMeans(resamples=2).of(small, [TEXT]))
    with pytest.raises(UnavailableError, match="not at hand any more"):
        ViewFile.of(bert_probe.Relations().of(small, SAILING, SLEEPING), {"chosen": SAILING})


TABLE = parse_labeled_texts(
    b'text_a,text_b,label\n"a, ""b""\nc",=d,one\nthe river,e,two\nc,d,one\na,b,two\n', "a.csv"
)


@pytest.mark.parametrize(
    ("question", "data"),
    [
        (bert_probe.Relations(), {"chosen": SAILING, "reported": SLEEPING}),
        (bert_probe.Probe(), {"data": TAGGED, "held_out": TAGGED}),
        (bert_probe.Probe(pooling="cls"), {"data": TABLE, "held_out": TABLE}),
        (bert_probe.CorpusTokenMap(), {"rows": TABLE}),
        (bert_probe.CorpusTokenMap(), {"rows": (TEXT, "the wide river")}),
        (bert_probe.HeadMeans(resamples=2), {"sentences": (TEXT, "the wide river")}),
    ],
)
def test_files_of_a_readers_own_are_in_the_file(
    question: Any, data: dict[str, Any], small: Checkpoint
) -> None:
    result = question.of(small, **data)
    view = read(ViewFile.of(result, data).to_bytes())
    again = view.answer(small).result
    assert again.table().equals(result.table())
    assert again.provenance == result.provenance


def test_other_files_than_those_that_were_asked_of_are_refused(small: Checkpoint) -> None:
    result = bert_probe.Relations().of(small, SAILING, SLEEPING)
    with pytest.raises(UnavailableError, match="reads otherwise"):
        ViewFile.of(result, {"chosen": SLEEPING, "reported": SLEEPING})
    map_of_many = bert_probe.CorpusTokenMap().of(small, (TEXT, TEXT))
    with pytest.raises(UnavailableError, match="not at hand"):
        ViewFile.of(map_of_many, {"rows": (TEXT, "another")})


def plain(**changes: Any) -> dict[str, Any]:
    """A view file that is right, but for the changes."""
    held = {KIND: FORMAT, "question": "Tokens", "texts": [{"text": TEXT}]} | changes
    return {name: value for name, value in held.items() if value is not ...}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({KIND: ...}, "it has no bert_probe_view"),
        ({KIND: "1"}, "which is no number"),
        ({KIND: True}, "which is no number"),
        ({KIND: FORMAT + 1}, "by a later BERT Probe"),
        ({"question": ...}, "neither a question nor a page"),
        ({"question": 3}, "which must be a text"),
        ({"question": "load"}, "There is no question 'load'"),
        ({"question": "Teach"}, "There is no question 'Teach'"),
        ({"question": "__dict__"}, "There is no question"),
        ({"asked": {"layer": 3}}, "where texts must be"),
        ({"texts": [{"text": TEXT, "lang": "en"}]}, "unknown here"),
        ({"texts": [TEXT]}, "must be an object"),
        ({"texts": [{"text": TEXT, "truncate": "yes"}]}, "true or false"),
        ({"models": [{}, {}, {}]}, "names 3 models"),
        ({"models": [{"name": ["/etc"]}]}, "which must be a text"),
        ({"run": "rm"}, "unknown here"),
        ({"files": {"data": {"file": "../a.conll", "content": "a B"}}}, "no file's name"),
        ({"files": {"data": {"file": "a.csv", "content": "text,label"}}}, "kind of labels"),
        ({"files": {"data": {"file": "a.conll", "content": "a B", "kind": "classes"}}}, "kind of labels"),
        ({"files": {"data": {"file": "a.conll", "content": 3}}}, "which must be a text"),
        ({"files": {"data": {"file": "a.conll", "content": "a B\n" * 800_000}}}, "at most 3 MB"),
    ],
)
def test_what_is_wrong_in_a_file_is_said(changes: dict[str, Any], sentence: str) -> None:
    read(json.dumps(plain()).encode())
    with pytest.raises(ReportError, match=sentence):
        read(json.dumps(plain(**changes)).encode())


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b'{"a": [{"b": 1, "b": 1}]}', 'the key "b" is given twice; give it once.'),
        (b"[]", "no view file"),
        (b" " * (MOST_BYTES + 1), "larger than 5 MB"),
    ],
)
def test_what_is_no_view_file_is_said(content: bytes, sentence: str) -> None:
    with pytest.raises(ReportError, match=sentence):
        read_any(content, "x.json")


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none", Path("nul\0")):
        with pytest.raises(ReportError, match="cannot be read"):
            read_file(place)


@pytest.mark.parametrize(
    "changes",
    [
        {"texts": []},
        {"texts": [{"text": TEXT}, {"text": TEXT}, {"text": TEXT}]},
        {"texts": [], "sentences": [TEXT]},
        {"question": "Sentences"},
        {"question": "Evaluate", "sentences": [TEXT]},
        {"question": "Relations", "sentences": [TEXT]},
        {"question": "WordInContext", "asked": {"context_words": "river"}, "sentences": [TEXT]},
        {"question": "HeadChange"},
        {"question": "Attention", "asked": {"layer": "99"}},
        {"question": "Attention", "asked": {"layer": "1_0"}},
        {"question": "FindHeads"},
    ],
)
def test_a_question_that_does_not_fit_its_subjects_is_a_sentence(
    changes: dict[str, Any], small: Checkpoint
) -> None:
    view = read(json.dumps(plain(**changes)).encode())
    with pytest.raises(bert_probe.ProbeError):
        view.answer(small)
