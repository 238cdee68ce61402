"""What each head does on a text: where its attention goes, in numbers and, past a threshold, in a word."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from bert_probe.errors import SelectionError
from bert_probe.trace import Array, Trace, read_only
from bert_probe.words import Unit, WordLens, word_lens

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
    keys = _key_features(trace, lens)
    features = torch.from_numpy(keys.reshape(len(keys), -1))
    rows = [_layer_profile(trace, layer, lens, features) for layer in range(trace.layers)]
    stacked = np.stack(rows, axis=1)
    values = dict(zip(MEASURES, (read_only(measure) for measure in stacked), strict=True))
    return HeadProfiles(values, _labels(values), words)


def _layer_profile(trace: Trace, layer: int, lens: WordLens | None, features: torch.Tensor) -> Array:
    """All measures of a layer's heads, float64 [measure, head]."""
    weights = trace.attention(layer)
    merged = from_dlpack(weights if lens is None else lens.merge(weights))
    heads, length, _ = merged.shape
    # Distance and shares are linear in the weights: one product gives them all.
    linear = (merged.reshape(heads, -1) @ features.T).double() / length
    entropy = torch.special.entr(merged).sum(dim=-1).mean(dim=-1).double() / np.log(2)
    relative = entropy / np.log2(length) if length > 1 else torch.zeros_like(entropy)
    mean = merged.mean(dim=0, keepdim=True)
    difference = (merged - mean).abs_().sum(dim=-1).mean(dim=-1).double() / 2
    columns = [entropy, *linear.T, relative, difference]
    return np.stack([column.numpy() for column in columns])


def _key_features(trace: Trace, lens: WordLens | None) -> Array:
    """What is linear in the weights, float32 [1 + share, query, key]: distance, then `SHARES` as 0 or 1."""
    units: Sequence[Unit] = word_lens(trace).units
    if lens is None:
        units = [Unit(str(token), (token.position,), token.segment, token.special) for token in trace.tokens]
    count = len(units)
    place = np.arange(count)
    step = place[None, :] - place[:, None]
    segment = np.array([unit.segment for unit in units])
    separator = np.array([unit.special and unit.position > 0 for unit in units])
    punctuation = np.array([_is_punctuation(unit) for unit in units])
    word = _word_numbers(trace) if lens is None else place
    identity = np.unique([str(unit) for unit in units], return_inverse=True)[1]
    other = step != 0
    shares = {
        "self": step == 0,
        "previous": step == -1,
        "next": step == 1,
        "first": np.broadcast_to(place == 0, step.shape),
        "separator": np.broadcast_to(separator, step.shape),
        "punctuation": np.broadcast_to(punctuation, step.shape),
        "other_segment": segment[None, :] != segment[:, None],
        "same_word": (word[None, :] == word[:, None]) & other,
        "same_token": (identity[None, :] == identity[:, None]) & other,
    }
    return np.stack([np.abs(step), *(shares[name] for name in SHARES)]).astype(np.float32)


def _word_numbers(trace: Trace) -> Array:
    """A number for each token, the same for the pieces of one word."""
    numbers = np.empty(len(trace.tokens), dtype=np.int64)
    for number, unit in enumerate(word_lens(trace).units):
        numbers[list(unit.positions)] = number
    return numbers


def _is_punctuation(unit: Unit) -> bool:
    """Punctuation as BERT's tokenizer sees it: ASCII signs, and Unicode's category P."""
    text = str(unit).removeprefix("##").strip("▁Ġ ")
    return bool(text) and not unit.special and all(map(_is_sign, text))


def _is_sign(character: str) -> bool:
    if character.isascii():
        return character.isprintable() and not character.isalnum() and character != " "
    return unicodedata.category(character).startswith("P")


def _labels(values: dict[str, Array]) -> tuple[tuple[str, ...], ...]:
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
