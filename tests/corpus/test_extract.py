"""What is gathered of a batch of sentences: what a loop over their traces gives, for words and pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest

import bert_probe
from bert_probe.analyses.attention.head_measures import MEASURES, measure_heads
from bert_probe.corpus.extract import gathered
from bert_probe.corpus.ingest import KEPT, IngestConfig
from bert_probe.corpus.inputs import Record
from bert_probe.corpus.statistics import edges
from bert_probe.errors import SelectionError, UnavailableError
from bert_probe.model.checkpoint import CLASSIFYING, LABELLING
from bert_probe.text.words import word_lens
from tests.helpers import treebank
from tests.helpers.exactness import assert_rounded
from tests.helpers.families import LONG, SENTENCES

Checkpoints = Callable[[str], bert_probe.Checkpoint]
TEXTS = (*SENTENCES, "we", LONG[:300], "!")
ALL = ("profiles", "vectors", "neighbours")


def records(texts: Sequence[str | None]) -> list[Record]:
    return [Record(row, "a.txt", row + 10, text) for row, text in enumerate(texts, 1)]


def tables(
    checkpoint: bert_probe.Checkpoint, question: IngestConfig, given: Sequence[Record]
) -> dict[str, pd.DataFrame]:
    found = gathered(checkpoint, question.of(checkpoint), given)
    return {name: table.to_pandas() for name, table in found.items()}


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("name", ["bert", "modernbert", "mpnet"])
def test_a_shard_is_a_loop_over_traces(name: str, words: bool, double_family: Checkpoints) -> None:
    checkpoint = double_family(name)
    found = tables(checkpoint, IngestConfig(layers=(0, -1), keep=ALL, words=words), records(TEXTS))
    last = checkpoint.description.layers
    for row, text in enumerate(TEXTS, 1):
        trace = checkpoint.trace(text)
        lens = word_lens(trace) if words else None
        expected = measure_heads(trace, lens)
        profiles = of_row(found["profiles"], row)
        for measure in MEASURES:
            assert_rounded(profiles[measure], expected[measure].ravel(), 4)
        for layer in (0, last):
            states = trace.states[layer] if lens is None else lens.average(trace.states[layer])
            vectors = of_row(found["vectors"], row, layer=layer)
            assert_rounded(np.stack(list(vectors["vector"])), states, 4)
            assert vectors["position"].tolist() == list(range(1, len(states) + 1))
        weights = np.stack([trace.attention(layer) for layer in range(trace.layers)])
        weights = weights if lens is None else lens.merge(weights)
        strongest = of_row(found["neighbours"], row)
        assert_rounded(strongest["weight"], weights.max(axis=-1).ravel(), 4)
        chosen = weights.reshape(-1, weights.shape[-1])[np.arange(len(strongest)), strongest["key"] - 1]
        assert_rounded(chosen, weights.max(axis=-1).ravel(), 4)  # of equal ones it may be any
        assert strongest["query"].tolist() == [*range(1, weights.shape[-1] + 1)] * (
            trace.layers * trace.heads
        )


def of_row(table: pd.DataFrame, row: int, **chosen: int) -> pd.DataFrame:
    part = table[table["row"] == row]
    for name, value in chosen.items():
        part = part[part[name] == value]
    return part.reset_index(drop=True)


def test_rows_and_tokens_are_named(minilm: bert_probe.Checkpoint) -> None:
    found = tables(
        minilm, IngestConfig(keep=("profiles",)), records(["The unbelievable boat.", None, "It sank."])
    )
    assert found["rows"][["row", "line", "tokens"]].values.tolist() == [[1, 11, 6], [3, 13, 5]]
    first = of_row(found["tokens"], 1)
    assert first["token"].tolist() == ["[CLS]", "the", "unbelievable", "boat", ".", "[SEP]"]
    assert first["position"].tolist() == [1, 2, 3, 4, 5, 6]
    assert first["word"].tolist()[1:-1] == [1, 2, 3, 4]
    assert first["special"].tolist() == [True, False, False, False, False, True]
    assert set(found) == {"rows", "tokens", "profiles", "statistics", "refusals"}
    profiles = of_row(found["profiles"], 3)
    assert profiles[["layer", "head"]].values.tolist() == [[at // 12 + 1, at % 12 + 1] for at in range(72)]


def test_what_cannot_be_read_is_told_and_the_rest_goes_on(family: Checkpoints) -> None:
    given = [
        *records(["A boat.", "", "word " * 300, "Another."]),
        Record(5, "b.txt", 1, None, trouble="Not UTF-8."),
    ]
    checkpoint = family("bert")
    found = tables(checkpoint, IngestConfig(keep=ALL), given)
    assert found["rows"]["row"].tolist() == [1, 4]
    assert found["refusals"][["row", "file", "line"]].values.tolist() == [
        [2, "a.txt", 12],
        [3, "a.txt", 13],
        [5, "b.txt", 1],
    ]
    empty, long, broken = found["refusals"]["reason"]
    assert "is empty" in empty
    assert "1,202 tokens; this model accepts 160" in long
    assert broken == "Not UTF-8."
    assert len(found["refusals"]["text"][1]) == 200
    cut = tables(checkpoint, IngestConfig(keep=("vectors",), truncate=True), given)
    assert cut["rows"]["tokens_dropped"].tolist() == [0, 1042, 0]


def test_nothing_to_read_is_no_error(family: Checkpoints) -> None:
    found = tables(family("bert"), IngestConfig(keep=ALL), records(["", ""]))
    assert {name: len(table) for name, table in found.items()} == {
        "rows": 0,
        "tokens": 0,
        "refusals": 2,
        "profiles": 0,
        "vectors": 0,
        "neighbours": 0,
        "statistics": len(MEASURES) * 12,
    }


def test_statistics_are_those_of_the_profiles(family: Checkpoints) -> None:
    found = tables(family("bert"), IngestConfig(keep=("profiles",)), records(TEXTS))
    profiles = found["profiles"].groupby(["layer", "head"])
    for line in found["statistics"].itertuples():
        values = profiles.get_group((line.layer, line.head))[line.measure].to_numpy(np.float64)
        assert [line.count, line.least, line.most] == [len(TEXTS), values.min(), values.max()]
        assert np.isclose(line.sum, values.sum(), rtol=1e-12)
        assert np.isclose(line.squares, (values**2).sum(), rtol=1e-12)
        ends = edges(line.measure, 160)
        inside = [sum(low <= value < high for value in values) for low, high in pairwise(ends)]
        inside[-1] += sum(values >= ends[-1])
        assert list(line.bins) == inside


@pytest.mark.parametrize("words", [False, True])
def test_tags_stand_beside_tokens(words: bool, minilm: bert_probe.Checkpoint) -> None:
    tagged = treebank.read(
        treebank.conllu(
            (("The", "DET", 2, "det"), ("lamplighters", "NOUN", 3, "nsubj"), ("sang", "VERB", 0, "root"))
        )
    )
    one = tagged[0]
    found = tables(
        minilm,
        IngestConfig(keep=("neighbours",), words=words),
        [Record(7, "t.conllu", one.line, one.text, one)],
    )["tokens"]
    own = found[~found["special"]]
    pieces = 1 if words else len(minilm.encode("lamplighters").tokens) - 2
    assert own["tag"].tolist() == ["DET", *["NOUN"] * pieces, "VERB"]
    assert own["head"].tolist() == [2, *[3] * pieces, 0]
    assert own["relation"].tolist() == ["det", *["nsubj"] * pieces, "root"]
    assert own["word"].tolist() == [1, *[2] * pieces, 3]
    assert found[found["special"]][["tag", "head", "relation", "word"]].isna().all(axis=None)


@pytest.mark.parametrize(
    ("task", "asked"),
    [(CLASSIFYING, bert_probe.ClassifyText()), (LABELLING, bert_probe.LabelTokens(outside=True))],
)
def test_answers_are_those_of_one_text(
    task: str, asked: Any, double_trained_on: Callable[[str, str], bert_probe.Checkpoint]
) -> None:
    checkpoint = double_trained_on("bert", task)
    found = tables(checkpoint, IngestConfig(keep=("answers",)), records(TEXTS))["answers"]
    for row, text in enumerate(TEXTS, 1):
        expected = asked.of(checkpoint.trace(text)).table()
        ours = of_row(found, row)
        if task == CLASSIFYING:
            ours, expected = ours.sort_values("label"), expected.sort_values("label")
        assert ours["label"].tolist() == expected["label"].tolist()
        assert_rounded(ours["probability"], expected["probability"], 4)


def test_only_what_is_there_is_kept(family: Checkpoints) -> None:
    with pytest.raises(
        UnavailableError, match=r"no trained head for classes or labels.*Keep profiles, vectors"
    ):
        IngestConfig(keep=("answers",)).of(family("bert"))
    with pytest.raises(SelectionError, match="There is no layer 9"):
        IngestConfig(layers=(9,)).of(family("bert"))
    assert IngestConfig(layers=None).of(family("bert")).layers == (0, 1, 2, 3)
    assert IngestConfig(keep=tuple(reversed(KEPT[:3]))).of(family("bert")).keep == KEPT[:3]


def test_half_precision_is_the_rounding_of_the_whole(family: Checkpoints) -> None:
    question = IngestConfig(keep=("vectors",))
    whole = tables(family("bert"), question, records(TEXTS))["vectors"]["vector"]
    half = tables(family("bert"), replace(question, dtype="float16"), records(TEXTS))["vectors"]["vector"]
    assert np.stack(list(half)).dtype == np.float16
    assert (np.stack(list(half)) == np.stack(list(whole)).astype(np.float16)).all()
