"""Measures of every head for a padded batch at once: what `analyses.head_measures` gives text by text.

Weights are 0 wherever a query or a key is padding, so that padding adds nothing to any sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from bert_probe.analyses.attention.head_measures import MEASURES, SHARES
from bert_probe.corpus.batch_attention import Layer, blocks
from bert_probe.corpus.units import Units
from bert_probe.model.trace import Array

FEATURES = ("mean_distance", *SHARES)
"""Measures that are sums of weights, each times what its query and key have to do with one another."""


@dataclass(frozen=True, eq=False)
class HeadBatch:
    """What the heads do in each text of a batch.

    Attributes:
        measures: the `MEASURES` in their order, float64 [measure, text, layer, head].
        keys: which key each query attends to most, from 0, the first of equal ones, int32 [text, layer,
            head, query]; 0 beyond a text's end. None unless asked for.
        weights: how much attention that key gets, as `keys`.
    """

    measures: Array
    keys: Array | None = None
    weights: Array | None = None


@torch.inference_mode()
def read_heads(layers: Sequence[Layer], units: Units, strongest: bool = False) -> HeadBatch:
    """Measure all heads in all texts of a batch.

    Args:
        layers: of one pass over the batch, all on one device.
        units: of its texts: tokens, or words, into which their tokens are merged first.
        strongest: find what each query attends to most as well.

    Raises:
        ArchitectureError: weights of a model that hides q and k do not sum to 1 over a text's own keys.
    """
    shown = layers[0] if isinstance(layers[0], torch.Tensor) else layers[0].query
    shape = (len(units.lengths), len(layers), shown.shape[1])
    sums = np.zeros((len(MEASURES), *shape))
    keys = weights = None
    if strongest:
        keys = np.zeros((*shape, units.longest), np.int32)
        weights = np.zeros(keys.shape, np.float64 if shown.dtype == torch.float64 else np.float32)
    for block in blocks(layers[0], units):
        pairs = features(block.units, block.rows, block.dtype)
        for number, layer in enumerate(layers):
            attended = block.attention(layer)
            sums[:, block.texts, number] += _sums(attended, pairs).cpu().numpy()
            if keys is not None and weights is not None:
                weight, key = attended.max(dim=-1)
                at = (block.texts, number, slice(None), block.rows)
                keys[at], weights[at] = key.cpu().numpy(), weight.cpu().numpy()
    return HeadBatch(_means(sums, units.lengths.numpy()), keys, weights)


def _sums(weights: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """Of each measure, what `_means` makes it of: a sum over the queries, [measure, text, head]."""
    flat = weights.flatten(2)
    sums = dict(zip(FEATURES, torch.bmm(flat, features.transpose(1, 2)).unbind(2), strict=True))
    # A weight of 0 counts 0, and its logarithm must not be infinite for that.
    logarithms = flat.clamp_min(torch.finfo(flat.dtype).tiny).log_()
    sums["entropy_bits"] = logarithms.mul_(flat).sum(dim=2).neg_()
    apart = torch.sub(flat, flat.mean(dim=1, keepdim=True), out=logarithms).abs_()
    sums["difference_from_mean"] = apart.sum(dim=2)
    sums["relative_entropy"] = sums["entropy_bits"]
    return torch.stack([sums[name] for name in MEASURES])


def _means(sums: Array, lengths: Array) -> Array:
    """Sums over the queries as the measures that they make, in place."""
    sums /= lengths[:, None, None]
    bits = np.log2(np.maximum(lengths, 2))
    sums[MEASURES.index("entropy_bits")] /= np.log(2)
    sums[MEASURES.index("relative_entropy")] /= np.log(2) * bits[:, None, None]
    sums[MEASURES.index("difference_from_mean")] /= 2
    return sums


def features(units: Units, queries: slice, dtype: torch.dtype) -> torch.Tensor:
    """The `FEATURES` of every pair, [text, feature, query × key]; beyond a text's end anything finite."""
    place = torch.arange(units.longest, device=units.names.device)
    step = place - place[queries, None]
    other = step != 0

    def alike(column: torch.Tensor) -> torch.Tensor:
        return column[:, queries, None] == column[:, None, :]

    found = {
        "mean_distance": step.abs(),
        "self": ~other,
        "previous": step == -1,
        "next": step == 1,
        "first": place == 0,
        "separator": units.separators[:, None, :],
        "punctuation": units.signs[:, None, :],
        "other_segment": ~alike(units.segments),
        "same_word": alike(units.words) & other,
        "same_token": alike(units.names) & other,
    }
    pairs = torch.empty(len(units.names), len(FEATURES), *step.shape, dtype=dtype, device=place.device)
    for number, name in enumerate(FEATURES):
        pairs[:, number] = found[name]
    return pairs.flatten(2)
