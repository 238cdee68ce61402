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
    keys, pairs = _features(trace, lens)
    length = len(trace.tokens if lens is None else lens.units)
    # Two matrices for all layers: taking new memory for each costs more than the arithmetic.
    room = torch.empty(2, trace.heads, length, length)
    rows = [_layer_profile(trace, layer, lens, keys, pairs, room) for layer in range(trace.layers)]
    stacked = np.stack(rows, axis=1)
    values = dict(zip(MEASURES, (read_only(measure) for measure in stacked), strict=True))
    return HeadProfiles(values, head_labels(values), words)


def _layer_profile(
    trace: Trace,
    layer: int,
    lens: WordLens | None,
    keys: dict[str, torch.Tensor],
    pairs: dict[str, torch.Tensor],
    room: torch.Tensor,
) -> Array:
    """All measures of a layer's heads, float64 [measure, head]; ``room`` is overwritten."""
    weights, entropy = _weights_and_entropy(trace, layer, lens, room)
    heads, length, _ = weights.shape
    # What a share asks of the key alone is linear in the columns' sums, the rest in the whole matrix.
    received, flat = weights.sum(dim=1), weights.reshape(heads, -1)
    found = {name: received @ chosen for name, chosen in keys.items()}
    found |= {name: flat @ chosen for name, chosen in pairs.items()}
    zero = torch.zeros(heads)
    found = {name: found.get(name, zero).double() / length for name in ("mean_distance", *SHARES)}
    found["entropy_bits"] = entropy.mean(dim=-1).double() / np.log(2)
    found["relative_entropy"] = found["entropy_bits"] / (np.log2(length) if length > 1 else 1.0)
    torch.sub(weights, weights.mean(dim=0, keepdim=True), out=room[1])
    difference = room[1].abs_().sum(dim=-1).mean(dim=-1)
    found["difference_from_mean"] = difference.double() / 2
    return np.stack([found[name].numpy() for name in MEASURES])


def _weights_and_entropy(
    trace: Trace, layer: int, lens: WordLens | None, room: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention [head, query, key] and the entropy of its rows in nats, [head, query]."""
    if lens is not None or trace.masks is None or trace.masks[layer] is not None:
        given = trace.attention(layer)
        merged: torch.Tensor = from_dlpack(given if lens is None else lens.merge(given))
        return merged, torch.special.entr(merged).sum(dim=-1)
    assert trace.queries is not None  # they come with masks
    assert trace.keys is not None
    assert trace.scaling is not None
    query, key = from_dlpack(trace.queries[layer]), from_dlpack(trace.keys[layer])
    scores = torch.matmul(query, key.transpose(-1, -2), out=room[1]).mul_(trace.scaling[layer])
    weights = torch.softmax(scores, dim=-1, out=room[0])
    # −Σ p log p = log Z − Σ p s, and log Z = max s − log max p: no logarithm of every weight.
    log_sum = scores.amax(dim=-1) - weights.amax(dim=-1).log_()
    return weights, log_sum - torch.linalg.vecdot(weights, scores)


def _features(trace: Trace, lens: WordLens | None) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What the distance and the `SHARES` count: of each key [key], and of each query and key [query × key].

    A share that this text has no pair for is left out.
    """
    units: Sequence[Unit] = word_lens(trace).units
    if lens is None:
        units = [Unit(str(token), (token.position,), token.segment, token.special) for token in trace.tokens]
    place = np.arange(len(units))
    step = place[None, :] - place[:, None]
    segment = np.array([unit.segment for unit in units])
    word = _word_numbers(trace) if lens is None else place
    identity = np.unique([str(unit) for unit in units], return_inverse=True)[1]
    other = step != 0
    keys = {
        "first": place == 0,
        "separator": np.array([unit.special and unit.position > 0 for unit in units]),
        "punctuation": np.array([_is_punctuation(unit) for unit in units]),
    }
    pairs = {
        "mean_distance": np.abs(step),
        "self": step == 0,
        "previous": step == -1,
        "next": step == 1,
        "other_segment": segment[None, :] != segment[:, None],
        "same_word": (word[None, :] == word[:, None]) & other,
        "same_token": (identity[None, :] == identity[:, None]) & other,
    }
    return _tensors(keys), _tensors({name: chosen.ravel() for name, chosen in pairs.items() if chosen.any()})


def _tensors(arrays: dict[str, Array]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array.astype(np.float32)) for name, array in arrays.items()}


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
