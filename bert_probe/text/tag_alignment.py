"""Alignment of the words of a tagged sentence with the model's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from bert_probe.model.encoding import Encoding, Token
from bert_probe.model.trace import Array, read_only
from bert_probe.text.tagged_sentences import TaggedSentence
from bert_probe.text.words import Unit, WordLens

NO_UNIT = -1
"""Unit of a word without tokens: dropped by the tokenizer, or truncated."""


@dataclass(frozen=True, eq=False)
class AlignedWords:
    """The words of a tagged sentence in the model's input.

    Attributes:
        lens: groups tokens into the words of the file; a token outside all words is its own unit.
        units: for each word the index of its unit in the lens, or `NO_UNIT`. Words that share all their
            tokens, such as those of a contracted token, share a unit.
    """

    lens: WordLens
    units: Array

    def __post_init__(self) -> None:
        read_only(self.units)


def align_words(sentence: TaggedSentence, encoding: Encoding) -> AlignedWords:
    """Align a sentence with its tokens. A token belongs to the word with most of its characters, or the first
    of equals.
    """
    word_of_character = np.full(len(sentence.text), NO_UNIT)
    for word in reversed(range(len(sentence.words))):
        start, end = sentence.spans[word]
        word_of_character[start:end] = word
    owners = [_owner(token, word_of_character) for token in encoding.tokens]
    units: list[Unit] = []
    unit_of_word = np.full(len(sentence.words), NO_UNIT)
    # Consecutive tokens outside all words are not grouped.
    for (owner, _), run in groupby(
        zip(encoding.tokens, owners, strict=True),
        key=lambda entry: (entry[1], entry[0].position if entry[1] == NO_UNIT else 0),
    ):
        tokens = [token for token, _ in run]
        if owner != NO_UNIT and unit_of_word[owner] == NO_UNIT:
            unit_of_word[owner] = len(units)
        text = tokens[0].display if owner == NO_UNIT else sentence.words[owner]
        positions = tuple(token.position for token in tokens)
        units.append(Unit(text, positions, tokens[0].segment, tokens[0].special))
    for word in np.flatnonzero(unit_of_word == NO_UNIT).tolist():
        sharing_word = _find_sharing_word(sentence.spans[word], encoding.tokens, owners)
        if sharing_word is not None:
            unit_of_word[word] = unit_of_word[sharing_word]
    return AlignedWords(WordLens(tuple(units)), unit_of_word)


def _owner(token: Token, word_of_character: Array) -> int:
    if token.special:
        return NO_UNIT
    words = word_of_character[token.start : token.end]
    words = words[words != NO_UNIT]
    return int(np.bincount(words).argmax()) if len(words) else NO_UNIT


def _find_sharing_word(span: tuple[int, int], tokens: Sequence[Token], owners: Sequence[int]) -> int | None:
    """Return the word that owns the first token overlapping a span; None if no token overlaps it."""
    for token, owner in zip(tokens, owners, strict=True):
        if owner == NO_UNIT or token.start is None or token.end is None:
            continue
        if token.start < span[1] and span[0] < token.end:
            return owner
    return None
