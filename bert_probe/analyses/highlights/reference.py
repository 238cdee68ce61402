"""Reference values: the values of all highlight types, measured on the reference sentences.

The reference sentences are short English sentences on unrelated subjects, also used by `SimilarityBaseline`.
A value that is higher than nearly all reference values is unusual among such sentences. It may be common in
other kinds of text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bert_probe.analyses.highlights.types import HighlightContext, highlight_types
from bert_probe.analyses.vectors.similarity_baseline import baseline_sentences
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace, read_only

_BATCH_SIZE = 8  # number of traces in memory at a time

ReferenceForm = Literal["text", "pair", "two texts"]
"""How the reference sentences are read: alone, paired with the next sentence, or compared with it."""


@dataclass(frozen=True, eq=False)
class ReferenceNumbers:
    """Values of the highlight types on the reference sentences.

    Attributes:
        sentences: number of reference sentences.
        numbers: ``measure`` of a highlight type → its values, float64 [sentence], ascending; sentences
            without a value are left out.
        tokens: lengths of the shortest and the longest reference sentence.
    """

    sentences: int
    numbers: Mapping[str, Array]
    tokens: tuple[int, int]

    def __or__(self, other: ReferenceNumbers) -> ReferenceNumbers:
        """Return the union of two sets of values."""
        return ReferenceNumbers(self.sentences, {**self.numbers, **other.numbers}, self.tokens)

    @property
    def nbytes(self) -> int:
        """Size of the values in bytes."""
        return sum(values.nbytes for values in self.numbers.values())


def measure_references(
    checkpoint: Checkpoint, form: ReferenceForm, progress: Progress = no_progress
) -> ReferenceNumbers:
    """Measure all highlight types on the reference sentences, read in one form.

    Args:
        checkpoint: the model.
        form: how the sentences are read; see `ReferenceForm`.
        progress: called with the number of sentences done and the total.

    Raises:
        OutOfMemoryError: a forward pass needs more memory than is free.
        UnavailableError: the model in memory changes during the computation.
    """
    checkpoint = checkpoint.snapshot()
    sentences = baseline_sentences()
    types = highlight_types(2 if form == "two texts" else 1)
    numbers: dict[str, list[float]] = {highlight_type.measure: [] for highlight_type in types}
    lengths: list[int] = []
    for number, traces in enumerate(_traces(checkpoint, form)):
        progress(number, len(sentences))
        contexts = [HighlightContext(trace) for trace in traces]
        lengths.append(len(traces[0].tokens))
        for highlight_type in types:
            if highlight_type.sentences is None or number < highlight_type.sentences:
                candidate = highlight_type.find(*contexts)
                if candidate is not None:
                    numbers[highlight_type.measure].append(candidate.value)
    progress(len(sentences), len(sentences))
    ordered = {measure: read_only(np.sort(np.array(values))) for measure, values in numbers.items()}
    return ReferenceNumbers(len(sentences), ordered, (min(lengths), max(lengths)))


def _traces(checkpoint: Checkpoint, form: ReferenceForm) -> Iterator[tuple[Trace, ...]]:
    """Yield the trace of each sentence or, for two texts, of each sentence and the next one (cyclically)."""
    sentences = baseline_sentences()
    following = (*sentences[1:], sentences[0])
    for start in range(0, len(sentences), _BATCH_SIZE):
        batch = slice(start, start + _BATCH_SIZE)
        pairs: Sequence[str | None] = following[batch] if form == "pair" else [None] * len(sentences[batch])
        # A sentence may have more tokens than the model accepts.
        traces = checkpoint.traces([*zip(sentences[batch], pairs, strict=True)], truncate=True)
        if form != "two texts":
            yield from ((trace,) for trace in traces)
        else:
            yield from zip(traces, checkpoint.traces(following[batch], truncate=True), strict=True)
