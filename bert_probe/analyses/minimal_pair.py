"""Minimal pairs: two texts that differ in a word or more, and what that changes inside the model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from bert_probe.analyses.attention import Head
from bert_probe.analyses.cosine import cosine_of_rows
from bert_probe.errors import SelectionError, ShapeError
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Array, Trace, read_only, resolve
from bert_probe.text.alignment import Alignment, align_traces
from bert_probe.text.words import Unit, WordLens, word_lens

REST = "rest"
"""Name of the entry in which all keys without a counterpart are pooled."""


@dataclass(frozen=True, eq=False)
class RowPair:
    """Where one aligned token, or word, looks in both texts.

    Attributes:
        query: the token or word, as text A has it.
        keys: the aligned keys, as text A has them.
        a, b: float32 [key + 1]: its attention in either text; the last entry is the rest, what falls
            on all keys without a counterpart.
        layer, head: from 0; "mean" for the mean over the heads.
    """

    query: Token | Unit
    keys: tuple[Token | Unit, ...]
    a: Array
    b: Array
    layer: int
    head: Head

    def __post_init__(self) -> None:
        if not self.a.shape == self.b.shape == (len(self.keys) + 1,):
            raise ShapeError(
                f"Rows of {self.a.shape} and {self.b.shape} for {len(self.keys)} keys and a rest."
            )

    @property
    def difference(self) -> Array:
        """Attention in B minus that in A, [key + 1], -1 to 1."""
        change: Array = self.b - self.a
        return change


@dataclass(frozen=True, eq=False)
class MinimalPair:
    """What differs in a model between two texts, where they are the same. All arrays are float32.

    Attributes:
        a, b: the traces.
        words: whether pieces were merged into words.
        alignment: which tokens, or words, are the same. A place below is an index into its pairs.
        total_variation: [layer, head], 0 to 1: ½ Σ |p − q| between the rows of a query in A and in B,
            over the aligned keys and the rest, averaged over the aligned queries.
        jensen_shannon: [layer, head], 0 to 1: in the same way the Jensen-Shannon distance, the square
            root of the divergence to base 2 (Endres and Schindelin 2003).
        moved: [layer + 1, place], 0 to 2: 1 − cosine of a unit's vectors in A and in B; row 0 is the
            output of the embeddings. A word's vector is the mean of its pieces' vectors.
        shift: [layer, head, place], 0 to 1: what a query takes from one key, or the rest, and gives to
            another: the smaller of its row's largest fall and largest rise.
    """

    a: Trace
    b: Trace
    words: bool
    alignment: Alignment
    total_variation: Array
    jensen_shannon: Array
    moved: Array
    shift: Array

    def __post_init__(self) -> None:
        heads, places = (self.a.layers, self.a.heads), len(self.alignment.pairs)
        for name, shape in (
            ("total_variation", heads),
            ("jensen_shannon", heads),
            ("moved", (self.a.layers + 1, places)),
            ("shift", (*heads, places)),
        ):
            if getattr(self, name).shape != shape:
                raise ShapeError(f"{name} has shape {getattr(self, name).shape}; {shape} is needed.")

    @property
    def same_input(self) -> bool:
        """Whether the model is given exactly the same for both texts."""
        return _same_input(self.a, self.b)

    @property
    def most_moved(self) -> int:
        """Place of the unit that moved most in any layer; a special token only if there is nothing else."""
        peaks = np.nan_to_num(self.moved).max(axis=0)
        if self.alignment.shares_text:
            peaks[[unit.special for unit in self.alignment.aligned]] = -1
        return int(peaks.argmax())

    def strongest_shift(self, place: int) -> tuple[int, int]:
        """Layer and head, from 0, that shift most of a unit's attention; the first ones of several.

        Raises:
            SelectionError: no such place.
        """
        shift = self.shift[:, :, resolve(place, self.shift.shape[2], "place")]
        layer, head = np.unravel_index(int(shift.argmax()), shift.shape)
        return int(layer), int(head)

    def row(self, place: int, layer: int, head: Head = "mean") -> RowPair:
        """Attention of one aligned query in both texts.

        Args:
            place: index into the alignment's pairs.
            layer, head: from 0, or the mean over the layer's heads.

        Raises:
            SelectionError: no such place, layer or head.
        """
        place = resolve(place, len(self.alignment.pairs), "place")
        layer = resolve(layer, self.a.layers, "layer")
        if head != "mean":
            head = resolve(head, self.a.heads, "head")
        a, b = (
            side.rows(layer, head)[place].numpy()
            for side in _sides(self.a, self.b, self.alignment, self.words)
        )
        return RowPair(self.alignment.aligned[place], self.alignment.aligned, a, b, layer, head)


def minimal_pair(a: Trace, b: Trace, words: bool = False) -> MinimalPair:
    """Compare what a model does with two texts, in the part of them that is the same.

    Texts that are the same to the model differ in nothing, and exchanging the texts changes no number.
    Memory holds one head's attention at a time.

    Args:
        words: merge pieces into words: attention as in `WordLens.merge`, vectors by their mean.

    Raises:
        SelectionError: traces of different models, or texts with no token in common.
    """
    if _model(a) != _model(b):
        raise SelectionError("The two texts were read by different models. Trace both with the same one.")
    alignment = align_traces(a, b, words)
    if not alignment.pairs:
        raise SelectionError("The two texts have nothing in common. Give two that share some of their words.")
    one, two = _sides(a, b, alignment, words)
    shape = (a.layers, a.heads)
    variation, distance = np.zeros((2, *shape), dtype=np.float32)
    shift = np.zeros((*shape, len(alignment.pairs)), dtype=np.float32)
    for place in np.ndindex(shape):
        variation[place], distance[place], shift[place] = _changes(one.rows(*place), two.rows(*place))
    moved = [1 - cosine_of_rows(one.vectors(layer), two.vectors(layer)) for layer in range(a.layers + 1)]
    arrays = (variation, distance, np.array(moved, dtype=np.float32), shift)
    return MinimalPair(a, b, words, alignment, *map(read_only, arrays))


def _model(trace: Trace) -> tuple[object, ...]:
    known = (trace.provenance.get(name) for name in ("architecture", "weights_sha256", "dtype"))
    return (trace.layers, trace.heads, trace.vectors(0).shape[1], *known)


@dataclass(frozen=True, eq=False)
class _Side:
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


def _sides(a: Trace, b: Trace, alignment: Alignment, words: bool) -> tuple[_Side, _Side]:
    if _same_input(a, b):
        # In a batch a row's last digits may depend on its place; the same input has one result all the same.
        b = a
    return (
        _Side(a, word_lens(a) if words else None, list(alignment.places_a), list(alignment.changed_a)),
        _Side(b, word_lens(b) if words else None, list(alignment.places_b), list(alignment.changed_b)),
    )


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
