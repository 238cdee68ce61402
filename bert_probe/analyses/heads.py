"""What each head does on a text: where its attention goes, in numbers and, past a threshold, in a word."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from bert_probe.errors import SelectionError
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
"""A head is labelled by its largest share if that is at least this."""
BROAD_ENTROPY = 0.85
"""Without such a share it is called broad if its entropy is at least this part of the uniform row's."""

BLOCK = 2**18
"""Weights that `head_profiles` works on at once."""


@dataclass(frozen=True, eq=False)
class HeadProfiles:
    """Measures of every head of a model on one text, averaged over the queries.

    Attributes:
        values: name of a measure → float64 [layer, head]:
            entropy_bits: −Σ p log₂ p of a row; relative_entropy: divided by log₂ of the row's length.
            mean_distance: Σ p · |query − key|, in tokens (or words).
            the `SHARES`: attention that falls on such keys, 0 to 1; a query without one counts 0.
            difference_from_mean: total variation, ½ Σ |p − p̄|, to the mean over the layer's heads.
        labels: [layer][head], a word for what stands out, or "".
        words: whether pieces were merged into words.
    """

    values: dict[str, Array]
    labels: tuple[tuple[str, ...], ...]
    words: bool

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.labels)

    @property
    def heads(self) -> int:
        """Heads in a layer."""
        return len(self.labels[0])


def head_profiles(trace: Trace, words: bool = False) -> HeadProfiles:
    """Profile every head; Clark et al. 2019, sections 3 and 4, for most of the measures.

    Args:
        words: merge pieces into words first (see `WordLens.merge`).
    """
    lens = word_lens(trace) if words else None
    features = _features(trace, lens)
    layers = [_layer_profile(trace, layer, lens, features) for layer in range(trace.layers)]
    stacked = np.stack(layers, axis=1)
    values = dict(zip(MEASURES, (read_only(measure) for measure in stacked), strict=True))
    return HeadProfiles(values, head_labels(values), words)


@dataclass(frozen=True, eq=False)
class _Features:
    """What the measures count. Where no pair of the text has one, `pairs` leaves it out.

    Attributes:
        keys: name of a share → 1 or 0 for each key, float32 [key].
        pairs: name of a measure → what a weight counts, float32 [query, key].
        segments: 1 where a token is of a segment, float32 [segment, token].
    """

    keys: dict[str, torch.Tensor]
    pairs: dict[str, torch.Tensor]
    segments: torch.Tensor


def _layer_profile(trace: Trace, layer: int, lens: WordLens | None, features: _Features) -> Array:
    """All measures of a layer's heads, float64 [measure, head]."""
    segments, length = features.segments.shape
    sums = {name: torch.zeros(trace.heads) for name in MEASURES}
    # What each key receives from each segment: enough for a share that asks nothing else of the query.
    received = torch.zeros(trace.heads, segments, length)
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
    return _Features(
        {name: _tensor(chosen) for name, chosen in keys.items()},
        {name: _tensor(counted) for name, counted in pairs.items() if counted.any()},
        _tensor(np.unique(segment)[:, None] == segment),
    )


def _tensor(array: Array) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.float32))


def _is_punctuation(unit: Token | Unit) -> bool:
    """Punctuation as BERT's tokenizer sees it: ASCII signs, and Unicode's category P."""
    text = str(unit).removeprefix("##").strip("▁Ġ ")
    return bool(text) and not unit.special and all(map(_is_sign, text))


def _is_sign(character: str) -> bool:
    if character.isascii():
        return character.isprintable() and not character.isalnum() and character != " "
    return unicodedata.category(character).startswith("P")


def head_labels(values: dict[str, Array]) -> tuple[tuple[str, ...], ...]:
    """A word for what stands out in each head's measures, or "", [layer][head]; see `LABEL_SHARE`."""
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


@dataclass(frozen=True)
class Found:
    """How much a head attends from one word to another.

    Attributes:
        layer, head: from 0.
        weight: attention from the query word to the key word, mean over the pairs asked for.
        rank: place of the key word in the query word's row, 1 for the largest; mean over the pairs.
    """

    layer: int
    head: int
    weight: float
    rank: float


def find_heads(trace: Trace, pairs: Sequence[tuple[Unit, Unit]]) -> list[Found]:
    """All heads, those that attend most from each pair's query word to its key word first.

    Args:
        pairs: (query, key) words of this trace, see `find_word`; several are averaged.

    Raises:
        SelectionError: no pair.
    """
    if not pairs:
        raise SelectionError("No pair of words is given. Choose a query and a key.")
    lens = word_lens(trace)
    place = {unit.positions: index for index, unit in enumerate(lens.units)}
    found = []
    for layer in range(trace.layers):
        merged = lens.merge(trace.attention(layer))
        weights, ranks = [], []
        for query, key in pairs:
            rows = merged[:, place[query.positions]]
            weight = rows[:, place[key.positions]]
            weights.append(weight)
            ranks.append(1 + (rows > weight[:, None]).sum(axis=1))
        mean: Array = np.asarray(np.mean(weights, axis=0, dtype=np.float64))
        rank: Array = np.asarray(np.mean(ranks, axis=0))
        found += [Found(layer, head, float(mean[head]), float(rank[head])) for head in range(trace.heads)]
    return sorted(found, key=lambda one: (-one.weight, one.layer, one.head))
