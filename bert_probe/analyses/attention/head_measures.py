"""Measures of every head on one text: where its attention goes, how widely, how unlike its layer's mean."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from bert_probe.model.encoding import Token
from bert_probe.model.trace import Array, Trace, read_only
from bert_probe.text.words import Unit, WordLens, word_lens

SHARES = (
    "self",
    "previous",
    "next",
    "first",
    "separator",
    "punctuation",
    "other_segment",
    "same_word",
    "same_token",
)
"""Where attention can go, as columns of a profile. They overlap: [SEP] may also be the next token."""

MEASURES = ("entropy_bits", "mean_distance", *SHARES, "relative_entropy", "difference_from_mean")

BLOCK = 2**19
"""Weights that a thread works on at once: few enough to stay near it in the cache, yet enough to be worth a
call, at each of which the threads wait for one another."""
LANES = 64
"""Numbers that a reduction takes at a time, and what is left of a row one by one: rows are made as long as
several of these, which also leaves room for a margin."""
NEVER = -1e30
"""A score that makes no weight, in float32 either."""


@torch.inference_mode()
def measure_heads(trace: Trace, lens: WordLens | None, most: int | None = None) -> dict[str, Array]:
    """Measure every head, averaged over the queries; Clark et al. 2019, sections 3 and 4, for most of it.

    Args:
        lens: merges pieces into words first, see `WordLens.merge`; None measures tokens.
        most: so many queries, from the beginning of the text, are averaged over; None is all of them.

    Returns:
        The `MEASURES`, name → float64 [layer, head]:
            entropy_bits: −Σ p log₂ p of a row; relative_entropy: divided by log₂ of the row's length.
            mean_distance: Σ p · |query − key|, in tokens (or words).
            the `SHARES`: attention that falls on such keys, 0 to 1; a query without one counts 0.
            difference_from_mean: total variation, ½ Σ |p − p̄|, to the mean over the layer's heads.
    """
    features = _features(trace, lens)
    count = features.length if most is None else min(most, features.length)
    blocks = _blocks(trace, features, count)
    layers = [
        _layer_measures(trace.heads, _filled(trace, layer, lens, blocks), features)
        for layer in range(trace.layers)
    ]
    stacked = np.stack(layers, axis=1)
    return dict(zip(MEASURES, (read_only(measure) for measure in stacked), strict=True))


@dataclass(frozen=True, eq=False)
class _Features:
    """What the `SHARES` count in a text.

    Attributes:
        length: number of tokens, or words.
        keys: name of a share → 1 or 0 for each key, float64 [key].
        groups: name of a share → the group of each token, [token]; a query counts the others of its own.
        segments: queries of one segment that stand together, with 1 or 0 for each key of another one.
    """

    length: int
    keys: dict[str, torch.Tensor]
    groups: dict[str, Array]
    segments: list[tuple[slice, torch.Tensor]]


class _AttentionBuffer:
    """Room for the attention of a few queries, [head, row, key], used again for block after block.

    Each row begins with a margin of keys that get nothing. Read with a stride of one more than a row's
    width, the weights at one distance from their query stand in one column: what runs over the end of a
    row reads zeros of the next one's margin. So all distances are had from sums of columns.

    Attributes:
        width, margin: of a row, and of its margin.
        scores, weights: with the margin.
        within: the weights without it.
        slanted: for as many rows at a time as the margin allows, the row after the last of them, and their
            weights, [head, row, key − query], from the least of these.
        mean: the weights' mean over the heads.
    """

    def __init__(self, heads: int, rows: int, length: int, margin: int, dtype: torch.dtype) -> None:
        most = margin + 1
        self.width = width = margin + length
        self.margin = margin
        # The last row has no next one, so as many zeros follow it.
        room = torch.zeros(heads * rows * width + most - 1, dtype=dtype)
        self.weights = room[: heads * rows * width].view(heads, rows, width)
        self.within = self.weights[:, :, margin:]
        self.slanted = []
        for first in range(0, rows, most):
            after = min(first + most, rows)
            beyond = after - first - 1
            shape, strides = (heads, after - first, length + beyond), (rows * width, width + 1, 1)
            self.slanted.append((after, room.as_strided(shape, strides, first * width + margin - beyond)))
        self.scores = torch.empty_like(self.weights)
        self.mean = room.new_empty(rows, width)


@dataclass(frozen=True, eq=False)
class _QueryBlock:
    """A few queries.

    Attributes:
        queries: which.
        frame: where their attention is computed; blocks of as many queries share it.
        pairs: name of a share → the weights that it counts, as places in a head's part of the frame.
    """

    queries: slice
    frame: _AttentionBuffer
    pairs: dict[str, torch.Tensor]


_Filled = tuple[_QueryBlock, torch.Tensor]


def _layer_measures(heads: int, filled: Iterable[_Filled], features: _Features) -> Array:
    """All measures of a layer's heads, float64 [measure, head], from what `_filled` gives."""
    length, segments = features.length, features.segments
    zeros = partial(torch.zeros, dtype=torch.float64)
    sums = {name: zeros(heads) for name in MEASURES}
    # What each key receives, by the queries' segment, and what is received from a distance: enough for
    # every measure that asks nothing else of the query.
    by_key = zeros(len(segments), heads, length)
    by_step = zeros(heads, 2 * length + 1)
    count = 0
    for block, entropy in filled:
        frame, first = block.frame, block.queries.start
        count += block.queries.stop - first
        for received, (run, _) in zip(by_key, segments, strict=True):
            received += frame.within[:, max(run.start - first, 0) : max(run.stop - first, 0)].sum(dim=1)
        for after, slanted in frame.slanted:
            least = length + 1 - first - after
            by_step[:, least : least + slanted.shape[2]] += slanted.sum(dim=1)
        for name, places in block.pairs.items():
            sums[name] += frame.weights.flatten(1).index_select(1, places).sum(dim=1)
        sums["entropy_bits"] += entropy.sum(dim=1)
        # Last, as it writes over the weights.
        torch.mean(frame.weights, dim=0, out=frame.mean)
        sums["difference_from_mean"] += frame.weights.sub_(frame.mean).abs_().sum(dim=(1, 2))
    for name, chosen in features.keys.items():
        sums[name] = by_key.sum(dim=0) @ chosen
    for received, (_, other) in zip(by_key, segments, strict=True):
        sums["other_segment"] += received @ other
    sums["mean_distance"] = (by_step * torch.arange(-length, length + 1).abs()).sum(dim=1)
    for name, step in (("self", 0), ("previous", -1), ("next", 1)):
        sums[name] = by_step[:, length + step]
    means = {name: total / count for name, total in sums.items()}
    means["entropy_bits"] /= np.log(2)
    means["relative_entropy"] = means["entropy_bits"] / (np.log2(length) if length > 1 else 1.0)
    means["difference_from_mean"] /= 2
    return np.stack([means[name].numpy() for name in MEASURES])


def _filled(trace: Trace, layer: int, lens: WordLens | None, blocks: list[_QueryBlock]) -> Iterator[_Filled]:
    """Each block in turn with a layer's weights in its frame, and their entropy in nats, [head, row]."""
    if lens is not None or trace.masks is None or trace.masks[layer] is not None:
        given = trace.attention(layer)
        merged: torch.Tensor = from_dlpack(given if lens is None else lens.merge(given))
        for block in blocks:
            weights = block.frame.within.copy_(merged[:, block.queries])
            yield block, torch.special.entr(weights).sum(dim=-1)
        return
    queries, keys = _operands(trace, layer, blocks[0].frame.margin)
    for block in blocks:
        frame = block.frame
        torch.bmm(queries[:, block.queries], keys, out=frame.scores)
        torch.softmax(frame.scores, dim=-1, out=frame.weights)
        # −Σ p log p = log Z − Σ p s, and log Z = max s − log max p: no logarithm of every weight.
        log_sum = frame.scores.amax(dim=-1) - frame.weights.amax(dim=-1).log_()
        yield block, log_sum - frame.scores.mul_(frame.weights).sum(dim=-1)


def _operands(trace: Trace, layer: int, margin: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What multiplies to a layer's scores, [head, query, size + 1] and [head, size + 1, margin and key].

    One dimension more than the head's says which keys are the margin's, so that a block is one product.
    """
    assert trace.queries is not None  # they come with masks
    assert trace.keys is not None
    assert trace.scaling is not None
    given = from_dlpack(trace.queries[layer])
    heads, length, size = given.shape
    queries = given.new_ones(heads, length, size + 1)
    torch.mul(given, trace.scaling[layer], out=queries[:, :, :size])
    keys = given.new_zeros(heads, margin + length, size + 1)
    keys[:, margin:, :size] = from_dlpack(trace.keys[layer])
    keys[:, :margin, size] = NEVER
    return queries, keys.transpose(1, 2)


def _blocks(trace: Trace, features: _Features, count: int) -> list[_QueryBlock]:
    """So many queries, a few at a time, about equally many."""
    heads, length = trace.heads, features.length
    dtype = torch.from_numpy(np.empty(0, trace.dtype)).dtype
    most = max(1, BLOCK * torch.get_num_threads() // (heads * length))
    size = -(-count // -(-count // most))
    margin = min(size - 1, LANES)
    margin += -(margin + length) % LANES  # so that a row is a multiple of them
    frames = {
        rows: _AttentionBuffer(heads, rows, length, margin, dtype) for rows in {size, count % size} - {0}
    }
    blocks = []
    for first in range(0, count, size):
        queries = slice(first, min(first + size, count))
        frame = frames[queries.stop - first]
        pairs = {}
        for name, group in features.groups.items():
            alike = group[queries, None] == group
            np.fill_diagonal(alike[:, first:], False)
            row, key = alike.nonzero()
            if len(row):
                pairs[name] = torch.from_numpy(row * frame.width + frame.margin + key)
        blocks.append(_QueryBlock(queries, frame, pairs))
    return blocks


def _features(trace: Trace, lens: WordLens | None) -> _Features:
    """What the `SHARES` count in this text."""
    words = word_lens(trace).units
    units: Sequence[Token | Unit] = trace.tokens if lens is None else words
    pieces = [len(word.positions) for word in words] if lens is None else 1
    segment = np.array([unit.segment for unit in units])
    keys = {
        "first": np.arange(len(units)) == 0,
        "separator": np.array([unit.special and unit.position > 0 for unit in units]),
        "punctuation": np.array([is_punctuation(unit) for unit in units]),
    }
    groups = {
        "same_word": np.repeat(np.arange(len(words)), pieces),
        "same_token": np.unique([str(unit) for unit in units], return_inverse=True)[1],
    }
    ends = [0, *(np.flatnonzero(np.diff(segment)) + 1).tolist(), len(units)]
    segments = [
        (slice(first, after), torch.from_numpy(segment != segment[first]).double())
        for first, after in pairwise(ends)
    ]
    counted = {name: torch.from_numpy(chosen).double() for name, chosen in keys.items()}
    return _Features(len(units), counted, groups, segments)


def is_punctuation(unit: Token | Unit) -> bool:
    """Punctuation as BERT's tokenizer sees it: ASCII signs, and Unicode's category P."""
    text = str(unit).removeprefix("##").strip("▁Ġ ")
    return bool(text) and not unit.special and all(map(_is_sign, text))


def _is_sign(character: str) -> bool:
    if character.isascii():
        return character.isprintable() and not character.isalnum() and character != " "
    return unicodedata.category(character).startswith("P")
