"""Attention weights of a padded batch, by blocks: several short texts, or a few queries of a long one.

Weights are [text, head, query, key], and 0 wherever the query or the key is padding.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bert_probe.analyses.attention.head_measures import NEVER
from bert_probe.corpus.units import Units
from bert_probe.errors import ArchitectureError
from bert_probe.model.capture import AttentionCall

Layer = AttentionCall | torch.Tensor
"""What a layer's attention was given; of a model that hides this, its weights [text, head, query, key]."""

BLOCK = 2**18
"""Weights that a thread works on at once: few enough to stay near it in the cache."""
DEVICE_BLOCK = 2**24
"""The same for a graphics processor, which has no use for small pieces."""


class AttentionBlock:
    """Some texts of a batch, or some queries of one of its texts; all layers share what is made for it.

    Args:
        texts: which texts of the batch.
        queries, rows: which of their tokens are queries, and which of their units these make.
        units: of these texts.
        like: a tensor of the model's, for its type and device.

    Attributes:
        texts, rows: as given.
        units: where the model is.
        dtype: in which is computed, float64 or float32.
    """

    def __init__(self, texts: slice, queries: slice, rows: slice, units: Units, like: torch.Tensor) -> None:
        self.texts, self.rows, self.units = texts, rows, units.to(like.device)
        self.dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        self._queries = queries
        ends = units.pieces.cumsum(dim=1)
        self._length = int(ends.max())
        place = torch.arange(self._length)
        inside = place < ends[:, -1:]
        self._inside = None if bool(inside.all()) else inside.to(like.device)
        self._biases: dict[int, torch.Tensor | None] = {}
        self._merging: tuple[torch.Tensor, torch.Tensor] | None = None
        if bool((units.pieces > 1).any()):
            after, first = ends[:, None], (ends - units.pieces)[:, None]
            belongs = (first <= place[:, None]) & (place[:, None] < after)
            sums = belongs.to(like.device, self.dtype)
            means = sums / sums.sum(dim=1, keepdim=True).clamp_min_(1)
            self._merging = sums, means[:, queries, rows].transpose(1, 2)

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


def blocks(layer: Layer, units: Units) -> Iterator[AttentionBlock]:
    """A batch in parts, to be worked on one after the other.

    Args:
        layer: one of the model's.
        units: of the batch.
    """
    like = layer if isinstance(layer, torch.Tensor) else layer.query
    most = BLOCK * torch.get_num_threads() if like.device.type == "cpu" else DEVICE_BLOCK
    most //= like.shape[1]
    lengths = units.pieces.sum(dim=1).tolist()
    first = 0
    while first < len(lengths):
        after, longest = first + 1, lengths[first]
        while after < len(lengths) and (after + 1 - first) * max(longest, lengths[after]) ** 2 <= most:
            longest = max(longest, lengths[after])
            after += 1
        texts = slice(first, after)
        part = units.part(texts)
        whole = longest**2 <= most
        cuts = [(slice(0, longest), slice(0, part.longest))] if whole else _cuts(part, most // longest)
        for queries, rows in cuts:
            yield AttentionBlock(texts, queries, rows, part, like)
        first = after


def _cuts(units: Units, most: int) -> Iterator[tuple[slice, slice]]:
    """So many queries of one text at a time, no unit in parts: which tokens, and which units they make."""
    ends = [0, *units.pieces[0].cumsum(dim=0).tolist()]
    first = 0
    for unit in range(1, len(ends)):
        if unit + 1 == len(ends) or ends[unit + 1] - ends[first] > most:
            yield slice(ends[first], ends[unit]), slice(first, unit)
            first = unit
