"""Measures of every head on one text: where its attention goes, how widely, how unlike its layer's mean."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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

BLOCK = 2**18
"""Weights that `measure_heads` works on at once."""


def measure_heads(trace: Trace, lens: WordLens | None) -> dict[str, Array]:
    """Measure every head, averaged over the queries; Clark et al. 2019, sections 3 and 4, for most of it.

    Args:
        lens: merges pieces into words first, see `WordLens.merge`; None measures tokens.

    Returns:
        The `MEASURES`, name → float64 [layer, head]:
            entropy_bits: −Σ p log₂ p of a row; relative_entropy: divided by log₂ of the row's length.
            mean_distance: Σ p · |query − key|, in tokens (or words).
            the `SHARES`: attention that falls on such keys, 0 to 1; a query without one counts 0.
            difference_from_mean: total variation, ½ Σ |p − p̄|, to the mean over the layer's heads.
    """
    features = _features(trace, lens)
    layers = [_layer_measures(trace, layer, lens, features) for layer in range(trace.layers)]
    stacked = np.stack(layers, axis=1)
    return dict(zip(MEASURES, (read_only(measure) for measure in stacked), strict=True))


@dataclass(frozen=True, eq=False)
class _Features:
    """What the measures count. Where no pair of the text has one, `pairs` leaves it out.

    Attributes:
        keys: name of a share → 1 or 0 for each key, [key]; in the trace's dtype, as all of them.
        pairs: name of a measure → what a weight counts, [query, key].
        segments: 1 where a token is of a segment, [segment, token].
    """

    keys: dict[str, torch.Tensor]
    pairs: dict[str, torch.Tensor]
    segments: torch.Tensor


def _layer_measures(trace: Trace, layer: int, lens: WordLens | None, features: _Features) -> Array:
    """All measures of a layer's heads, float64 [measure, head]."""
    segments, length = features.segments.shape
    sums = {name: features.segments.new_zeros(trace.heads) for name in MEASURES}
    # What each key receives from each segment: enough for a share that asks nothing else of the query.
    received = features.segments.new_zeros(trace.heads, segments, length)
    for first, weights, entropy in _blocks(trace, layer, lens):
        after = first + weights.shape[1]
        received += features.segments[:, first:after] @ weights
        for name, counted in features.pairs.items():
            # Row by row: one long product over the block loses four digits of the distance.
            sums[name] += torch.linalg.vecdot(weights, counted[first:after]).sum(dim=-1)
        for name, step in (("self", 0), ("previous", -1), ("next", 1)):
            sums[name] += weights.diagonal(first + step, 1, 2).sum(dim=-1)
        sums["entropy_bits"] += entropy.sum(dim=-1)
        sums["difference_from_mean"] += (weights - weights.mean(dim=0)).abs_().sum(dim=(1, 2))
    for name, chosen in features.keys.items():
        sums[name] += received.sum(dim=1) @ chosen
    sums["other_segment"] += (received * (1 - features.segments)).sum(dim=(1, 2))
    means = {name: total.double() / length for name, total in sums.items()}
    means["entropy_bits"] /= np.log(2)
    means["relative_entropy"] = means["entropy_bits"] / (np.log2(length) if length > 1 else 1.0)
    means["difference_from_mean"] /= 2
    return np.stack([means[name].numpy() for name in MEASURES])


def _blocks(
    trace: Trace, layer: int, lens: WordLens | None
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """A few queries at a time: the first one, their attention [head, query, key], its entropy in nats.

    Few enough that what is made of them stays in the processor's cache.
    """
    if lens is not None or trace.masks is None or trace.masks[layer] is not None:
        given = trace.attention(layer)
        merged: torch.Tensor = from_dlpack(given if lens is None else lens.merge(given))
        for first, rows in _rows(*merged.shape[:2]):
            yield first, merged[:, rows], torch.special.entr(merged[:, rows]).sum(dim=-1)
        return
    assert trace.queries is not None  # they come with masks
    assert trace.keys is not None
    assert trace.scaling is not None
    queries = from_dlpack(trace.queries[layer]) * trace.scaling[layer]
    keys = from_dlpack(trace.keys[layer]).transpose(-1, -2)
    for first, rows in _rows(*queries.shape[:2]):
        scores = queries[:, rows] @ keys
        weights = torch.softmax(scores, dim=-1)
        # −Σ p log p = log Z − Σ p s, and log Z = max s − log max p: no logarithm of every weight.
        log_sum = scores.amax(dim=-1) - weights.amax(dim=-1).log_()
        yield first, weights, log_sum - torch.linalg.vecdot(weights, scores)


def _rows(heads: int, length: int) -> Iterator[tuple[int, slice]]:
    """Where each block begins, and its rows."""
    size = max(1, BLOCK // (heads * length))
    for first in range(0, length, size):
        yield first, slice(first, first + size)


def _features(trace: Trace, lens: WordLens | None) -> _Features:
    """What the distance and the `SHARES` count in this text."""
    words = word_lens(trace).units
    units: Sequence[Token | Unit] = trace.tokens if lens is None else words
    place = np.arange(len(units))
    step = place[None, :] - place[:, None]
    pieces = [len(word.positions) for word in words] if lens is None else 1
    word = np.repeat(np.arange(len(words)), pieces)
    identity = np.unique([str(unit) for unit in units], return_inverse=True)[1]
    segment = np.array([unit.segment for unit in units])
    other = step != 0
    keys = {
        "first": place == 0,
        "separator": np.array([unit.special and unit.position > 0 for unit in units]),
        "punctuation": np.array([_is_punctuation(unit) for unit in units]),
    }
    pairs = {
        "mean_distance": np.abs(step),
        "same_word": (word[None, :] == word[:, None]) & other,
        "same_token": (identity[None, :] == identity[:, None]) & other,
    }

    def tensor(array: Array) -> torch.Tensor:
        return torch.from_numpy(array.astype(trace.dtype))

    return _Features(
        {name: tensor(chosen) for name, chosen in keys.items()},
        {name: tensor(counted) for name, counted in pairs.items() if counted.any()},
        tensor(np.unique(segment)[:, None] == segment),
    )


def _is_punctuation(unit: Token | Unit) -> bool:
    """Punctuation as BERT's tokenizer sees it: ASCII signs, and Unicode's category P."""
    text = str(unit).removeprefix("##").strip("▁Ġ ")
    return bool(text) and not unit.special and all(map(_is_sign, text))


def _is_sign(character: str) -> bool:
    if character.isascii():
        return character.isprintable() and not character.isalnum() and character != " "
    return unicodedata.category(character).startswith("P")
