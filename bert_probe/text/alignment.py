"""Alignment of two texts by tokens or words, and of two tokenizations of one text by common spans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from itertools import accumulate

import numpy as np

from bert_probe.errors import SelectionError, ShapeError
from bert_probe.model.encoding import SPACE, Encoding, Token
from bert_probe.model.trace import Array, Trace
from bert_probe.text.words import Unit, WordLens, word_lens

Places = tuple[int, ...]
"""Consecutive token positions in the input."""
_Group = tuple[list[Token], list[Token]]
"""Tokens of A and of B that belong to the same span."""


@dataclass(frozen=True)
class Span:
    """A part of the text, or special tokens with the same role.

    Attributes:
        text: the text, or the special tokens.
        a, b: consecutive positions of the span's tokens in each model; empty for special tokens that a model
            does not have.
        segment: 0 for the first text, 1 for the second.
        special: whether it consists of special tokens.
    """

    text: str
    a: Places
    b: Places
    segment: int
    special: bool

    @property
    def shared(self) -> bool:
        """Return whether both models have tokens in this span."""
        return bool(self.a and self.b)


@dataclass(frozen=True, eq=False)
class CommonSpans:
    """The common spans of two tokenizations.

    Attributes:
        spans: the spans in text order; each token of both models belongs to exactly one span.
    """

    spans: tuple[Span, ...]

    def __post_init__(self) -> None:
        for side in (0, 1):
            positions = [position for span in self.spans for position in (span.a, span.b)[side]]
            if positions != [*range(len(positions))]:
                raise ShapeError(f"The spans must cover all tokens in order, but have tokens {positions}.")
        if not any(span.shared for span in self.spans):
            raise ShapeError("The two tokenizations have no common span.")

    @cached_property
    def rows(self) -> Places:
        """Return the indices of the shared spans, which are the queries."""
        return tuple(index for index, span in enumerate(self.spans) if span.shared)

    @property
    def queries(self) -> tuple[Span, ...]:
        """Return the shared spans."""
        return tuple(self.spans[index] for index in self.rows)

    def merged(self, weights: Array, side: int) -> Array:
        """Return one model's attention between spans.

        Weights are summed over the tokens of each key, and averaged over the tokens of each query.

        Args:
            weights: [..., query, key] over the model's tokens.
            side: 0 for A, 1 for B.

        Returns:
            [..., query, key] over `queries` and ``spans``; 0 for keys that only the other model has.

        Raises:
            ShapeError: the shape does not match the number of tokens of this model.
        """
        lens, indices = self._lenses[side]
        merged = lens.merge(weights)
        if len(indices) == len(self.spans) == len(self.rows):
            return merged
        expanded = np.zeros((*merged.shape[:-1], len(self.spans)), merged.dtype)
        expanded[..., indices] = merged
        selected: Array = expanded[..., np.flatnonzero(np.isin(indices, self.rows)), :]
        return selected

    @cached_property
    def _lenses(self) -> tuple[tuple[WordLens, Array], ...]:
        """For each side, the lens that merges its tokens, and the indices of the resulting spans."""
        lenses = []
        for side in (0, 1):
            positions_by_span = [(index, (span.a, span.b)[side]) for index, span in enumerate(self.spans)]
            present = [(index, positions) for index, positions in positions_by_span if positions]
            units = [
                Unit(self.spans[index].text, positions, self.spans[index].segment, self.spans[index].special)
                for index, positions in present
            ]
            lenses.append((WordLens(tuple(units)), np.array([index for index, _ in present])))
        return tuple(lenses)


def common_spans(a: Encoding, b: Encoding) -> CommonSpans:
    """Align two tokenizations of one text by their characters.

    A span ends where a token of each model ends and no token continues. Text that only one model
    tokenizes, such as a separate space token, is merged into the following span. Special tokens are aligned
    by role: before the first text, between the texts, and at the end. If both models tokenize the text
    identically, each token is a span.

    Raises:
        SelectionError: the texts differ, or a text was truncated for one of the models.
    """
    if (a.text, a.pair) != (b.text, b.pair):
        raise SelectionError("The two texts differ. Give both models the same text.")
    if a.dropped or b.dropped:
        raise SelectionError(
            f"Truncation removed {a.dropped:,} tokens in A and {b.dropped:,} in B, so the models did not "
            "read the same text. Shorten the text until neither model truncates it."
        )
    if a.ids == b.ids:
        return CommonSpans(
            tuple(
                Span(token.display, (position,), (position,), token.segment, token.special)
                for position, token in enumerate(a.tokens)
            )
        )
    sections, texts = (_sections(a), _sections(b)), (a.text, a.pair or "")
    spans: list[Span] = []
    for number in range(5):
        tokens_a, tokens_b = (section[number] for section in sections)
        if number % 2:
            spans += _text_spans(tokens_a, tokens_b, texts[number // 2])
        elif tokens_a or tokens_b:
            names = dict.fromkeys(
                "".join(token.display for token in side) for side in (tokens_a, tokens_b) if side
            )
            segment = (tokens_a or tokens_b)[0].segment
            spans.append(Span(" · ".join(names), _positions(tokens_a), _positions(tokens_b), segment, True))
    return CommonSpans(tuple(spans))


def _sections(encoding: Encoding) -> list[list[Token]]:
    """Return five lists: special tokens, first text, special tokens, second text, special tokens."""
    text_positions = [token.position for token in encoding.tokens if not token.special]
    sections: list[list[Token]] = [[], [], [], [], []]
    for token in encoding.tokens:
        index = 4 if token.position > text_positions[-1] else 2 if token.position > text_positions[0] else 0
        sections[index if token.special else 1 + 2 * token.segment].append(token)
    return sections


def _text_spans(a: Sequence[Token], b: Sequence[Token], text: str) -> list[Span]:
    """Return the common spans of one text, given the tokens of both models."""
    token_ranges = [
        (characters, side, token)
        for side, tokens in enumerate((a, b))
        for characters, token in _monotone_spans(tokens)
    ]
    groups: list[_Group] = []
    group_end = 0
    for (start, end), side, token in sorted(token_ranges, key=lambda entry: entry[0]):
        if not groups or start >= group_end:
            groups.append(([], []))
        groups[-1][side].append(token)
        group_end = max(group_end, end)
    return [_span(group, text) for group in _merge_one_sided(groups)]


def _monotone_spans(tokens: Sequence[Token]) -> Iterator[tuple[tuple[int, int], Token]]:
    """Return each token's character span, widened so that neither starts nor ends decrease."""
    spans = [(token.start or 0, token.end or 0) for token in tokens]
    starts = [*accumulate((start for start, _ in reversed(spans)), min)][::-1]
    ends = accumulate((end for _, end in spans), max)
    return zip(zip(starts, ends, strict=True), tokens, strict=True)


def _merge_one_sided(groups: Sequence[_Group]) -> list[_Group]:
    """Merge each group with tokens of only one side into the next group, or the previous one at the end."""
    merged: list[_Group] = []
    pending: _Group = ([], [])
    for a, b in groups:
        pending = (pending[0] + a, pending[1] + b)
        if a and b:
            merged.append(pending)
            pending = ([], [])
    if any(pending):
        previous = merged.pop() if merged else ([], [])
        merged.append((previous[0] + pending[0], previous[1] + pending[1]))
    return merged


def _span(group: _Group, text: str) -> Span:
    tokens = [*group[0], *group[1]]
    start, end = min(token.start or 0 for token in tokens), max(token.end or 0 for token in tokens)
    span_text = text[start:end].strip() or text[start:end] or tokens[0].display
    return Span(span_text, _positions(group[0]), _positions(group[1]), tokens[0].segment, False)


def _positions(tokens: Sequence[Token]) -> Places:
    return tuple(token.position for token in tokens)


Key = tuple[int, bool, str]
"""Segment, whether special, and text of a unit; units with equal keys can be aligned."""


@dataclass(frozen=True)
class Alignment:
    """Two aligned texts.

    Attributes:
        units_a, units_b: all tokens, or words and special tokens, of both texts.
        pairs: (index in A, index in B) of each pair of matching units, increasing in both texts.
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
        """Return whether any aligned unit is not a special token."""
        return not all(unit.special for unit in self.aligned)


def _complement(places: tuple[int, ...], count: int) -> tuple[int, ...]:
    return tuple(sorted(set(range(count)) - set(places)))


def align_traces(a: Trace, b: Trace, words: bool = False) -> Alignment:
    """Align the tokens, or words, of two traces.

    Two tokens match if they have the same spelling in the model's vocabulary, apart from a preceding space.
    Two words match if the joined spellings of their tokens are equal, however they were split. Case therefore
    matters only if the model is case-sensitive. Special tokens are compared by name, and never equal
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
