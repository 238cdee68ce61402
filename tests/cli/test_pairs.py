"""Test that the commands on two or more texts print the tables of the library."""

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


def check_output(checkpoint: Checkpoint, result: Result, *words: str) -> None:
    """Assert that a command prints exactly the table of a result and nothing else."""
    ended = bert_probe(*words, built_in=checkpoint)
    assert (ended.status, ended.text, ended.err) == (0, files.to_csv(result.table()), "")


@pytest.mark.parametrize(("options", "layer"), [([], 6), (["--layer", "last"], 6), (["--layer", "0"], 0)])
def test_similarity_takes_two_texts_one_or_a_pair(minilm: Checkpoint, options: list[str], layer: int) -> None:
    a, b, pair = minilm.trace(A), minilm.trace(B), minilm.trace(A, B)
    check_output(minilm, Similarity(layer).of(a, b), "similarity", A, B, *options)
    check_output(minilm, Similarity(layer).of(a), "similarity", A, *options)
    check_output(minilm, Similarity(layer).of(pair), "similarity", A, "--pair", B, *options)
    check_output(
        minilm, Similarity(layer, specials=True).of(a, b), "similarity", A, B, "--specials", *options
    )


def test_similarity_has_a_column_for_each_token(minilm: Checkpoint) -> None:
    header, *rows = bert_probe("similarity", A, "one word", built_in=minilm).rows
    assert header == ["token", "one", "word"]
    assert [row[0] for row in rows][:3] == ["me", "##hdi", "poured"]
    rows = bert_probe("similarity", "--layer", "0", "--", "-a", "--b", built_in=minilm).rows
    assert rows[0] == ["token", "-", "-", "b"]


def test_baseline_equals_that_of_the_library(minilm: Checkpoint) -> None:
    check_output(minilm, SimilarityBaseline().of(minilm), "baseline")


@pytest.mark.gate(cases=1)
@pytest.mark.parametrize("words", [False, True])
def test_minimal_pair_has_all_tables(minilm: Checkpoint, words: bool) -> None:
    texts = minilm.trace(A), minilm.trace(B)
    command = ["compare", A, B, *(["--words"] if words else [])]
    pair = MinimalPair(words).of(*texts)
    check_output(minilm, pair, *command)
    check_output(minilm, pair.showing(by="jensen_shannon"), *command, "--by", "jensen_shannon")
    check_output(minilm, pair.showing(show="moved"), *command, "--show", "moved")
    command[0] = "compare-row"
    check_output(minilm, MinimalPairRow(words=words).of(*texts), *command)
    check_output(minilm, MinimalPairRow("it", words=words).of(*texts), *command, "--token", "it")
    row = MinimalPairRow(3, 1, 4, words).of(*texts)
    check_output(minilm, row, *command, "--token", "3", "--layer", "2", "--head", "5")


def test_compare_has_a_row_for_each_head(minilm: Checkpoint) -> None:
    rows = bert_probe("compare", A, B, built_in=minilm).records
    pair = MinimalPair().of(minilm.trace(A), minilm.trace(B))
    assert list(rows[0]) == ["layer", "head", "total_variation", "jensen_shannon"]
    assert len(rows) == 72
    for row in rows:
        index = int(row["layer"]) - 1, int(row["head"]) - 1
        assert np.float32(row["jensen_shannon"]) == pair.jensen_shannon[index]


@pytest.mark.prove
def test_context_takes_one_word_or_a_word_for_each_text(minilm: Checkpoint) -> None:
    texts = ["The coolest programming language is Python", "Python can be aggressive", "A snake"]
    inputs = [word for text in texts for word in ("--in", text)]
    traces = minilm.traces(texts)
    each = WordInContext(["language", "Python", "snake"]).of(traces)
    words = ["--word", "language", "--word", "Python", "--word", "snake"]
    check_output(minilm, each, "context", *words, *inputs)
    check_output(minilm, each.showing(layer=2), "context", *inputs, "--layer", "2", *words)
    python = ("context", "--word", "python", *inputs[:4])
    check_output(minilm, WordInContext(["python"]).of(minilm.traces(texts[:2])), *python)
    header, *rows = bert_probe(*python, built_in=minilm).rows
    assert header == ["layer", "a", "b", "cosine", "baseline_mean", "baseline_p95", "corrected"]
    assert [row[:3] for row in rows] == [[str(layer), "1", "2"] for layer in range(7)]
    numbered = ("context", "--word", "Python:2", "--in", "Python Python", "--in", "a Python python Python")
    assert len(bert_probe(*numbered, built_in=minilm).rows) == 8
    dash = WordInContext(["-"]).of(minilm.traces(["-5", "a - b"]))
    check_output(minilm, dash, "context", "--in", "-5", "--in", "a - b", "--word", "-")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["similarity"], "Missing argument 'TEXT_A'"),
        (["similarity", "a", ""], "The text is empty"),
        (
            ["similarity", "a", "b", "--pair", "c"],
            "TEXT_B and --pair cannot be combined. Omit one of the two.",
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
        (["context", "--word", "python", "--in", "python"], "Pass two or more"),
        (
            ["context", *("--word", "a", "--word", "b", "--word", "c"), "--in", "a", "--in", "b"],
            "3 words do not match 2 texts.",
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
def test_invalid_input_is_refused(minilm: Checkpoint, words: list[str], sentence: str) -> None:
    assert re.search(sentence, bert_probe(*words, built_in=minilm).refusal)
