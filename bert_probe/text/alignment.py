"""Which tokens, or words, of two texts are the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from bert_probe.errors import ShapeError
from bert_probe.model.encoding import SPACE, Token
from bert_probe.model.trace import Trace
from bert_probe.text.words import Unit, word_lens

Key = tuple[int, bool, str]
"""Segment, special or not, and the text by which two units are the same."""


@dataclass(frozen=True)
class Alignment:
    """Two texts laid side by side.

    Attributes:
        units_a, units_b: all tokens, or words and special tokens, of both texts.
        pairs: indices into both of the units that are the same, rising in each.
    """

    units_a: tuple[Token | Unit, ...]
    units_b: tuple[Token | Unit, ...]
    pairs: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        for side, units in ((self.places_a, self.units_a), (self.places_b, self.units_b)):
            if list(side) != sorted(set(side)) or not set(side) <= set(range(len(units))):
                raise ShapeError(f"Places {side} do not rise within {len(units)} units.")

    @property
    def places_a(self) -> tuple[int, ...]:
        """Aligned indices into ``units_a``."""
        return tuple(a for a, _ in self.pairs)

    @property
    def places_b(self) -> tuple[int, ...]:
        """Aligned indices into ``units_b``."""
        return tuple(b for _, b in self.pairs)

    @property
    def aligned(self) -> tuple[Token | Unit, ...]:
        """The aligned units, as text A has them."""
        return tuple(self.units_a[place] for place in self.places_a)

    @property
    def changed_a(self) -> tuple[int, ...]:
        """Indices into ``units_a`` of what has no counterpart in B."""
        return _others(self.places_a, len(self.units_a))

    @property
    def changed_b(self) -> tuple[int, ...]:
        """Indices into ``units_b`` of what has no counterpart in A."""
        return _others(self.places_b, len(self.units_b))

    @property
    def mirrored(self) -> Alignment:
        """The same with A and B exchanged."""
        return Alignment(self.units_b, self.units_a, tuple((b, a) for a, b in self.pairs))

    @property
    def shares_text(self) -> bool:
        """Whether anything but special tokens is aligned."""
        return not all(unit.special for unit in self.aligned)


def _others(places: tuple[int, ...], count: int) -> tuple[int, ...]:
    return tuple(sorted(set(range(count)) - set(places)))


def align_traces(a: Trace, b: Trace, words: bool = False) -> Alignment:
    """Lay the tokens, or words, of two texts side by side.

    Two tokens are the same if the model's vocabulary spells them alike, a space before them aside; two
    words if their pieces together do, however they were split. So upper and lower case differ where
    the model tells them apart, and only there. Special tokens are the same by their name, and are
    never the same as a word of the text. The first and the second text of a pair are kept apart.
    """
    units_a, keys_a = _units(a, words)
    units_b, keys_b = _units(b, words)
    return Alignment(units_a, units_b, align(keys_a, keys_b))


def align(a: Sequence[Key], b: Sequence[Key]) -> tuple[tuple[int, int], ...]:
    """Pairs of places at which two sequences hold the same, rising in both.

    Ratcliff and Metzener 1988, as in Python's difflib: the longest common run, then the same to the
    left and to the right of it. What one text has in place of the other's is not aligned, whatever its
    length. The matcher may answer otherwise when its sequences are exchanged; here it always gets them
    in the same order, so that A against B mirrors B against A.

    >>> align([(0, False, word) for word in "it was full".split()],
    ...       [(0, False, word) for word in "it was quite empty".split()])
    ((0, 0), (1, 1))
    """
    first, second = sorted((list(a), list(b)))
    # Its heuristic for frequent elements, "autojunk", would leave repeated words of long texts out.
    blocks = SequenceMatcher(None, first, second, autojunk=False).get_matching_blocks()
    pairs = [(block.a + step, block.b + step) for block in blocks for step in range(block.size)]
    return tuple(pairs if first == list(a) else [(two, one) for one, two in pairs])


def _units(trace: Trace, words: bool) -> tuple[tuple[Token | Unit, ...], list[Key]]:
    units: tuple[Token | Unit, ...] = word_lens(trace).units if words else trace.tokens
    return units, [(unit.segment, unit.special, _spelled(unit, trace)) for unit in units]


def _spelled(unit: Token | Unit, trace: Trace) -> str:
    """A unit as the vocabulary spells it, its pieces joined, without the space that may come first."""
    positions = unit.positions if isinstance(unit, Unit) else (unit.position,)
    joined = "".join(trace.tokens[position].display for position in positions)
    return joined.lstrip(SPACE) or joined
