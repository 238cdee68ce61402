"""Measures of attention heads, labels derived from them, and the head to show first for a text."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.attention.attention import WORDS_HELP, Head
from bert_probe.core import frames
from bert_probe.core.field_types import Flag
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Array, Trace, read_only, tensor_view
from bert_probe.text.words import Unit, WordLens, word_lens

LABELS = {
    "self": "same token",
    "previous": "previous token",
    "next": "next token",
    "first": "first token sink",
    "separator": "separator sink",
    "punctuation": "punctuation",
    "other_segment": "other segment",
    "same_word": "same word",
    "same_token": "repeated token",
}
LABEL_SHARE = 0.5
"""Minimum share of a head's attention on a target, such as the previous token, to label the head with it."""
BROAD_ENTROPY = 0.85
"""Minimum normalized entropy of the heads that are labeled "broad"."""

Labels = tuple[tuple[str, ...], ...]
"""Type of the labels of all heads, indexed by layer and head; "" for a head without a label."""


@question("heads")
class Heads(Question):
    """Profiles of all heads: measures of where each head's attention goes, averaged over the queries.

    Most measures are those of Clark et al. 2019, sections 3 and 4; see `measure_heads`.

    Attributes:
        words: merge subword tokens into words before measuring: sum over keys, mean over queries.
    """

    inputs = OneTrace()

    words: bool = param(Flag(), default=False, about=WORDS_HELP)

    def of(self, trace: Trace) -> HeadsResult:
        """Return the profiles of all heads on a text.

        Raises:
            OutOfMemoryError: a layer's attention needs more memory than is available.
        """
        values = measure_heads(trace, word_lens(trace) if self.words else None)
        # Attention shares are meaningless if the rows do not sum to 1.
        labels = (("",) * trace.heads,) * trace.layers if trace.caveat else head_labels(values)
        return HeadsResult(self, InputRecord.of(trace), values, labels)


@dataclass(frozen=True, eq=False, repr=False)
class HeadsResult(Result):
    """Measures of every head of a model on one text.

    Attributes:
        values: mapping from the name of each measure to its values, float64 of shape [layer, head]; for
            names, units and ranges, see `measure_heads`.
        labels: label of each head, indexed by layer and head; see `head_labels`. All labels are "" for
            external attention whose rows do not sum to 1.
    """

    question: Heads
    values: Mapping[str, Array]
    labels: Labels

    def __post_init__(self) -> None:
        check_grid(self.labels, self.values)

    def frame(self) -> pd.DataFrame:
        """Return a table with a row for each head: layer, head, the measures, label."""
        return frames.by_head(self.values, self.labels)


def head_labels(values: Mapping[str, Array]) -> Labels:
    """Return a label for each head, derived from its measures.

    A head gets the label of its largest attention share if this share is at least `LABEL_SHARE`. Otherwise,
    the label is "broad" if the normalized entropy is at least `BROAD_ENTROPY`, or "" if it is lower.

    Args:
        values: the measures, each of shape [layer, head].
    """
    layers, heads = values["self"].shape
    return tuple(
        tuple(_label({name: float(values[name][layer, head]) for name in values}) for head in range(heads))
        for layer in range(layers)
    )


def _label(profile: dict[str, float]) -> str:
    largest = max(SHARES, key=profile.__getitem__)
    if profile[largest] >= LABEL_SHARE:
        return LABELS[largest]
    return "broad" if profile["relative_entropy"] >= BROAD_ENTROPY else ""


def check_grid(labels: Labels, *measured: Mapping[str, Array]) -> None:
    """Check that all measures have the same shape as the labels, [layer, head].

    Raises:
        ShapeError: a measure has a different shape.
    """
    shape = (len(labels), len(labels[0]))
    for values in measured:
        for name, value in values.items():
            if value.shape != shape:
                raise ShapeError(
                    f"{name} must have shape [{shape[0]} layers, {shape[1]} heads], not {value.shape}."
                )


SHARE_TARGETS = {
    "self": "the token itself",
    "previous": "the previous token",
    "next": "the next token",
    "first": "the first token",
    "separator": "separators",
    "punctuation": "punctuation",
    "other_segment": "the other segment",
    "same_word": "the rest of the same word",
    "same_token": "other occurrences of the same token",
}
"""Mapping from the name of each attention share to a description of the keys that are counted for it.

A share is the sum of a query's attention weights over these keys. Shares overlap; for example, the next token
may be a separator.
"""

SHARES = tuple(SHARE_TARGETS)

MEASURES = ("entropy_bits", "mean_distance", *SHARES, "relative_entropy", "difference_from_mean")

BLOCK = 2**19
"""Number of attention weights per thread in a block of queries.

With this size, a block fits in the CPU cache, and the cost of starting threads is small in comparison.
"""
LANES = 64
"""Row widths are rounded up to a multiple of this number, so that vectorized reductions are fast."""
MASKED_SCORE = -1e30
"""Attention score of the margin of a row (see `_AttentionBuffer`).

The softmax of this score is exactly 0 in float32 and float64.
"""


@torch.inference_mode()
def measure_heads(trace: Trace, lens: WordLens | None, max_queries: int | None = None) -> dict[str, Array]:
    """Return the measures of every head, averaged over the queries.

    Most measures are those of Clark et al. 2019, sections 3 and 4.

    Args:
        trace: the model's forward pass over the text.
        lens: the mapping that merges subword tokens into words; see `WordLens.merge`. If None, tokens are
            measured.
        max_queries: number of queries, from the beginning of the text, to average over. If None, all.

    Returns:
        A mapping from each name in `MEASURES` to its values, float64 of shape [layer, head]:
            entropy_bits: entropy of a row, −Σ p log₂ p.
            relative_entropy: entropy_bits divided by its largest possible value: log₂ of the row's length
                or, in a causal model, the mean of log₂ n over the queries, which may attend to n keys.
            mean_distance: Σ p · |query − key|, in tokens or words.
            each name in `SHARES`: total attention on the keys in `SHARE_TARGETS`, 0 to 1; a query for which
                the text has no such key counts as 0.
            difference_from_mean: total variation, ½ Σ |p − p̄|, from the mean over the layer's heads.
    """
    features = _features(trace, lens)
    count = features.length if max_queries is None else min(max_queries, features.length)
    blocks = _split_queries(trace, features, count)
    layers = [
        _layer_measures(trace.heads, _compute_blocks(trace, layer, lens, blocks), features)
        for layer in range(trace.layers)
    ]
    stacked = np.stack(layers, axis=1)
    return dict(zip(MEASURES, (read_only(measure) for measure in stacked), strict=True))


def max_entropy_bits(queries: int, length: int, is_causal: bool) -> float:
    """Return the largest possible mean entropy, in bits, of the attention of a text's first queries.

    A query may attend to all keys or, in a causal model, to itself and the keys before it. The result is 1
    instead of 0 if each query may attend to a single key only, so that entropies can be divided by it.

    Args:
        queries: number of queries.
        length: number of keys.
        is_causal: whether the model is causal.
    """
    bits = math.lgamma(queries + 1) / math.log(2) / queries if is_causal else math.log2(length)
    return bits or 1.0


@dataclass(frozen=True, eq=False)
class _Features:
    """The keys of a text over which each of the `SHARES` sums the attention weights.

    Attributes:
        length: number of tokens or words.
        is_causal: whether a query attends only to itself and the keys before it.
        keys: {share: 0/1 mask of the keys, float64, shape [key]}, for shares whose keys are the same for
            every query.
        groups: {share: group index of each token or word}, for shares that sum over the other members of the
            query's group, such as the other tokens of the same word.
        segments: list of (slice of adjacent queries in one segment, 0/1 mask of the keys in other segments,
            float64, shape [key]).
    """

    length: int
    is_causal: bool
    keys: dict[str, torch.Tensor]
    groups: dict[str, Array]
    segments: list[tuple[slice, torch.Tensor]]


class _AttentionBuffer:
    """Reusable memory for the attention of a block of queries, shape [head, row, key].

    The buffer sums attention by distance without a loop over the rows. In a view whose row stride is the row
    width plus one, each column contains the weights of all rows at the same distance between query and key.
    Each row begins with a margin of zeros, so that the view reads zeros where it extends past the end of the
    previous row.

    Attributes:
        width, margin: width of a row with its margin, and width of the margin.
        scores, weights: scores and weights including the margin, shape [head, row, width].
        within: view of the weights without the margin, shape [head, row, key].
        slanted: for each group of at most margin + 1 rows, the index after its last row, and a view of its
            weights with row stride width + 1, shape [head, row, key − query], by ascending distance.
        mean: mean of the weights over the heads, shape [row, width].
    """

    def __init__(self, heads: int, rows: int, length: int, margin: int, dtype: torch.dtype) -> None:
        group = margin + 1
        self.width = width = margin + length
        self.margin = margin
        # The last row is not followed by the margin of another row, so allocate additional zeros.
        memory = torch.zeros(heads * rows * width + group - 1, dtype=dtype)
        self.weights = memory[: heads * rows * width].view(heads, rows, width)
        self.within = self.weights[:, :, margin:]
        self.slanted = []
        for first in range(0, rows, group):
            after = min(first + group, rows)
            beyond = after - first - 1
            shape, strides = (heads, after - first, length + beyond), (rows * width, width + 1, 1)
            self.slanted.append((after, memory.as_strided(shape, strides, first * width + margin - beyond)))
        self.scores = torch.empty_like(self.weights)
        self.mean = memory.new_empty(rows, width)


@dataclass(frozen=True, eq=False)
class _QueryBlock:
    """A block of queries that are computed together.

    Attributes:
        queries: positions of the queries.
        buffer: memory for the attention of these queries, shared by blocks of the same size.
        pairs: mapping from each share in `_Features.groups` to the flat indices of the weights that it sums,
            within one head of the buffer.
    """

    queries: slice
    buffer: _AttentionBuffer
    pairs: dict[str, torch.Tensor]


_ComputedBlock = tuple[_QueryBlock, torch.Tensor]


def _layer_measures(heads: int, blocks: Iterable[_ComputedBlock], features: _Features) -> Array:
    """Return all measures of a layer's heads, float64 of shape [measure, head]."""
    length, segments = features.length, features.segments
    zeros = partial(torch.zeros, dtype=torch.float64)
    sums = {name: zeros(heads) for name in MEASURES}
    # Sum attention by key and query segment, and by distance, because many measures need only these sums.
    by_key = zeros(len(segments), heads, length)
    by_distance = zeros(heads, 2 * length + 1)
    count = 0
    for block, entropy in blocks:
        buffer, first = block.buffer, block.queries.start
        count += block.queries.stop - first
        for received, (run, _) in zip(by_key, segments, strict=True):
            received += buffer.within[:, max(run.start - first, 0) : max(run.stop - first, 0)].sum(dim=1)
        for after, slanted in buffer.slanted:
            lowest = length + 1 - first - after
            by_distance[:, lowest : lowest + slanted.shape[2]] += slanted.sum(dim=1)
        for name, indices in block.pairs.items():
            sums[name] += buffer.weights.flatten(1).index_select(1, indices).sum(dim=1)
        sums["entropy_bits"] += entropy.sum(dim=1)
        # The difference from the mean comes last, because computing it overwrites the weights.
        torch.mean(buffer.weights, dim=0, out=buffer.mean)
        sums["difference_from_mean"] += buffer.weights.sub_(buffer.mean).abs_().sum(dim=(1, 2))
    for name, is_counted in features.keys.items():
        sums[name] = by_key.sum(dim=0) @ is_counted
    for received, (_, is_other) in zip(by_key, segments, strict=True):
        sums["other_segment"] += received @ is_other
    sums["mean_distance"] = (by_distance * torch.arange(-length, length + 1).abs()).sum(dim=1)
    for name, distance in (("self", 0), ("previous", -1), ("next", 1)):
        sums[name] = by_distance[:, length + distance]
    means = {name: total / count for name, total in sums.items()}
    means["entropy_bits"] /= np.log(2)
    means["relative_entropy"] = means["entropy_bits"] / max_entropy_bits(count, length, features.is_causal)
    means["difference_from_mean"] /= 2
    return np.stack([means[name].numpy() for name in MEASURES])


def _compute_blocks(
    trace: Trace, layer: int, lens: WordLens | None, blocks: list[_QueryBlock]
) -> Iterator[_ComputedBlock]:
    """Fill the buffer of each block with a layer's attention weights, and yield the block and its entropies.

    The entropy of each row is in nats; the entropies have shape [head, row].
    """
    has_plain_scores = trace.masks is not None and trace.masks[layer] is None and not trace.softcap(layer)
    if lens is not None or not has_plain_scores:
        attention = trace.attention(layer)
        merged: torch.Tensor = tensor_view(attention if lens is None else lens.merge(attention))
        for block in blocks:
            weights = block.buffer.within.copy_(merged[:, block.queries])
            yield block, torch.special.entr(weights).sum(dim=-1)
        return
    queries, keys = _operands(trace, layer, blocks[0].buffer.margin)
    for block in blocks:
        buffer = block.buffer
        torch.bmm(queries[:, block.queries], keys, out=buffer.scores)
        torch.softmax(buffer.scores, dim=-1, out=buffer.weights)
        # For weights p and scores s, −Σ p log p = log Z − Σ p s, where log Z = max s − log max p.
        # This formula avoids computing the logarithm of every weight.
        log_sum = buffer.scores.amax(dim=-1) - buffer.weights.amax(dim=-1).log_()
        yield block, log_sum - buffer.scores.mul_(buffer.weights).sum(dim=-1)


def _operands(trace: Trace, layer: int, margin: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scaled queries and the transposed keys whose product is a layer's attention scores.

    Their shapes are [head, query, size + 1] and [head, size + 1, margin + key]. The keys begin with `margin`
    additional keys, which are the margin of `_AttentionBuffer`. In the additional dimension, the queries are
    1, these keys are `MASKED_SCORE`, and all other keys are 0. The product therefore also contains the scores
    of the margin, which are `MASKED_SCORE`.
    """
    assert trace.queries is not None  # present in every trace that has attention masks
    assert trace.keys is not None
    assert trace.scaling is not None
    original = tensor_view(trace.queries[layer])
    heads, length, size = original.shape
    queries = original.new_ones(heads, length, size + 1)
    torch.mul(original, trace.scaling[layer], out=queries[:, :, :size])
    keys = original.new_zeros(heads, margin + length, size + 1)
    keys[:, margin:, :size] = tensor_view(trace.keys[layer])
    keys[:, :margin, size] = MASKED_SCORE
    return queries, keys.transpose(1, 2)


def _split_queries(trace: Trace, features: _Features, count: int) -> list[_QueryBlock]:
    """Return the first ``count`` queries of a text, split into blocks of about equal size."""
    heads, length = trace.heads, features.length
    dtype = torch.from_numpy(np.empty(0, trace.dtype)).dtype
    max_size = max(1, BLOCK * torch.get_num_threads() // (heads * length))
    size = -(-count // -(-count // max_size))
    margin = min(size - 1, LANES)
    margin += -(margin + length) % LANES
    buffers = {
        rows: _AttentionBuffer(heads, rows, length, margin, dtype) for rows in {size, count % size} - {0}
    }
    blocks = []
    for first in range(0, count, size):
        queries = slice(first, min(first + size, count))
        buffer = buffers[queries.stop - first]
        pairs = {}
        for name, group in features.groups.items():
            is_counted = group[queries, None] == group
            np.fill_diagonal(is_counted[:, first:], False)
            row, key = is_counted.nonzero()
            if len(row):
                pairs[name] = torch.from_numpy(row * buffer.width + buffer.margin + key)
        blocks.append(_QueryBlock(queries, buffer, pairs))
    return blocks


def _features(trace: Trace, lens: WordLens | None) -> _Features:
    words = word_lens(trace).units
    units: Sequence[Token | Unit] = trace.tokens if lens is None else words
    token_counts = [len(word.positions) for word in words] if lens is None else 1
    segment = np.array([unit.segment for unit in units])
    keys = {
        "first": np.arange(len(units)) == 0,
        "separator": np.array([unit.special and unit.position > 0 for unit in units]),
        "punctuation": np.array([is_punctuation(unit) for unit in units]),
    }
    groups = {
        "same_word": np.repeat(np.arange(len(words)), token_counts),
        "same_token": np.unique([str(unit) for unit in units], return_inverse=True)[1],
    }
    ends = [0, *(np.flatnonzero(np.diff(segment)) + 1).tolist(), len(units)]
    segments = [
        (slice(first, after), torch.from_numpy(segment != segment[first]).double())
        for first, after in pairwise(ends)
    ]
    key_masks = {name: torch.from_numpy(is_counted).double() for name, is_counted in keys.items()}
    return _Features(len(units), trace.is_causal, key_masks, groups, segments)


def is_punctuation(unit: Token | Unit) -> bool:
    """Return whether a token or word is punctuation.

    As in BERT's tokenizer, ASCII symbols and the Unicode category P are punctuation.
    """
    text = str(unit).removeprefix("##").strip("▁Ġ ")
    return bool(text) and not unit.special and all(map(_is_sign, text))


def _is_sign(character: str) -> bool:
    if character.isascii():
        return character.isprintable() and not character.isalnum() and character != " "
    return unicodedata.category(character).startswith("P")


SPECIALIZED_SHARES = tuple(share for share in SHARES if share not in ("first", "separator"))
"""Attention shares for which `first_look` selects heads; the shares of attention sinks are excluded."""

MAX_QUERIES = 64
"""Maximum number of queries that `first_look` measures, so that long texts open quickly.

The first queries of the text are measured.
"""

MAX_TOKENS = 1024
"""Maximum number of tokens of a text for which `first_look` measures heads.

With some attention masks, the attention of all queries must be computed even if only a few are measured.
"""


@dataclass(frozen=True)
class FirstLook:
    """The attention head to show first, with the reason.

    Attributes:
        layer, head: indices from 0. They are the last layer and "mean" if no head stands out, if rows of
            attention do not sum to 1, or if the text has more than `MAX_TOKENS` tokens.
        measure: the share by which the head stands out, one of `SPECIALIZED_SHARES`; "" if no head does.
        share: value of the share in ``measure``, 0 to 1, averaged over the queries.
        queries: number of queries measured; 0 if no head stands out.
        is_complete: whether all tokens of the text were measured as queries; True if no head stands out.
    """

    layer: int
    head: Head
    measure: str = ""
    share: float = 0.0
    queries: int = 0
    is_complete: bool = True

    @property
    def nbytes(self) -> int:
        """Approximate size in bytes, used by the cache."""
        return 64

    @property
    def reason(self) -> str:
        """Reason for showing the head, as a predicate such as "puts 60% of its attention on …".

        "" if no head stands out.
        """
        if not self.measure:
            return ""
        queries = "" if self.is_complete else f" (mean over the first {self.queries} tokens)"
        return f"puts {100 * self.share:.0f}% of its attention on {SHARE_TARGETS[self.measure]}{queries}"


def first_look(trace: Trace) -> FirstLook:
    """Return the attention head that stands out most on a text.

    Candidates are the heads whose largest share is one of `SPECIALIZED_SHARES` and at least `LABEL_SHARE`.
    From the share of each candidate, the mean of the same share over all heads of the model is subtracted.
    The candidate with the largest difference is returned; in a tie, the first one.

    Raises:
        OutOfMemoryError: see `Heads.of`.
    """
    best = FirstLook(trace.layers - 1, "mean")
    if trace.caveat or len(trace.tokens) > MAX_TOKENS:
        return best  # Attention shares are meaningless if rows do not sum to 1.
    values = measure_heads(trace, None, MAX_QUERIES)
    queries = min(MAX_QUERIES, len(trace.tokens))
    means = {name: values[name].mean() for name in SPECIALIZED_SHARES}
    largest_excess = 0.0
    for layer in range(trace.layers):
        for head in range(trace.heads):
            name = max(SHARES, key=lambda share: values[share][layer, head])
            share = float(values[name][layer, head])
            if name in means and share >= LABEL_SHARE and share - means[name] > largest_excess:
                best = FirstLook(layer, head, name, share, queries, queries == len(trace.tokens))
                largest_excess = share - means[name]
    return best
