"""One attention matrix as people look at it: labelled, by tokens or words, in one of several measures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
import pandas as pd

from bert_probe.analyses.attention.measures import AttentionMeasure, measure, measures
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, Flag, Index, Number
from bert_probe.core.field_types_of_lists import Indices
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import EmptyTextError, ShapeError
from bert_probe.model.encoding import Token
from bert_probe.model.progress import Progress, no_progress, part_of
from bert_probe.model.trace import Array, Trace
from bert_probe.text.words import Unit, WordLens, word_lens

Head = int | Literal["mean"]
"""A head from 0, or "mean" for the mean over a layer's heads."""

LAYER, HEAD = Index("layer"), Index("head", mean=True)
SHARE = Number(0, 1, whole=False)
WORDS = "Merge the pieces of a word: summed over keys, averaged over queries."
SPECIALS = "Leave out [CLS], [SEP] and the like."
RENORMALISE = "Divide each row by its sum, once special tokens are left out."
MEASURED = "Weights, or another measure; see docs/methods.md."
RESIDUAL = "For rollout: the share that the residual connection carries."


@question("attention")
class Attention(Question):
    """Attention of one head, or of a layer as a whole, between tokens or words.

    Pieces are merged first, then special tokens left out, then rows divided.

    Attributes:
        layer: from 0; negative ones count from the end.
        head: from 0, or "mean" for the layer as a whole; rollout and others have no single heads.
        measure: "weights", "value-norm", "rollout", …; see `measures`.
        words: merge pieces into words: summed over keys, averaged over queries.
        specials: keep special tokens; without them rows no longer sum to 1, because [CLS] and [SEP]
            often draw most of the attention (Clark et al. 2019).
        renormalise: divide each row by its sum. A row that gives nothing to the keys shown becomes NaN.
        residual: for rollout, the share that the residual connection carries, 0 to 1.
    """

    inputs = OneTrace()

    layer: int = param(LAYER, default=-1, about="Layer, counted from 1.")
    head: Head = param(HEAD, default="mean", about="Head, counted from 1, or their mean.")
    measure: str = param(Choice(measures), default="weights", key="drawn", about=MEASURED)
    words: bool = param(Flag(), default=False, about=WORDS)
    specials: bool = param(Flag(), default=True, option="--no-specials", about=SPECIALS)
    renormalise: bool = param(Flag(), default=False, about=RENORMALISE)
    residual: float = param(SHARE, default=0.5, about=RESIDUAL)

    def of(self, trace: Trace, report: Progress = no_progress) -> AttentionResult:
        """The matrix for a text.

        Args:
            report: told how far a measure is that takes long; others are over at once and say nothing.

        Raises:
            SelectionError: no such layer or head, or a measure that has no single heads.
            UnavailableError: the architecture hides what the measure needs.
            EmptyTextError: nothing is left without the special tokens.
        """
        asked_for = self.resolved(trace)
        seen = shown_units(trace, self.words, self.specials)
        what = measure(self.measure)
        weights = seen.cut(what.of_head(trace, asked_for.layer, asked_for.head, self.residual, report))
        if self.renormalise:
            sums = weights.sum(axis=-1, keepdims=True)
            weights = np.divide(weights, sums, out=np.full_like(weights, np.nan), where=sums > 0)
        facts = said_of(what, trace)
        shares = self.renormalise or what.shared_out(trace)
        return AttentionResult(
            asked_for, InputRecord.of(trace), seen.units, seen.units, weights, facts, shares
        )


@question("attention in long form", command="attention")
class AttentionLong(Question):
    """Attention of several layers and heads, a line for each weight.

    Attributes:
        layers, heads: which ones, from 0; None for all, and for the layer alone where there are no heads.
        measure, words, specials, renormalise, residual: as in `Attention`.
    """

    inputs = OneTrace()

    layers: Sequence[int] | None = param(Indices(LAYER), default=None, option="")
    heads: Sequence[Head] | None = param(Indices(HEAD), default=None, option="")
    measure: str = param(Choice(measures), default="weights", key="drawn", about=MEASURED)
    words: bool = param(Flag(), default=False, about=WORDS)
    specials: bool = param(Flag(), default=True, option="--no-specials", about=SPECIALS)
    renormalise: bool = param(Flag(), default=False, about=RENORMALISE)
    residual: float = param(SHARE, default=0.5, about=RESIDUAL)

    def of(self, trace: Trace, report: Progress = no_progress) -> AttentionLongResult:
        """The matrices, computed one at a time as the table is written, unless that takes long.

        Args:
            report: told how far a measure is that takes long; others say nothing.

        Raises:
            SelectionError, UnavailableError, EmptyTextError: as `Attention.of`.
        """
        asked_for, what = self.resolved(trace), measure(self.measure)
        layers = range(trace.layers) if asked_for.layers is None else asked_for.layers
        heads: tuple[Head, ...] = ("mean",)
        if asked_for.heads is not None:
            heads = tuple(asked_for.heads)
        elif what.of_heads is not None:
            heads = tuple(range(trace.heads))
        if heads != ("mean",):
            what.single_heads()
        slow = [layer for layer in dict.fromkeys(layers) if what.takes_long(trace, layer)]
        for number, layer in enumerate(slow):
            one = Attention(layer, measure=self.measure, words=self.words, specials=self.specials)
            one.of(trace, part_of(report, number, len(slow)))
        maps = AttentionLongResult(asked_for, InputRecord.of(trace), trace, tuple(product(layers, heads)))
        next(maps.maps())  # what cannot be had is said now
        return maps

    def options(self) -> list[str]:
        """Without them the command means the last layer's mean."""
        chosen = ("--layer", Indices(LAYER).write(self.layers), "--head", Indices(HEAD).write(self.heads))
        return ["--layout", "long", *chosen, *super().options()]


@dataclass(frozen=True, eq=False, repr=False)
class AttentionResult(Result):
    """A measure of attention in one head, or in a layer as a whole.

    Attributes:
        queries, keys: tokens, or words, of the rows and of the columns.
        weights: [query, key], in the trace's type; 0 to 1 where the measure is a share.
        said: what the measure adds to a file's facts.
        shares: whether each row sums to 1 over all keys, so that no number is above 1.
    """

    question: Attention
    queries: tuple[Token | Unit, ...]
    keys: tuple[Token | Unit, ...]
    weights: Array
    said: Mapping[str, Any]
    shares: bool = True

    def __post_init__(self) -> None:
        if self.weights.shape != (len(self.queries), len(self.keys)):
            raise ShapeError(
                f"weights has shape {self.weights.shape}; "
                f"[{len(self.queries)} queries, {len(self.keys)} keys] is needed."
            )

    @property
    def row_sums(self) -> Array:
        """What each query gives to the keys shown, [query]: 1 unless tokens are left out."""
        sums: Array = self.weights.sum(axis=1)
        return sums

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the measure says of itself."""
        return self.said

    def frame(self) -> pd.DataFrame:
        """A row for each query, a column for each key."""
        return frames.matrix(self.weights, self.queries, self.keys)

    def long(self) -> pd.DataFrame:
        """Layer, head, query_position, query_token, key_position, key_token, weight: a row for each."""
        queries, keys = (np.array(frames.names(side), dtype=object) for side in (self.queries, self.keys))
        rows, columns = (np.array([unit.position for unit in side]) for side in (self.queries, self.keys))
        return pd.DataFrame(
            {
                "layer": LAYER.to_json(self.question.layer),
                "head": HEAD.to_json(self.question.head),
                "query_position": np.repeat(rows, len(keys)),
                "query_token": np.repeat(queries, len(keys)),
                "key_position": np.tile(columns, len(queries)),
                "key_token": np.tile(keys, len(queries)),
                "weight": self.weights.reshape(-1),
            }
        )


@dataclass(frozen=True, eq=False, repr=False)
class AttentionLongResult(Result):
    """Attention of several layers and heads; each is computed when its part of the table is taken.

    Attributes:
        trace: of the text.
        chosen: layer and head of each matrix, from 0.
    """

    question: AttentionLong
    trace: Trace
    chosen: tuple[tuple[int, Head], ...]

    def maps(self) -> Iterator[AttentionResult]:
        """Each matrix in turn."""
        one = self.question
        for layer, head in self.chosen:
            single = Attention(
                layer, head, one.measure, one.words, one.specials, one.renormalise, one.residual
            )
            yield single.of(self.trace)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the measure says of itself."""
        return said_of(measure(self.question.measure), self.trace)

    def frame(self) -> pd.DataFrame:
        """All of them, one below the other."""
        return self.joined([one.long() for one in self.maps()])

    def joined(self, parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
        """`table`, of all its `parts`."""
        whole = super().joined(parts)
        if len({part["head"].dtype for part in parts}) > 1:
            whole["head"] = whole["head"].astype(str)  # "mean" beside numbers: files need one type
        return whole

    def parts(self) -> Iterator[pd.DataFrame]:
        """A matrix at a time."""
        for one in self.maps():
            yield self._with_provenance(one.long())


@dataclass(frozen=True, eq=False)
class ShownUnits:
    """Which tokens, or words, of a text are rows and columns.

    Attributes:
        units: those shown.
        lens: merges pieces into words; None for tokens.
        kept: places of the shown ones among all; None if that is all of them.
    """

    units: tuple[Token | Unit, ...]
    lens: WordLens | None
    kept: list[int] | None

    def cut(self, weights: Array) -> Array:
        """Weights [..., query token, key token] → [..., query shown, key shown]."""
        merged = weights if self.lens is None else self.lens.merge(weights)
        return merged if self.kept is None else merged[..., self.kept, :][..., self.kept]


def shown_units(trace: Trace, words: bool, specials: bool) -> ShownUnits:
    """The tokens, or words, of a text, with or without its special tokens.

    Raises:
        EmptyTextError: nothing is left.
    """
    lens = word_lens(trace) if words else None
    units: tuple[Token | Unit, ...] = trace.tokens if lens is None else lens.units
    kept = [index for index, unit in enumerate(units) if specials or not unit.special]
    if not kept:
        raise EmptyTextError("Only special tokens are left of this text. Show them, or write a word.")
    shown = tuple(units[index] for index in kept)
    return ShownUnits(shown, lens, kept if len(kept) < len(units) else None)


def said_of(what: AttentionMeasure, trace: Trace) -> dict[str, Any]:
    """Further sentences on this model and this attention, for a file's facts."""
    note = " ".join(sentence for sentence in (what.caveat(trace), trace.caveat) if sentence)
    return {"note": note} if note else {}
