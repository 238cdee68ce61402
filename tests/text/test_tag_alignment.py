"""Where the words of a tagged sentence stand among the tokens."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import pytest

from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.tag_alignment import NOWHERE, placed
from bert_probe.text.tagged_sentences import TaggedSentence


def sentence(text: str, *words: str) -> TaggedSentence:
    """Words that stand in a text one after the other."""
    spans, place = [], 0
    for word in words:
        place = text.index(word, place)
        spans.append((place, place + len(word)))
        place += len(word)
    tags = ("X",) * len(words)
    return TaggedSentence(words, tags, (), (), text, tuple(spans), MappingProxyType({}), 1)


@pytest.mark.parametrize("name", ["bert", "roberta", "albert"])
def test_words_of_any_tokenizer_hold_their_tokens(name: str, family: Callable[[str], Checkpoint]) -> None:
    of = sentence(
        "Nobody can't  repair it, naïve 2024!",
        "Nobody",
        "ca",
        "n't",
        "repair",
        "it",
        ",",
        "naïve",
        "2024",
        "!",
    )
    encoding = family(name).encode(of.text)
    found = placed(of, encoding)
    assert [p for unit in found.lens.units for p in unit.positions] == list(range(len(encoding)))
    for word, place in enumerate(found.units):
        unit = found.lens.units[place]
        assert not unit.special
        start, end = of.spans[word]
        tokens = [encoding.tokens[position] for position in unit.positions]
        # Every token of a word shares characters with it, and none has more of another word's.
        assert all(token.start < end and start < token.end for token in tokens if token.display.strip("␣"))
    assert len({*found.units.tolist()}) == len(of.words)


def test_a_token_goes_to_the_word_it_has_most_of(minilm: Checkpoint) -> None:
    # don ' t
    encoding = minilm.encode("don't")
    found = placed(sentence("don't", "do", "n't"), encoding)
    assert [unit.positions for unit in found.lens.units] == [(0,), (1,), (2, 3), (4,)]
    assert found.units.tolist() == [1, 2]


def test_words_of_one_token_share_it_and_a_word_without_any_is_nowhere(minilm: Checkpoint) -> None:
    found = placed(
        sentence("cannot \u200b go", "can", "not", "\u200b", "go"), minilm.encode("cannot \u200b go")
    )
    assert found.units.tolist() == [1, 1, NOWHERE, 2]
    cut = minilm.encode("go " * 600, truncate=True)
    found = placed(sentence("go " * 600, *["go"] * 600), cut)
    assert found.units.tolist() == [*range(1, 511), *[NOWHERE] * 90]
