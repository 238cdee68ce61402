"""Into how many pieces words are cut, by hand, and in two vocabularies."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bert_probe import Fragmentation, FragmentationChange
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import Checkpoint

TEXT, PAIR = "Mehdi  loves (the) unhappiest AI.", "Hi\u200b \u200b you"


def test_a_text_by_hand(minilm: Checkpoint) -> None:
    found = Fragmentation().of(minilm.trace(TEXT, PAIR))
    assert found.table().values.tolist() == [
        ["Mehdi", 0, 0, 5, 2, "me ##hdi"],
        ["loves", 0, 7, 12, 1, "loves"],
        ["(the)", 0, 13, 18, 3, "( the )"],
        ["unhappiest", 0, 19, 29, 4, "un ##ha ##pp ##iest"],
        ["AI.", 0, 30, 33, 2, "ai ."],
        ["Hi\u200b", 1, 0, 3, 1, "hi"],
        ["you", 1, 6, 9, 1, "you"],
    ]
    assert (found.pieces, len(found.words), found.unknown) == (14, 7, 0)
    assert found.fertility == 2
    assert found.continued == 4 / 7
    assert found.characters == (5 + 5 + 5 + 10 + 3 + 3 + 3) / 14
    assert [word.text for word in found.by_pieces][:2] == ["unhappiest", "(the)"]


def test_what_the_vocabulary_does_not_know_is_counted(minilm: Checkpoint) -> None:
    assert Fragmentation().of(minilm.trace("one 𐎠 two 𐎠𐎠")).unknown == 2


def test_words_that_were_cut_off_are_not_counted(minilm: Checkpoint) -> None:
    found = Fragmentation().of(minilm.trace("word " * 600, truncate=True))
    assert (found.pieces, len(found.words)) == (510, 510)


@pytest.mark.parametrize("name", ["roberta", "xlm-roberta"])
def test_spaces_belong_to_the_word_after_them(name: str, family: Callable[[str], Checkpoint]) -> None:
    text = " A  small boat, Çelik \n 東京 "
    trace = family(name).trace(text)
    found = Fragmentation().of(trace)
    assert [word.text for word in found.words] == text.split()
    assert found.pieces == sum(not token.special for token in trace.tokens)
    assert [piece.position for word in found.words for piece in word.pieces] == [
        token.position for token in trace.tokens if not token.special
    ]


def test_two_vocabularies_on_one_text(minilm: Checkpoint, family: Callable[[str], Checkpoint]) -> None:
    text = "A small boat crosses"
    a, b = minilm.trace(text), family("roberta").trace(text)
    both = FragmentationChange().of(a, b)
    frame = both.table()
    assert frame["word"].tolist() == text.split()
    assert frame["pieces_a"].tolist() == [1, 1, 1, 1]
    assert frame["pieces_b"].tolist() == [len(word.pieces) for word in Fragmentation().of(b).words]
    assert frame["cut_b"][1] == "Ġsmall"
    assert frame.attrs["provenance"]["facts"]["a"]["fertility"] == 1
    with pytest.raises(SelectionError, match="these are two"):
        FragmentationChange().of(a, minilm.trace("another"))
