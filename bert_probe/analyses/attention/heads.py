"""What each head does on a text: where its attention goes, in numbers and, past a threshold, in a word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from bert_probe.analyses.attention.attention import WORDS
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
"""A head is labelled by its largest share if that is at least this."""
BROAD_ENTROPY = 0.85
"""Without such a share it is called broad if its entropy is at least this part of the uniform row's."""

Labels = tuple[tuple[str, ...], ...]
"""[layer][head], a word for what stands out in a head, or ""."""


@question("heads")
class Heads(Question):
    """Profiles of all heads: measures of where each one's attention goes, averaged over the queries.

    Most of them are those of Clark et al. 2019, sections 3 and 4; see `measure_heads`.

    Attributes:
        words: merge pieces into words first: attention summed over keys, averaged over queries.
    """

    inputs = OneTrace()

    words: bool = param(Flag(), default=False, about=WORDS)

    def of(self, trace: Trace) -> HeadsResult:
        """The profiles on a text.

        Raises:
            OutOfMemoryError: a layer's attention needs more memory than is free.
        """
        values = measure_heads(trace, word_lens(trace) if self.words else None)
        # Half of a row is not one half where rows do not sum to 1.
        labels = (("",) * trace.heads,) * trace.layers if trace.caveat else head_labels(values)
        return HeadsResult(self, InputRecord.of(trace), values, labels)


@dataclass(frozen=True, eq=False, repr=False)
class HeadsResult(Result):
    """Measures of every head of a model on one text.

    Attributes:
        values: name of a measure → float64 [layer, head]; names, units and ranges as in `measure_heads`.
        labels: [layer][head], a word for what stands out, or ""; none for attention whose rows do not sum
            to 1, of which the measures are no shares.
    """

    question: Heads
    values: Mapping[str, Array]
    labels: Labels

    def __post_init__(self) -> None:
        check_grid(self.labels, self.values)

    def frame(self) -> pd.DataFrame:
        """A row for each head: layer, head, the measures, label."""
        return frames.by_head(self.values, self.labels)


def head_labels(values: Mapping[str, Array]) -> Labels:
    """A word for what stands out in each head's measures, [layer, head] each; see `LABEL_SHARE`."""
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
    """Refuse measures that are not [layer, head] as the labels are.

    Raises:
        ShapeError: one of them is not.
    """
    wanted = (len(labels), len(labels[0]))
    for values in measured:
        for name, value in values.items():
            if value.shape != wanted:
                raise ShapeError(
                    f"{name} has shape {value.shape}; [{wanted[0]} layers, {wanted[1]} heads] is needed."
                )
