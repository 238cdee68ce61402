"""Alignment of two texts: which tokens, or words, are the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from bert_probe.errors import ShapeError
from bert_probe.model.encoding import SPACE, Token
from bert_probe.model.trace import Trace
from bert_probe.text.words import Unit, word_lens

Key = tuple[int, bool, str]
"""Segment, whether special, and text; two units with equal keys are the same."""


@dataclass(frozen=True)
class Alignment:
    """Two aligned texts.

    Attributes:
        units_a, units_b: all tokens, or words and special tokens, of both texts.
        pairs: indices of the units that are the same in both texts, increasing in both.
    """

    units_a: tuple[Token | Unit, ...]
    units_b: tuple[Token | Unit, ...]
    pairs: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        for indices, units in ((self.places_a, self.units_a), (self.places_b, self.units_b)):
            if list(indices) != sorted(set(indices)) or not set(indices) <= set(range(len(units))):
                raise ShapeError(f"The indices {indices} must increase and be less than {len(units)}.")

    @property
    def places_a(self) -> tuple[int, ...]:
        """Return the aligned indices into ``units_a``."""
        return tuple(a for a, _ in self.pairs)

    @property
    def places_b(self) -> tuple[int, ...]:
        """Return the aligned indices into ``units_b``."""
        return tuple(b for _, b in self.pairs)

    @property
    def aligned(self) -> tuple[Token | Unit, ...]:
        """Return the aligned units of text A."""
        return tuple(self.units_a[place] for place in self.places_a)

    @property
    def changed_a(self) -> tuple[int, ...]:
        """Return the indices into ``units_a`` without a counterpart in B."""
        return _complement(self.places_a, len(self.units_a))

    @property
    def changed_b(self) -> tuple[int, ...]:
        """Return the indices into ``units_b`` without a counterpart in A."""
        return _complement(self.places_b, len(self.units_b))

    @property
    def mirrored(self) -> Alignment:
        """Return the alignment with A and B exchanged."""
        return Alignment(self.units_b, self.units_a, tuple((b, a) for a, b in self.pairs))

    @property
    def shares_text(self) -> bool:
        """Return whether any unit is aligned that is not a special token."""
        return not all(unit.special for unit in self.aligned)


def _complement(places: tuple[int, ...], count: int) -> tuple[int, ...]:
    return tuple(sorted(set(range(count)) - set(places)))


def align_traces(a: Trace, b: Trace, words: bool = False) -> Alignment:
    """Align the tokens, or words, of two traces.

    Two tokens are the same if they have the same spelling in the model's vocabulary, apart from a preceding
    space; two words if the joined spellings of their tokens are equal, however they were split. Case
    therefore matters only if the model distinguishes it. Special tokens are compared by name, and never equal
    a word of the text. The first and second text of a pair are aligned separately.
    """
    units_a, keys_a = _units(a, words)
    units_b, keys_b = _units(b, words)
    return Alignment(units_a, units_b, align(keys_a, keys_b))


def align(a: Sequence[Key], b: Sequence[Key]) -> tuple[tuple[int, int], ...]:
    """Return the index pairs at which two sequences are equal, increasing in both.

    The method is Ratcliff and Metzener 1988, as in Python's difflib: the longest common run, then recursively
    to the left and right of it. Replaced stretches are not aligned, whatever their length. difflib is not
    symmetric, so the sequences are always passed in the same order; A against B then mirrors B against A.

    >>> align([(0, False, word) for word in "it was full".split()],
    ...       [(0, False, word) for word in "it was quite empty".split()])
    ((0, 0), (1, 1))
    """
    first, second = sorted((list(a), list(b)))
    # The "autojunk" heuristic would ignore repeated words in long texts.
    blocks = SequenceMatcher(None, first, second, autojunk=False).get_matching_blocks()
    pairs = [(block.a + step, block.b + step) for block in blocks for step in range(block.size)]
    return tuple(pairs if first == list(a) else [(right, left) for left, right in pairs])


def _units(trace: Trace, words: bool) -> tuple[tuple[Token | Unit, ...], list[Key]]:
    units: tuple[Token | Unit, ...] = word_lens(trace).units if words else trace.tokens
    return units, [(unit.segment, unit.special, _spelling(unit, trace)) for unit in units]


def _spelling(unit: Token | Unit, trace: Trace) -> str:
    """Return a unit's spelling in the vocabulary, without a leading space."""
    positions = unit.positions if isinstance(unit, Unit) else (unit.position,)
    joined = "".join(trace.tokens[position].display for position in positions)
    return joined.lstrip(SPACE) or joined
