"""The commands on texts side by side: their tables, and what they refuse."""

from __future__ import annotations

import re

import numpy as np
import pytest

from bert_probe import MinimalPair, MinimalPairRow, Similarity, SimilarityBaseline, WordInContext
from bert_probe.core import files
from bert_probe.core.result import Result
from bert_probe.model.checkpoint import Checkpoint
from tests.helpers.command_line import bert_probe

A, B = "Mehdi poured water until it was full.", "Mehdi poured water until it was empty."


def prints(checkpoint: Checkpoint, result: Result, *words: str) -> None:
    """Check that a command prints the table of a result, to the last digit, and nothing else."""
    ended = bert_probe(*words, built_in=checkpoint)
    assert (ended.status, ended.text, ended.err) == (0, files.to_csv(result.table()), "")


@pytest.mark.parametrize(("options", "layer"), [([], 6), (["--layer", "last"], 6), (["--layer", "0"], 0)])
def test_similarity_of_two_texts_of_one_and_of_a_pair(
    minilm: Checkpoint, options: list[str], layer: int
) -> None:
    a, b, pair = minilm.trace(A), minilm.trace(B), minilm.trace(A, B)
    prints(minilm, Similarity(layer).of(a, b), "similarity", A, B, *options)
    prints(minilm, Similarity(layer).of(a), "similarity", A, *options)
    prints(minilm, Similarity(layer).of(pair), "similarity", A, "--pair", B, *options)
    prints(minilm, Similarity(layer, specials=True).of(a, b), "similarity", A, B, "--specials", *options)


def test_similarity_has_the_columns_it_had(minilm: Checkpoint) -> None:
    header, *rows = bert_probe("similarity", A, "one word", built_in=minilm).rows
    assert header == ["token", "one", "word"]
    assert [row[0] for row in rows][:3] == ["me", "##hdi", "poured"]
    rows = bert_probe("similarity", "--layer", "0", "--", "-a", "--b", built_in=minilm).rows
    assert rows[0] == ["token", "-", "-", "b"]


def test_the_baseline(minilm: Checkpoint) -> None:
    prints(minilm, SimilarityBaseline().of(minilm), "baseline")


@pytest.mark.parametrize("words", [False, True])
def test_a_minimal_pair_as_heads_as_moved_vectors_and_as_rows(minilm: Checkpoint, words: bool) -> None:
    texts = minilm.trace(A), minilm.trace(B)
    given = ["compare", A, B, *(["--words"] if words else [])]
    pair = MinimalPair(words).of(*texts)
    prints(minilm, pair, *given)
    prints(minilm, pair.showing(by="jensen_shannon"), *given, "--by", "jensen_shannon")
    prints(minilm, pair.showing(show="moved"), *given, "--show", "moved")
    given[0] = "compare-row"
    prints(minilm, MinimalPairRow(words=words).of(*texts), *given)
    prints(minilm, MinimalPairRow("it", words=words).of(*texts), *given, "--token", "it")
    row = MinimalPairRow(3, 1, 4, words).of(*texts)
    prints(minilm, row, *given, "--token", "3", "--layer", "2", "--head", "5")


def test_compare_has_the_columns_it_had(minilm: Checkpoint) -> None:
    rows = bert_probe("compare", A, B, built_in=minilm).records
    pair = MinimalPair().of(minilm.trace(A), minilm.trace(B))
    assert list(rows[0]) == ["layer", "head", "total_variation", "jensen_shannon"]
    assert len(rows) == 72
    for row in rows:
        place = int(row["layer"]) - 1, int(row["head"]) - 1
        assert np.float32(row["jensen_shannon"]) == pair.jensen_shannon[place]


def test_one_word_in_several_texts_and_a_word_for_each(minilm: Checkpoint) -> None:
    texts = ["The coolest programming language is Python", "Python can be aggressive", "A snake"]
    given = [word for text in texts for word in ("--in", text)]
    traces = minilm.traces(texts)
    each = WordInContext(["language", "Python", "snake"]).of(traces)
    words = ["--word", "language", "--word", "Python", "--word", "snake"]
    prints(minilm, each, "context", *words, *given)
    prints(minilm, each.showing(layer=2), "context", *given, "--layer", "2", *words)
    one = ("context", "--word", "python", *given[:4])
    prints(minilm, WordInContext(["python"]).of(minilm.traces(texts[:2])), *one)
    header, *rows = bert_probe(*one, built_in=minilm).rows
    assert header == ["layer", "a", "b", "cosine", "baseline_mean", "baseline_p95", "corrected"]
    assert [row[:3] for row in rows] == [[str(layer), "1", "2"] for layer in range(7)]
    numbered = ("context", "--word", "Python:2", "--in", "Python Python", "--in", "a Python python Python")
    assert len(bert_probe(*numbered, built_in=minilm).rows) == 8
    dash = WordInContext(["-"]).of(minilm.traces(["-5", "a - b"]))
    prints(minilm, dash, "context", "--in", "-5", "--in", "a - b", "--word", "-")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["similarity"], "Missing argument 'TEXT_A'"),
        (["similarity", "a", ""], "The text is empty"),
        (
            ["similarity", "a", "b", "--pair", "c"],
            "TEXT_B and --pair exclude each other. Leave one of them out.",
        ),
        (["similarity", "a", "b", "--layer", "7"], "There is no layer 7: this model has layers 0 to 6."),
        (["similarity", "a", "b", "--layer", "-1"], "There is no layer -1"),
        (["compare", "a"], "Missing argument 'TEXT_B'"),
        (["compare", "a", ""], "The text is empty"),
        (["compare", "a", "a", "--layer", "2"], "No such option '--layer'"),
        (["compare", "a", "a", "--by", "size"], "'size' is not one of"),
        (["compare-row", "a"], "Missing argument 'TEXT_B'"),
        (["compare-row", "a", "a", "--by", "jensen_shannon"], "No such option '--by'"),
        (["compare-row", "a", "a", "--token", "boat"], "There is no word boat in this text."),
        (["compare-row", "a b", "a c", "--token", "b"], "“b” has no counterpart in the other text"),
        (["compare-row", "a", "a", "--token", "a", "--layer", "0"], "this model has layers 1 to 6."),
        (["compare-row", "a", "a", "--token", "a", "--head", "13"], "this model has heads 1 to 12."),
        (["context", "--word", "python"], "Missing option '--in'"),
        (["context", "--in", "python", "--in", "python"], "Missing option '--word'"),
        (["context", "--word", "python", "--in", "python"], "Give two or more"),
        (
            ["context", *("--word", "a", "--word", "b", "--word", "c"), "--in", "a", "--in", "b"],
            "3 words and 2 texts were given.",
        ),
        (
            ["context", "--word", "python", "--in", "python", "--in", "a snake"],
            "Text 2, “a snake”: There is no word",
        ),
        (
            ["context", "--word", "python:3", "--in", "python python", "--in", "python"],
            "Text 1, .* occurs 2 times",
        ),
        (["context", "--word", "python", "--in", "python", "--in", ""], "The text is empty"),
        (["context", "--word", "a", "--in", "a", "--in", "a", "--layer", "7"], "layers 0 to 6"),
        (["baseline", "a"], "unexpected extra argument"),
    ],
)
def test_what_cannot_be_compared_is_one_line(minilm: Checkpoint, words: list[str], sentence: str) -> None:
    assert re.search(sentence, bert_probe(*words, built_in=minilm).refusal)
