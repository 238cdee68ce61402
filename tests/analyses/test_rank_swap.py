"""Test words that swap two documents in a ranking: known cases, parity with separate searches, and BM25."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

import bert_probe
from bert_probe import Document, RankSwap, Search, SearchExplanation
from bert_probe.analyses.retrieval import rank_swap
from bert_probe.analyses.retrieval.late_interaction import TokenMatches
from bert_probe.analyses.retrieval.rank_swap import RankSwapResult, SwapSteps, _greedy, without_words
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import Checkpoint
from tests.helpers import families, sentence_models
from tests.helpers.gate import prove_unless

QUERY = "boats that cross a river"
DOCUMENTS = (
    "Nobody can read a map at night.",
    Document("A small boat crosses the wide river, slowly and at night.", "a", "Boats"),
    Document("Ships carry grain over the wide water.", "b"),
    "Rivers flow into the sea.",
)


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("One small boat.", [1], "One boat."),
        ("One small boat", [2], "One small"),
        ("One small boat", [0, 1], "boat"),
        ("One, two; three", [1], "One, ; three"),
        ("a\nb  c", [1], "a\n c"),
        ("two-factor isn't 川を渡る", [0, 1, 3], "川渡る"),
    ],
)
def test_words_are_removed_with_one_space(text: str, words: list[int], expected: str) -> None:
    spans = rank_swap._spans(text)
    assert without_words(text, [spans[index] for index in words]) == expected


def scores(checkpoint: Checkpoint, query: str, documents: list[str], scorer: str) -> np.ndarray:
    return Search(query, (scorer,)).of(checkpoint, documents).scores[scorer].astype(float)


def assert_equal_to_independent_searches(
    checkpoint: Checkpoint, result: RankSwapResult, documents: list[str], query: str, scorer: str
) -> None:
    """Assert that the scores of each step equal those of a separate search in the changed documents."""
    a, b = result.pair
    for name, steps in result.changes.items():
        for number, text in enumerate(steps.texts):
            changed = [
                text if name == "remove" and i == a else str(document) for i, document in enumerate(documents)
            ]
            searched = text if name == "add" else query
            expected = scores(checkpoint, searched, changed, scorer)[[a, b]]
            np.testing.assert_allclose(steps.scores[number], expected, atol=2e-6)
        np.testing.assert_allclose(steps.verified, expected, atol=2e-6)
        assert steps.is_swapped == (steps.verified[1] > steps.verified[0])
        assert len(steps.words) == len(steps.texts) - 1 == len(set(steps.positions)) <= 5
        assert all(margin >= 0 for margin in steps.margins[:-1])


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize(
    "scorer",
    prove_unless(lambda name: name != "late-interaction", ["bi-encoder", "late-interaction", "bm25"]),
)
def test_steps_equal_independent_searches(minilm: Checkpoint, scorer: str) -> None:
    question = RankSwap(QUERY, "b", "a", scorer)
    result = question.of(minilm, DOCUMENTS)
    assert [result.documents[index].id for index in result.pair] == ["a", "b"]
    assert_equal_to_independent_searches(minilm, result, [*DOCUMENTS], QUERY, scorer)
    table = result.table()
    assert list(table["margin"]) == pytest.approx(list(table["score_a"] - table["score_b"]))
    assert list(table.loc[table["step"] == 0, "text"]) == [str(DOCUMENTS[1]), QUERY]
    index = Search(QUERY, (scorer,)).index(minilm, DOCUMENTS)
    assert question.of(minilm, index).table().equals(table)


def test_steps_of_a_cross_encoder_equal_independent_searches(tmp_path: Path) -> None:
    model = transformers.BertForSequenceClassification(families.config("bert", num_labels=1))
    families.randomize(model, 1)
    model.save_pretrained(tmp_path)
    families.save_tokenizer("bert", tmp_path)
    checkpoint = bert_probe.load(tmp_path)
    documents = ["a small boat crosses the wide river", "the night was dark", "a light at night"]
    result = RankSwap("where is the boat", "1", "2", "cross-encoder", max_words=2).of(checkpoint, documents)
    assert set(result.pair) == {0, 1}
    assert_equal_to_independent_searches(checkpoint, result, documents, "where is the boat", "cross-encoder")
    assert result.recipe is None


def test_only_words_with_the_best_matches_are_tried_in_long_documents(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_swap, "MAX_CANDIDATES", 3)
    question = RankSwap(QUERY, "a", "b", "late-interaction", max_words=1)
    result = question.of(minilm, DOCUMENTS)
    a = result.documents[result.pair[0]]
    explanation = SearchExplanation(QUERY, a.id, scorer="late-interaction").of(minilm, DOCUMENTS)
    (part,) = explanation.contributions
    assert isinstance(part, TokenMatches)
    values = [
        sum(
            float(value)
            for token, value in zip(part.document.tokens, part.of_document, strict=True)
            if token.start is not None and token.end is not None and token.start < end and token.end > start
        )
        for start, end in rank_swap._spans(a)
    ]
    removal = result.changes["remove"]
    assert removal.candidates == 3
    largest = np.argsort(-np.array(values), kind="stable")[:3]
    assert set(removal.positions) <= {int(index) for index in largest}
    np.testing.assert_allclose(removal.scores[-1], removal.verified, atol=1e-5)


def test_each_step_is_the_best_word(minilm: Checkpoint) -> None:
    """The first step removes the word that lowers the margin most, as shown by a separate search per word."""
    result = RankSwap(QUERY, "a", "b", max_words=1).of(minilm, DOCUMENTS)
    a, b = str(DOCUMENTS[1]), str(DOCUMENTS[2])
    spans = rank_swap._spans(a)
    margins = [
        float(np.subtract(*scores(minilm, QUERY, [without_words(a, [span]), b], "bi-encoder")))
        for span in spans
    ]
    removal = result.changes["remove"]
    assert removal.positions == (int(np.argmin(margins)),)
    assert removal.margins[-1] == pytest.approx(min(margins), abs=2e-6)
    words = ["Ships", "carry", "grain", "over", "the", "wide", "water"]
    margins = [float(np.subtract(*scores(minilm, f"{QUERY} {word}", [a, b], "bi-encoder"))) for word in words]
    addition = result.changes["add"]
    assert addition.words == (words[int(np.argmin(margins))],)
    assert addition.is_swapped == (min(margins) < 0)
    assert not removal.is_swapped or removal.is_smallest


def test_a_planted_word_swaps_two_documents(minilm: Checkpoint) -> None:
    """The documents differ only in a query word, so removing this word is enough."""
    a, b = "The report of Monday describes zebras.", "The report of Monday describes zebra stripes."
    result = RankSwap("zebras").of(minilm, ["Nothing of this kind.", a, b, "A boat."])
    removal = result.changes["remove"]
    assert result.pair == (1, 2)
    assert (removal.words, removal.texts[-1]) == (("zebras",), "The report of Monday describes .")
    assert removal.is_swapped
    assert removal.is_smallest
    assert result.metadata["a"] == "2"


def bm25(query: list[str], document: list[str], bags: list[list[str]]) -> float:
    average = sum(map(len, bags)) / len(bags)
    total = 0.0
    for word in query:
        frequency = sum(word in bag for bag in bags)
        idf = math.log(1 + (len(bags) - frequency + 0.5) / (frequency + 0.5))
        count = document.count(word)
        total += idf * count / (count + 1.2 * (0.25 + 0.75 * len(document) / average))
    return total


def test_bm25_by_hand(minilm: Checkpoint) -> None:
    """A contains "boat" twice, and both documents contain "river" once."""
    documents = ["boat river boat sails far away", "river night map", "night"]
    result = RankSwap("boat river", scorer="bm25").of(minilm, documents)
    removal, addition = result.changes["remove"], result.changes["add"]
    assert (result.pair, removal.words, addition.words) == ((0, 1), ("river", "boat"), ("map",))
    query, b, night = ["boat", "river"], documents[1].split(), ["night"]
    for text, (first, second) in zip(removal.texts, removal.scores, strict=True):
        bags = [text.split(), b, night]
        assert first == pytest.approx(bm25(query, text.split(), bags), abs=1e-12)
        assert second == pytest.approx(bm25(query, b, bags), abs=1e-12)
    for text, (first, second) in zip(addition.texts, addition.scores, strict=True):
        bags = [documents[0].split(), b, night]
        assert first == pytest.approx(bm25(text.split(), bags[0], bags), abs=1e-12)
        assert second == pytest.approx(bm25(text.split(), b, bags), abs=1e-12)
    assert removal.is_swapped
    assert addition.is_swapped
    assert removal.is_smallest  # no single word swaps the documents, although all were tested
    for spans in combinations(rank_swap._spans(documents[0]), 1):
        words = without_words(documents[0], spans).split()
        bags = [words, b, night]
        assert bm25(query, words, bags) >= bm25(query, b, bags)


def test_no_set_of_words_is_an_answer(minilm: Checkpoint) -> None:
    """Removing five of nine occurrences of the query word, or adding B's only word, causes no swap."""
    documents = ["boat " * 9, "night", "river"]
    result = RankSwap("boat", "1", "2", "bm25").of(minilm, documents)
    removal, addition = result.changes["remove"], result.changes["add"]
    assert (removal.is_swapped, removal.words) == (False, ("boat",) * 5)
    assert (addition.is_swapped, addition.words) == (False, ("night",))
    assert "swapped" in result.metadata["remove"]
    only = RankSwap("boat", "1", "2", "bm25").of(minilm, ["boat", "night"]).changes["remove"]
    assert (only.is_swapped, only.words) == (
        False,
        (),
    )  # Removal always leaves at least one word in a document.


def test_only_the_words_with_the_largest_contribution_are_tested(
    minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = RankSwap(QUERY, "a", "b", max_words=1).of(minilm, DOCUMENTS).changes["remove"]
    monkeypatch.setattr(rank_swap, "MAX_CANDIDATES", 3)
    steps = RankSwap(QUERY, "a", "b", max_words=1).of(minilm, DOCUMENTS).changes["remove"]
    assert (steps.candidates, steps.count, full.candidates) == (3, 12, 12)
    assert not steps.is_complete
    (part,) = bert_probe.SearchExplanation(QUERY, "a").of(minilm, DOCUMENTS).contributions
    words = {"Boats", "boat", "river", "crosses"}  # only the words with the largest contributions are tested
    table = part.frame().groupby("position")["contribution"].sum()
    assert steps.words[0] in words
    assert len(table) > 3


def test_selection_of_words_can_be_cancelled(minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_swap, "MAX_CANDIDATES", 3)
    selections = rank_swap._largest
    steps: list[int] = []

    def largest(*arguments: Any) -> list[int]:
        steps.append(len(reports))
        indices = selections(*arguments)
        steps.append(len(reports))
        return indices

    reports: list[int] = []
    monkeypatch.setattr(rank_swap, "_largest", largest)
    RankSwap(QUERY, "a", "b", max_words=1).of(
        minilm, DOCUMENTS, progress=lambda done, _: reports.append(done)
    )
    assert steps[1] - steps[0] == 1 + 4  # 12 words in 4 groups of 3


def test_prompts_and_poolings_that_are_not_linear(
    family_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_swap, "MAX_CANDIDATES", 2)
    for layout in ("max", next(key for key in sentence_models.LAYOUTS if key.startswith("prompts"))):
        family = family_folder(sentence_models.LAYOUTS[layout].family)
        sentence_models.save(layout, family, tmp_path / layout.split()[0])
        checkpoint = bert_probe.load(tmp_path / layout.split()[0])
        documents = ["a boat at night", "night night", "map of the river"]
        result = RankSwap("a map").of(checkpoint, documents)
        a, b = result.pair
        for name, steps in result.changes.items():
            assert isinstance(steps, SwapSteps)
            changed = [steps.texts[-1] if name == "remove" and i == a else x for i, x in enumerate(documents)]
            query = steps.texts[-1] if name == "add" else "a map"
            expected = scores(checkpoint, query, changed, "bi-encoder")[[a, b]]
            np.testing.assert_allclose(steps.scores[-1], expected, atol=1e-5)


def test_progress_ends_at_its_total(minilm: Checkpoint) -> None:
    reports: list[tuple[int, int]] = []
    RankSwap(QUERY, max_words=2).of(minilm, DOCUMENTS, progress=lambda *report: reports.append(report))
    searched = [report for report in reports if report[1] > len(DOCUMENTS)]
    assert [done for done, _ in searched] == sorted(done for done, _ in searched)
    assert searched[-1][0] == searched[-1][1]


@pytest.mark.parametrize(
    ("fields", "documents", "message"),
    [
        ({"document": "9"}, DOCUMENTS, "no document with the ID '9'"),
        ({"document": "a", "against": "a"}, DOCUMENTS, "Choose two different documents"),
        ({}, ["a boat"], "There is only one document"),
        ({"max_words": 6}, DOCUMENTS, "max_words must be 1 to 5"),
        ({"scorer": "late-interaction"}, ["a boat", "[SEP]"], "Document 2 has no score, because none of its"),
    ],
)
def test_unusable_documents_are_refused(
    minilm: Checkpoint, fields: dict[str, str], documents: list[str], message: str
) -> None:
    with pytest.raises(SelectionError, match=message):
        RankSwap(QUERY, **fields).of(minilm, documents)  # type: ignore[arg-type]


def test_bm25_of_documents_without_words(minilm: Checkpoint) -> None:
    result = RankSwap(QUERY, scorer="bm25").of(minilm, ["---", "..."])
    assert result.frame()["score_a"].tolist() == [0.0, 0.0]
    assert not any(steps.is_swapped for steps in result.changes.values())


def test_texts_without_a_score_are_not_chosen() -> None:
    """The removal of the word with a vector leaves only tokens that have none."""
    scores = {"a b": (2.0, 1.0), "a": (np.nan, 1.0), "b": (1.5, 1.0)}
    steps = _greedy(
        ["a", "b"],
        [0, 1],
        1,
        lambda removed: " ".join(word for index, word in enumerate("ab") if index not in removed),
        lambda texts: np.array([scores[text] for text in texts]),
        lambda text: np.array(scores[text]),
    )
    assert steps.words == ("a",)
