"""Highlights: the most unusual values measured on a text, ranked against the reference sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import urlencode

import numpy as np
import pandas as pd

from bert_probe.analyses.highlights.types import (
    Grid,
    HighlightCandidate,
    HighlightContext,
    HighlightType,
    Picture,
    highlight_types,
)
from bert_probe.analyses.vectors.similarity import baseline_sentences
from bert_probe.core.inputs import OneOrTwoTraces
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, question
from bert_probe.core.result import Result
from bert_probe.core.snippets import url_parameters
from bert_probe.errors import TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress, no_progress, step_progress
from bert_probe.model.trace import Array, Trace, read_only

# Limits of the reported highlights; see the docstring of `Highlights`
HIGH_PERCENTILE, MAX_HIGHLIGHTS = 75.0, 8
MIDDLE_PERCENTILE, FEW_HIGHLIGHTS = 50.0, 5
MIN_HIGHLIGHTS = 2
MAX_PER_TYPE = 2


@question("highlights", command="overview")
class Highlights(Question):
    """The most unusual values measured on a text, ranked by percentile among the reference sentences.

    Each highlight is a measured value. Its percentile is the percentage of the reference sentences that have
    a smaller value in the same model. Up to `MAX_HIGHLIGHTS` highlights whose percentile is at least
    `HIGH_PERCENTILE` are reported. If fewer than `FEW_HIGHLIGHTS` highlights reach this percentile, up to
    `FEW_HIGHLIGHTS` whose percentile is at least `MIDDLE_PERCENTILE` are reported. At least the
    `MIN_HIGHLIGHTS` most unusual highlights are reported, even if their percentiles are lower.
    """

    inputs = OneOrTwoTraces()

    def of(
        self,
        trace: Trace,
        other: Trace | None = None,
        numbers: ReferenceNumbers | None = None,
        progress: Progress = no_progress,
    ) -> HighlightsResult:
        """Return the highlights of a text, or of two separate texts and their comparison.

        Args:
            trace: the text, or a sentence pair.
            other: a second text; cannot be combined with a sentence pair.
            numbers: the values of the reference sentences; see `measure_references_for`. If None, the
                reference sentences are measured.
            progress: called with the number of reference sentences done and the total.

        Raises:
            TextError: two texts are given and one of them is a sentence pair.
            UnavailableError: the trace was made from attention weights alone, without a model.
        """
        result = find_highlights(trace, other)
        return result.ranked(measure_references_for(trace, other, progress) if numbers is None else numbers)


@dataclass(frozen=True, eq=False)
class Highlight:
    """A value measured on a text, with the sentence that states it and its rank among reference sentences.

    Attributes:
        kind: the type of the highlight.
        value: the measured value.
        said: the sentence that states the value.
        page, choices: name and URL parameters, without the texts, of the page that shows the highlight.
        picture: content of the thumbnail.
        clear: whether the value is worth reporting.
        below: number of reference sentences with a smaller value.
        of: number of reference sentences for which the value is defined; 0 if the reference sentences were
            not measured.
        among: number of reference sentences on which the value was measured.
        excess: value minus the median of the reference values, divided by their maximum minus their median.
    """

    kind: HighlightType
    value: float
    said: str
    page: str
    choices: Mapping[str, str]
    picture: Picture
    clear: bool
    below: int = 0
    of: int = 0
    among: int = 0
    excess: float = 0.0

    @classmethod
    def from_candidate(
        cls, highlight_type: HighlightType, candidate: HighlightCandidate, text_name: str = ""
    ) -> Highlight:
        """Return the highlight of a candidate. Unlike a candidate, a highlight keeps no trace in memory.

        Args:
            highlight_type: the type that measured the candidate.
            candidate: the measured value and the sentence that states it.
            text_name: "A" or "B" if two texts are given and the value belongs to one of them; otherwise "".
        """
        sentence = f"{text_name}: {candidate.sentence}" if text_name else candidate.sentence
        choices = {**candidate.choices, **({"of": "b"} if text_name == "B" else {})}
        return cls(
            highlight_type,
            candidate.value,
            sentence,
            candidate.page,
            choices,
            candidate.picture(),
            candidate.clear,
        )

    @property
    def percentile(self) -> float:
        """Percentage of the reference sentences with a smaller value, 0 to 100.

        NaN if the reference sentences were not measured.
        """
        return 100 * self.below / self.of if self.of else float("nan")

    @property
    def place(self) -> str:
        """A sentence that compares the value with the reference sentences; "" if they were not measured."""
        if not self.of:
            return ""
        sentences = "pairs of reference sentences" if self.kind.texts == 2 else "reference sentences"
        sentences += " for which the value is defined" if self.of < self.among else ""
        if self.below == self.of:
            return f"Higher than in all {self.of} {sentences}."
        if self.below == 0:
            return f"Not higher than in any of the {self.of} {sentences}."
        return f"Higher than in {self.below} of the {self.of} {sentences}."

    @property
    def statement(self) -> str:
        """The sentence that states the value, followed by the comparison with the reference sentences."""
        return f"{self.said} {self.place}".rstrip()

    def with_reference(self, numbers: ReferenceNumbers) -> Highlight:
        """Return the highlight with its rank filled in, computed from the values of reference sentences."""
        values, value = numbers.numbers.get(self.kind.measure), self.value
        if values is None or not len(values):
            return self
        median, maximum = float(np.median(values)), float(values[-1])
        above = value - median
        excess = above / (maximum - median) if maximum > median else np.inf if above > 0 else 0.0
        among = min(numbers.sentences, self.kind.sentences or numbers.sentences)
        below = int(np.searchsorted(values, value))
        return replace(self, below=below, of=len(values), among=among, excess=excess)


@dataclass(frozen=True, eq=False, repr=False)
class HighlightsResult(Result):
    """The highlights of one or two texts.

    Attributes:
        candidates: all measured values, in the order of the highlight types.
        tokens: lengths of the shortest and of the longest reference sentence, in tokens; None before ranking.
    """

    question: Highlights
    candidates: tuple[Highlight, ...]
    tokens: tuple[int, int] | None = None

    @property
    def findings(self) -> tuple[Highlight, ...]:
        """The highlights to report, most unusual first; see `Highlights`."""
        clear = [candidate for candidate in self.candidates if candidate.clear]
        if self.tokens is None:
            return tuple(_without_repetition(clear))[:MAX_HIGHLIGHTS]
        # Highlights without a percentile come last.
        clear.sort(
            key=lambda highlight: (
                highlight.of == 0,
                -highlight.percentile if highlight.of else 1.0,
                -highlight.excess,
            )
        )
        ordered = _without_repetition(clear)
        limits = (
            (HIGH_PERCENTILE, MAX_HIGHLIGHTS),
            (MIDDLE_PERCENTILE, FEW_HIGHLIGHTS),
            (0.0, MIN_HIGHLIGHTS),
        )
        selections: list[list[Highlight]] = [
            [highlight for highlight in ordered if not highlight.percentile < percentile][:maximum]
            for percentile, maximum in limits
        ]
        if len(selections[0]) >= FEW_HIGHLIGHTS:
            return tuple(selections[0])
        return tuple(sorted(selections, key=len)[-1])

    def ranked(self, numbers: ReferenceNumbers) -> HighlightsResult:
        """Return the result with all highlights ranked against the values of the reference sentences."""
        return replace(
            self,
            candidates=tuple(candidate.with_reference(numbers) for candidate in self.candidates),
            tokens=numbers.tokens,
        )

    def link(self, finding: Highlight) -> str:
        """Return the app URL of the view that shows a highlight.

        The URL is "" if the model or text exists only in memory.
        """
        texts = url_parameters(self.inputs)
        return "" if texts is None else f"/{finding.page}?{urlencode({**texts, **finding.choices})}"

    @property
    def nbytes(self) -> int:
        """Approximate size in bytes, including the thumbnails."""
        grids = [
            candidate.picture.cells.nbytes
            for candidate in self.candidates
            if isinstance(candidate.picture, Grid)
        ]
        return super().nbytes + sum(grids)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Lengths of the shortest and of the longest reference sentence, in tokens."""
        return {} if self.tokens is None else {"tokens_of_shipped_sentences": [*self.tokens]}

    def frame(self) -> pd.DataFrame:
        """Return a table with a row for each highlight.

        Columns: rank, kind, statement, measure, value, percentile, link.
        """
        highlights = self.findings
        return pd.DataFrame(
            {
                "rank": range(1, len(highlights) + 1),
                "kind": [highlight.kind.name for highlight in highlights],
                "statement": [highlight.statement for highlight in highlights],
                "measure": [highlight.kind.measure for highlight in highlights],
                "value": [float(highlight.value) for highlight in highlights],
                "percentile": [highlight.percentile for highlight in highlights],
                "link": [self.link(highlight) for highlight in highlights],
            }
        )


def find_highlights(trace: Trace, other: Trace | None = None, quick: bool = False) -> HighlightsResult:
    """Return the highlights of one or two texts, without comparing them with the reference sentences.

    Args:
        trace: the text, or a sentence pair.
        other: a second text; cannot be combined with a sentence pair.
        quick: skip the highlight types that run the model again.

    Raises:
        TextError: two texts are given and one of them is a sentence pair.
    """
    traces = [trace] if other is None else [trace, other]
    if other is not None and any(trace.encoding.pair is not None for trace in traces):
        raise TextError(
            "A sentence pair cannot be compared with another text. "
            "Pass one sentence pair, or two single texts."
        )
    contexts = [HighlightContext(trace) for trace in traces]
    candidates: list[Highlight] = []
    for highlight_type in highlight_types(2) if other is not None else ():
        if quick and highlight_type.sentences:
            continue
        candidate = highlight_type.find(*contexts)
        if candidate is not None:
            candidates.append(Highlight.from_candidate(highlight_type, candidate))
    for highlight_type in highlight_types(1):
        if (highlight_type.single_text_only and other is not None) or (quick and highlight_type.sentences):
            continue
        by_text = [
            (candidate, name)
            for context, name in zip(contexts, "AB", strict=False)
            if (candidate := highlight_type.find(context))
        ]
        if by_text:
            # Report the text with the larger value, or A in a tie.
            candidate, name = max(by_text, key=lambda item: (item[0].clear, item[0].value))
            name = "" if other is None else name
            candidates.append(Highlight.from_candidate(highlight_type, candidate, name))
    return HighlightsResult(Highlights(), InputRecord.of(*traces), tuple(candidates))


def measure_references_for(
    trace: Trace, other: Trace | None = None, progress: Progress = no_progress
) -> ReferenceNumbers:
    """Measure the reference sentences in each form that is needed to rank the highlights of the input.

    A text pair needs pairs of reference sentences, and a single text needs single sentences. Two separate
    texts need single sentences and two separate sentences; see `ReferenceForm`.

    Raises:
        UnavailableError: the trace was made from attention weights alone, without a model; see also
            `measure_references`.
        OutOfMemoryError: see `measure_references`.
    """
    required = reference_forms(trace, other)
    measured = [
        measure_references(trace.checkpoint, form, step_progress(progress, number, len(required)))
        for number, form in enumerate(required)
    ]
    return measured[0] if len(measured) == 1 else measured[0] | measured[1]


def reference_forms(trace: Trace, other: Trace | None = None) -> Sequence[ReferenceForm]:
    """Return the forms in which the reference sentences must be encoded to rank one or two texts."""
    if trace.encoding.pair is not None:
        return ["pair"]
    return ["text"] if other is None else ["text", "two texts"]


def _without_repetition(highlights: Sequence[Highlight]) -> list[Highlight]:
    """Return the highlights without repetition, in the same order.

    Of the highlights with the same type name, the first `MAX_PER_TYPE` are kept; of the highlights about the
    same attention head, the first is kept.
    """
    result: list[Highlight] = []
    for highlight in highlights:
        same_type = sum(previous.kind.name == highlight.kind.name for previous in result)
        heads = [previous.choices for previous in result if "head" in previous.choices]
        if same_type < MAX_PER_TYPE and highlight.choices not in heads:
            result.append(highlight)
    return result


_BATCH_SIZE = 8  # number of sentences whose traces are in memory at the same time

ReferenceForm = Literal["text", "pair", "two texts"]
"""How each reference sentence is encoded.

"text" encodes the sentence alone, "pair" as a pair with the next sentence, and "two texts" encodes the
sentence and the next sentence separately, for a comparison.
"""


@dataclass(frozen=True, eq=False)
class ReferenceNumbers:
    """Values of all highlight types, measured on the reference sentences.

    Attributes:
        sentences: number of reference sentences.
        numbers: mapping from the ``measure`` of each highlight type to its values in ascending order, float64
            of shape [sentence]. Sentences without a value are left out.
        tokens: lengths of the shortest and of the longest reference sentence, in tokens.
    """

    sentences: int
    numbers: Mapping[str, Array]
    tokens: tuple[int, int]

    def __or__(self, other: ReferenceNumbers) -> ReferenceNumbers:
        """Merge the values of two sets of highlight types that do not overlap."""
        return ReferenceNumbers(self.sentences, {**self.numbers, **other.numbers}, self.tokens)

    @property
    def nbytes(self) -> int:
        """Size of all values in bytes."""
        return sum(values.nbytes for values in self.numbers.values())


def measure_references(
    checkpoint: Checkpoint, form: ReferenceForm, progress: Progress = no_progress
) -> ReferenceNumbers:
    """Measure all highlight types on the reference sentences, encoded in the given form.

    Args:
        checkpoint: the model.
        form: how the sentences are encoded; see `ReferenceForm`.
        progress: called with the number of sentences done and the total.

    Raises:
        OutOfMemoryError: a forward pass needs more memory than is available.
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
    """Yield the trace of each reference sentence or, for "two texts", of each sentence and the next sentence.

    The last sentence is followed by the first sentence.
    """
    sentences = baseline_sentences()
    following = (*sentences[1:], sentences[0])
    for start in range(0, len(sentences), _BATCH_SIZE):
        batch = slice(start, start + _BATCH_SIZE)
        pairs: Sequence[str | None] = following[batch] if form == "pair" else [None] * len(sentences[batch])
        # Reference sentences are truncated, because some may have more tokens than the model accepts.
        traces = checkpoint.traces([*zip(sentences[batch], pairs, strict=True)], truncate=True)
        if form != "two texts":
            yield from ((trace,) for trace in traces)
        else:
            yield from zip(traces, checkpoint.traces(following[batch], truncate=True), strict=True)
