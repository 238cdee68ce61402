"""What of a text is most worth a look: findings of all kinds, the most unusual ones first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pandas as pd

from bert_probe.analyses.highlights.reference import Form, ReferenceNumbers, usual
from bert_probe.analyses.highlights.thumbnails import Grid, Picture
from bert_probe.analyses.highlights.types import HighlightCandidate, HighlightContext, HighlightType, kinds
from bert_probe.core.inputs import OneOrTwoTraces
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, question
from bert_probe.core.result import Result
from bert_probe.core.snippets import url_parameters
from bert_probe.errors import TextError
from bert_probe.model.progress import Progress, no_progress, part_of
from bert_probe.model.trace import Trace

UNUSUAL, MIDDLE = 75.0, 50.0
"""Percentiles from which on a number is unusual, or not below what is usual."""
MOST, FEW, LEAST = 8, 5, 2
"""So many findings are told at most; up to so many also of the upper half; so many whatever they are."""
OF_A_KIND = 2
"""Findings of one kind that are told."""


@question("overview")
class Highlights(Question):
    """What of a text is most worth a look, ranked by how unusual it is among the shipped sentences.

    Every kind of finding is a number. Its percentile is the share of the shipped sentences, read by the
    same model, that have a smaller one. Told are at most `MOST` from the `UNUSUAL` percentile on; where these
    are fewer than `FEW`, up to so many from the `MIDDLE` on; and the first `LEAST` whatever they are.
    """

    inputs = OneOrTwoTraces()

    def of(
        self,
        trace: Trace,
        other: Trace | None = None,
        numbers: ReferenceNumbers | None = None,
        report: Progress = no_progress,
    ) -> HighlightsResult:
        """The findings of a text, or of two that were read by themselves, and of the two together.

        Args:
            numbers: those that are usual in the same model, see `usual_of`, where they are at hand.
            report: told how many of the shipped sentences are done, and of how many.

        Raises:
            TextError: a pair beside another text.
            UnavailableError: attention that no model made has no usual numbers.
        """
        found = look(trace, other)
        return found.ranked(usual_of(trace, other, report) if numbers is None else numbers)


@dataclass(frozen=True, eq=False)
class Highlight:
    """One thing that is worth a look.

    Attributes:
        kind: what kind it is of, and what its number is.
        value: the number.
        said: the sentence that says it.
        page, choices: where it is to be seen: the name of a page, and parameters of its address beside
            those of the texts.
        picture: the small picture.
        clear: whether it is worth the sentence at all.
        below: of so many shipped sentences the number is smaller; of: so many have the number at all, 0
            where it was not measured; among: of so many that were looked at.
        beyond: how far the number is above their median, the distance from there to their largest being 1.
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
    beyond: float = 0.0

    @classmethod
    def made(cls, kind: HighlightType, found: HighlightCandidate, which: str = "") -> Highlight:
        """What was found, without the trace that it was found in.

        Args:
            which: "A" or "B", where two texts were asked about and it is of one of them.
        """
        said = f"{which}: {found.said}" if which else found.said
        choices = {**found.choices, **({"of": "b"} if which == "B" else {})}
        return cls(kind, found.value, said, found.page, choices, found.picture(), found.clear)

    @property
    def percentile(self) -> float:
        """Share of the shipped sentences with a smaller number, 0 to 100; NaN where none was measured."""
        return 100 * self.below / self.of if self.of else float("nan")

    @property
    def place(self) -> str:
        """How unusual it is, as a sentence that counts; "" where nothing is known of it."""
        what = "pairs of shipped sentences" if self.kind.texts == 2 else "shipped sentences"
        if not self.of:
            return ""
        having = f"{self.of} {what}{' that have such a number' if self.of < self.among else ''}"
        if self.below == self.of:
            return f"More than in all {having}."
        return f"More than in {self.below} of {having}." if self.below else f"In none of {having} it is less."

    @property
    def statement(self) -> str:
        """Both."""
        return f"{self.said} {self.place}".rstrip()

    def measured(self, numbers: ReferenceNumbers) -> Highlight:
        """The same, beside the numbers of the shipped sentences."""
        there, value = numbers.numbers.get(self.kind.measure), self.value
        if there is None or not len(there):
            return self
        median, most = float(np.median(there)), float(there[-1])
        above = value - median
        beyond = above / (most - median) if most > median else np.inf if above > 0 else 0.0
        among = min(numbers.sentences, self.kind.sentences or numbers.sentences)
        below = int(np.searchsorted(there, value))
        return replace(self, below=below, of=len(there), among=among, beyond=beyond)


@dataclass(frozen=True, eq=False, repr=False)
class HighlightsResult(Result):
    """What of a text is most worth a look.

    Attributes:
        candidates: of each number what was found, in the order of the kinds.
        tokens: of the shortest shipped sentence and of the longest; None where nothing is ranked yet.
    """

    question: Highlights
    candidates: tuple[Highlight, ...]
    tokens: tuple[int, int] | None = None

    @property
    def findings(self) -> tuple[Highlight, ...]:
        """Those that are told, the most unusual ones first; see `Highlights`."""
        clear = [candidate for candidate in self.candidates if candidate.clear]
        if self.tokens is None:
            return tuple(_varied(clear))[:MOST]
        # What could not be measured is told after all that could.
        ordered = sorted(clear, key=lambda one: (one.of == 0, -_or_none(one.percentile), -one.beyond))
        kept = _varied(ordered)
        bounds = ((UNUSUAL, MOST), (MIDDLE, FEW), (0.0, LEAST))
        told = [[one for one in kept if not one.percentile < least][:most] for least, most in bounds]
        return tuple(sorted(told, key=len)[-1] if len(told[0]) < FEW else told[0])

    def ranked(self, numbers: ReferenceNumbers) -> HighlightsResult:
        """The same, with all findings beside the numbers of the shipped sentences."""
        return replace(
            self,
            candidates=tuple(candidate.measured(numbers) for candidate in self.candidates),
            tokens=numbers.tokens,
        )

    def link(self, finding: Highlight) -> str:
        """The address, within the app, of the view behind a finding; "" for what is in memory only."""
        texts = url_parameters(self.inputs)
        return "" if texts is None else f"/{finding.page}?{urlencode({**texts, **finding.choices})}"

    @property
    def nbytes(self) -> int:
        """Bytes of the pictures, and of the texts."""
        grids = [
            candidate.picture.cells.nbytes
            for candidate in self.candidates
            if isinstance(candidate.picture, Grid)
        ]
        return super().nbytes + sum(grids)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What was compared with: shipped sentences and their tokens."""
        return {} if self.tokens is None else {"tokens_of_shipped_sentences": [*self.tokens]}

    def frame(self) -> pd.DataFrame:
        """A row for each finding: rank, kind, statement, measure, value, percentile, link."""
        found = self.findings
        return pd.DataFrame(
            {
                "rank": range(1, len(found) + 1),
                "kind": [one.kind.name for one in found],
                "statement": [one.statement for one in found],
                "measure": [one.kind.measure for one in found],
                "value": [float(one.value) for one in found],
                "percentile": [one.percentile for one in found],
                "link": [self.link(one) for one in found],
            }
        )


def look(trace: Trace, other: Trace | None = None, quick: bool = False) -> HighlightsResult:
    """All that can be found in a text, or in two, without saying how unusual it is.

    Args:
        quick: leave out what runs the model again.

    Raises:
        TextError: a pair beside another text.
    """
    traces = [trace] if other is None else [trace, other]
    if other is not None and any(trace.encoding.pair is not None for trace in traces):
        raise TextError("Two texts are each read by themselves. Give one text with its pair, or two texts.")
    seen = [HighlightContext(trace) for trace in traces]
    candidates: list[Highlight] = []
    for kind in kinds(2) if other is not None else ():
        if quick and kind.sentences:
            continue
        found = kind.of(*seen)
        candidates += [] if found is None else [Highlight.made(kind, found)]
    for kind in kinds(1):
        if (kind.alone and other is not None) or (quick and kind.sentences):
            continue
        of_each = [(one, name) for text, name in zip(seen, "AB", strict=False) if (one := kind.of(text))]
        if of_each:
            # Of two texts the one where there is more of it; as much in both is told of the first.
            found, name = max(of_each, key=lambda one: (one[0].clear, one[0].value))
            candidates.append(Highlight.made(kind, found, name if other is not None else ""))
    return HighlightsResult(Highlights(), InputRecord.of(*traces), tuple(candidates))


def usual_of(trace: Trace, other: Trace | None = None, report: Progress = no_progress) -> ReferenceNumbers:
    """What the numbers of a text, or of two, are to be compared with: the same numbers of shipped sentences.

    Raises:
        UnavailableError: no model made this trace.
    """
    wanted = forms(trace, other)
    measured = [
        usual(trace.checkpoint, form, part_of(report, number, len(wanted)))
        for number, form in enumerate(wanted)
    ]
    return measured[0] if len(measured) == 1 else measured[0] | measured[1]


def forms(trace: Trace, other: Trace | None = None) -> Sequence[Form]:
    """What is measured for a text, or for two."""
    if trace.encoding.pair is not None:
        return ["pair"]
    return ["text"] if other is None else ["text", "two texts"]


def _varied(findings: Sequence[Highlight]) -> list[Highlight]:
    """The same without what is of a kind that was told often enough, or of a head that was told of."""
    kept: list[Highlight] = []
    for finding in findings:
        alike = sum(other.kind.name == finding.kind.name for other in kept)
        heads = [other.choices for other in kept if "head" in other.choices]
        if alike < OF_A_KIND and finding.choices not in heads:
            kept.append(finding)
    return kept


def _or_none(percentile: float) -> float:
    return -1.0 if np.isnan(percentile) else percentile
