"""Minimal pairs: two texts that differ in a word or more, and what that changes inside the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.utils.dlpack import from_dlpack

from bert_probe.analyses.attention.attention import HEAD, LAYER, WORDS, Head
from bert_probe.analyses.comparison.minimal_pair_summary import finding
from bert_probe.analyses.vectors.cosine import cosine_of_rows
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, Flag, Optional
from bert_probe.core.field_types_of_words import TokenSelector
from bert_probe.core.inputs import TwoTraces
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Array, Trace, read_only, resolve
from bert_probe.text.alignment import Alignment, align_traces
from bert_probe.text.words import Unit, WordLens, find_word, word_lens

CHANGES = ("total_variation", "jensen_shannon")
"""Measures of how much a head changed; see `MinimalPairResult`."""

REST = "rest"
"""Name of the entry in which all keys without a counterpart are pooled."""


@question("minimal pair", command="compare")
class MinimalPair(Question):
    """What differs in a model between two texts, where they are the same: heads, and vectors.

    Texts that are the same to the model differ in nothing, and exchanging the texts changes no number.

    Attributes:
        words: merge pieces into words: attention as in `WordLens.merge`, vectors by their mean.
        show: "heads" for a table of how much each head changed, "moved" for one of the vectors.
        by: the measure by which heads are ranked.
    """

    inputs = TwoTraces()

    words: bool = param(Flag(), default=False, about=WORDS)
    show: str = param(
        Choice(("heads", "moved")),
        default="heads",
        key="compare_show",
        display_only=True,
        about="Table of how much each head changed, or the vector of each token.",
    )
    by: str = param(
        Choice(CHANGES),
        default="total_variation",
        key="change",
        display_only=True,
        about="Measure by which heads are ranked.",
    )

    def of(self, a: Trace, b: Trace) -> MinimalPairResult:
        """Compare two texts; memory holds one head's attention at a time.

        Raises:
            SelectionError: traces of different models, or texts with no token in common.
        """
        subject = InputRecord.of(a, b)
        alignment = _aligned(a, b, self.words)
        one, two = _sides(a, b, alignment, self.words)
        shape, count = (a.layers, a.heads), len(alignment.pairs)
        dtype = a.dtype
        variation, distance = np.zeros((2, *shape), dtype)
        shift = np.zeros((*shape, count), dtype)
        strongest = np.zeros((2, count, count + 1), dtype)
        most = np.full(count, -1, dtype)
        for place in np.ndindex(shape):
            rows = one.rows(*place), two.rows(*place)
            variation[place], distance[place], shift[place] = _changes(*rows)
            more = shift[place] > most
            for kept, row in zip(strongest, rows, strict=True):
                kept[more] = row.numpy()[more]
            most[more] = shift[place][more]
        moved = _moved(one, two)
        arrays = map(read_only, (variation, distance, moved, shift, *strongest))
        return MinimalPairResult(self, subject, alignment, _same_input(a, b), *arrays)


@question("row of a minimal pair", command="compare-row")
class MinimalPairRow(Question):
    """Where one token, or word, of text A looks, and where the same one of text B does.

    Attributes:
        token: its position in A, or its word; with ``words`` the whole word that it belongs to. None for
            the one whose vectors moved most.
        layer: from 0; negative ones count from the end.
        head: from 0, or "mean" for the mean over the layer's heads.
        words: merge pieces into words.
    """

    inputs = TwoTraces()

    token: int | str | None = param(
        Optional(TokenSelector()),
        default=None,
        key="compare_token",
        about="A token of TEXT_A.  [default: the one whose vectors changed most]",
    )
    layer: int = param(LAYER, default=-1, about="Layer, counted from 1.")
    head: Head = param(HEAD, default="mean", about="Head, counted from 1, or the mean of all.")
    words: bool = param(Flag(), default=False, about=WORDS)

    def of(self, a: Trace, b: Trace) -> MinimalPairRowResult:
        """Its rows in both texts.

        Raises:
            SelectionError: traces of different models, texts with no token in common, no such token, layer
                or head, or a token that has no counterpart in text B.
        """
        subject = InputRecord.of(a, b)
        alignment = _aligned(a, b, self.words)
        one, two = sides = _sides(a, b, alignment, self.words)
        if self.token is None:
            place = most_moved(_moved(one, two), alignment)
        elif self.words and isinstance(self.token, str):
            place = _place(alignment, find_word(a, self.token).position)
        else:
            place = _place(alignment, TokenSelector().resolve("token", self.token, a))
        asked_for = replace(self, token=alignment.aligned[place].position).resolved(a)
        rows = (side.rows(asked_for.layer, asked_for.head)[place].numpy() for side in sides)
        return MinimalPairRowResult(asked_for, subject, alignment, place, *map(read_only, rows))


@dataclass(frozen=True, eq=False, repr=False)
class MinimalPairResult(Result):
    """What differs between two texts, where they are the same. All arrays are of the traces' dtype.

    Attributes:
        alignment: which tokens, or words, are the same. A place below is an index into its pairs.
        same_input: whether the model was given exactly the same for both texts.
        total_variation: [layer, head], 0 to 1: ½ Σ |p − q| between the rows of a query in A and in B,
            over the aligned keys and the rest, averaged over the aligned queries.
        jensen_shannon: [layer, head], 0 to 1: in the same way the Jensen-Shannon distance, the square
            root of the divergence to base 2 (Endres and Schindelin 2003).
        moved: [layer + 1, place], 0 to 2: 1 − cosine of a unit's vectors in A and in B; row 0 is the
            output of the embeddings. A word's vector is the mean of its pieces' vectors.
        shift: [layer, head, place], 0 to 1: what a query takes from one key, or the rest, and gives to
            another: the smaller of its row's largest fall and largest rise.
        strongest_a, strongest_b: [place, place + 1]: in either text, the row of each query in the head that
            shifts most of its attention, the first of several; the last entry is the rest.
    """

    question: MinimalPair
    alignment: Alignment
    same_input: bool
    total_variation: Array
    jensen_shannon: Array
    moved: Array
    shift: Array
    strongest_a: Array
    strongest_b: Array

    def __post_init__(self) -> None:
        heads, count = self.total_variation.shape, len(self.alignment.pairs)
        for name, shape in (
            ("jensen_shannon", heads),
            ("moved", (heads[0] + 1, count)),
            ("shift", (*heads, count)),
            ("strongest_a", (count, count + 1)),
            ("strongest_b", (count, count + 1)),
        ):
            if len(heads) != 2 or getattr(self, name).shape != shape:
                raise ShapeError(f"{name} has shape {getattr(self, name).shape}; {shape} is needed.")

    @property
    def change(self) -> Array:
        """How much each head changed by the question's measure, [layer, head]."""
        changed: Array = getattr(self, self.question.by)
        return changed

    @property
    def most_moved(self) -> int:
        """Place of the unit that moved most in any layer; a special token only if there is nothing else."""
        return most_moved(self.moved, self.alignment)

    def strongest_shift(self, place: int) -> tuple[int, int]:
        """Layer and head, from 0, that shift most of a unit's attention; the first ones of several.

        Raises:
            SelectionError: no such place.
        """
        shift = self.shift[:, :, resolve(place, self.shift.shape[2], "place")]
        layer, head = np.unravel_index(int(shift.argmax()), shift.shape)
        return int(layer), int(head)

    def finding(self, place: int | None = None) -> str:
        """What changed for one aligned token or word, or for the one that moved most, as a sentence.

        Layers and heads count from 1 in it. "Shifts" is `shift`: at least that much was taken from the one
        key and given to the other. Where several layers or heads share the largest value, all are named,
        or counted.

        Raises:
            SelectionError: no such place.
        """
        return finding(self, place)

    def frame(self) -> pd.DataFrame:
        """Heads, most changed first: layer, head, and both measures; or a row of layers for each unit."""
        if self.question.show == "moved":
            return frames.vectors(self.moved.T, self.alignment.aligned)
        heads = frames.by_head({name: getattr(self, name) for name in CHANGES})
        order = [self.question.by, *(name for name in CHANGES if name != self.question.by)]
        return heads.sort_values(order, ascending=False, kind="stable", ignore_index=True)


@dataclass(frozen=True, eq=False, repr=False)
class MinimalPairRowResult(Result):
    """Where one aligned token, or word, looks in both texts.

    Attributes:
        alignment: which tokens, or words, are the same; its pairs are the keys.
        place: which of them looks, an index into the pairs.
        a, b: [key + 1]: its attention in either text; the last entry is the rest, what falls on
            all keys without a counterpart.
    """

    question: MinimalPairRow
    alignment: Alignment
    place: int
    a: Array
    b: Array

    def __post_init__(self) -> None:
        keys = len(self.alignment.pairs)
        if not self.a.shape == self.b.shape == (keys + 1,):
            raise ShapeError(f"Rows of {self.a.shape} and {self.b.shape} for {keys} keys and a rest.")

    @property
    def query(self) -> Token | Unit:
        """The token or word, as text A has it."""
        return self.keys[self.place]

    @property
    def keys(self) -> tuple[Token | Unit, ...]:
        """The aligned keys, as text A has them."""
        return self.alignment.aligned

    @property
    def both(self) -> Array:
        """The rows of A and of B, [2, key + 1]."""
        return np.stack([self.a, self.b])

    @property
    def difference(self) -> Array:
        """Attention in B minus that in A, [key + 1], -1 to 1."""
        change: Array = self.b - self.a
        return change

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The query by its name."""
        return {"query": str(self.query)}

    def frame(self) -> pd.DataFrame:
        """A row a key: key, position_a, position_b, a, b, difference.

        The last row, without a position, is the rest: all keys without a counterpart.
        """
        positions = (
            [side.units_a[place].position for place in side.places_a]
            for side in (self.alignment, self.alignment.mirrored)
        )
        position_a, position_b = (frames.optional([*places, None]) for places in positions)
        return pd.DataFrame(
            {
                "key": [*frames.names(self.keys), REST],
                "position_a": position_a,
                "position_b": position_b,
                "a": self.a,
                "b": self.b,
                "difference": self.difference,
            }
        )


def most_moved(moved: Array, alignment: Alignment) -> int:
    """Place of the unit that moved most in any layer; a special token only if there is nothing else.

    Args:
        moved: [layer + 1, place]; NaN, where a vector is all zeros, is no move.
    """
    peaks = np.nan_to_num(moved).max(axis=0)
    if alignment.shares_text:
        peaks[[unit.special for unit in alignment.aligned]] = -1
    return int(peaks.argmax())


def _aligned(a: Trace, b: Trace, words: bool) -> Alignment:
    alignment = align_traces(a, b, words)
    if not alignment.pairs:
        raise SelectionError("The two texts have nothing in common. Give two that share some of their words.")
    return alignment


def _place(alignment: Alignment, position: int) -> int:
    """Place, among the aligned units, of the one that a position of text A belongs to."""
    unit = max(index for index, unit in enumerate(alignment.units_a) if unit.position <= position)
    if unit not in alignment.places_a:
        raise SelectionError(
            f"“{alignment.units_a[unit].display}” has no counterpart in the other text to be compared with. "
            "Give a token that both texts share."
        )
    return alignment.places_a.index(unit)


@dataclass(frozen=True, eq=False)
class _AlignedText:
    """One of the two texts: its trace, and what of it is aligned."""

    trace: Trace
    lens: WordLens | None
    aligned: list[int]
    changed: list[int]

    def rows(self, layer: int, head: Head) -> torch.Tensor:
        """Attention of the aligned queries over the aligned keys and the rest, [place, place + 1]."""
        trace = self.trace
        weights = trace.mean_attention(layer) if head == "mean" else trace.attention(layer, head)
        if self.lens is not None:
            weights = self.lens.merge(weights)
        rows = from_dlpack(weights)[self.aligned]
        return torch.cat([rows[:, self.aligned], rows[:, self.changed].sum(dim=1, keepdim=True)], dim=1)

    def vectors(self, layer: int) -> Array:
        """Vectors of the aligned units, [place, hidden]."""
        vectors = self.trace.vectors(layer)
        return (vectors if self.lens is None else self.lens.average(vectors))[self.aligned]


def _sides(a: Trace, b: Trace, alignment: Alignment, words: bool) -> tuple[_AlignedText, _AlignedText]:
    if _same_input(a, b):
        # In a batch a row's last digits may depend on its place; the same input has one result all the same.
        b = a
    return (
        _AlignedText(a, word_lens(a) if words else None, list(alignment.places_a), list(alignment.changed_a)),
        _AlignedText(b, word_lens(b) if words else None, list(alignment.places_b), list(alignment.changed_b)),
    )


def _moved(one: _AlignedText, two: _AlignedText) -> Array:
    """1 − cosine of the aligned units' vectors, [layer + 1, place]."""
    layers = range(one.trace.layers + 1)
    moved = [1 - cosine_of_rows(one.vectors(layer), two.vectors(layer)) for layer in layers]
    return np.array(moved, dtype=one.trace.dtype)


def _same_input(a: Trace, b: Trace) -> bool:
    one, other = a.encoding.inputs, b.encoding.inputs
    return (
        bool(one)
        and one.keys() == other.keys()
        and all(np.array_equal(one[name], other[name]) for name in one)
    )


def _changes(a: torch.Tensor, b: torch.Tensor) -> tuple[float, float, Array]:
    """Total variation and Jensen-Shannon distance, mean over the rows, and the shift of each row."""
    difference, total = b - a, b + a
    variation = difference.abs().sum(dim=1).double() / 2
    # With t = (q − p) / (q + p) the divergence is Σ (p + q) ((1 + t) log(1 + t) + (1 − t) log(1 − t)) / 4.
    # No term of that sum is below 0, so that small differences are not lost in rounding.
    share = difference / total.clamp_min(torch.finfo(total.dtype).tiny)
    terms = torch.special.xlog1py(1 + share, share) + torch.special.xlog1py(1 - share, -share)
    divergence = (terms * total).sum(dim=1).double().clamp_min(0) / (4 * np.log(2))
    shift = torch.minimum(difference.amax(dim=1), -difference.amin(dim=1)).clamp_min(0)
    return float(variation.mean()), float(divergence.sqrt().mean()), shift.numpy()
