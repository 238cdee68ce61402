"""Test alignment of two texts: cases computed by hand, and properties of all alignments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_probe.errors import ShapeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Token
from bert_probe.text.alignment import Alignment, align, align_traces

Pairs = tuple[tuple[int, int], ...]


def places(a: str, b: str) -> Pairs:
    """Return the alignment of two texts, which are split at spaces; capitalized words are special tokens."""
    keys_a, keys_b = ([(0, word.isupper(), word) for word in text.split()] for text in (a, b))
    return align(keys_a, keys_b)


CASES: dict[str, tuple[str, str, Pairs]] = {
    "the same": ("we left it", "we left it", ((0, 0), (1, 1), (2, 2))),
    "insertion": ("we left it", "we just left it", ((0, 0), (1, 2), (2, 3))),
    "insertion at both ends": ("left it", "we left it there", ((0, 1), (1, 2))),
    "deletion": ("we had left it", "we left it", ((0, 0), (2, 1), (3, 2))),
    "substitution": ("it was full .", "it was empty .", ((0, 0), (1, 1), (3, 3))),
    "one word for two": ("it was full .", "it was half empty .", ((0, 0), (1, 1), (3, 4))),
    "two for two are changed too": ("a b c d", "a x y d", ((0, 0), (3, 3))),
    "repeated words": ("the cat saw the dog", "the dog", ((3, 0), (4, 1))),
    "one of several is gone": ("very very very good", "very very good", ((1, 0), (2, 1), (3, 2))),
    "another order": ("a b c x y", "x y a b c", ((0, 2), (1, 3), (2, 4))),
    "nothing in common": ("one two", "three", ()),
    "only special tokens": ("CLS one SEP", "CLS two three SEP", ((0, 0), (2, 3))),
    "one of them empty": ("", "one", ()),
}


@pytest.mark.parametrize(("a", "b", "expected"), CASES.values(), ids=CASES)
def test_alignment_equals_hand_worked_cases(a: str, b: str, expected: Pairs) -> None:
    assert places(a, b) == expected
    assert places(b, a) == tuple((right, left) for left, right in expected)


def test_word_is_not_aligned_with_special_token(minilm: Checkpoint) -> None:
    a = minilm.trace("we left")
    token = a.tokens[2]
    special = Token(str(token), **{**token.__dict__, "special": True})
    b = replace(a, encoding=replace(a.encoding, tokens=(*a.tokens[:2], special, a.tokens[3])))
    assert changed(align_traces(a, b)) == (["left"], ["left"])


words = st.lists(st.sampled_from("abcd"), max_size=12).map(" ".join)


@given(words, words)
def test_pairs_are_equal_increasing_and_symmetric(a: str, b: str) -> None:
    pairs = places(a, b)
    assert all(a.split()[left] == b.split()[right] for left, right in pairs)
    assert all(x < y and z < w for (x, z), (y, w) in pairwise(pairs))
    assert places(b, a) == tuple((right, left) for left, right in pairs)
    assert len(places(a, a)) == len(a.split())


def test_repeated_words_of_long_text_are_aligned() -> None:
    # In sequences of 200 or more elements, difflib's heuristic ignores elements with a share above 1%.
    assert len(places("so " + "to be " * 150, "to be " * 150 + "or not")) == 300


def shown(alignment: Alignment) -> list[tuple[str, str]]:
    return [(alignment.units_a[a].display, alignment.units_b[b].display) for a, b in alignment.pairs]


def changed(alignment: Alignment) -> tuple[list[str], list[str]]:
    return (
        [alignment.units_a[place].display for place in alignment.changed_a],
        [alignment.units_b[place].display for place in alignment.changed_b],
    )


def test_word_split_differently_is_aligned_as_word(minilm: Checkpoint) -> None:
    a, b = minilm.trace("The embedding works."), minilm.trace("The embedder works.")
    assert [*map(str, a.tokens)][2:5] == ["em", "##bed", "##ding"]
    assert [*map(str, b.tokens)][2:5] == ["em", "##bed", "##der"]
    assert changed(align_traces(a, b)) == (["##ding"], ["##der"])
    assert changed(align_traces(a, b, words=True)) == (["embedding"], ["embedder"])


def test_same_word_with_other_tokens_is_aligned(family: Callable[[str], Checkpoint]) -> None:
    a, b = (family("roberta").trace(text) for text in ("the ground", "left the ground"))
    assert ([*map(str, a.tokens)][1:3], str(b.tokens[4])) == (["t", "he"], "Ġthe")
    assert changed(align_traces(a, b)) == (["he"], ["l", "ef", "the"])
    assert changed(align_traces(a, b, words=True)) == ([], ["left"])
    a, b = (family("roberta").trace(text) for text in ("LEFT", "we LEFT"))
    assert "Ġ" in b.tokens  # a token that consists only of the space before a word
    assert changed(align_traces(a, b, words=True)) == ([], ["we"])


def test_case_matters_only_for_cased_models(minilm: Checkpoint, family: Callable[[str], Checkpoint]) -> None:
    texts = ("We left it", "we LEFT it")
    a, b = (minilm.trace(text) for text in texts)
    assert changed(align_traces(a, b)) == ([], [])
    a, b = (family("roberta").trace(text) for text in texts)
    changed_a, changed_b = changed(align_traces(a, b, words=True))
    assert (changed_a, changed_b) == (["We", "left"], ["we", "LEFT"])


def test_leading_space_is_ignored(family: Callable[[str], Checkpoint]) -> None:
    a, b = (family("roberta").trace(text) for text in ("a map", "read a map"))
    assert (str(a.tokens[1]), str(b.tokens[-3])) == ("a", "Ġa")
    assert ("a", "a") in shown(align_traces(a, b))


def test_texts_of_a_pair_are_aligned_separately(minilm: Checkpoint) -> None:
    a, b = minilm.trace("we left", "the ground"), minilm.trace("the ground", "we left")
    assert [text for text, _ in shown(align_traces(a, b))] == ["[CLS]", "[SEP]", "[SEP]"]
    assert not align_traces(a, b).shares_text


@pytest.mark.parametrize("pairs", [((0, 0), (0, 1)), ((1, 0), (0, 1)), ((0, 9),)])
def test_pairs_that_do_not_increase_are_refused(minilm: Checkpoint, pairs: Pairs) -> None:
    tokens = minilm.trace("we left").tokens
    with pytest.raises(ShapeError):
        Alignment(tokens, tokens, pairs)
