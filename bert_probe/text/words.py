"""The word lens: attention between whole words instead of pieces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from bert_probe.errors import SelectionError, ShapeError
from bert_probe.model.encoding import Encoding, Token
from bert_probe.model.trace import Array, Trace


class Unit(str):
    """A word, or a special token, as one row or column: its text, and the tokens it stands for.

    Attributes:
        positions: places of its tokens in the input, at least one, without a gap.
        position: the first of them.
        segment: 0 for the first text, 1 for the second.
        special: a special token.
        display: as a person reads it.
    """

    positions: tuple[int, ...]
    segment: int
    special: bool
    display: str

    def __new__(cls, text: str, positions: tuple[int, ...], segment: int, special: bool) -> Self:
        """A unit of some tokens."""
        self = super().__new__(cls, text)
        self.positions, self.segment, self.special, self.display = positions, segment, special, text
        return self

    @property
    def position(self) -> int:
        """Place of its first token."""
        return self.positions[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return Unit, (str(self), self.positions, self.segment, self.special)


@dataclass(frozen=True, eq=False)
class WordLens:
    """How the tokens of a text merge into words.

    Attributes:
        units: the words and special tokens, in input order; they cover every token once.
    """

    units: tuple[Unit, ...]

    @cached_property
    def _starts(self) -> Array:
        return np.array([unit.position for unit in self.units])

    @cached_property
    def _sizes(self) -> Array:
        return np.array([len(unit.positions) for unit in self.units], dtype=np.float32)

    def merge(self, weights: Array) -> Array:
        """Attention between words: summed over a key's pieces, averaged over a query's.

        Args:
            weights: [..., query, key] over tokens.

        Returns:
            [..., query unit, key unit]; rows that sum to 1 still do.

        Raises:
            ShapeError: not over the tokens of this text.
        """
        length = sum(len(unit.positions) for unit in self.units)
        if weights.shape[-2:] != (length, length):
            raise ShapeError(f"weights has shape {weights.shape}; [..., {length}, {length}] is needed.")
        merged = self._summed(self.merge_keys(weights), axis=-2)
        merged /= self._sizes[:, None]
        return merged

    def merge_keys(self, weights: Array) -> Array:
        """The keys alone merged, [..., key] over tokens → [..., key unit]: sums over a key's pieces."""
        return self._summed(weights, axis=-1)

    def _summed(self, weights: Array, axis: int) -> Array:
        """Each unit's pieces added up along an axis; most have one, so much less work than reduceat's."""
        merged: Array = np.take(weights, self._starts, axis)
        units, tokens = np.moveaxis(merged, axis, 0), np.moveaxis(weights, axis, 0)
        for piece in range(1, int(self._sizes.max())):
            longer = np.flatnonzero(self._sizes > piece)
            units[longer] += tokens[self._starts[longer] + piece]
        return merged

    def average(self, vectors: Array) -> Array:
        """Vectors of words, [unit, hidden]: the mean of the vectors [token, hidden] of its pieces.

        Raises:
            ShapeError: not over the tokens of this text.
        """
        length = sum(len(unit.positions) for unit in self.units)
        if vectors.ndim != 2 or len(vectors) != length:
            raise ShapeError(f"vectors has shape {vectors.shape}; [{length}, hidden] is needed.")
        mean: Array = np.add.reduceat(vectors, self._starts, axis=0) / self._sizes[:, None]
        return mean


def word_lens(read: Trace | Encoding) -> WordLens:
    """Words as the tokenizer aligns them; a token that belongs to none stands for itself."""
    encoding = read.encoding if isinstance(read, Trace) else read
    units: list[Unit] = []
    pieces: list[Token] = []
    texts = (encoding.text, encoding.pair or "")
    for token in encoding.tokens:
        if pieces and not token.continues(pieces[-1]):
            units.append(_unit(pieces, texts))
            pieces = []
        pieces.append(token)
    units.append(_unit(pieces, texts))
    return WordLens(tuple(units))


def _unit(pieces: list[Token], texts: tuple[str, str]) -> Unit:
    first, last = pieces[0], pieces[-1]
    positions = tuple(piece.position for piece in pieces)
    # The first piece may be the space before the word, and nothing else.
    written = texts[first.segment][first.start : last.end]
    text = str(first) if first.special else written.strip() or written or first.display
    return Unit(text, positions, first.segment, first.special)


def find_word(trace: Trace, word: str) -> Unit:
    """The unit that a person names: a word as written, case ignored where no case fits.

    Args:
        word: "ground", or "ground:2" for its second occurrence; special tokens by their name.

    Raises:
        SelectionError: no such word, or several and no number.
    """
    units = word_lens(trace).units
    name, number = word, None
    found = _matches(units, name)
    if not found:
        name, number = _split_number(word)
        found = _matches(units, name)
    if not found:
        raise SelectionError(f"There is no word {word} in this text. Its words are: {_listed(units)}.")
    if number is None and len(found) > 1:
        raise SelectionError(f"{name} occurs {len(found)} times. Say which: {name}:1 to {name}:{len(found)}.")
    if number is not None and not 1 <= number <= len(found):
        raise SelectionError(f"{name} occurs {len(found)} times, so there is no {word}.")
    return found[(number or 1) - 1]


def find_token(trace: Trace, name: str) -> Token:
    """The token that a person names: its position from 0, or a word that is a single token.

    Args:
        name: "11", "ground", or "ground:2" for its second occurrence; a number as a word is "2024:1".

    Raises:
        SelectionError: no such token or word, or a word of several pieces.
    """
    # Plain digits alone: int() would also read "1_0".
    if name.isascii() and name.isdigit():
        if len(name) > 9 or int(name) >= len(trace.tokens):
            raise SelectionError(
                f"There is no token {name}: this text has tokens 0 to {len(trace.tokens) - 1}. "
                f"If it is a word, write {name}:1."
            )
        return trace.tokens[int(name)]
    unit = find_word(trace, name)
    if len(unit.positions) > 1:
        pieces = ", ".join(f"{trace.tokens[position].display} ({position})" for position in unit.positions)
        raise SelectionError(f"{unit} has {len(unit.positions)} pieces: {pieces}. Give one by its position.")
    return trace.tokens[unit.position]


def word_name(trace: Trace, unit: Unit) -> str:
    """What `find_word` finds this unit by: the word, with its number where it occurs more than once."""
    same = [other.positions for other in word_lens(trace).units if str(other) == str(unit)]
    return str(unit) if len(same) == 1 else f"{unit}:{same.index(unit.positions) + 1}"


def _split_number(word: str) -> tuple[str, int | None]:
    name, colon, number = word.rpartition(":")
    return (name, int(number)) if colon and name and number.isdecimal() else (word, None)


def _matches(units: Iterable[Unit], name: str) -> list[Unit]:
    exact = [unit for unit in units if unit == name]
    return exact or [unit for unit in units if unit.casefold() == name.casefold()]


def _listed(units: Iterable[Unit]) -> str:
    words = list(dict.fromkeys(str(unit) for unit in units if not unit.special))
    return ", ".join(words[:12]) + (", …" if len(words) > 12 else "")
