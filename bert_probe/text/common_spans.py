"""One text as two tokenizers cut it: the smallest spans at whose ends both of them cut."""

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
"""Positions of tokens in the input, one after the other."""
_Group = tuple[list[Token], list[Token]]
"""Tokens of A and of B that belong together."""


@dataclass(frozen=True)
class Span:
    """A stretch of the text, or special tokens of one role.

    Attributes:
        text: as it is written, or the special tokens.
        a, b: its tokens in either model, without a gap; empty for special tokens that the model has not.
        segment: 0 for the first text, 1 for the second.
        special: special tokens.
    """

    text: str
    a: Places
    b: Places
    segment: int
    special: bool

    @property
    def shared(self) -> bool:
        """Whether both have it."""
        return bool(self.a and self.b)


@dataclass(frozen=True, eq=False)
class CommonSpans:
    """How two tokenizers' cuts of one text fit together.

    Attributes:
        spans: in the order of the text; they cover every token of both once.
    """

    spans: tuple[Span, ...]

    def __post_init__(self) -> None:
        for side in (0, 1):
            places = [place for span in self.spans for place in (span.a, span.b)[side]]
            if places != [*range(len(places))]:
                raise ShapeError(f"The spans hold the tokens {places}, which are not in their order.")
        if not any(span.shared for span in self.spans):
            raise ShapeError("The two have no span in common.")

    @cached_property
    def rows(self) -> Places:
        """Indices of the spans that both have, which are the queries."""
        return tuple(index for index, span in enumerate(self.spans) if span.shared)

    @property
    def queries(self) -> tuple[Span, ...]:
        """The spans that both have."""
        return tuple(self.spans[index] for index in self.rows)

    def merged(self, weights: Array, side: int) -> Array:
        """Attention of either model over the spans: summed over a key's tokens, averaged over a query's.

        Args:
            weights: [..., query, key] over the tokens of the side.
            side: 0 for A, 1 for B.

        Returns:
            [..., query, key] over `queries` and ``spans``; the key is 0 where it is of the other model alone.

        Raises:
            ShapeError: not over the tokens of this side.
        """
        lens, places = self._lenses[side]
        merged = lens.merge(weights)
        if len(places) == len(self.spans) == len(self.rows):
            return merged
        whole = np.zeros((*merged.shape[:-1], len(self.spans)), merged.dtype)
        whole[..., places] = merged
        kept: Array = whole[..., np.flatnonzero(np.isin(places, self.rows)), :]
        return kept

    @cached_property
    def _lenses(self) -> tuple[tuple[WordLens, Array], ...]:
        """For either side what merges its tokens, and the indices of the spans that come of it."""
        found = []
        for side in (0, 1):
            held = [(index, (span.a, span.b)[side]) for index, span in enumerate(self.spans)]
            there = [(index, places) for index, places in held if places]
            units = [
                Unit(self.spans[index].text, places, self.spans[index].segment, self.spans[index].special)
                for index, places in there
            ]
            found.append((WordLens(tuple(units)), np.array([index for index, _ in there])))
        return tuple(found)


def common_spans(a: Encoding, b: Encoding) -> CommonSpans:
    """Lay the tokens of one text, as two tokenizers cut it, side by side by their characters.

    A span ends where a token of both ends and nothing of either goes on. What only one of them keeps, such as
    a space of its own, goes with what follows it. Special tokens are the same by their role: those before the
    text, between its two parts, and at the end. Where both cut the text alike, each token is a span.

    Raises:
        SelectionError: two texts, or one that was cut short for one of them.
    """
    if (a.text, a.pair) != (b.text, b.pair):
        raise SelectionError("These are two texts. Give both models the same one.")
    if a.dropped or b.dropped:
        raise SelectionError(
            f"Of this text {a.dropped:,} tokens were cut off in A and {b.dropped:,} in B, so they have not "
            "read the same. Shorten the text, so that both read all of it."
        )
    if a.ids == b.ids:
        alike = enumerate(a.tokens)
        return CommonSpans(
            tuple(Span(token.display, (at,), (at,), token.segment, token.special) for at, token in alike)
        )
    parts, texts = (_parts(a), _parts(b)), (a.text, a.pair or "")
    spans: list[Span] = []
    for number in range(5):
        one, other = (part[number] for part in parts)
        if number % 2:
            spans += _of_text(one, other, texts[number // 2])
        elif one or other:
            names = dict.fromkeys("".join(token.display for token in side) for side in (one, other) if side)
            segment = (one or other)[0].segment
            spans.append(Span(" · ".join(names), _places(one), _places(other), segment, True))
    return CommonSpans(tuple(spans))


def _parts(encoding: Encoding) -> list[list[Token]]:
    """Special tokens, the first text, special tokens, the second text, special tokens."""
    texts = [token.position for token in encoding.tokens if not token.special]
    parts: list[list[Token]] = [[], [], [], [], []]
    for token in encoding.tokens:
        where = 4 if token.position > texts[-1] else 2 if token.position > texts[0] else 0
        parts[where if token.special else 1 + 2 * token.segment].append(token)
    return parts


def _of_text(a: Sequence[Token], b: Sequence[Token], text: str) -> list[Span]:
    """The spans of one text."""
    begun = [(reach, number, token) for number, side in enumerate((a, b)) for reach, token in _reaching(side)]
    groups: list[_Group] = []
    reached = 0
    for (start, end), number, token in sorted(begun, key=lambda one: one[0]):
        if not groups or start >= reached:
            groups.append(([], []))
        groups[-1][number].append(token)
        reached = max(reached, end)
    return [_span(group, text) for group in _joined(groups)]


def _reaching(tokens: Sequence[Token]) -> Iterator[tuple[tuple[int, int], Token]]:
    """Characters of each token, such that they rise: none begins after a later one, nor ends after it."""
    spans = [(token.start or 0, token.end or 0) for token in tokens]
    starts = [*accumulate((start for start, _ in reversed(spans)), min)][::-1]
    ends = accumulate((end for _, end in spans), max)
    return zip(zip(starts, ends, strict=True), tokens, strict=True)


def _joined(groups: Sequence[_Group]) -> list[_Group]:
    """What only one side has goes with what follows, or at the end with what came before."""
    joined: list[_Group] = []
    waiting: _Group = ([], [])
    for a, b in groups:
        waiting = (waiting[0] + a, waiting[1] + b)
        if a and b:
            joined.append(waiting)
            waiting = ([], [])
    if any(waiting):
        before = joined.pop() if joined else ([], [])
        joined.append((before[0] + waiting[0], before[1] + waiting[1]))
    return joined


def _span(group: _Group, text: str) -> Span:
    tokens = [*group[0], *group[1]]
    start, end = min(token.start or 0 for token in tokens), max(token.end or 0 for token in tokens)
    written = text[start:end].strip() or text[start:end] or tokens[0].display
    return Span(written, _places(group[0]), _places(group[1]), tokens[0].segment, False)


def _places(tokens: Sequence[Token]) -> Places:
    return tuple(token.position for token in tokens)
