"""Compute the head measures of `analyses.attention.head_measures` for a padded batch of texts.

Attention weights are computed in blocks. A block covers several short texts, or some of the queries of one
long text. The weights have the shape [text, head, query, key], and are 0 wherever the query or the key is
padding, so that padding does not change any sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np
import torch

from bert_probe.analyses.attention.heads import (
    MASKED_SCORE,
    MEASURES,
    SHARES,
    is_punctuation,
    max_entropy_bits,
)
from bert_probe.errors import ArchitectureError
from bert_probe.model.capture import AttentionCall, limited
from bert_probe.model.encoding import Encoding
from bert_probe.model.trace import Array
from bert_probe.text.words import Unit, WordLens

LayerAttention = AttentionCall | torch.Tensor
"""Arguments of a layer's attention function, or the layer's attention weights if the model does not expose
the arguments. The weights have the shape [text, head, query, key]."""

BLOCK_WEIGHTS = 2**18
"""Maximum number of attention weights in a block, per CPU thread, so that a block fits in the CPU cache."""
DEVICE_BLOCK_WEIGHTS = 2**24
"""Maximum number of attention weights in a block on a GPU, where small blocks are slow."""

FEATURES = ("mean_distance", *SHARES)
"""Measures that are weighted sums: each attention weight is multiplied by a feature of its query and key."""


@dataclass(frozen=True, eq=False)
class HeadBatch:
    """Measures of every head in each text of a batch.

    Attributes:
        measures: values of the `MEASURES`, in this order; float64 of shape [measure, text, layer, head].
        keys: index of the key that each query attends to most, from 0; the first such key in a tie, and 0 for
            padding. int32 of shape [text, layer, head, query]; None unless requested.
        weights: attention weight between each query and its key in `keys`, with the shape of `keys`; None
            unless requested.
    """

    measures: Array
    keys: Array | None = None
    weights: Array | None = None


@torch.inference_mode()
def measure_batch(
    layers: Sequence[LayerAttention], units: Units, strongest: bool = False, is_causal: bool = False
) -> HeadBatch:
    """Measure all heads in all texts of a batch.

    Args:
        layers: the `LayerAttention` of each layer, from one forward pass over the batch, all on one device.
        units: the tokens of the texts, or the words into which tokens are merged before measuring.
        strongest: whether to return `keys` and `weights` in addition to the measures.
        is_causal: whether tokens attend only to themselves and the tokens before them.

    Raises:
        ArchitectureError: the model does not expose its queries and keys, and its attention weights do not
            sum to 1 over the tokens of a text.
    """
    first = layers[0] if isinstance(layers[0], torch.Tensor) else layers[0].query
    shape = (len(units.lengths), len(layers), first.shape[1])
    sums = np.zeros((len(MEASURES), *shape))
    keys = weights = None
    if strongest:
        keys = np.zeros((*shape, units.longest), np.int32)
        weights = np.zeros(keys.shape, np.float64 if first.dtype == torch.float64 else np.float32)
    for block in attention_blocks(layers[0], units):
        features = pair_features(block.units, block.rows, block.dtype)
        for number, layer in enumerate(layers):
            block_weights = block.attention(layer)
            sums[:, block.texts, number] += _sum_measures(block_weights, features).cpu().numpy()
            if keys is not None and weights is not None:
                max_weights, max_keys = block_weights.max(dim=-1)
                selection = (block.texts, number, slice(None), block.rows)
                keys[selection], weights[selection] = max_keys.cpu().numpy(), max_weights.cpu().numpy()
    return HeadBatch(_normalize(sums, units.lengths.numpy(), is_causal), keys, weights)


def _sum_measures(weights: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """Return the unnormalized `MEASURES`, summed over all queries, with shape [measure, text, head].

    Args:
        weights: attention weights of shape [text, head, query, key].
        features: the features that `pair_features` returns for the same queries.
    """
    flat = weights.flatten(2)
    sums = dict(zip(FEATURES, torch.bmm(flat, features.transpose(1, 2)).unbind(2), strict=True))
    # The entropy term 0 · log 0 counts as 0, so the logarithm must be finite.
    logarithms = flat.clamp_min(torch.finfo(flat.dtype).tiny).log_()
    sums["entropy_bits"] = logarithms.mul_(flat).sum(dim=2).neg_()
    differences = torch.sub(flat, flat.mean(dim=1, keepdim=True), out=logarithms).abs_()
    sums["difference_from_mean"] = differences.sum(dim=2)
    sums["relative_entropy"] = sums["entropy_bits"]
    return torch.stack([sums[name] for name in MEASURES])


def _normalize(sums: Array, lengths: Array, is_causal: bool) -> Array:
    """Normalize the sums of `_sum_measures` in place, so that they become the `MEASURES`.

    Args:
        sums: the result of `_sum_measures`.
        lengths: number of units in each text.
        is_causal: whether tokens attend only to themselves and the tokens before them.
    """
    sums /= lengths[:, None, None]
    max_bits = np.array([max_entropy_bits(int(length), int(length), is_causal) for length in lengths])
    sums[MEASURES.index("entropy_bits")] /= np.log(2)
    sums[MEASURES.index("relative_entropy")] /= np.log(2) * max_bits[:, None, None]
    sums[MEASURES.index("difference_from_mean")] /= 2
    return sums


def pair_features(units: Units, queries: slice, dtype: torch.dtype) -> torch.Tensor:
    """Return the `FEATURES` of each pair of a query and a key, with shape [text, feature, query × key].

    The values for padding are arbitrary but finite.

    Args:
        units: the units of the texts; every unit is a key.
        queries: slice that selects the units used as queries.
        dtype: dtype of the result.
    """
    position = torch.arange(units.longest, device=units.names.device)
    offset = position - position[queries, None]
    is_other = offset != 0

    def is_equal(column: torch.Tensor) -> torch.Tensor:
        return column[:, queries, None] == column[:, None, :]

    features = {
        "mean_distance": offset.abs(),
        "self": ~is_other,
        "previous": offset == -1,
        "next": offset == 1,
        "first": position == 0,
        "separator": units.separators[:, None, :],
        "punctuation": units.signs[:, None, :],
        "other_segment": ~is_equal(units.segments),
        "same_word": is_equal(units.words) & is_other,
        "same_token": is_equal(units.names) & is_other,
    }
    pairs = torch.empty(len(units.names), len(FEATURES), *offset.shape, dtype=dtype, device=position.device)
    for number, name in enumerate(FEATURES):
        pairs[:, number] = features[name]
    return pairs.flatten(2)


class AttentionBlock:
    """Some texts of a batch, or some queries of one text, whose attention weights are computed together.

    A block is used for all layers of the model: the masks and the matrices that merge tokens into words are
    computed only once.

    Args:
        texts: slice that selects the texts from the batch.
        queries: slice that selects the tokens used as queries.
        rows: slice that selects the units (tokens or words) that consist of the tokens in `queries`.
        units: the units of the texts in this block.
        like: a tensor of the model that determines dtype and device.

    Attributes:
        texts: slice that selects the texts from the batch.
        rows: slice that selects the units used as queries.
        units: the units of the texts in this block, on the model's device.
        dtype: the dtype of the computation, float64 or float32.
    """

    def __init__(self, texts: slice, queries: slice, rows: slice, units: Units, like: torch.Tensor) -> None:
        self.texts, self.rows, self.units = texts, rows, units.to(like.device)
        self.dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        self._queries = queries
        ends = units.pieces.cumsum(dim=1)
        self._length = int(ends.max())
        position = torch.arange(self._length)
        is_token = position < ends[:, -1:]
        # The token mask is None if the block has no padding.
        self._is_token = None if bool(is_token.all()) else is_token.to(like.device)
        self._biases: dict[int, torch.Tensor | None] = {}
        self._merging: tuple[torch.Tensor, torch.Tensor] | None = None
        if bool((units.pieces > 1).any()):
            after, first = ends[:, None], (ends - units.pieces)[:, None]
            belongs = (first <= position[:, None]) & (position[:, None] < after)
            sums = belongs.to(like.device, self.dtype)
            means = sums / sums.sum(dim=1, keepdim=True).clamp_min_(1)
            self._merging = sums, means[:, queries, rows].transpose(1, 2)

    def attention(self, layer: LayerAttention) -> torch.Tensor:
        """Return the attention weights of a layer in this block, with shape [text, head, query, key].

        The queries and keys are words if the units are words (see `WordLens.merge`), otherwise tokens.

        Raises:
            ArchitectureError: precomputed weights do not sum to 1 over the tokens of a text.
        """
        weights = self._checked(layer) if isinstance(layer, torch.Tensor) else self._computed(layer)
        if self._merging is None:
            return weights
        keys, queries = self._merging
        return torch.matmul(queries[:, None], torch.matmul(weights, keys[:, None]))

    def _computed(self, call: AttentionCall) -> torch.Tensor:
        """Compute the attention weights, the softmax of the scores, as `Trace.attention` does."""
        query = call.query[self.texts, :, self._queries].to(self.dtype)
        key = call.key[self.texts, :, : self._length].to(self.dtype)
        texts, heads, count, size = query.shape
        scaled = torch.mul(query, call.scaling, out=query.new_empty(query.shape))
        # In grouped-query attention, several query heads share their keys: multiply them in one product.
        grouped = scaled.view(texts * key.shape[1], -1, size)
        scores = torch.bmm(grouped, key.flatten(0, 1).transpose(1, 2)).view(texts, heads, count, -1)
        scores = limited(scores, call.softcap)
        if (bias := self._bias(call.mask)) is not None:
            scores += bias
        weights = torch.softmax(scores, dim=-1, out=scores)
        if self._is_token is not None:
            weights *= self._is_token[:, None, self._queries, None]
        return weights

    def _bias(self, mask: torch.Tensor | None) -> torch.Tensor | None:
        """Return the bias that masks and padding add to the attention scores; None if it is all 0.

        The shape is [text, 1 or head, 1 or query, key]. The bias is finite, so that a padded query whose keys
        are all masked does not give NaN. The bias is cached per mask, because most models use the same
        mask in all layers.
        """
        if id(mask) not in self._biases:
            bias = torch.zeros((), dtype=self.dtype, device=self.units.names.device)
            if mask is not None:
                mask_part = mask[self.texts if len(mask) > 1 else slice(None), ..., : self._length]
                if mask_part.shape[2] > 1:
                    mask_part = mask_part[:, :, self._queries]
                if mask_part.dtype == torch.bool:
                    bias = torch.where(mask_part, bias, MASKED_SCORE)
                else:
                    bias = mask_part.to(self.dtype).clamp_min(MASKED_SCORE)
            if self._is_token is not None:
                bias = torch.where(self._is_token[:, None, None], bias, MASKED_SCORE)
            self._biases[id(mask)] = bias if bool(bias.any()) else None
        return self._biases[id(mask)]

    def _checked(self, layer_weights: torch.Tensor) -> torch.Tensor:
        """Select this block's precomputed weights, set padding to 0, and check that rows sum to 1."""
        weights = layer_weights[self.texts, :, self._queries, : self._length].to(self.dtype)
        sums = weights.new_ones(())
        if self._is_token is not None:
            rows, keys = self._is_token[:, None, self._queries], self._is_token[:, None, None]
            weights, sums = weights.masked_fill(~(rows[..., None] & keys), 0), rows.to(self.dtype)
        deviation = float((weights.sum(dim=-1) - sums).abs().max())
        if not deviation <= max(1e-4, 4 * torch.finfo(layer_weights.dtype).eps):
            # In models with linear attention, `attentions` may contain values that are not a distribution.
            raise ArchitectureError(
                "Some attention rows of this model do not sum to 1 for these texts (off by "
                f"{deviation:.2g}), so the heads are not measured. Use shorter texts or another model."
            )
        return weights


def attention_blocks(layer: LayerAttention, units: Units) -> Iterator[AttentionBlock]:
    """Split a batch into blocks with a limited number of attention weights.

    Args:
        layer: any layer of the model.
        units: the units of the batch.
    """
    like = layer if isinstance(layer, torch.Tensor) else layer.query
    is_cpu = like.device.type == "cpu"
    max_weights = BLOCK_WEIGHTS * torch.get_num_threads() if is_cpu else DEVICE_BLOCK_WEIGHTS
    max_pairs = max_weights // like.shape[1]
    lengths = units.pieces.sum(dim=1).tolist()
    first = 0
    while first < len(lengths):
        after, longest = first + 1, lengths[first]
        while after < len(lengths) and (after + 1 - first) * max(longest, lengths[after]) ** 2 <= max_pairs:
            longest = max(longest, lengths[after])
            after += 1
        texts = slice(first, after)
        block_units = units.part(texts)
        if longest**2 <= max_pairs:
            spans = iter([(slice(0, longest), slice(0, block_units.longest))])
        else:
            spans = _query_spans(block_units, max_pairs // longest)
        for queries, rows in spans:
            yield AttentionBlock(texts, queries, rows, block_units, like)
        first = after


def _query_spans(units: Units, max_queries: int) -> Iterator[tuple[slice, slice]]:
    """Split the queries of one text into chunks of whole units with at most `max_queries` tokens.

    A unit with more than `max_queries` tokens forms a separate chunk.

    Yields:
        For each chunk, the slice of its tokens and the slice of its units.
    """
    ends = [0, *units.pieces[0].cumsum(dim=0).tolist()]
    first = 0
    for unit in range(1, len(ends)):
        if unit + 1 == len(ends) or ends[unit + 1] - ends[first] > max_queries:
            yield slice(ends[first], ends[unit]), slice(first, unit)
            first = unit


@dataclass(frozen=True, eq=False)
class Units:
    """Tokens or words ("units") of several texts.

    All tensors except `lengths` have the shape [text, unit] and are padded with 0.

    Attributes:
        lengths: number of units in each text (int64).
        names: integers that are equal for units with the same string (int64).
        words: index of the unit's word, from 0 in each text; a unit outside of words has its own index
            (int64).
        segments: 0 for the first text, 1 for the second text of a pair (int64).
        separators: whether the unit is a special token other than the first one (bool).
        signs: whether the unit is punctuation (bool).
        pieces: number of tokens in the unit, which is 1 if the unit is a token (int64).
    """

    lengths: torch.Tensor
    names: torch.Tensor
    words: torch.Tensor
    segments: torch.Tensor
    separators: torch.Tensor
    signs: torch.Tensor
    pieces: torch.Tensor

    @classmethod
    def of_tokens(cls, encodings: Sequence[Encoding]) -> Self:
        """Create one unit per token of each text."""
        tokens = [token for encoding in encodings for token in encoding.tokens]
        return cls.of_columns(
            [len(encoding) for encoding in encodings],
            _number_strings(str(token) for token in tokens),
            [-1 if token.word is None else token.word for token in tokens],
            [token.segment for token in tokens],
            [token.special for token in tokens],
            [_is_sign(str(token)) for token in tokens],
        )

    @classmethod
    def of_words(cls, lenses: Sequence[WordLens]) -> Self:
        """Create one unit per word and per special token of each text."""
        units = [unit for lens in lenses for unit in lens.units]
        return cls.of_columns(
            [len(lens.units) for lens in lenses],
            _number_strings(str(unit) for unit in units),
            [-1] * len(units),
            [unit.segment for unit in units],
            [unit.special for unit in units],
            [_is_sign(str(unit)) for unit in units],
            [len(unit.positions) for unit in units],
        )

    @classmethod
    def of_columns(
        cls,
        lengths: Sequence[int],
        names: Sequence[int] | Array,
        words: Sequence[int] | Array,
        segments: Sequence[int] | Array,
        special: Sequence[bool] | Array,
        signs: Sequence[bool] | Array,
        pieces: Sequence[int] | int = 1,
    ) -> Self:
        """Create units from columns that contain the units of all texts, one text after the other.

        Args:
            lengths: number of units of each text.
            names: integer that identifies the string of each unit, such as the token's id.
            words: index of the unit's word within its text; -1 for a unit that is not in a word.
            segments: 0 for the first text, 1 for the second text of a pair.
            special: whether the unit is a special token.
            signs: whether the unit's string consists of punctuation; ignored for special tokens.
            pieces: number of tokens in each unit.
        """
        sizes = np.asarray(lengths)
        is_unit = np.arange(sizes.max()) < sizes[:, None]
        is_first = np.zeros(len(names), dtype=bool)
        is_first[np.cumsum(sizes) - sizes] = True
        word, segment, is_special = np.asarray(words), np.asarray(segments), np.asarray(special, dtype=bool)
        starts_word = is_first | (word < 0)
        starts_word[1:] |= (word[1:] != word[:-1]) | (segment[1:] != segment[:-1])
        number = np.cumsum(starts_word)

        def padded(column: Any, dtype: type) -> torch.Tensor:
            rows: Array = np.zeros(is_unit.shape, dtype)
            rows[is_unit] = column
            return torch.from_numpy(rows)

        return cls(
            torch.from_numpy(sizes.astype(np.int64)),
            padded(names, np.int64),
            padded(number - np.repeat(number[is_first], sizes), np.int64),
            padded(segment, np.int64),
            padded(is_special & ~is_first, np.bool_),
            padded(np.asarray(signs, dtype=bool) & ~is_special, np.bool_),
            padded(pieces, np.int64),
        )

    def to(self, device: torch.device) -> Self:
        """Return a copy of the units on another device."""
        return type(self)(*(column.to(device) for column in self.__dict__.values()))

    def part(self, texts: slice) -> Self:
        """Return the units of the selected texts, padded to the longest of these texts."""
        length = int(self.lengths[texts].max())
        columns = (column[texts] for column in self.__dict__.values())
        return type(self)(*(column if column.ndim == 1 else column[:, :length] for column in columns))

    @property
    def longest(self) -> int:
        """Number of units in the longest text, to which the other texts are padded."""
        return self.names.shape[1]


def _number_strings(strings: Iterable[str]) -> list[int]:
    numbers: dict[str, int] = {}
    return [numbers.setdefault(string, len(numbers)) for string in strings]


@lru_cache(maxsize=2**16)
def _is_sign(string: str) -> bool:
    return is_punctuation(Unit(string, (0,), 0, special=False))
