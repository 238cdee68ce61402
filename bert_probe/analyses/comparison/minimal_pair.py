"""Minimal pairs: how a small difference between two texts changes attention and vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.attention.attention import HEAD, LAYER, WORDS_HELP, Head
from bert_probe.analyses.comparison.model_change import total_variation
from bert_probe.analyses.vectors.similarity import cosine_of_rows
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, Flag, Optional, TokenSelector
from bert_probe.core.inputs import TwoTraces
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result, SortOrder
from bert_probe.errors import SelectionError, ShapeError
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Array, Trace, read_only, resolve_index, tensor_view
from bert_probe.text.alignment import Alignment, align_traces
from bert_probe.text.words import Unit, WordLens, find_word, truncate_text, word_lens

CHANGES = ("total_variation", "jensen_shannon")
"""Names of the two measures of a head's change, which are defined in `MinimalPairResult`."""

REST = "rest"
"""Name of the table row with the sum over all keys that have no counterpart in the other text."""


@question("minimal pair", command="compare")
class MinimalPair(Question):
    """Differences in attention and vectors between two texts, at the tokens that both texts share.

    If both texts have the same model input, all differences are exactly 0. Exchanging the texts does not
    change the measures.

    Attributes:
        words: merge tokens into words: attention as in `WordLens.merge`, vectors by their mean.
        show: the table to return: "heads" for the change of each head, or "moved" for the change of each
            vector.
        by: the measure by which heads are ranked, one of `CHANGES`.
    """

    inputs = TwoTraces()

    words: bool = param(Flag(), default=False, about=WORDS_HELP)
    show: str = param(
        Choice(("heads", "moved")),
        default="heads",
        key="compare_show",
        display_only=True,
        about="Table: the change of each head, or the change of each token's vectors.",
    )
    by: str = param(
        Choice(CHANGES),
        default="total_variation",
        key="change",
        display_only=True,
        about="Measure that ranks the heads.",
    )

    def of(self, a: Trace, b: Trace) -> MinimalPairResult:
        """Compare the attention and the vectors of two texts.

        The attention of only one head per text is in memory at a time.

        Raises:
            SelectionError: the traces are from different models, or the texts have no token in common.
        """
        inputs = InputRecord.of(a, b)
        alignment = _align(a, b, self.words)
        side_a, side_b = _sides(a, b, alignment, self.words)
        shape, count = (a.layers, a.heads), len(alignment.pairs)
        dtype = a.dtype
        variation, distance = np.zeros((2, *shape), dtype)
        shift = np.zeros((*shape, count), dtype)
        strongest = np.zeros((2, count, count + 1), dtype)
        largest = np.full(count, -1, dtype)
        for head in np.ndindex(shape):
            rows = side_a.rows(*head), side_b.rows(*head)
            variation[head], distance[head], shift[head] = _attention_changes(*rows)
            is_larger = shift[head] > largest
            for row_of_largest, row in zip(strongest, rows, strict=True):
                row_of_largest[is_larger] = row.numpy()[is_larger]
            largest[is_larger] = shift[head][is_larger]
        moved = _vector_changes(side_a, side_b)
        arrays = map(read_only, (variation, distance, moved, shift, *strongest))
        return MinimalPairResult(self, inputs, alignment, _same_input(a, b), *arrays)


@question("minimal pair row", command="compare-row")
class MinimalPairRow(Question):
    """The attention from one token or word to every token or word, in two texts A and B.

    Attributes:
        token: the token, as its position in A, which counts from 0, or as a word. With ``words``, the word
            that contains the token. If None, the token or word whose vector differs most between the texts.
        layer: layer index from 0; negative values count from the end.
        head: head index from 0, or "mean" for the mean over the layer's heads.
        words: merge tokens into words.
    """

    inputs = TwoTraces()

    token: int | str | None = param(
        Optional(TokenSelector()),
        default=None,
        key="compare_token",
        about="A token of TEXT_A.  [default: the token whose vector changed most]",
    )
    layer: int = param(LAYER, default=-1, about="Layer, counted from 1.")
    head: Head = param(
        HEAD, default="mean", about="Head, counted from 1, or mean for the mean over the layer's heads."
    )
    words: bool = param(Flag(), default=False, about=WORDS_HELP)

    def of(self, a: Trace, b: Trace) -> MinimalPairRowResult:
        """Return the attention of the selected token or word in both texts.

        Raises:
            SelectionError: the traces are from different models, the texts have no token in common, the
                token, layer or head does not exist, or the token has no counterpart in text B.
        """
        inputs = InputRecord.of(a, b)
        alignment = _align(a, b, self.words)
        side_a, side_b = sides = _sides(a, b, alignment, self.words)
        if self.token is None:
            place = most_moved(_vector_changes(side_a, side_b), alignment)
        elif self.words and isinstance(self.token, str):
            place = _aligned_index(alignment, find_word(a, self.token).position)
        else:
            place = _aligned_index(alignment, TokenSelector().resolve("token", self.token, a))
        resolved = replace(self, token=alignment.aligned[place].position).resolved(a)
        rows = (side.rows(resolved.layer, resolved.head)[place].numpy() for side in sides)
        return MinimalPairRowResult(resolved, inputs, alignment, place, *map(read_only, rows))


@dataclass(frozen=True, eq=False, repr=False)
class MinimalPairResult(Result):
    """The differences between two texts A and B, at the tokens or words that both texts share.

    All arrays have the dtype of the traces.

    Attributes:
        alignment: the aligned tokens or words, which are the units in the shapes below.
        same_input: whether the model inputs of both texts are equal.
        total_variation: ½ Σ |p − q| between a query's attention p in A and q in B, averaged over the aligned
            queries; shape [layer, head], 0 to 1. The sum is over the aligned keys and one more key, whose
            attention is the sum over all other keys.
        jensen_shannon: Jensen-Shannon distance between p and q, which is the square root of the divergence to
            base 2 (Endres and Schindelin 2003), averaged over the aligned queries; shape [layer, head],
            0 to 1.
        moved: cosine distance between the vectors of each token or word in A and in B; shape
            [layer + 1, unit], 0 to 2. Row 0 is the embeddings. The vector of a word is the mean of its
            tokens' vectors.
        shift: for each query, min(largest decrease, largest increase) of the attention to any single key, a
            lower bound of the total variation; shape [layer, head, unit], 0 to 1.
        strongest_a, strongest_b: attention of each query in A and in B, in the head with the largest shift of
            this query (in a tie, the first head); shape [unit, unit + 1]. The last column is the sum over all
            other keys.
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
                raise ShapeError(f"{name} must have shape {shape}, not {getattr(self, name).shape}.")

    @property
    def change(self) -> Array:
        """Change of each head by the measure that the question selects, shape [layer, head]."""
        changed: Array = getattr(self, self.question.by)
        return changed

    @property
    def most_moved(self) -> int:
        """Index of the aligned token or word whose vector changed most in any layer."""
        return most_moved(self.moved, self.alignment)

    def strongest_shift(self, place: int) -> tuple[int, int]:
        """Return the layer index and head index of the head in which a query's attention shifts most.

        ``place`` is the index of the query among the aligned tokens or words. Indices are counted from 0. In
        a tie, the first head is returned.

        Raises:
            SelectionError: there is no aligned token or word with this index.
        """
        shift = self.shift[:, :, resolve_index(place, self.shift.shape[2], "place")]
        layer, head = np.unravel_index(int(shift.argmax()), shift.shape)
        return int(layer), int(head)

    def finding(self, place: int | None = None) -> str:
        """Return a sentence about the changes of one aligned token or word.

        Layers and heads are counted from 1. A shift is a lower bound of the attention that moved from one key
        to another. If several layers or heads share the maximum, the sentence lists or counts them all.

        Args:
            place: index among the aligned tokens or words. If None, `most_moved`.

        Raises:
            SelectionError: there is no aligned token or word with this index.
        """
        return describe(self, place)

    @property
    def sort_order(self) -> SortOrder | None:
        """The order of the heads, by descending change; None for the table of moved tokens."""
        return None if self.question.show == "moved" else SortOrder(self.question.by)

    def frame(self) -> pd.DataFrame:
        """Return the table that ``show`` of the question selects.

        "heads" gives one row per head, sorted by descending change; "moved" gives one row per aligned
        token or word and one column per layer, from "0" for the embeddings to the last layer.
        """
        if self.question.show == "moved":
            return frames.vectors(self.moved.T, self.alignment.aligned)
        heads = frames.by_head({name: getattr(self, name) for name in CHANGES})
        order = [self.question.by, *(name for name in CHANGES if name != self.question.by)]
        return heads.sort_values(order, ascending=False, kind="stable", ignore_index=True)


@dataclass(frozen=True, eq=False, repr=False)
class MinimalPairRowResult(Result):
    """The attention of one aligned token or word in both texts.

    Attributes:
        alignment: the aligned tokens or words, which are the keys.
        place: index of the query among the aligned tokens or words.
        a, b: attention of the query in A and in B, shape [key + 1]. The last value is the sum over all keys
            without a counterpart.
    """

    question: MinimalPairRow
    alignment: Alignment
    place: int
    a: Array
    b: Array

    def __post_init__(self) -> None:
        keys = len(self.alignment.pairs)
        if not self.a.shape == self.b.shape == (keys + 1,):
            raise ShapeError(f"a and b must have shape [{keys + 1}], not {self.a.shape} and {self.b.shape}.")

    @property
    def query(self) -> Token | Unit:
        """The token or word of text A that is the query."""
        return self.keys[self.place]

    @property
    def keys(self) -> tuple[Token | Unit, ...]:
        """The aligned tokens or words of text A, which are the keys."""
        return self.alignment.aligned

    @property
    def both(self) -> Array:
        """Attention of the query in A and in B as one array of shape [2, key + 1]."""
        return np.stack([self.a, self.b])

    @property
    def difference(self) -> Array:
        """Attention in B minus attention in A, shape [key + 1]; the last value is for all unaligned keys."""
        change: Array = self.b - self.a
        return change

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Text of the query token or word."""
        return {"query": str(self.query)}

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per key: key, position_a, position_b, a, b, difference.

        The last row, which has no positions, is the sum over all keys without a counterpart.
        """
        positions = (
            [side.units_a[place].position for place in side.indices_a]
            for side in (self.alignment, self.alignment.mirrored)
        )
        position_a, position_b = (frames.nullable_integers([*places, None]) for places in positions)
        return pd.DataFrame(
            {
                "key": [*frames.plain_strings(self.keys), REST],
                "position_a": position_a,
                "position_b": position_b,
                "a": self.a,
                "b": self.b,
                "difference": self.difference,
            }
        )


def most_moved(moved: Array, alignment: Alignment) -> int:
    """Return the index of the aligned token or word whose vector changed most in any layer.

    Special tokens are considered only if the texts share no other token.

    Args:
        moved: change of the vector of each aligned token or word, shape [layer + 1, unit]; NaN counts as no
            change.
    """
    peaks = np.nan_to_num(moved).max(axis=0)
    if alignment.shares_text:
        peaks[[unit.special for unit in alignment.aligned]] = -1
    return int(peaks.argmax())


def _align(a: Trace, b: Trace, words: bool) -> Alignment:
    alignment = align_traces(a, b, words)
    if not alignment.pairs:
        raise SelectionError("The two texts have no word in common. Use texts that share some words.")
    return alignment


def _aligned_index(alignment: Alignment, position: int) -> int:
    """Return the index of the aligned token or word at a position in text A."""
    unit = max(index for index, unit in enumerate(alignment.units_a) if unit.position <= position)
    if unit not in alignment.indices_a:
        raise SelectionError(
            f"“{alignment.units_a[unit].display}” has no counterpart in the other text. "
            "Choose a token that both texts share."
        )
    return alignment.indices_a.index(unit)


@dataclass(frozen=True, eq=False)
class _AlignedText:
    """One of two aligned texts.

    Attributes:
        trace: the model's forward pass over the text.
        lens: the mapping that merges subword tokens into words; None if tokens are aligned.
        aligned: indices of the tokens or words that have a counterpart in the other text.
        changed: indices of all other tokens or words.
    """

    trace: Trace
    lens: WordLens | None
    aligned: list[int]
    changed: list[int]

    def rows(self, layer: int, head: Head) -> torch.Tensor:
        """Return the attention of the aligned queries, shape [unit, unit + 1].

        The columns are the aligned keys, followed by the sum over all unaligned keys.
        """
        trace = self.trace
        weights = trace.mean_attention(layer) if head == "mean" else trace.attention(layer, head)
        if self.lens is not None:
            weights = self.lens.merge(weights)
        rows = tensor_view(weights)[self.aligned]
        return torch.cat([rows[:, self.aligned], rows[:, self.changed].sum(dim=1, keepdim=True)], dim=1)

    def vectors(self, layer: int) -> Array:
        """Return the vectors of the aligned tokens or words after a layer, shape [unit, hidden]."""
        vectors = self.trace.vectors(layer)
        return (vectors if self.lens is None else self.lens.average(vectors))[self.aligned]


def _sides(a: Trace, b: Trace, alignment: Alignment, words: bool) -> tuple[_AlignedText, _AlignedText]:
    if _same_input(a, b):
        # Use the same trace, because rounding may differ between two forward passes with equal inputs.
        b = a
    return (
        _AlignedText(
            a, word_lens(a) if words else None, list(alignment.indices_a), list(alignment.changed_a)
        ),
        _AlignedText(
            b, word_lens(b) if words else None, list(alignment.indices_b), list(alignment.changed_b)
        ),
    )


def _vector_changes(side_a: _AlignedText, side_b: _AlignedText) -> Array:
    """Return 1 − cosine of the vectors of each aligned token or word, shape [layer + 1, unit]."""
    layers = range(side_a.trace.layers + 1)
    changes = [1 - cosine_of_rows(side_a.vectors(layer), side_b.vectors(layer)) for layer in layers]
    return np.array(changes, dtype=side_a.trace.dtype)


def _same_input(a: Trace, b: Trace) -> bool:
    inputs_a, inputs_b = a.encoding.inputs, b.encoding.inputs
    return (
        bool(inputs_a)
        and inputs_a.keys() == inputs_b.keys()
        and all(np.array_equal(inputs_a[name], inputs_b[name]) for name in inputs_a)
    )


def _attention_changes(a: torch.Tensor, b: torch.Tensor) -> tuple[float, float, Array]:
    """Return three measures of the change between the attention of a head in two texts.

    Args:
        a, b: attention of the aligned queries in each text, as returned by `_AlignedText.rows`.

    Returns:
        The total variation and the Jensen-Shannon distance, averaged over the queries, and the shift of each
        query, shape [unit]; see `MinimalPairResult`.
    """
    difference, total = b - a, b + a
    # The Jensen-Shannon divergence is a sum of nonnegative terms, so rounding preserves small differences:
    # Σ (p + q) ((1 + t) log(1 + t) + (1 − t) log(1 − t)) / 4 with t = (q − p) / (q + p).
    relative = difference / total.clamp_min(torch.finfo(total.dtype).tiny)
    terms = torch.special.xlog1py(1 + relative, relative) + torch.special.xlog1py(1 - relative, -relative)
    divergence = (terms * total).sum(dim=1).double().clamp_min(0) / (4 * np.log(2))
    shift = torch.minimum(difference.amax(dim=1), -difference.amin(dim=1)).clamp_min(0)
    return float(total_variation(difference).mean()), float(divergence.sqrt().mean()), shift.numpy()


def describe(pair: MinimalPairResult, place: int | None = None) -> str:
    """Return a sentence about the changes of one aligned token; see `MinimalPairResult.finding`."""
    if pair.same_input:
        return "Nothing changed: both texts have the same tokens."
    place = pair.most_moved if place is None else resolve_index(place, len(pair.alignment.pairs), "place")
    vector = _describe_vector(pair, place)
    description = f"{vector[0].upper()}{vector[1:]}; {_describe_shift(pair, place)}. {_describe_heads(pair)}."
    if not pair.alignment.shares_text:
        return (
            f"The texts have no {_unit_type(pair)} in common; only special tokens are compared. {description}"
        )
    return description


def _describe_vector(pair: MinimalPairResult, place: int) -> str:
    peaks = np.nan_to_num(pair.moved).max(axis=0)
    name = _unit_name(pair, place)
    if peaks[place] == 0:
        return f"the vector of {name} is unchanged in all layers"
    layers = np.flatnonzero(pair.moved[:, place] == peaks[place])
    layer_names = f"layer {layers[0]}" if len(layers) == 1 else "layers " + _join([str(n) for n in layers])
    amount = f"cosine distance {_format_amount(peaks[place])}"
    if peaks[place] == peaks.max() and (peaks == peaks.max()).sum() == 1:
        unit = _unit_type(pair)
        return f"of all aligned {unit}s, the vector of {name} changed most: {amount} in {layer_names}"
    return f"the vector of {name} changed most in {layer_names} ({amount})"


def _describe_shift(pair: MinimalPairResult, place: int) -> str:
    shift = pair.shift[:, :, place]
    amount = float(shift.max())
    if amount == 0:
        return f"the attention from this {_unit_type(pair)} is unchanged in all heads"
    heads = np.argwhere(shift == amount)
    if len(heads) > 1:
        unit = _unit_type(pair)
        return (
            f"the attention from this {unit} changes most in {len(heads)} heads, by {_format_amount(amount)}"
        )
    layer, head = heads[0]
    a, b = pair.strongest_a[place], pair.strongest_b[place]
    keys = int((b - a).argmin()), int((b - a).argmax())
    source, target = (f"{_key_name(pair, key)} ({a[key]:.2f} → {b[key]:.2f})" for key in keys)
    # The amount is a lower bound, because the target key may also gain attention from other keys.
    amount_text = _format_amount(amount) if amount < 0.005 else f"at least {_format_amount(amount)}"
    return (
        f"head {_head_name(layer, head)} shifts {amount_text} of this {_unit_type(pair)}'s attention from "
        f"{source} to {target}"
    )


def _key_name(pair: MinimalPairResult, key: int) -> str:
    return f"the changed {_unit_type(pair)}s" if key == len(pair.alignment.pairs) else _unit_name(pair, key)


def _describe_heads(pair: MinimalPairResult) -> str:
    largest = float(pair.total_variation.max())
    if largest == 0:
        return f"No head changed at the aligned {_unit_type(pair)}s"
    heads = [_head_name(*index) for index in np.argwhere(pair.total_variation == largest)]
    changed = f"Head {heads[0]}" if len(heads) == 1 else f"{len(heads)} heads"
    variation = _format_amount(largest)
    return (
        f"{changed} changed most, averaged over all aligned {_unit_type(pair)}s: total variation {variation}"
    )


def _head_name(layer: int, head: int) -> str:
    return f"{layer + 1}.{head + 1}"


def _unit_name(pair: MinimalPairResult, place: int) -> str:
    """Return an aligned token or word in quotation marks, with its position if its text occurs twice."""
    names = [unit.display for unit in pair.alignment.aligned]
    unit = pair.alignment.aligned[place]
    quoted = f"“{truncate_text(unit.display)}”"
    return quoted if names.count(unit.display) == 1 else f"{quoted} ({unit.position})"


def _unit_type(pair: MinimalPairResult) -> str:
    return "word" if pair.question.words else "token"


def _join(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _format_amount(value: float | Array) -> str:
    """Return a number as text with two decimals, or "less than 0.01" if it would be rounded to 0.00."""
    return "less than 0.01" if value < 0.005 else f"{value:.2f}"
