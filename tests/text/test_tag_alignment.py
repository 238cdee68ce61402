"""Test alignment of the words of a tagged sentence with tokens."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import pytest

from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.tagged_sentences import NO_UNIT, TaggedSentence, align_words


def sentence(text: str, *words: str) -> TaggedSentence:
    """Return a tagged sentence that consists of `words`, which occur in `text` in this order."""
    spans, place = [], 0
    for word in words:
        place = text.index(word, place)
        spans.append((place, place + len(word)))
        place += len(word)
    tags = ("X",) * len(words)
    return TaggedSentence(words, tags, (), (), text, tuple(spans), MappingProxyType({}), 1)


@pytest.mark.parametrize("name", ["bert", "roberta", "albert"])
def test_words_contain_their_tokens_in_every_tokenizer(
    name: str, family: Callable[[str], Checkpoint]
) -> None:
    tagged = sentence(
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
    encoding = family(name).encode(tagged.text)
    aligned = align_words(tagged, encoding)
    assert [p for unit in aligned.lens.units for p in unit.positions] == list(range(len(encoding)))
    for word, place in enumerate(aligned.units):
        unit = aligned.lens.units[place]
        assert not unit.special
        start, end = tagged.spans[word]
        tokens = [encoding.tokens[position] for position in unit.positions]
        # Each token overlaps its word, and overlaps it more than any other word.
        assert all(token.start < end and start < token.end for token in tokens if token.display.strip("␣"))
    assert len({*aligned.units.tolist()}) == len(tagged.words)


def test_token_belongs_to_the_word_with_most_characters(minilm: Checkpoint) -> None:
    # The tokens are "don", "'" and "t".
    encoding = minilm.encode("don't")
    aligned = align_words(sentence("don't", "do", "n't"), encoding)
    assert [unit.positions for unit in aligned.lens.units] == [(0,), (1,), (2, 3), (4,)]
    assert aligned.units.tolist() == [1, 2]


def test_words_share_a_token_and_truncated_words_have_none(minilm: Checkpoint) -> None:
    aligned = align_words(
        sentence("cannot \u200b go", "can", "not", "\u200b", "go"), minilm.encode("cannot \u200b go")
    )
    assert aligned.units.tolist() == [1, 1, NO_UNIT, 2]
    cut = minilm.encode("go " * 600, truncate=True)
    aligned = align_words(sentence("go " * 600, *["go"] * 600), cut)
    assert aligned.units.tolist() == [*range(1, 511), *[NO_UNIT] * 90]
