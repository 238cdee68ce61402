"""What is usual in a model: the numbers of all findings on the sentences shipped with the package.

They are short English sentences on unrelated subjects, the same that `SimilarityBaseline` uses. A number of
another text that is higher than nearly all of theirs is unusual among such sentences; it says nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bert_probe.analyses.highlights.types import HighlightContext, kinds
from bert_probe.analyses.vectors.similarity_baseline import baseline_sentences
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace, read_only

_AT_ONCE = 8
"""Sentences whose traces are held at once."""

Form = Literal["text", "pair", "two texts"]
"""What is measured: sentences one by one; each with the next one as its pair; each beside the next one."""


@dataclass(frozen=True, eq=False)
class ReferenceNumbers:
    """Numbers of the shipped sentences.

    Attributes:
        sentences: how many there are.
        numbers: what was measured → float64 [sentence], in rising order; fewer where a sentence has none.
        tokens: of the shortest of the sentences and of the longest.
    """

    sentences: int
    numbers: Mapping[str, Array]
    tokens: tuple[int, int]

    def __or__(self, other: ReferenceNumbers) -> ReferenceNumbers:
        """Both."""
        return ReferenceNumbers(self.sentences, {**self.numbers, **other.numbers}, self.tokens)

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers."""
        return sum(values.nbytes for values in self.numbers.values())


def usual(checkpoint: Checkpoint, form: Form, report: Progress = no_progress) -> ReferenceNumbers:
    """The numbers that the findings of one text, of a pair, or of two texts have in a model.

    Args:
        report: told how many sentences are done, and of how many.

    Raises:
        OutOfMemoryError: the machine is too small.
        UnavailableError: a model in memory that changes meanwhile.
    """
    checkpoint = checkpoint.now()
    sentences = baseline_sentences()
    measured = kinds(2 if form == "two texts" else 1)
    numbers: dict[str, list[float]] = {kind.measure: [] for kind in measured}
    lengths: list[int] = []
    for number, traces in enumerate(_traces(checkpoint, form)):
        report(number, len(sentences))
        seen = [HighlightContext(trace) for trace in traces]
        lengths.append(len(traces[0].tokens))
        for kind in measured:
            if kind.sentences is None or number < kind.sentences:
                found = kind.of(*seen)
                numbers[kind.measure] += [] if found is None else [found.value]
    report(len(sentences), len(sentences))
    ordered = {measure: read_only(np.sort(np.array(values))) for measure, values in numbers.items()}
    return ReferenceNumbers(len(sentences), ordered, (min(lengths), max(lengths)))


def _traces(checkpoint: Checkpoint, form: Form) -> Iterator[tuple[Trace, ...]]:
    """For each sentence what is measured; the last one is followed by the first."""
    sentences = baseline_sentences()
    following = (*sentences[1:], sentences[0])
    for start in range(0, len(sentences), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        pairs: Sequence[str | None] = following[part] if form == "pair" else [None] * len(sentences[part])
        # Cut: a model may read fewer tokens than the sentences have.
        traces = checkpoint.traces([*zip(sentences[part], pairs, strict=True)], truncate=True)
        if form != "two texts":
            yield from ((trace,) for trace in traces)
        else:
            yield from zip(traces, checkpoint.traces(following[part], truncate=True), strict=True)
