"""Attention between the tokens or words of a text, by any attention measure.

The results are a matrix of one head or of a whole layer, a table of several layers and heads, thumbnails of
all heads, and the rollout of one token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, Self, TypeVar

import numpy as np
import pandas as pd

from bert_probe.analyses.attention.measures import AttentionMeasure, get_measure, measures
from bert_probe.analyses.attention.measures.rollout import rollouts
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, Flag, Index, Number, TokenSelector
from bert_probe.core.field_types_of_lists import Indices
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import EmptyTextError, SelectionError, ShapeError, memory_errors
from bert_probe.model.encoding import Token
from bert_probe.model.progress import Progress, no_progress, step_progress
from bert_probe.model.trace import Array, Trace, read_only
from bert_probe.text.words import Unit, WordLens, find_word, word_lens

Head = int | Literal["mean"]
"""Type of a head selection: a head index from 0, or "mean" for the mean over a layer's heads."""

LAYER, HEAD = Index("layer"), Index("head", mean=True)
SHARE = Number(0, 1, integer=False)
WORDS_HELP = "Merge subword tokens into words: weights are summed over keys and averaged over queries."
SPECIALS = "Exclude special tokens such as [CLS] and [SEP]."
RENORMALIZE = "Exclude special tokens, then divide each row by its sum."
MEASURED = "Attention measure (see docs/methods.md)."
DEFAULT_RESIDUAL = 0.5
RESIDUAL = "For rollout: weight of the residual connection, from 0 to 1."


@question("attention")
class Attention(Question):
    """Attention between tokens or words, of one head or averaged over a layer's heads.

    Three optional steps are applied in this order: subword tokens are merged into words, special tokens are
    left out, and rows are renormalized.

    Attributes:
        layer: layer index from 0; negative values count from the end.
        head: head index from 0, or "mean" for the mean over the layer's heads. Rollout and value zeroing are
            defined for whole layers only and require "mean".
        measure: name of an attention measure, such as "weights" or "rollout"; see `measures`.
        words: merge subword tokens into words: sum over keys, mean over queries.
        specials: keep special tokens. If they are left out, rows no longer sum to 1; [CLS] and [SEP] often
            receive most of the attention (Clark et al. 2019).
        renormalize: divide each row by its sum. A row whose sum is 0 becomes NaN.
        residual: for rollout, the weight of the residual connection, 0 to 1.
    """

    inputs = OneTrace()

    layer: int = param(LAYER, default=-1, about="Layer, counted from 1.")
    head: Head = param(
        HEAD, default="mean", about="Head, counted from 1, or mean for the mean over the layer's heads."
    )
    measure: str = param(Choice(measures), default="weights", key="drawn", about=MEASURED)
    words: bool = param(Flag(), default=False, about=WORDS_HELP)
    specials: bool = param(Flag(), default=True, option="--no-specials", about=SPECIALS)
    renormalize: bool = param(Flag(), default=False, about=RENORMALIZE)
    residual: float = param(SHARE, default=DEFAULT_RESIDUAL, about=RESIDUAL)

    def resolved(self, trace: Trace) -> Self:
        """Return the question with 0-based indices.

        If the measure does not use the residual, the residual is set to its default.
        """
        return _without_unused_residual(super().resolved(trace))

    def of(self, trace: Trace, progress: Progress = no_progress) -> AttentionResult:
        """Return the attention matrix of a text.

        Args:
            trace: the model's forward pass over the text.
            progress: called with the progress of a slow measure.

        Raises:
            SelectionError: the layer or head does not exist, or the measure is not defined for individual
                heads.
            UnavailableError: the architecture does not expose what the measure needs.
            EmptyTextError: the text has only special tokens, and ``specials`` is false.
        """
        resolved = self.resolved(trace)
        selection = select_units(trace, self.words, self.specials)
        attention_measure = get_measure(self.measure)
        weights = selection.reduce(
            attention_measure.of_head(trace, resolved.layer, resolved.head, self.residual, progress)
        )
        if self.renormalize:
            sums = weights.sum(axis=-1, keepdims=True)
            weights = np.divide(weights, sums, out=np.full_like(weights, np.nan), where=sums > 0)
        notes = _notes(attention_measure, trace)
        shares = self.renormalize or attention_measure.sums_to_one(trace)
        units = selection.units
        return AttentionResult(resolved, InputRecord.of(trace), units, units, weights, notes, shares)


@question("attention long form", command="attention")
class AttentionLong(Question):
    """Attention of several layers and heads in long format: one row for each weight.

    Attributes:
        layers, heads: indices from 0. If None, all are included; a measure that is not defined for
            individual heads gives one matrix per layer.
        measure, words, specials, renormalize, residual: as in `Attention`.
    """

    inputs = OneTrace()

    layers: Sequence[int] | None = param(Indices(LAYER), default=None, option="")
    heads: Sequence[Head] | None = param(Indices(HEAD), default=None, option="")
    measure: str = param(Choice(measures), default="weights", key="drawn", about=MEASURED)
    words: bool = param(Flag(), default=False, about=WORDS_HELP)
    specials: bool = param(Flag(), default=True, option="--no-specials", about=SPECIALS)
    renormalize: bool = param(Flag(), default=False, about=RENORMALIZE)
    residual: float = param(SHARE, default=DEFAULT_RESIDUAL, about=RESIDUAL)

    def resolved(self, trace: Trace) -> Self:
        """Return the question with 0-based indices.

        If the measure does not use the residual, the residual is set to its default.
        """
        return _without_unused_residual(super().resolved(trace))

    def of(self, trace: Trace, progress: Progress = no_progress) -> AttentionLongResult:
        """Return the attention of the selected layers and heads as a lazy result.

        The result computes one matrix at a time while its table is written. Slow measures are computed and
        cached immediately, so that their progress can be reported.

        Args:
            trace: the model's forward pass over the text.
            progress: called with the progress of a slow measure.

        Raises:
            SelectionError, UnavailableError, EmptyTextError: see `Attention.of`.
        """
        resolved, attention_measure = self.resolved(trace), get_measure(self.measure)
        layers = range(trace.layers) if resolved.layers is None else resolved.layers
        heads: tuple[Head, ...] = ("mean",)
        if resolved.heads is not None:
            heads = tuple(resolved.heads)
        elif attention_measure.of_heads is not None:
            heads = tuple(range(trace.heads))
        if heads != ("mean",):
            attention_measure.require_heads()
        slow = [layer for layer in dict.fromkeys(layers) if attention_measure.takes_long(trace, layer)]
        for number, layer in enumerate(slow):
            single = Attention(layer, measure=self.measure, words=self.words, specials=self.specials)
            single.of(trace, step_progress(progress, number, len(slow)))
        result = AttentionLongResult(resolved, InputRecord.of(trace), trace, tuple(product(layers, heads)))
        # Compute the first matrix now, so that errors are raised here and not while the table is written.
        next(result.matrices())
        return result

    def options(self) -> list[str]:
        """Return the command-line options, which always include --layer and --head.

        Without these options, the command would use its default: the mean over the last layer's heads.
        """
        layers, heads = Indices(LAYER).write(self.layers), Indices(HEAD).write(self.heads)
        return ["--layout", "long", "--layer", layers, "--head", heads, *super().options()]


_Asked = TypeVar("_Asked", bound=Attention | AttentionLong)


def _without_unused_residual(asked: _Asked) -> _Asked:
    """Return the question with the default residual, unless its measure uses the residual."""
    return asked if get_measure(asked.measure).rolled else replace(asked, residual=DEFAULT_RESIDUAL)


@dataclass(frozen=True, eq=False, repr=False)
class AttentionResult(Result):
    """The attention matrix of one head or of a whole layer.

    Attributes:
        queries, keys: the tokens or words that label the rows (queries) and the columns (keys).
        weights: values of the measure, shape [query, key], in the dtype of the trace; 0 to 1 if rows sum
            to 1.
        notes: metadata about the measure, written to exported files.
        shares: whether each row sums to 1 over all keys, so that no value exceeds 1.
    """

    question: Attention
    queries: tuple[Token | Unit, ...]
    keys: tuple[Token | Unit, ...]
    weights: Array
    notes: Mapping[str, Any]
    shares: bool = True

    def __post_init__(self) -> None:
        if self.weights.shape != (len(self.queries), len(self.keys)):
            raise ShapeError(
                f"weights must have shape [{len(self.queries)} queries, {len(self.keys)} keys], not "
                f"{self.weights.shape}."
            )

    @property
    def row_sums(self) -> Array:
        """Sum of each row, shape [query]. Rows of attention weights sum to 1 unless tokens are left out."""
        sums: Array = self.weights.sum(axis=1)
        return sums

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Notes on the attention measure, for exported files."""
        return self.notes

    def frame(self) -> pd.DataFrame:
        """Return a table with a row for each query and a column for each key."""
        return frames.matrix(self.weights, self.queries, self.keys)

    def long(self) -> Iterator[pd.DataFrame]:
        """Yield a table with a row for each weight, in blocks of queries.

        Columns: layer, head, query_position, query_token, key_position, key_token, weight.
        """
        queries, keys = (
            np.array(frames.plain_strings(side), dtype=object) for side in (self.queries, self.keys)
        )
        rows, columns = (np.array([unit.position for unit in side]) for side in (self.queries, self.keys))
        size = max(1, _BLOCK_ROWS // len(keys))
        for start in range(0, len(queries), size):
            block = slice(start, start + size)
            yield pd.DataFrame(
                {
                    "layer": LAYER.to_json(self.question.layer),
                    "head": HEAD.to_json(self.question.head),
                    "query_position": np.repeat(rows[block], len(keys)),
                    "query_token": np.repeat(queries[block], len(keys)),
                    "key_position": np.tile(columns, len(rows[block])),
                    "key_token": np.tile(keys, len(rows[block])),
                    "weight": self.weights[block].reshape(-1),
                }
            )


_BLOCK_ROWS = 500_000
"""Maximum number of rows of a block of a long table, unless a single query has more keys."""


@dataclass(frozen=True, eq=False, repr=False)
class AttentionLongResult(Result):
    """Attention of several layers and heads, with each matrix computed only when it is needed.

    Attributes:
        trace: the model's forward pass over the text.
        chosen: layer and head index of each matrix, from 0.
    """

    question: AttentionLong
    trace: Trace
    chosen: tuple[tuple[int, Head], ...]

    def matrices(self) -> Iterator[AttentionResult]:
        """Yield the attention matrix of each selected layer and head."""
        asked = self.question
        options = (asked.measure, asked.words, asked.specials, asked.renormalize, asked.residual)
        for layer, head in self.chosen:
            yield Attention(layer, head, *options).of(self.trace)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Notes on the attention measure, for exported files."""
        return _notes(get_measure(self.question.measure), self.trace)

    def frame(self) -> pd.DataFrame:
        """Return one table with a row for each weight of every matrix; see `AttentionResult.long`."""
        return self.joined([part for matrix in self.matrices() for part in matrix.long()])

    def joined(self, parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
        """Concatenate the blocks of the tables of all matrices into one table."""
        table = super().joined(parts)
        if len({part["head"].dtype for part in parts}) > 1:
            # The column has both "mean" and integers, but file formats need one type per column.
            table["head"] = table["head"].astype(str)
        return table

    def parts(self) -> Iterator[pd.DataFrame]:
        """Yield the table of each matrix, in blocks of queries, with the provenance attached."""
        for matrix in self.matrices():
            yield from map(self._with_provenance, matrix.long())


@dataclass(frozen=True, eq=False)
class UnitSelection:
    """The tokens or words of a text that are selected as rows and columns of an attention matrix.

    Attributes:
        units: the selected tokens or words.
        lens: the mapping that merges subword tokens into words; None if the units are tokens.
        indices: indices of the selected units among all units; None if all are selected.
    """

    units: tuple[Token | Unit, ...]
    lens: WordLens | None
    indices: list[int] | None

    def reduce(self, weights: Array) -> Array:
        """Return attention between the selected tokens or words, shape [..., unit, unit].

        Args:
            weights: attention between all tokens of the text, shape [..., token, token].
        """
        merged = weights if self.lens is None else self.lens.merge(weights)
        return merged if self.indices is None else merged[..., self.indices, :][..., self.indices]


def select_units(trace: Trace, words: bool, specials: bool) -> UnitSelection:
    """Select the rows and columns of a text's attention matrix.

    Args:
        trace: the model's forward pass over the text.
        words: select words instead of tokens.
        specials: include special tokens.

    Raises:
        EmptyTextError: the text has only special tokens, and ``specials`` is false.
    """
    lens = word_lens(trace) if words else None
    units: tuple[Token | Unit, ...] = trace.tokens if lens is None else lens.units
    indices = [index for index, unit in enumerate(units) if specials or not unit.special]
    if not indices:
        raise EmptyTextError("This text has only special tokens. Show special tokens, or enter a word.")
    selected = tuple(units[index] for index in indices)
    return UnitSelection(selected, lens, indices if len(indices) < len(units) else None)


def _notes(attention_measure: AttentionMeasure, trace: Trace) -> dict[str, Any]:
    note = " ".join(sentence for sentence in (attention_measure.caveat(trace), trace.note) if sentence)
    return {"note": note} if note else {}


SIZE = 96
"""Default maximum number of cells per side of a thumbnail; most screens have too few pixels for more."""


@dataclass(frozen=True, eq=False)
class Thumbnails:
    """Downsampled attention matrices of all heads.

    Attributes:
        weights: largest weight of each block, float32 of shape [layer, head, query block, key block]; 0 to 1
            if the rows of the measure sum to 1.
        units: the tokens or words that are the queries and keys.
        block: number of queries, and also of keys, per cell; the last block may be smaller. A cell shows the
            **largest** weight of its block, so rows do not sum to 1 unless ``block`` is 1.
        specials: whether special tokens are included.
        words: whether subword tokens are merged into words.
        measure: name of the attention measure.
    """

    weights: Array
    units: tuple[Token | Unit, ...]
    block: int
    specials: bool
    words: bool
    measure: str

    def __post_init__(self) -> None:
        side = _blocks(len(self.units), self.block)
        if self.weights.ndim != 4 or self.weights.shape[2:] != (side, side):
            raise ShapeError(
                f"weights must have shape [layer, head, {side}, {side}] for {len(self.units)} tokens and a "
                f"block size of {self.block}, not {self.weights.shape}."
            )

    @property
    def layers(self) -> int:
        """Number of layers of the model."""
        return int(self.weights.shape[0])

    @property
    def heads(self) -> int:
        """Number of heads in a layer."""
        return int(self.weights.shape[1])

    @property
    def side(self) -> int:
        """Number of cells per side of a matrix."""
        return int(self.weights.shape[2])


def make_thumbnails(
    trace: Trace,
    size: int = SIZE,
    specials: bool = True,
    words: bool = False,
    measure: str = "weights",
) -> Thumbnails:
    """Return the attention matrix of every head, downsampled to at most ``size`` cells per side.

    A text with more tokens is split into blocks of equal length. A cell shows the largest weight of its
    block, because a mean would hide the single strong weights that distinguish heads. Only one layer is in
    memory at a time.

    Args:
        trace: the model's forward pass over the text.
        size: maximum number of cells per side, at least 1.
        specials: keep special tokens.
        words: merge subword tokens into words: sum over keys, mean over queries.
        measure: name of a measure that is defined for each head.

    Raises:
        SelectionError: size is below 1, or the measure is unknown or not defined for individual heads.
        UnavailableError: the architecture does not expose what the measure needs.
        EmptyTextError: the text has only special tokens, and ``specials`` is false.
        OutOfMemoryError: there is not enough memory.
    """
    if size < 1:
        raise SelectionError(f"size must be at least 1 cell per side, not {size}.")
    of_heads = get_measure(measure).require_heads()
    selection = select_units(trace, words, specials)
    block = _blocks(len(selection.units), size)
    side = _blocks(len(selection.units), block)
    with memory_errors("The thumbnails of all heads need more memory than is available. Use a smaller size."):
        small = np.empty((trace.layers, trace.heads, side, side), dtype=np.float32)
    for layer in range(trace.layers):
        small[layer] = largest_in_blocks(selection.reduce(of_heads(trace, layer, slice(None))), block)
    return Thumbnails(read_only(small), selection.units, block, specials, words, measure)


def largest_in_blocks(weights: Array, block: int) -> Array:
    """Return the largest weight of each square of ``block`` × ``block`` attention weights.

    The weights have shape [head, query, key], and the result has shape [head, query block, key block]. The
    last block of a row or column may be smaller.
    """
    if block == 1:
        return weights
    by_query = _largest_of_rows(weights, block)
    return _largest_of_rows(by_query.swapaxes(1, 2), block).swapaxes(1, 2)


def _largest_of_rows(weights: Array, block: int) -> Array:
    # Compare the first rows of all blocks, then the second rows, and so on. This is faster than a loop over
    # the blocks, because each comparison is one NumPy operation on large arrays.
    largest: Array = weights[:, ::block].copy()
    for start in range(1, min(block, weights.shape[1])):
        rows = weights[:, start::block]
        target = largest[:, : rows.shape[1]]
        np.maximum(target, rows, out=target)
    return largest


def _blocks(count: int, block: int) -> int:
    """Return the number of blocks into which ``count`` tokens or words are split."""
    return -(-count // block)


DIRECTIONS = ("from", "into")


@question("token rollout", command="rollout")
class TokenRollout(Question):
    """The column or row of one token in the attention rollout up to each layer.

    Attributes:
        token: the token, given by its position or as a word. With ``words``, the rollout is that of the whole
            word that contains the token.
        direction: "from" for the column of the token (how much of it reaches each token of the text), or
            "into" for its row (how much of each token of the text reaches it).
        words: merge subword tokens into words.
        residual: the weight of the residual connection, 0 to 1.
    """

    inputs = OneTrace()

    token: int | str = param(TokenSelector(), option="", key="rollout_token")
    direction: str = param(
        Choice(DIRECTIONS),
        default="from",
        key="direction_of",
        about="With --token: show the rollout from the token to all tokens, or from all tokens to the token.",
    )
    words: bool = param(Flag(), default=False, about=WORDS_HELP)
    residual: float = param(SHARE, default=DEFAULT_RESIDUAL, about=RESIDUAL)

    def resolved(self, trace: Trace) -> Self:
        """Return the question with the token as a position. A word becomes the position of its first token.

        Words of several tokens are allowed only with ``words``.
        """
        if self.words and isinstance(self.token, str):
            return replace(self, token=find_word(trace, self.token).position).resolved(trace)
        return super().resolved(trace)

    def of(self, trace: Trace) -> TokenRolloutResult:
        """Return the token's rollout up to each layer.

        Raises:
            SelectionError: the text does not contain the token.
        """
        resolved = self.resolved(trace)
        selection = select_units(trace, self.words, specials=True)
        position = int(resolved.token)
        unit_index = max(index for index, unit in enumerate(selection.units) if unit.position <= position)
        layers = (trace.attention(layer) for layer in range(trace.layers))
        rows = []
        for rollout in rollouts(layers, self.residual):
            merged = selection.reduce(rollout)
            rows.append(merged[:, unit_index] if self.direction == "from" else merged[unit_index])
        values = np.array(rows, dtype=trace.dtype)
        return TokenRolloutResult(resolved, InputRecord.of(trace), selection.units, unit_index, values)

    def options(self) -> list[str]:
        """Return the command-line options, with the token as a position."""
        return ["--position", str(self.token), *super().options()]


@dataclass(frozen=True, eq=False, repr=False)
class TokenRolloutResult(Result):
    """The rollout of one token or word up to each layer.

    Attributes:
        units: the tokens or words of the text.
        chosen: index in `units` of the token or word whose rollout is shown.
        values: the rollout, shape [layer, unit], in the dtype of the trace, 0 to 1. With the direction
            "into", the values of each layer sum to 1.
    """

    question: TokenRollout
    units: tuple[Token | Unit, ...]
    chosen: int
    values: Array

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.values.shape[1] != len(self.units):
            raise ShapeError(f"values must have shape [layer, {len(self.units)}], not {self.values.shape}.")

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Text of the token or word whose rollout is shown."""
        return {"token": str(self.units[self.chosen])}

    def frame(self) -> pd.DataFrame:
        """Return a table with a row for each layer, from 1, and a column for each token or word."""
        layers = [str(layer + 1) for layer in range(len(self.values))]
        return frames.matrix(self.values, layers, self.units, "layer")
