"""Align two texts by their tokens or words, or two tokenizations of one text by their common spans."""

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

Positions = tuple[int, ...]
"""Positions of consecutive tokens in the input of the model."""
_Group = tuple[list[Token], list[Token]]
"""Tokens of model A and tokens of model B that belong to the same span of the text."""


@dataclass(frozen=True)
class Span:
    """A section of a text, or the special tokens at one place: before, between or after the texts.

    Attributes:
        text: the text of the span, or its special tokens.
        a, b: consecutive positions of the span's tokens in the inputs of models A and B; empty if the model
            lacks these special tokens.
        segment: 0 for the first text, 1 for the second text of a pair.
        special: whether the span consists of special tokens.
    """

    text: str
    a: Positions
    b: Positions
    segment: int
    special: bool

    @property
    def shared(self) -> bool:
        """Return whether both models have tokens in this span."""
        return bool(self.a and self.b)


@dataclass(frozen=True, eq=False)
class CommonSpans:
    """The common spans of two tokenizations of one text.

    Attributes:
        spans: the spans in the order of the text. Each token of each model belongs to exactly one span.
    """

    spans: tuple[Span, ...]

    def __post_init__(self) -> None:
        for side in (0, 1):
            positions = [position for span in self.spans for position in (span.a, span.b)[side]]
            if positions != [*range(len(positions))]:
                raise ShapeError(
                    f"The spans must cover all tokens in order, but contain the tokens {positions}."
                )
        if not any(span.shared for span in self.spans):
            raise ShapeError("The two tokenizations have no common span, but at least one is required.")

    @cached_property
    def rows(self) -> Positions:
        """Return the indices, within `spans`, of the spans in which both models have tokens."""
        return tuple(index for index, span in enumerate(self.spans) if span.shared)

    @property
    def queries(self) -> tuple[Span, ...]:
        """Return the spans in which both models have tokens; merged attention has one query for each."""
        return tuple(self.spans[index] for index in self.rows)

    def merged(self, weights: Array, side: int) -> Array:
        """Merge one model's attention between tokens into attention between spans.

        Weights are summed over the key tokens of each span, and averaged over the query tokens of each span.

        Args:
            weights: attention between the model's tokens, with shape [..., query, key].
            side: 0 for model A, 1 for model B.

        Returns:
            Attention from `queries` to ``spans``, with shape [..., query, key]. It is 0 for keys that only
            the other model has.

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
        """For models A and B: the `WordLens` that merges tokens into spans, and the indices of the spans."""
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

    The spans are split at the token boundaries that both tokenizations share. Text that only one model
    tokenizes, such as a separate space token, is merged into the following span. Special tokens are aligned
    by their position: before the first text, between the texts, or at the end. If both models tokenize the
    text identically, each token is a span.

    Raises:
        SelectionError: the texts differ, or a text was truncated for one of the models.
    """
    if (a.text, a.pair) != (b.text, b.pair):
        raise SelectionError("The texts of the two models differ. Pass the same text to both models.")
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
    """Split the tokens of an input into the two texts and the special tokens around and between them.

    Returns:
        Five lists: special tokens, first text, special tokens, second text, special tokens.
    """
    text_positions = [token.position for token in encoding.tokens if not token.special]
    sections: list[list[Token]] = [[], [], [], [], []]
    for token in encoding.tokens:
        index = 4 if token.position > text_positions[-1] else 2 if token.position > text_positions[0] else 0
        sections[index if token.special else 1 + 2 * token.segment].append(token)
    return sections


def _text_spans(a: Sequence[Token], b: Sequence[Token], text: str) -> list[Span]:
    """Return the common spans of the tokens of models A and B for the same text."""
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
    """Return the character spans of tokens, widened if needed so that starts and ends never decrease."""
    spans = [(token.start or 0, token.end or 0) for token in tokens]
    starts = [*accumulate((start for start, _ in reversed(spans)), min)][::-1]
    ends = accumulate((end for _, end in spans), max)
    return zip(zip(starts, ends, strict=True), tokens, strict=True)


def _merge_one_sided(groups: Sequence[_Group]) -> list[_Group]:
    """Merge each group with tokens of only one model into the next group.

    If there is no next group, merge it into the previous group.
    """
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


def _positions(tokens: Sequence[Token]) -> Positions:
    return tuple(token.position for token in tokens)


Key = tuple[int, bool, str]
"""The (segment, is special, spelling) triple of a token or word. Tokens or words with equal keys match."""


@dataclass(frozen=True)
class Alignment:
    """An alignment of two texts, A and B, by their tokens or words.

    Attributes:
        units_a, units_b: the units of each text: all tokens, or all words and special tokens.
        pairs: (index in A, index in B) of each pair of matching units, in the order of both texts.
    """

    units_a: tuple[Token | Unit, ...]
    units_b: tuple[Token | Unit, ...]
    pairs: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        for indices, units in ((self.indices_a, self.units_a), (self.indices_b, self.units_b)):
            if list(indices) != sorted(set(indices)) or not set(indices) <= set(range(len(units))):
                raise ShapeError(
                    f"indices must be strictly increasing and less than {len(units)}, not {indices}."
                )

    @property
    def indices_a(self) -> tuple[int, ...]:
        """Return the indices of the aligned units in ``units_a``."""
        return tuple(a for a, _ in self.pairs)

    @property
    def indices_b(self) -> tuple[int, ...]:
        """Return the indices of the aligned units in ``units_b``."""
        return tuple(b for _, b in self.pairs)

    @property
    def aligned(self) -> tuple[Token | Unit, ...]:
        """Return the aligned units of text A."""
        return tuple(self.units_a[place] for place in self.indices_a)

    @property
    def changed_a(self) -> tuple[int, ...]:
        """Return the indices of the units in ``units_a`` that have no counterpart in B."""
        return _complement(self.indices_a, len(self.units_a))

    @property
    def changed_b(self) -> tuple[int, ...]:
        """Return the indices of the units in ``units_b`` that have no counterpart in A."""
        return _complement(self.indices_b, len(self.units_b))

    @property
    def mirrored(self) -> Alignment:
        """Return the alignment with A and B exchanged."""
        return Alignment(self.units_b, self.units_a, tuple((b, a) for a, b in self.pairs))

    @property
    def shares_text(self) -> bool:
        """Return whether the texts share any token or word that is not special."""
        return not all(unit.special for unit in self.aligned)


def _complement(places: tuple[int, ...], count: int) -> tuple[int, ...]:
    return tuple(sorted(set(range(count)) - set(places)))


def align_traces(a: Trace, b: Trace, words: bool = False) -> Alignment:
    """Align the tokens or the words of two traces.

    Two tokens match if they have the same spelling in the model's vocabulary, apart from a preceding space.
    Two words match if the joined spellings of their tokens are equal, even if the words are split into
    different tokens. Therefore, case matters only if the model is case-sensitive. Special tokens are compared
    by name, and never match a word of the text. The first and second texts of pairs are aligned separately.
    """
    units_a, keys_a = _units(a, words)
    units_b, keys_b = _units(b, words)
    return Alignment(units_a, units_b, align(keys_a, keys_b))


def align(a: Sequence[Key], b: Sequence[Key]) -> tuple[tuple[int, int], ...]:
    """Align two sequences; return the index pairs of equal items, in the order of both sequences.

    Use the algorithm of Ratcliff and Metzener 1988, as in Python's difflib: find the longest common run, and
    continue recursively to its left and right. Items between the runs are not aligned. Because difflib is not
    symmetric, the sequences are sorted first. Exchanging A and B therefore only exchanges the indices in each
    pair.

    >>> align([(0, False, word) for word in "it was full".split()],
    ...       [(0, False, word) for word in "it was quite empty".split()])
    ((0, 0), (1, 1))
    """
    first, second = sorted((list(a), list(b)))
    # The "autojunk" heuristic of difflib would ignore frequent words in long texts.
    blocks = SequenceMatcher(None, first, second, autojunk=False).get_matching_blocks()
    pairs = [(block.a + step, block.b + step) for block in blocks for step in range(block.size)]
    return tuple(pairs if first == list(a) else [(right, left) for left, right in pairs])


def _units(trace: Trace, words: bool) -> tuple[tuple[Token | Unit, ...], list[Key]]:
    units: tuple[Token | Unit, ...] = word_lens(trace).units if words else trace.tokens
    return units, [(unit.segment, unit.special, _spelling(unit, trace)) for unit in units]


def _spelling(unit: Token | Unit, trace: Trace) -> str:
    """Return the spelling of a token or word in the vocabulary, without a leading space."""
    positions = unit.positions if isinstance(unit, Unit) else (unit.position,)
    joined = "".join(trace.tokens[position].display for position in positions)
    return joined.lstrip(SPACE) or joined
