"""The common spans of two tokenizations: the smallest parts of a text between shared token boundaries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from bert_probe.errors import SelectionError, ShapeError
from bert_probe.model.encoding import Encoding, Token
from bert_probe.model.trace import Array
from bert_probe.text.words import Unit, WordLens

Places = tuple[int, ...]
"""Consecutive token positions in the input."""
_Group = tuple[list[Token], list[Token]]
"""Tokens of A and of B that belong to the same span."""


@dataclass(frozen=True)
class Span:
    """A part of the text, or special tokens with the same role.

    Attributes:
        text: the text, or the special tokens.
        a, b: its consecutive tokens in each model; empty for special tokens that a model does not have.
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
        """Return whether both models have it."""
        return bool(self.a and self.b)


@dataclass(frozen=True, eq=False)
class CommonSpans:
    """The common spans of two tokenizations.

    Attributes:
        spans: in text order; each token of both models belongs to exactly one.
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
        """Return the indices of the spans of both models, which are the queries."""
        return tuple(index for index, span in enumerate(self.spans) if span.shared)

    @property
    def queries(self) -> tuple[Span, ...]:
        """Return the spans of both models."""
        return tuple(self.spans[index] for index in self.rows)

    def merged(self, weights: Array, side: int) -> Array:
        """Return one model's attention over the spans: summed over a key's tokens, averaged over a query's.

        Args:
            weights: [..., query, key] over the model's tokens.
            side: 0 for A, 1 for B.

        Returns:
            [..., query, key] over `queries` and ``spans``; 0 for keys that only the other model has.

        Raises:
            ShapeError: not over the tokens of this model.
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

    A span ends where a token of both models ends and no token continues. Text that only one of them
    tokenizes, such as a separate space token, is merged into the following span. Special tokens correspond by
    role: before the text, between its two parts, and at the end. If both tokenize the text identically, each
    token is a span.

    Raises:
        SelectionError: different texts, or a text that was truncated for one of them.
    """
    if (a.text, a.pair) != (b.text, b.pair):
        raise SelectionError("The two texts differ. Give both models the same text.")
    if a.dropped or b.dropped:
        raise SelectionError(
            f"Truncation removed {a.dropped:,} tokens in A and {b.dropped:,} in B, so the models did not "
            "read "
            "the same text. Shorten the text until neither truncates it."
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
    """Return the spans of one text."""
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
    """Return each token's characters, widened so that neither starts nor ends decrease."""
    spans = [(token.start or 0, token.end or 0) for token in tokens]
    starts = [*accumulate((start for start, _ in reversed(spans)), min)][::-1]
    ends = accumulate((end for _, end in spans), max)
    return zip(zip(starts, ends, strict=True), tokens, strict=True)


def _merge_one_sided(groups: Sequence[_Group]) -> list[_Group]:
    """Merge groups with tokens of one side into the following group, or into the previous one at the end."""
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
