"""The words of a tagged sentence among the tokens that a model reads of its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from bert_probe.model.encoding import Encoding, Token
from bert_probe.model.trace import Array, read_only
from bert_probe.text.tagged_sentences import TaggedSentence
from bert_probe.text.words import Unit, WordLens

NOWHERE = -1
"""Place of a word that no token covers: what the tokenizer drops, or what was cut off."""


@dataclass(frozen=True, eq=False)
class AlignedWords:
    """Where words stand.

    Attributes:
        lens: merges tokens into the words of the file; a token of no word stands for itself.
        units: for each word its place among the lens's units, or `NOWHERE`. Words that share all their
            tokens, such as those of a contracted one, share a unit.
    """

    lens: WordLens
    units: Array

    def __post_init__(self) -> None:
        read_only(self.units)


def placed(sentence: TaggedSentence, encoding: Encoding) -> AlignedWords:
    """A token belongs to the word that most of its characters are of, the first of two that have as many."""
    of_character = np.full(len(sentence.text), NOWHERE)
    for word in reversed(range(len(sentence.words))):
        start, end = sentence.spans[word]
        of_character[start:end] = word
    owners = [_owner(token, of_character) for token in encoding.tokens]
    units: list[Unit] = []
    of_word = np.full(len(sentence.words), NOWHERE)
    # What belongs to no word does not belong together either.
    for (owner, _), run in groupby(
        zip(encoding.tokens, owners, strict=True),
        key=lambda one: (one[1], one[0].position if one[1] == NOWHERE else 0),
    ):
        tokens = [token for token, _ in run]
        if owner != NOWHERE and of_word[owner] == NOWHERE:
            of_word[owner] = len(units)
        written = tokens[0].display if owner == NOWHERE else sentence.words[owner]
        positions = tuple(token.position for token in tokens)
        units.append(Unit(written, positions, tokens[0].segment, tokens[0].special))
    for word in np.flatnonzero(of_word == NOWHERE).tolist():
        shared = _sharing(sentence.spans[word], encoding.tokens, owners)
        if shared is not None:
            of_word[word] = of_word[shared]
    return AlignedWords(WordLens(tuple(units)), of_word)


def _owner(token: Token, of_character: Array) -> int:
    if token.special:
        return NOWHERE
    words = of_character[token.start : token.end]
    words = words[words != NOWHERE]
    return int(np.bincount(words).argmax()) if len(words) else NOWHERE


def _sharing(span: tuple[int, int], tokens: Sequence[Token], owners: Sequence[int]) -> int | None:
    """The word that has a token which is in part, or all, of this span; None if there is no such token."""
    for token, owner in zip(tokens, owners, strict=True):
        if owner == NOWHERE or token.start is None or token.end is None:
            continue
        if token.start < span[1] and span[0] < token.end:
            return owner
    return None
