"""Test the content, round trips and checks of view files."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import bert_probe
from bert_probe import PaddingEffect
from bert_probe.analyses.attention.attention import AttentionLongResult
from bert_probe.errors import ProbeError, ReportError, ReportTooLargeError, TextError, UnavailableError
from bert_probe.model import lengths
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from bert_probe.reports import numbers
from bert_probe.reports.drafts import Draft, DraftEntry, read_any
from bert_probe.reports.json_reader import MAX_BYTES
from bert_probe.reports.numbers import NamedModels
from bert_probe.reports.report import Report
from bert_probe.reports.tables import canonical
from bert_probe.reports.view_files import (
    FORMAT,
    KIND,
    AnsweredView,
    ModelReference,
    TextInput,
    ViewFile,
    describe_question,
    read,
    read_view_file,
)
from bert_probe.text.labeled_texts import parse_labeled_texts
from tests.helpers.pages import HOSTILE
from tests.helpers.treebank import SAILING, SLEEPING, TAGGED

TEXT = "the small boat crosses the river"


@pytest.fixture
def small(family: Callable[[str], Checkpoint]) -> Checkpoint:
    """Return a tiny model that was loaded from a folder."""
    return family("bert")


def test_view_file_has_question_model_and_inputs(small: Checkpoint) -> None:
    view = ViewFile.of(bert_probe.Attention(1, 2).of(small.trace(TEXT, HOSTILE)))
    assert (view.question, view.asked["layer"], view.asked["head"]) == ("Attention", "2", "3")
    assert view.texts == (TextInput(TEXT, HOSTILE),)
    description = small.description
    assert view.models == (ModelReference(description.name, weights_sha256=description.weights_sha256),)
    assert not view.models[0].is_built_in
    contents = json.loads(view.to_bytes())
    assert contents[KIND] == FORMAT
    assert not any(isinstance(value, float) for value in contents["asked"].values())


def test_question_is_described_with_the_words_of_the_pages(minilm: Checkpoint) -> None:
    view = ViewFile.of(bert_probe.Attention(1, 2, words=True).of(minilm.trace(TEXT)))
    assert describe_question(view) == ("Attention", "layer 2, head 3, whole words")
    view = ViewFile.of(bert_probe.SentenceSimilarity().of(minilm.trace(TEXT), minilm.trace("another")))
    assert describe_question(view)[0] == "Sentence similarity"


def test_default_fields_are_written(small: Checkpoint) -> None:
    """Defaults may change in a later version, so fields with default values are also written."""
    view = ViewFile.of(bert_probe.Attention().of(small.trace(TEXT)))
    assert view.asked | {"specials": "1", "residual": "0.5", "drawn": "weights"} == view.asked


def test_view_file_survives_round_trip(small: Checkpoint) -> None:
    view = ViewFile.of(bert_probe.Tokens().of(small.trace(HOSTILE)))
    view = view.on("tokens", {"a": HOSTILE, "of": "b", "model": "a folder's name in no encoding: \udcff"})
    assert read(view.to_bytes()) == view
    tray = Draft(HOSTILE, (DraftEntry(view, "{{1, id}} \r\n" + HOSTILE), DraftEntry(view)))
    assert read_any(tray.to_bytes(), "file") == tray


def test_traces_of_a_view_are_limited(small: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"a boat number {number}" for number in range(20)]
    result = PaddingEffect().of(small.traces(texts))
    view = ViewFile.of(result)
    again = view.answer(small).result
    pd.testing.assert_frame_equal(again.table(), result.table())
    size = small.trace(texts[-1]).nbytes
    monkeypatch.setattr(lengths, "MAX_TRACE_BYTES", 12 * size)
    with pytest.raises(TextError, match="first 16 texts need more than"):
        view.answer(small)


def test_view_of_two_texts_and_two_models_is_answered(family: Callable[[str], Checkpoint]) -> None:
    first, other = family("bert"), family("bert")
    result = bert_probe.HeadChange(words=True).of(first.trace(TEXT), other.trace(TEXT))
    view = read(ViewFile.of(result).to_bytes())
    assert len(view.models) == 2
    assert view.answer(first, other).result.table().equals(result.table())


def test_answer_includes_traces(small: Checkpoint) -> None:
    view = ViewFile("Similarity", {"vector_layer": "1"}, texts=(TextInput(TEXT), TextInput("the wide river")))
    answered = view.answer(small)
    assert [trace.encoding.text for trace in answered.traces] == [TEXT, "the wide river"]
    alone = bert_probe.Similarity(1).of(*answered.traces)
    np.testing.assert_array_equal(answered.result.table(), alone.table())


def test_view_file_includes_sentences(small: Checkpoint) -> None:
    result = bert_probe.Sentences().of(small, [TEXT, "the wide river"])
    view = read(ViewFile.of(result).to_bytes())
    assert view.sentences == (TEXT, "the wide river")
    assert view.answer(small).result.table().equals(result.table())


def test_results_that_cannot_be_recomputed_have_no_view_file(small: Checkpoint) -> None:
    trace = small.trace(TEXT)
    weights = [trace.attention(layer) for layer in range(trace.layers)]
    arguments = bert_probe.from_attention(weights, [str(token) for token in trace.tokens])
    with pytest.raises(UnavailableError, match="in memory"):
        ViewFile.of(bert_probe.Attention().of(arguments))
    with pytest.raises(UnavailableError, match="cannot be saved in a view file"):
        ViewFile.of(bert_probe.HeadMeans(resamples=2).of(small, [TEXT]))
    with pytest.raises(UnavailableError, match="cannot be saved in a view file"):
        ViewFile.of(bert_probe.Relations().of(small, SAILING, SLEEPING), {"chosen": SAILING})


TABLE = parse_labeled_texts(
    b'text_a,text_b,label\n"a, ""b""\nc",=d,one\nthe river,e,two\nc,d,one\na,b,two\n', "a.csv"
)


@pytest.mark.gate(cases=2)
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
def test_view_file_includes_input_files(question: Any, data: dict[str, Any], small: Checkpoint) -> None:
    result = question.of(small, **data)
    view = read(ViewFile.of(result, data).to_bytes())
    again = view.answer(small).result
    assert again.table().equals(result.table())
    assert again.provenance == result.provenance


def test_other_input_files_are_refused(small: Checkpoint) -> None:
    result = bert_probe.Relations().of(small, SAILING, SLEEPING)
    with pytest.raises(UnavailableError, match="changes when it"):
        ViewFile.of(result, {"chosen": SLEEPING, "reported": SLEEPING})
    map_of_many = bert_probe.CorpusTokenMap().of(small, (TEXT, TEXT))
    with pytest.raises(UnavailableError, match="cannot be saved in a view file"):
        ViewFile.of(map_of_many, {"rows": (TEXT, "another")})


def test_view_with_earlier_names_opens(small: Checkpoint) -> None:
    contents = plain(
        question="Reach",
        asked={"reach_token": "2", "words": "1"},
        drawn={"as": "lines", "renormalise": "1"},
        page="attention",
        address={"a": TEXT, "show": "reach", "reach_token": "2"},
    )
    view = read(json.dumps(contents).encode())
    assert view.answer(small).result.question == bert_probe.TokenRollout(2, words=True)
    assert view.drawn == {"as": "lines", "renormalize": "1"}
    assert view.address == {"a": TEXT, "show": "rollout", "rollout_token": "2"}


def plain(**changes: Any) -> dict[str, Any]:
    """Return the JSON of a valid view file with some changes."""
    contents = {KIND: FORMAT, "question": "Tokens", "texts": [{"text": TEXT}]} | changes
    return {name: value for name, value in contents.items() if value is not ...}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({KIND: ...}, "it has no bert_probe_view"),
        ({KIND: "1"}, "must be a number"),
        ({KIND: True}, "must be a number"),
        ({KIND: FORMAT + 1}, "by a later version of BERT Probe"),
        ({"question": ...}, "neither a question nor a page"),
        ({"question": 3}, "but the value must be a string"),
        ({"question": "load"}, "The question 'load' does not exist"),
        ({"question": "Teach"}, "The question 'Teach' does not exist"),
        ({"question": "__dict__"}, "does not exist in this version"),
        ({"asked": {"layer": 3}}, "must be strings"),
        ({"texts": [{"text": TEXT, "lang": "en"}]}, "unknown key"),
        ({"texts": [TEXT]}, "must be an object"),
        ({"texts": [{"text": TEXT, "truncate": "yes"}]}, "true or false"),
        ({"models": [{}, {}, {}]}, "has 3 models"),
        ({"models": [{"name": ["/etc"]}]}, "but the value must be a string"),
        ({"run": "rm"}, "unknown key"),
        ({"files": {"data": {"file": "../a.conll", "content": "a B"}}}, "not a valid file name"),
        ({"files": {"data": {"file": "a.csv", "content": "text,label"}}}, "invalid label type"),
        ({"files": {"data": {"file": "a.conll", "content": "a B", "kind": "classes"}}}, "invalid label type"),
        ({"files": {"data": {"file": "a.conll", "content": 3}}}, "but the value must be a string"),
        ({"files": {"data": {"file": "a.conll", "content": "a B\n" * 800_000}}}, "at most 3 MB"),
    ],
)
def test_invalid_view_files_are_refused(changes: dict[str, Any], sentence: str) -> None:
    read(json.dumps(plain()).encode())
    with pytest.raises(ReportError, match=sentence):
        read(json.dumps(plain(**changes)).encode())


@pytest.mark.parametrize(
    ("question", "file", "endings"),
    [
        ("CorpusTokenMap", "rows.tsv", ".csv"),
        ("Evaluate", "rows.jsonl", ".csv or .conll or .conllu"),
        ("LabelEvaluation", "texts.conll", ".csv"),
        ("Probe", "held_out.tsv", ".csv or .conll or .conllu"),
        ("Relations", "chosen.csv", ".conll or .conllu"),
        ("RetrievalEvaluation", "documents.csv", ".jsonl"),
        ("RetrievalEvaluation", "judgments.jsonl", ".tsv"),
        ("RetrievalEvaluation", "queries.tsv", ".jsonl"),
        ("StructuralProbe", "data.tsv", ".conll or .conllu"),
    ],
)
def test_file_in_another_format_is_refused(question: str, file: str, endings: str) -> None:
    name, _, ending = file.partition(".")
    content = {"file": file, "content": "a\tb\tc\n"} | ({"kind": "classes"} if ending == "csv" else {})
    sentence = f"but the file for the argument {name} of {question} must end in {endings}. Choose"
    with pytest.raises(ReportError, match=sentence.replace(".", r"\.")):
        read(json.dumps(plain(question=question, texts=..., files={name: content})).encode())
    content |= {"file": f"{name}{endings.partition(' ')[0]}"}
    content |= {"kind": "classes" if endings.startswith(".csv") else ""}
    assert read(json.dumps(plain(question=question, texts=..., files={name: content})).encode()).files


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"a": [{"b": 1, "b": 1}]}', 'the key "b" occurs twice; write the key once.'),
        (b"[]", "is not a view file"),
        (b" " * (MAX_BYTES + 1), "larger than 5 MB"),
    ],
)
def test_other_files_are_refused(content: bytes, sentence: str) -> None:
    with pytest.raises(ReportError, match=sentence):
        read_any(content, "x.json")


def test_missing_file_is_refused(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none", Path("nul\0")):
        with pytest.raises(ReportError, match="cannot be read"):
            read_view_file(place)


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
        {
            "question": "VectorSearch",
            "asked": {"query": "a boat"},
            "texts": [],
            "sentences": ['{"_id": "1", "text": "a"}'],
        },
    ],
)
def test_question_that_does_not_fit_inputs_is_refused(changes: dict[str, Any], small: Checkpoint) -> None:
    view = read(json.dumps(plain(**changes)).encode())
    with pytest.raises(bert_probe.ProbeError):
        view.answer(small)


def test_limits_of_the_app_apply_to_its_reports(minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not apply on the command line, which opens the models without them."""
    views = {
        "it has 3 sentences, but at most 2 are allowed": ViewFile.of(
            bert_probe.Sentences().of(minilm, ["a", "b", "c"])
        ),
        "it has 3 texts, but at most 2 are allowed": ViewFile.of(
            bert_probe.WordInContext(words=("a",)).of(minilm.traces(["a", "a b", "c a"]))
        ),
        "needs at most a table": ViewFile.of(bert_probe.Tokens().of(minilm.trace(TEXT))),
    }

    def refuse(*_inputs: object) -> None:
        raise UnavailableError("It needs at most a table. Use less.")

    monkeypatch.setattr(numbers, "_MAX_SENTENCES", {bert_probe.Sentences: 2})
    monkeypatch.setattr(numbers, "MAX_TEXTS", 2)
    monkeypatch.setattr(bert_probe.Tokens, "check_limits", refuse)
    for message, view in views.items():
        draft = Draft("Limits", (DraftEntry(view),))
        with pytest.raises(ProbeError, match=message):
            Report.of(draft, NamedModels(lambda _: minilm, is_limited=True))
        assert Report.of(draft, NamedModels(lambda _: minilm))


def test_report_keeps_no_traces_and_stops_at_its_maximum_size(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft of 50 views of long texts would otherwise need gigabytes."""
    computed: list[weakref.ref[Trace]] = []
    original = ViewFile.answer

    def answer(view: ViewFile, *checkpoints: Checkpoint, **options: Any) -> AnsweredView:
        answered = original(view, *checkpoints, **options)
        computed.extend(map(weakref.ref, answered.traces))
        return answered

    monkeypatch.setattr(ViewFile, "answer", answer)
    trace = minilm.trace(TEXT)
    view = ViewFile.of(bert_probe.Attention(2, 3).of(trace))
    drawn = replace(ViewFile.of(bert_probe.Heads().of(trace)), drawn={"as": "lines"})
    draft = Draft("", tuple(map(DraftEntry, (view, drawn, view, view))))
    models = NamedModels(lambda _: minilm, is_limited=True)
    report = Report.of(draft, models)
    gc.collect()
    assert len(computed) == 8, "each view in float32 and in float64"
    assert not [reference for reference in computed if reference()]
    assert len(report.items) == 4
    sizes = [len(canonical(item.stated)) for item in report.items]
    computed.clear()
    with pytest.raises(ReportTooLargeError):
        Report.of(draft, models, max_bytes=sum(sizes[:2]) - 1)
    assert len(computed) == 4, "the third and fourth view are not computed"
    assert Report.of(draft, models, max_bytes=sum(sizes)).stated == report.stated


def test_table_of_a_view_is_computed_until_it_is_too_large(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = ViewFile.of(bert_probe.AttentionLong().of(minilm.trace(TEXT)))
    parts = AttentionLongResult.parts
    counts: list[int] = []

    def count(result: AttentionLongResult) -> Iterator[pd.DataFrame]:
        for part in parts(result):
            counts.append(part.size)
            yield part

    monkeypatch.setattr(AttentionLongResult, "parts", count)
    models = NamedModels(lambda _: minilm)
    Report.of(Draft("", (DraftEntry(view),)), models)
    blocks = len(counts) // 2
    assert blocks > 2
    monkeypatch.setattr(numbers, "MAX_CELLS", counts[0] + 1)
    counts.clear()
    with pytest.raises(ReportError, match=r"more than \d+ cells, the maximum in a report"):
        Report.of(Draft("", (DraftEntry(view),)), models)
    assert len(counts) == 2
