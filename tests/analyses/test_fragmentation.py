"""Test fertility (tokens per word): hand-computed cases, and a comparison of two vocabularies."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bert_probe import Fertility, FertilityChange
from bert_probe.errors import EmptyTextError, SelectionError
from bert_probe.model.checkpoint import Checkpoint

TEXT, PAIR = "Mehdi  loves (the) unhappiest AI.", "Don't\u200b \u200b you"


def test_fertility_equals_hand_computation(minilm: Checkpoint) -> None:
    result = Fertility().of(minilm.trace(TEXT, PAIR))
    assert result.table().values.tolist() == [
        ["Mehdi", 0, 0, 5, 2, "me ##hdi"],
        ["loves", 0, 7, 12, 1, "loves"],
        ["(", 0, 13, 14, 1, "("],
        ["the", 0, 14, 17, 1, "the"],
        [")", 0, 17, 18, 1, ")"],
        ["unhappiest", 0, 19, 29, 4, "un ##ha ##pp ##iest"],
        ["AI", 0, 30, 32, 1, "ai"],
        [".", 0, 32, 33, 1, "."],
        ["Don't", 1, 0, 5, 3, "don ' t"],
        ["you", 1, 9, 12, 1, "you"],
    ]
    assert (result.pieces, len(result.words), result.unknown) == (16, 10, 0)
    assert result.fertility == 1.6
    assert result.continued == 0.3
    assert result.characters == (5 + 5 + 1 + 3 + 1 + 10 + 2 + 1 + 5 + 3) / 16
    assert [word.text for word in result.by_pieces][:3] == ["unhappiest", "Don't", "Mehdi"]


def test_unknown_tokens_are_counted(minilm: Checkpoint) -> None:
    assert Fertility().of(minilm.trace("one 𐎠 two 𐎠𐎠")).unknown == 2


def test_truncated_words_are_not_counted(minilm: Checkpoint) -> None:
    result = Fertility().of(minilm.trace("word " * 600, truncate=True))
    assert (result.pieces, len(result.words)) == (510, 510)


def test_marks_belong_to_the_letters_before_them(minilm: Checkpoint) -> None:
    result = Fertility().of(minilm.trace("हिन्दी cafe\u0301"))
    assert [word.text for word in result.words] == ["हिन्दी", "cafe\u0301"]


def test_text_of_spaces_raises_error(family: Callable[[str], Checkpoint]) -> None:
    with pytest.raises(EmptyTextError, match="only spaces"):
        Fertility().of(family("roberta").trace("  "))


@pytest.mark.parametrize("name", ["roberta", "xlm-roberta"])
def test_spaces_belong_to_the_word_after_them(name: str, family: Callable[[str], Checkpoint]) -> None:
    text = " A  small boat, Çelik \n 東京 "
    trace = family(name).trace(text)
    result = Fertility().of(trace)
    assert [word.text for word in result.words] == ["A", "small", "boat", ",", "Çelik", "東京"]
    assert result.pieces == sum(not token.special for token in trace.tokens)
    assert [piece.position for word in result.words for piece in word.pieces] == [
        token.position for token in trace.tokens if not token.special
    ]


def test_two_vocabularies_are_compared_on_one_text(
    minilm: Checkpoint, family: Callable[[str], Checkpoint]
) -> None:
    text = "A small boat crosses"
    a, b = minilm.trace(text), family("roberta").trace(text)
    both = FertilityChange().of(a, b)
    frame = both.table()
    assert frame["word"].tolist() == text.split()
    assert frame["pieces_a"].tolist() == [1, 1, 1, 1]
    assert frame["pieces_b"].tolist() == [len(word.pieces) for word in Fertility().of(b).words]
    assert frame["cut_b"][1] == "Ġsmall"
    assert frame.attrs["provenance"]["facts"]["a"]["fertility"] == 1
    with pytest.raises(SelectionError, match="read different texts"):
        FertilityChange().of(a, minilm.trace("another"))
