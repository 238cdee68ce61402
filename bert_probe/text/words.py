"""Group tokens into words, find words and tokens by name, and merge attention between tokens into words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self
from weakref import WeakKeyDictionary

import numpy as np

from bert_probe.errors import SelectionError, ShapeError
from bert_probe.model.encoding import Encoding, Token
from bert_probe.model.trace import Array, Trace

_MAX_DIGITS = 9
"""Maximum number of digits after the colon in "ground:2"; a longer number is treated as part of the word."""


class Unit(str):
    """A word or special token, with the positions of its tokens in the input.

    Attributes:
        positions: consecutive positions of the unit's tokens in the input, at least one.
        position: position of the first token.
        segment: 0 for the first text, 1 for the second text of a pair.
        special: whether the unit is a special token.
        display: readable form of the unit.
        residue: number of the residue (amino acid or nucleotide) in a sequence; None in other texts.
    """

    positions: tuple[int, ...]
    segment: int
    special: bool
    display: str
    residue: int | None

    def __new__(
        cls,
        text: str,
        positions: tuple[int, ...],
        segment: int,
        special: bool,
        residue: int | None = None,
    ) -> Self:
        """Create a unit from its text and the positions of its tokens."""
        self = super().__new__(cls, text)
        self.positions, self.segment, self.special, self.display = positions, segment, special, text
        self.residue = residue
        return self

    @property
    def position(self) -> int:
        """Return the position of the unit's first token."""
        return self.positions[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return Unit, (str(self), self.positions, self.segment, self.special, self.residue)


@dataclass(frozen=True, eq=False)
class WordLens:
    """A grouping of the tokens of a text into words, with methods that merge attention and vectors by word.

    Attributes:
        units: the words and special tokens in the order of the input. Each token belongs to exactly one unit.
    """

    units: tuple[Unit, ...]

    @cached_property
    def _starts(self) -> Array:
        return np.array([unit.position for unit in self.units])

    @cached_property
    def _sizes(self) -> Array:
        return np.array([len(unit.positions) for unit in self.units], dtype=np.float32)

    def merge(self, weights: Array) -> Array:
        """Merge attention between tokens into attention between words and special tokens.

        Weights are summed over the key tokens of each unit, and averaged over the query tokens of each unit.

        Args:
            weights: attention between tokens, with shape [..., query, key].

        Returns:
            Attention between units, with shape [..., query, key]. If the rows of `weights` sum to 1, the rows
            of the result also sum to 1.

        Raises:
            ShapeError: the shape does not match the number of tokens of this text.
        """
        length = sum(len(unit.positions) for unit in self.units)
        if weights.shape[-2:] != (length, length):
            raise ShapeError(f"weights must have shape [..., {length}, {length}], not {weights.shape}.")
        merged = self._sum_tokens(self.merge_keys(weights), axis=-2)
        merged /= self._sizes[:, None]
        return merged

    def merge_keys(self, weights: Array) -> Array:
        """Merge only the keys (the last axis) by summing the weights of each unit's tokens."""
        return self._sum_tokens(weights, axis=-1)

    def _sum_tokens(self, weights: Array, axis: int) -> Array:
        """Return the sum over each unit's tokens along an axis.

        This is faster than `np.add.reduceat`, because most units have one token.
        """
        merged: Array = np.take(weights, self._starts, axis)
        units, tokens = np.moveaxis(merged, axis, 0), np.moveaxis(weights, axis, 0)
        for offset in range(1, int(self._sizes.max())):
            longer_units = np.flatnonzero(self._sizes > offset)
            units[longer_units] += tokens[self._starts[longer_units] + offset]
        return merged

    def average(self, vectors: Array) -> Array:
        """Return the mean of each unit's token vectors; the result has the shape [unit, hidden].

        Args:
            vectors: token vectors, with shape [token, hidden].

        Raises:
            ShapeError: the shape does not match the number of tokens of this text.
        """
        length = sum(len(unit.positions) for unit in self.units)
        if vectors.ndim != 2 or len(vectors) != length:
            raise ShapeError(f"vectors must have shape [{length}, hidden], not {vectors.shape}.")
        mean: Array = np.add.reduceat(vectors, self._starts, axis=0) / self._sizes[:, None]
        return mean


def word_lens(source: Trace | Encoding) -> WordLens:
    """Group tokens into words, as assigned by the tokenizer. Each special token is a separate unit."""
    encoding = source.encoding if isinstance(source, Trace) else source
    lens = _lenses.get(encoding)
    if lens is None:
        lens = _lenses[encoding] = WordLens(tuple(_units(encoding)))
    return lens


_lenses: WeakKeyDictionary[Encoding, WordLens] = WeakKeyDictionary()


def _units(encoding: Encoding) -> list[Unit]:
    units: list[Unit] = []
    word_tokens: list[Token] = []
    texts = (encoding.text, encoding.pair or "")
    for token in encoding.tokens:
        if word_tokens and not token.continues(word_tokens[-1]):
            units.append(_unit(word_tokens, texts))
            word_tokens = []
        word_tokens.append(token)
    units.append(_unit(word_tokens, texts))
    return units


def _unit(tokens: list[Token], texts: tuple[str, str]) -> Unit:
    first, last = tokens[0], tokens[-1]
    positions = tuple(token.position for token in tokens)
    # The first token may consist only of the space before the word.
    covered = texts[first.segment][first.start : last.end]
    text = str(first) if first.special else covered.strip() or covered or first.display
    return Unit(text, positions, first.segment, first.special, first.residue)


def find_word(trace: Trace, word: str) -> Unit:
    """Find a word or special token by its text. Ignore case if there is no exact match.

    Args:
        trace: trace of the text that contains the word.
        word: a word such as "ground", or "ground:2" for its second occurrence; or a special token's name.

    Raises:
        SelectionError: the word does not exist, or occurs several times and has no number.
    """
    units = word_lens(trace).units
    name, number = word, None
    matches = _matches(units, name)
    if not matches:
        name, number = _split_number(word)
        matches = _matches(units, name)
    if not matches:
        words = list(dict.fromkeys(str(unit) for unit in units if not unit.special))
        listed = ", ".join(words[:12]) + (", …" if len(words) > 12 else "")
        raise SelectionError(
            f"There is no word {truncate_text(word)} in this text. Words of the text: {listed}."
        )
    if number is None and len(matches) > 1:
        raise SelectionError(
            f"{name} occurs {len(matches)} times. Choose one of {name}:1 to {name}:{len(matches)}."
        )
    if number is not None and not 1 <= number <= len(matches):
        raise SelectionError(f"{name} occurs {len(matches)} times, so there is no {word}.")
    return matches[(number or 1) - 1]


def find_token(trace: Trace, name: str) -> Token:
    """Find a token by its position, or the only token of a word.

    Args:
        trace: trace of the text that contains the token.
        name: a position such as "11", a word such as "ground", or "ground:2" for its second occurrence. Write
            "2024:1" for a word that is a number.

    Raises:
        SelectionError: the token or word does not exist, or the word has several tokens.
    """
    # Check for digits, because int() also accepts strings such as "1_0".
    if name.isascii() and name.isdigit():
        if len(name) > 9 or int(name) >= len(trace.tokens):
            raise SelectionError(
                f"There is no token {name}: this text has tokens 0 to {len(trace.tokens) - 1}. "
                f"To select the word “{name}”, write {name}:1."
            )
        return trace.tokens[int(name)]
    unit = find_word(trace, name)
    if len(unit.positions) > 1:
        listed = ", ".join(f"{trace.tokens[position].display} ({position})" for position in unit.positions)
        raise SelectionError(
            f"{unit} has {len(unit.positions)} tokens: {listed}. Choose one of these tokens by its position."
        )
    return trace.tokens[unit.position]


def word_name(trace: Trace, unit: Unit) -> str:
    """Return the name by which `find_word` finds a unit, with a number if the word occurs more than once."""
    occurrences = [candidate.positions for candidate in word_lens(trace).units if str(candidate) == str(unit)]
    return str(unit) if len(occurrences) == 1 else f"{unit}:{occurrences.index(unit.positions) + 1}"


def _split_number(word: str) -> tuple[str, int | None]:
    name, colon, number = word.rpartition(":")
    is_number = number.isdecimal() and len(number) <= _MAX_DIGITS
    return (name, int(number)) if colon and name and is_number else (word, None)


def _matches(units: Iterable[Unit], name: str) -> list[Unit]:
    exact_matches = [unit for unit in units if unit == name]
    return exact_matches or [unit for unit in units if unit.casefold() == name.casefold()]


def truncate_text(text: str, max_length: int = 40) -> str:
    """Truncate a text to at most `max_length` characters. A truncated text ends with "…"."""
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"
