"""Words in context against raw transformers, the baseline's same-word pairs against a plain loop."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModel, AutoTokenizer

import bert_probe
from bert_probe import find_in_each, find_word, word_lens, word_name, words_in_context
from bert_probe.analyses import similarity
from bert_probe.errors import SelectionError, ShapeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.web.examples import CONTEXT

TEXTS = [
    "The coolest programming language is Python",
    "Python can be aggressive sometimes during hunting",
    "I saw a python.",
]


def test_cosines_are_those_of_raw_transformers(minilm: Checkpoint) -> None:
    model = AutoModel.from_pretrained(minilm.folder, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(minilm.folder)
    states = []
    for text in TEXTS:
        inputs = tokenizer(text, return_tensors="pt")
        place = inputs["input_ids"][0].tolist().index(tokenizer.vocab["python"])
        with torch.inference_mode():
            states.append(torch.stack(model(**inputs, output_hidden_states=True).hidden_states)[:, 0, place])
    found = find_in_each(minilm.traces(TEXTS), "python")
    assert found.pairs == ((0, 1), (0, 2), (1, 2))
    for column, (a, b) in enumerate(found.pairs):
        expected = torch.nn.functional.cosine_similarity(states[a].double(), states[b].double(), dim=-1)
        np.testing.assert_allclose(found.curves[:, column], expected.numpy(), rtol=0, atol=1e-6)
    for layer in range(7):
        assert np.array_equal(found.cosine(layer)[[0, 0, 1], [1, 2, 2]], found.curves[layer])


def test_a_split_word_is_the_mean_of_its_pieces(minilm: Checkpoint) -> None:
    trace = minilm.trace("Wolpertinger and python")
    unit = find_word(trace, "Wolpertinger")
    assert len(unit.positions) > 1
    found = words_in_context([(trace, unit), (trace, find_word(trace, "python"))])
    pieces = trace.vectors(3)[list(unit.positions)]
    np.testing.assert_allclose(found.occurrences[0].vector(3), pieces.mean(axis=0), atol=1e-6)


def test_the_same_occurrence_is_1_and_the_order_only_turns_the_table(minilm: Checkpoint) -> None:
    one, other = (minilm.trace(text) for text in TEXTS[:2])
    pairs = [(one, find_word(one, "python")), (other, find_word(other, "python"))]
    assert words_in_context([pairs[0], pairs[0]]).curves.tolist() == [[1.0]] * 7
    forth, back = words_in_context(pairs), words_in_context(pairs[::-1])
    assert np.array_equal(forth.curves, back.curves)
    for layer in range(7):
        assert np.array_equal(forth.cosine(layer), back.cosine(layer)[::-1, ::-1])
        assert (forth.cosine(layer).diagonal() == 1).all()


def test_the_table_lists_every_pair_at_every_layer(minilm: Checkpoint) -> None:
    found, baseline = find_in_each(minilm.traces(TEXTS), "python"), bert_probe.baseline(minilm)
    table = bert_probe.context_table(found, baseline)
    assert list(table) == ["layer", "a", "b", "cosine", "baseline_mean", "baseline_p95", "corrected"]
    pairs = [(1, 2), (1, 3), (2, 3)]
    assert table[["layer", "a", "b"]].to_numpy().tolist() == [
        [layer, *p] for layer in range(7) for p in pairs
    ]
    assert np.array_equal(table["cosine"], found.curves.ravel())
    assert table["baseline_p95"].tolist() == [value for value in baseline.p95 for _ in pairs]
    np.testing.assert_allclose(table["corrected"], table["cosine"] - table["baseline_mean"], atol=1e-12)
    provenance = table.attrs["provenance"]
    assert "text" not in provenance
    assert [word["text"] for word in provenance["view"]["words"]] == TEXTS
    matrix = bert_probe.context_matrix_table(found, 2)
    assert list(matrix.columns) == ["1 Python", "2 Python", "3 python"]
    assert np.array_equal(matrix.to_numpy(), found.cosine(2))


@pytest.mark.parametrize(
    ("texts", "word", "sentence"),
    [
        (
            [TEXTS[0], "snake"],
            "python",
            "Text 2, “snake”: There is no word python in this text. Its words are: snake",
        ),
        (["a b a", "a"], "a", "Text 1, “a b a”: a occurs 2 times. Say which"),
        ([TEXTS[0]], "python", "Give two or more"),
        (["x" * 100 + " y", "z"], "z", "Text 1, “x{59}…”"),
    ],
)
def test_a_word_that_cannot_be_compared_is_refused(
    minilm: Checkpoint, texts: list[str], word: str, sentence: str
) -> None:
    with pytest.raises(SelectionError, match=sentence):
        find_in_each(minilm.traces(texts), word)


def test_an_occurrence_is_named_by_its_number(minilm: Checkpoint) -> None:
    traces = minilm.traces(["a b a", "b a a"])
    found = find_in_each(traces, "a:2")
    assert [one.unit.positions for one in found.occurrences] == [(3,), (3,)]
    assert [word_name(traces[0], unit) for unit in word_lens(traces[0]).units] == [
        "[CLS]",
        "a:1",
        "b",
        "a:2",
        "[SEP]",
    ]


@settings(max_examples=30, deadline=None)
@given(text=st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=30))
def test_every_word_is_found_by_its_name(minilm: Checkpoint, text: str) -> None:
    try:
        trace = minilm.trace(text)
    except bert_probe.TextError:
        return
    for unit in word_lens(trace).units:
        assert find_word(trace, word_name(trace, unit)).positions == unit.positions


def test_what_does_not_belong_together_is_refused(
    minilm: Checkpoint, family: Callable[[str], Checkpoint]
) -> None:
    one, other = minilm.trace("a boat"), family("bert").trace("a boat")
    with pytest.raises(ShapeError, match="different models"):
        words_in_context([(one, find_word(one, "boat")), (other, find_word(other, "boat"))])
    long = minilm.trace("one two three four five")
    with pytest.raises(ShapeError, match="five is not a word of its text"):
        words_in_context([(one, find_word(one, "boat")), (one, find_word(long, "five"))])
    with pytest.raises(ShapeError, match="3 layers do not fit a baseline of 7"):
        bert_probe.corrected(np.ones((3, 2), np.float32), bert_probe.baseline(minilm))


def test_same_word_pairs_are_those_of_a_plain_loop(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = ("The boat, the boat.", "A wolpertinger left the boat.", "Wolpertinger.", "Nobody saw a thing.")
    monkeypatch.setattr(similarity, "baseline_sentences", lambda: chosen)
    found = bert_probe.baseline(minilm)
    kept = []
    for number, text in enumerate(chosen):
        trace = minilm.trace(text)
        whole = [token for token in trace.tokens if not token.split_word and token.isalnum()]
        kept += [(number, token, trace.hidden_states[:, token.position].astype(float)) for token in whole]
    pairs = [
        (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        for (line_a, token_a, a), (line_b, token_b, b) in itertools.combinations(kept, 2)
        if line_a != line_b and token_a == token_b
    ]
    assert found.same_word is not None
    assert found.same_word.pairs == len(pairs) == 5, "the, twice; boat, twice; a"
    np.testing.assert_allclose(found.same_word.mean, np.mean(pairs, axis=0), atol=1e-6)
    np.testing.assert_allclose(found.same_word.p95, np.percentile(pairs, 95, axis=0), atol=1e-6)
    monkeypatch.setattr(similarity, "baseline_sentences", lambda: ("The boat.", "Nobody slept"))
    assert bert_probe.baseline(minilm).same_word is None


def test_the_baseline_s_table_names_same_words_beside_unrelated_ones(minilm: Checkpoint) -> None:
    baseline = bert_probe.baseline(minilm)
    table = bert_probe.baseline_table(baseline, minilm)
    assert baseline.same_word is not None
    assert table["same_word_mean"].tolist() == list(baseline.same_word.mean)
    assert (table["same_word_mean"] > table["mean"]).all()
    assert table.attrs["provenance"]["view"]["same_word_pairs"] == baseline.same_word.pairs


def test_the_example_tells_its_story(minilm: Checkpoint) -> None:
    traces = minilm.traces([text for text, _ in CONTEXT])
    words = [find_word(trace, word) for trace, (_, word) in zip(traces, CONTEXT, strict=True)]
    last = words_in_context(list(zip(traces, words, strict=True))).cosine(-1)
    language, animal, snake, programming = range(4)
    assert last[animal, snake] > last[language, snake]
    assert last[language, programming] > last[animal, programming]
