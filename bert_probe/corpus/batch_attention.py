"""Attention weights of a padded batch, by blocks: several short texts, or a few queries of a long one.

Weights are [text, head, query, key], and 0 wherever the query or the key is padding.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bert_probe.analyses.head_measures import NEVER
from bert_probe.corpus.units import Units
from bert_probe.errors import ArchitectureError
from bert_probe.model.capture import AttentionCall

Layer = AttentionCall | torch.Tensor
"""What a layer's attention was given; of a model that hides this, its weights [text, head, query, key]."""

BLOCK = 2**18
"""Weights that a thread works on at once: few enough to stay near it in the cache."""
DEVICE_BLOCK = 2**24
"""The same for a graphics processor, which has no use for small pieces."""


class Block:
    """Some texts of a batch, or some queries of one of its texts; all layers share what is made for it.

    Args:
        texts: which texts of the batch.
        queries: which of their tokens are queries; of words all pieces or none.
        tokens, words: of these texts; words None where tokens are measured.
        like: a tensor of the model's, for its type and device.

    Attributes:
        texts: as given.
        units: what is measured, tokens or words.
        rows: which of the units are queries.
        dtype: in which is computed, float64 or float32.
    """

    def __init__(
        self, texts: slice, queries: slice, tokens: Units, words: Units | None, like: torch.Tensor
    ) -> None:
        self.texts, self.rows = texts, queries
        self.dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        self._queries, self._length = queries, tokens.longest
        inside = tokens.inside
        self._inside = None if inside is None else inside.to(like.device)
        self._biases: dict[int, torch.Tensor | None] = {}
        self._merging: tuple[torch.Tensor, torch.Tensor] | None = None
        if words is not None:
            belongs = tokens.belongs(words.longest)
            own = tokens.words[:, queries]
            self.rows = slice(int(own[:, 0].min()), int(own.max()) + 1)
            keys = belongs.to(like.device, self.dtype)
            means = keys / keys.sum(dim=1, keepdim=True).clamp_min_(1)
            self._merging = keys, means[:, queries, self.rows].transpose(1, 2)
        self.units = (tokens if words is None else words).to(like.device)

    def attention(self, layer: Layer) -> torch.Tensor:
        """A layer's weights [text, head, query, key], of tokens or, as `WordLens.merge` merges, of words.

        Raises:
            ArchitectureError: weights that were given do not sum to 1 over a text's own keys.
        """
        weights = self._given(layer) if isinstance(layer, torch.Tensor) else self._computed(layer)
        if self._merging is None:
            return weights
        keys, queries = self._merging
        return torch.matmul(queries[:, None], torch.matmul(weights, keys[:, None]))

    def _computed(self, call: AttentionCall) -> torch.Tensor:
        """softmax(q·kᵀ × scaling + mask), as `Trace.attention` has it of one text."""
        query = call.query[self.texts, :, self._queries].to(self.dtype)
        key = call.key[self.texts, :, : self._length].to(self.dtype)
        texts, heads, count, size = query.shape
        scaled = torch.mul(query, call.scaling, out=query.new_empty(query.shape))
        # Heads that share their keys are as many rows of one product.
        grouped = scaled.view(texts * key.shape[1], -1, size)
        scores = torch.bmm(grouped, key.flatten(0, 1).transpose(1, 2)).view(texts, heads, count, -1)
        if (bias := self._bias(call.mask)) is not None:
            scores += bias
        weights = torch.softmax(scores, dim=-1, out=scores)
        if self._inside is not None:
            weights *= self._inside[:, None, self._queries, None]
        return weights

    def _bias(self, mask: torch.Tensor | None) -> torch.Tensor | None:
        """What is added to the scores, [text, 1 or head, query or 1, key]; None where that is nothing.

        All of it is finite, so that a padded query, which may see no key at all, makes no NaN. Layers
        usually share one mask.
        """
        if id(mask) not in self._biases:
            self._biases[id(mask)] = self._made_bias(mask)
        return self._biases[id(mask)]

    def _made_bias(self, mask: torch.Tensor | None) -> torch.Tensor | None:
        bias = torch.zeros((), dtype=self.dtype, device=self.units.names.device)
        if mask is not None:
            part = mask[self.texts if len(mask) > 1 else slice(None), ..., : self._length]
            part = part if part.shape[2] == 1 else part[:, :, self._queries]
            is_bool = part.dtype == torch.bool
            bias = torch.where(part, bias, NEVER) if is_bool else part.to(self.dtype).clamp_min(NEVER)
        if self._inside is not None:
            bias = torch.where(self._inside[:, None, None], bias, NEVER)
        return bias if bool(bias.any()) else None

    def _given(self, shown: torch.Tensor) -> torch.Tensor:
        weights = shown[self.texts, :, self._queries, : self._length].to(self.dtype)
        sums = weights.new_ones(())
        if self._inside is not None:
            rows, keys = self._inside[:, None, self._queries], self._inside[:, None, None]
            weights, sums = weights.masked_fill(~(rows[..., None] & keys), 0), rows.to(self.dtype)
        off = float((weights.sum(dim=-1) - sums).abs().max())
        if not off <= max(1e-4, 16 * torch.finfo(shown.dtype).eps):
            # Approximations of attention come under the same name, but are no distribution over the keys.
            raise ArchitectureError(
                f"This model has attention rows that do not sum to 1 for these texts (off by {off:.2g}), "
                "so they are not measured. Try shorter texts or another model."
            )
        return weights


def blocks(layer: Layer, tokens: Units, words: Units | None) -> Iterator[Block]:
    """A batch in parts, to be worked on one after the other.

    Args:
        layer: one of the model's.
        tokens: of the batch.
        words: merges pieces into words; None leaves tokens.
    """
    like = layer if isinstance(layer, torch.Tensor) else layer.query
    most = BLOCK * torch.get_num_threads() if like.device.type == "cpu" else DEVICE_BLOCK
    most //= like.shape[1]
    lengths = tokens.lengths.tolist()
    first = 0
    while first < len(lengths):
        after, longest = first + 1, lengths[first]
        while after < len(lengths) and (after + 1 - first) * max(longest, lengths[after]) ** 2 <= most:
            longest = max(longest, lengths[after])
            after += 1
        texts = slice(first, after)
        own, merged = tokens.part(texts), None if words is None else words.part(texts)
        for queries in _cuts(own, merged is not None, max(1, most // ((after - first) * longest))):
            yield Block(texts, queries, own, merged, like)
        first = after


def _cuts(tokens: Units, at_words: bool, most: int) -> Iterator[slice]:
    """So many queries at a time; of several texts, for which there is room, all at once."""
    if most >= tokens.longest:
        yield slice(0, tokens.longest)
        return
    place = torch.arange(tokens.longest)
    ends = (tokens.words[0].diff().nonzero()[:, 0] + 1 if at_words else place[1:]).tolist()
    first = 0
    for end, following in zip(ends, [*ends[1:], tokens.longest], strict=True):
        if following - first > most:
            yield slice(first, end)
            first = end
    yield slice(first, tokens.longest)
