"""Test the extracted tables against loops over traces, for tokens and words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest

import bert_probe
from bert_probe.analyses.attention.heads import MEASURES, measure_heads
from bert_probe.corpus.extract import extract_tables
from bert_probe.corpus.inputs import OPTIONAL_TABLES, IngestConfig, Record
from bert_probe.corpus.schema import bin_edges
from bert_probe.errors import SelectionError, UnavailableError
from bert_probe.model.checkpoint import TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION
from bert_probe.text.words import word_lens
from tests.helpers import treebank
from tests.helpers.exactness import assert_rounded
from tests.helpers.families import LONG, SENTENCES

Checkpoints = Callable[[str], bert_probe.Checkpoint]
TEXTS = (*SENTENCES, "we", LONG[:300], "!")
ALL = ("profiles", "vectors", "neighbors")


def records(texts: Sequence[str | None]) -> list[Record]:
    return [Record(row, "a.txt", row + 10, text) for row, text in enumerate(texts, 1)]


def tables(
    checkpoint: bert_probe.Checkpoint, question: IngestConfig, arguments: Sequence[Record]
) -> dict[str, pd.DataFrame]:
    result = extract_tables(checkpoint, question.of(checkpoint), arguments)
    return {name: table.to_pandas() for name, table in result.items()}


@pytest.mark.gate(cases=2)
@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("name", ["bert", "modernbert", "mpnet"])
def test_shard_equals_loop_over_traces(name: str, words: bool, double_family: Checkpoints) -> None:
    checkpoint = double_family(name)
    result = tables(checkpoint, IngestConfig(layers=(0, -1), keep=ALL, words=words), records(TEXTS))
    last = checkpoint.description.layers
    for row, text in enumerate(TEXTS, 1):
        trace = checkpoint.trace(text)
        lens = word_lens(trace) if words else None
        expected = measure_heads(trace, lens)
        profiles = of_row(result["profiles"], row)
        for measure in MEASURES:
            assert_rounded(profiles[measure], expected[measure].ravel(), 4)
        for layer in (0, last):
            states = trace.states[layer] if lens is None else lens.average(trace.states[layer])
            vectors = of_row(result["vectors"], row, layer=layer)
            assert_rounded(np.stack(list(vectors["vector"])), states, 4)
            assert vectors["position"].tolist() == list(range(1, len(states) + 1))
        weights = np.stack([trace.attention(layer) for layer in range(trace.layers)])
        weights = weights if lens is None else lens.merge(weights)
        strongest = of_row(result["neighbors"], row)
        assert_rounded(strongest["weight"], weights.max(axis=-1).ravel(), 4)
        selection = weights.reshape(-1, weights.shape[-1])[np.arange(len(strongest)), strongest["key"] - 1]
        # only the weights are compared, because ties may be resolved differently
        assert_rounded(selection, weights.max(axis=-1).ravel(), 4)
        assert strongest["query"].tolist() == [*range(1, weights.shape[-1] + 1)] * (
            trace.layers * trace.heads
        )


def of_row(table: pd.DataFrame, row: int, **selection: int) -> pd.DataFrame:
    part = table[table["row"] == row]
    for name, value in selection.items():
        part = part[part[name] == value]
    return part.reset_index(drop=True)


def test_rows_and_tokens_tables_have_expected_columns(minilm: bert_probe.Checkpoint) -> None:
    result = tables(
        minilm, IngestConfig(keep=("profiles",)), records(["The unbelievable boat.", None, "It sank."])
    )
    assert result["rows"][["row", "line", "tokens"]].values.tolist() == [[1, 11, 6], [3, 13, 5]]
    first = of_row(result["tokens"], 1)
    assert first["token"].tolist() == ["[CLS]", "the", "unbelievable", "boat", ".", "[SEP]"]
    assert first["position"].tolist() == [1, 2, 3, 4, 5, 6]
    assert first["word"].tolist()[1:-1] == [1, 2, 3, 4]
    assert first["special"].tolist() == [True, False, False, False, False, True]
    assert set(result) == {"rows", "tokens", "profiles", "statistics", "refusals"}
    profiles = of_row(result["profiles"], 3)
    assert profiles[["layer", "head"]].values.tolist() == [
        [index // 12 + 1, index % 12 + 1] for index in range(72)
    ]


def test_unreadable_records_are_refused_and_others_extracted(family: Checkpoints) -> None:
    arguments = [
        *records(["A boat.", "", "word " * 300, "Another."]),
        Record(5, "b.txt", 1, None, problem="Not UTF-8."),
    ]
    checkpoint = family("bert")
    result = tables(checkpoint, IngestConfig(keep=ALL), arguments)
    assert result["rows"]["row"].tolist() == [1, 4]
    assert result["refusals"][["row", "file", "line"]].values.tolist() == [
        [2, "a.txt", 12],
        [3, "a.txt", 13],
        [5, "b.txt", 1],
    ]
    empty, long, broken = result["refusals"]["reason"]
    assert "is empty" in empty
    assert "The text has 1,202 tokens, but this model accepts at most 160" in long
    assert broken == "Not UTF-8."
    assert len(result["refusals"]["text"][1]) == 200
    cut = tables(checkpoint, IngestConfig(keep=("vectors",), truncate=True), arguments)
    assert cut["rows"]["tokens_dropped"].tolist() == [0, 1042, 0]


def test_no_records_give_empty_tables(family: Checkpoints) -> None:
    result = tables(family("bert"), IngestConfig(keep=ALL), records(["", ""]))
    assert {name: len(table) for name, table in result.items()} == {
        "rows": 0,
        "tokens": 0,
        "refusals": 2,
        "profiles": 0,
        "vectors": 0,
        "neighbors": 0,
        "statistics": len(MEASURES) * 12,
    }


def test_statistics_match_profiles(family: Checkpoints) -> None:
    result = tables(family("bert"), IngestConfig(keep=("profiles",)), records(TEXTS))
    profiles = result["profiles"].groupby(["layer", "head"])
    for line in result["statistics"].itertuples():
        values = profiles.get_group((line.layer, line.head))[line.measure].to_numpy(np.float64)
        assert [line.count, line.min, line.max] == [len(TEXTS), values.min(), values.max()]
        assert np.isclose(line.sum, values.sum(), rtol=1e-12)
        assert np.isclose(line.squares, (values**2).sum(), rtol=1e-12)
        ends = bin_edges(line.measure, 160)
        inside = [sum(low <= value < high for value in values) for low, high in pairwise(ends)]
        inside[-1] += sum(values >= ends[-1])
        assert list(line.bins) == inside


@pytest.mark.parametrize("words", [False, True])
def test_tags_are_stored_with_tokens(words: bool, minilm: bert_probe.Checkpoint) -> None:
    tagged = treebank.read(
        treebank.conllu(
            (("The", "DET", 2, "det"), ("lamplighters", "NOUN", 3, "nsubj"), ("sang", "VERB", 0, "root"))
        )
    )
    sentence = tagged[0]
    result = tables(
        minilm,
        IngestConfig(keep=("neighbors",), words=words),
        [Record(7, "t.conllu", sentence.line, sentence.text, sentence)],
    )["tokens"]
    own = result[~result["special"]]
    pieces = 1 if words else len(minilm.encode("lamplighters").tokens) - 2
    assert own["tag"].tolist() == ["DET", *["NOUN"] * pieces, "VERB"]
    assert own["head"].tolist() == [2, *[3] * pieces, 0]
    assert own["relation"].tolist() == ["det", *["nsubj"] * pieces, "root"]
    assert own["word"].tolist() == [1, *[2] * pieces, 3]
    assert result[result["special"]][["tag", "head", "relation", "word"]].isna().all(axis=None)


@pytest.mark.parametrize(
    ("task", "questions"),
    [
        (TEXT_CLASSIFICATION, bert_probe.ClassifyText()),
        (TOKEN_CLASSIFICATION, bert_probe.LabelTokens(outside=True)),
    ],
)
def test_answers_match_single_text_predictions(
    task: str, questions: Any, double_trained_on: Callable[[str, str], bert_probe.Checkpoint]
) -> None:
    checkpoint = double_trained_on("bert", task)
    result = tables(checkpoint, IngestConfig(keep=("answers",)), records(TEXTS))["answers"]
    for row, text in enumerate(TEXTS, 1):
        expected = questions.of(checkpoint.trace(text)).table()
        ours = of_row(result, row)
        if task == TEXT_CLASSIFICATION:
            ours, expected = ours.sort_values("label"), expected.sort_values("label")
        assert ours["label"].tolist() == expected["label"].tolist()
        assert_rounded(ours["probability"], expected["probability"], 4)


def test_unavailable_tables_are_refused(family: Checkpoints) -> None:
    with pytest.raises(
        UnavailableError, match=r"no trained classification head.*Choose only profiles, vectors"
    ):
        IngestConfig(keep=("answers",)).of(family("bert"))
    with pytest.raises(SelectionError, match="There is no layer 9"):
        IngestConfig(layers=(9,)).of(family("bert"))
    assert IngestConfig(layers=None).of(family("bert")).layers == (0, 1, 2, 3)
    assert (
        IngestConfig(keep=tuple(reversed(OPTIONAL_TABLES[:3]))).of(family("bert")).keep == OPTIONAL_TABLES[:3]
    )


def test_float16_vectors_are_rounded_float32(family: Checkpoints) -> None:
    question = IngestConfig(keep=("vectors",))
    complete = tables(family("bert"), question, records(TEXTS))["vectors"]["vector"]
    half = tables(family("bert"), replace(question, dtype="float16"), records(TEXTS))["vectors"]["vector"]
    assert np.stack(list(half)).dtype == np.float16
    assert (np.stack(list(half)) == np.stack(list(complete)).astype(np.float16)).all()
