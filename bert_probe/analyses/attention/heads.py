"""Profiles of attention heads: measures of where each head's attention goes, and a label for each head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from bert_probe.analyses.attention.attention import WORDS_HELP
from bert_probe.analyses.attention.head_measures import SHARES, measure_heads
from bert_probe.core import frames
from bert_probe.core.field_types import Flag
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError
from bert_probe.model.trace import Array, Trace
from bert_probe.text.words import word_lens

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
"""Minimum share of attention on a target for which a head is labeled."""
BROAD_ENTROPY = 0.85
"""Minimum relative entropy of a head labeled "broad"."""

Labels = tuple[tuple[str, ...], ...]
"""Label of each head, [layer][head]; "" for a head without a label."""


@question("heads")
class Heads(Question):
    """Profiles of all heads: measures of where each head's attention goes, averaged over the queries.

    Most measures are those of Clark et al. 2019, sections 3 and 4; see `measure_heads`.

    Attributes:
        words: merge subword tokens into words first: sum over keys, mean over queries.
    """

    inputs = OneTrace()

    words: bool = param(Flag(), default=False, about=WORDS_HELP)

    def of(self, trace: Trace) -> HeadsResult:
        """Return the profiles of all heads on a text.

        Raises:
            OutOfMemoryError: a layer's attention needs more memory than is free.
        """
        values = measure_heads(trace, word_lens(trace) if self.words else None)
        # Shares have no meaning where rows do not sum to 1.
        labels = (("",) * trace.heads,) * trace.layers if trace.caveat else head_labels(values)
        return HeadsResult(self, InputRecord.of(trace), values, labels)


@dataclass(frozen=True, eq=False, repr=False)
class HeadsResult(Result):
    """Measures of every head of a model on one text.

    Attributes:
        values: name of a measure → float64 [layer, head]; names, units and ranges as in `measure_heads`.
        labels: label of each head, [layer][head], see `head_labels`; all "" for external attention whose rows
            do not sum to 1.
    """

    question: Heads
    values: Mapping[str, Array]
    labels: Labels

    def __post_init__(self) -> None:
        check_grid(self.labels, self.values)

    def frame(self) -> pd.DataFrame:
        """Return a row for each head: layer, head, the measures, label."""
        return frames.by_head(self.values, self.labels)


def head_labels(values: Mapping[str, Array]) -> Labels:
    """Return a label for each head from its measures, [layer, head] each.

    A head is labeled by its largest share if this is at least `LABEL_SHARE`, else "broad" if its relative
    entropy is at least `BROAD_ENTROPY`, else "".
    """
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


def check_grid(labels: Labels, *measured: Mapping[str, Array]) -> None:
    """Check that all measures have the [layer, head] shape of the labels.

    Raises:
        ShapeError: a measure has a different shape.
    """
    shape = (len(labels), len(labels[0]))
    for values in measured:
        for name, value in values.items():
            if value.shape != shape:
                raise ShapeError(
                    f"{name} has shape {value.shape}, but must be [{shape[0]} layers, {shape[1]} heads]."
                )
