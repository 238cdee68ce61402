"""What each head does on a text: where its attention goes, in numbers and, past a threshold, in a word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bert_probe.analyses.head_measures import SHARES, measure_heads
from bert_probe.errors import SelectionError
from bert_probe.model.trace import Array, Trace
from bert_probe.text.words import Unit, word_lens

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
        values: name of a measure → float64 [layer, head], see `measure_heads`.
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
    """Profile every head.

    Args:
        words: merge pieces into words first (see `WordLens.merge`).
    """
    values = measure_heads(trace, word_lens(trace) if words else None)
    return HeadProfiles(values, head_labels(values), words)


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
