"""How well each method foretells what taking words away does, over many texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.attribution.attribution import BASELINE, REMOVAL
from bert_probe.analyses.attribution.faithfulness import AttributionFaithfulness
from bert_probe.analyses.attribution.methods import BASELINES, methods
from bert_probe.analyses.outputs.target import WITHOUT
from bert_probe.core.field_types import Choice, FieldType, Flag, Number, Optional
from bert_probe.core.inputs import SentenceList
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ProbeError
from bert_probe.model.checkpoint import COMPARING, TASKS, Checkpoint
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, read_only
from bert_probe.text.sentence_files import numbered

MEASURES = ("comprehensiveness", "sufficiency", "foretold")
RANDOM = "random"
PAIRED = "\t"
"""Stands between a text and the second one in a line."""


@question("why, means", command="faithfulness-summary")
class FaithfulnessSummary(Question):
    """The mean of `AttributionFaithfulness` over texts; in each, the likeliest answer is explained.

    Attributes:
        task, target, words, removal, baseline, orders, seed: as in `AttributionFaithfulness`.
    """

    inputs = SentenceList()

    task: str | None = param(Optional(Choice(TASKS)), default=None, about="What the model is asked.")
    target: str | None = param(
        Optional(FieldType()),
        default=None,
        about="Which class, label or word; of answers in a text the rank.",
    )
    words: bool = param(Flag(), default=False, about="Score whole words instead of pieces.")
    removal: str | None = param(Optional(Choice(WITHOUT)), default=None, about=REMOVAL)
    baseline: str | None = param(Optional(Choice(BASELINES)), default=None, about=BASELINE)
    orders: int = param(Number(1, 1000), default=20, about="Number of random orders.  [default: 20]")
    seed: int = param(Number(0), default=0, about="Seed of the random orders.  [default: 0]")

    def of(
        self,
        checkpoint: Checkpoint,
        sentences: Sequence[str],
        truncate: bool = False,
        report: Progress = no_progress,
    ) -> FaithfulnessSummaryResult:
        """The means over texts, each of which counts the same.

        Args:
            sentences: one an entry; where two texts are asked about, both with a tab between.
            truncate: cut texts that are too long instead of refusing them.
            report: told how many texts are done, and of how many.

        Raises:
            EmptyTextError, TooLongError, TextError, SelectionError: no text, or one that cannot be explained,
                by its line.
            UnavailableError, OutOfMemoryError: as `AttributionFaithfulness.of`.
        """
        lines = numbered(sentences, "text")
        checkpoint = checkpoint.now()
        checked = AttributionFaithfulness(
            self.task,
            self.target,
            None,
            self.words,
            self.removal,
            self.baseline,
            self.orders,
            self.seed,
        )
        rows: list[Mapping[str, tuple[float, ...]]] = []
        dropped = 0
        for number, line in lines:
            report(len(rows), len(lines))
            try:
                found, cut = self._checked(checked, checkpoint, line, truncate)
            except ProbeError as error:
                raise type(error)(f"Line {number}: {error}") from None
            rows.append(found)
            dropped += cut
        report(len(lines), len(lines))
        values = np.array([[row.get(name, (np.nan,) * len(MEASURES)) for name in _rows()] for row in rows])
        subject = InputRecord.of_sentences(checkpoint, [line for _, line in lines], dropped)
        return FaithfulnessSummaryResult(self, subject, read_only(values))

    def _checked(
        self, asked_for: AttributionFaithfulness, checkpoint: Checkpoint, line: str, truncate: bool
    ) -> tuple[Mapping[str, tuple[float, ...]], int]:
        """Each method's measures for one line, and how many tokens were cut off."""
        first, tab, second = line.partition(PAIRED)
        apart = (self.task or next(iter(checkpoint.tasks), None)) == COMPARING
        pair = second if tab else None
        if apart and pair is not None:
            traces = [checkpoint.trace(text, truncate=truncate) for text in (first, pair)]
        else:
            traces = [checkpoint.trace(first, pair, truncate)]
        found = asked_for.of(traces[0], traces[1] if apart and tab else None)
        measures = {name: (*found.effects[name], found.foretold(name)) for name in found.explanations}
        measures[RANDOM] = (*found.random.mean(axis=0), np.nan)
        return measures, sum(trace.encoding.dropped for trace in traces)


def _rows() -> tuple[str, ...]:
    return (*methods(), RANDOM)


@dataclass(frozen=True, eq=False, repr=False)
class FaithfulnessSummaryResult(Result):
    """The check of each method over many texts.

    Attributes:
        values: float64 [text, method, measure], in the order of `methods`, random orders last, and of
            `MEASURES`; NaN where a method or its rank correlation is not to be had.
    """

    question: FaithfulnessSummary
    values: Array

    @property
    def means(self) -> Array:
        """Over the texts that have a value, [method, measure]; NaN where none has."""
        counts = (~np.isnan(self.values)).sum(axis=0)
        means: Array = np.divide(
            np.nansum(self.values, axis=0), counts, out=np.full(counts.shape, np.nan), where=counts > 0
        )
        return means

    def frame(self) -> pd.DataFrame:
        """A row for each method, random orders last: method, the `MEASURES`, and of how many texts."""
        table: dict[str, Any] = {"method": _rows()}
        table |= dict(zip(MEASURES, self.means.T, strict=True))
        return pd.DataFrame(table | {"texts": (~np.isnan(self.values[..., 0])).sum(axis=0)})
