"""Faithfulness of each attribution method, averaged over many texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from bert_probe.analyses.attribution.attribution import BASELINE_HELP, REMOVAL_HELP
from bert_probe.analyses.attribution.faithfulness import AttributionFaithfulness
from bert_probe.analyses.attribution.methods import BASELINES, methods
from bert_probe.analyses.outputs.target import REMOVALS
from bert_probe.core.field_types import Choice, FieldType, Flag, Number, Optional
from bert_probe.core.inputs import SentenceList
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ProbeError
from bert_probe.model.checkpoint import SENTENCE_SIMILARITY, TASKS, Checkpoint
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, read_only
from bert_probe.text.sentence_files import with_line_numbers

MEASURES = ("comprehensiveness", "sufficiency", "foretold")
RANDOM = "random"
PAIR_SEPARATOR = "\t"
"""Separates a text from its second text in a line."""


@question("why, means", command="faithfulness-summary")
class FaithfulnessSummary(Question):
    """The mean of `AttributionFaithfulness` over texts; for each text, its most probable prediction is
    explained.

    Attributes:
        task, target, words, removal, baseline, orders, seed: as in `AttributionFaithfulness`.
    """

    inputs = SentenceList()

    task: str | None = param(Optional(Choice(TASKS)), default=None, about="The task of the output head.")
    target: str | None = param(
        Optional(FieldType()),
        default=None,
        about="The class, label or word; for answer spans the rank.",
    )
    words: bool = param(Flag(), default=False, about="Score whole words instead of tokens.")
    removal: str | None = param(Optional(Choice(REMOVALS)), default=None, about=REMOVAL_HELP)
    baseline: str | None = param(Optional(Choice(BASELINES)), default=None, about=BASELINE_HELP)
    orders: int = param(Number(1, 1000), default=20, about="Number of random orders.  [default: 20]")
    seed: int = param(Number(0), default=0, about="Seed of the random orders.  [default: 0]")

    def of(
        self,
        checkpoint: Checkpoint,
        sentences: Sequence[str],
        truncate: bool = False,
        progress: Progress = no_progress,
    ) -> FaithfulnessSummaryResult:
        """Average over texts, each with the same weight.

        Args:
            sentences: one text each; a text pair is separated by a tab.
            truncate: truncate texts that are too long instead of raising an error.
            progress: called with the number of texts done and the total.

        Raises:
            EmptyTextError, TooLongError, TextError, SelectionError: there is no text, or one that cannot be
                explained; the message names its line.
            UnavailableError, OutOfMemoryError: as `AttributionFaithfulness.of`.
        """
        lines = with_line_numbers(sentences, "text")
        checkpoint = checkpoint.snapshot()
        check = AttributionFaithfulness(
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
            progress(len(rows), len(lines))
            try:
                measures, truncated_tokens = self._measures(check, checkpoint, line, truncate)
            except ProbeError as error:
                raise type(error)(f"Line {number}: {error}") from None
            rows.append(measures)
            dropped += truncated_tokens
        progress(len(lines), len(lines))
        values = np.array(
            [[row.get(name, (np.nan,) * len(MEASURES)) for name in _row_names()] for row in rows]
        )
        inputs = InputRecord.of_sentences(checkpoint, [line for _, line in lines], dropped)
        return FaithfulnessSummaryResult(self, inputs, read_only(values))

    def _measures(
        self, check: AttributionFaithfulness, checkpoint: Checkpoint, line: str, truncate: bool
    ) -> tuple[Mapping[str, tuple[float, ...]], int]:
        """Return the measures of each method for one line, and the number of truncated tokens."""
        first, tab, second = line.partition(PAIR_SEPARATOR)
        is_similarity = (self.task or next(iter(checkpoint.tasks), None)) == SENTENCE_SIMILARITY
        pair = second if tab else None
        if is_similarity and pair is not None:
            traces = [checkpoint.trace(text, truncate=truncate) for text in (first, pair)]
        else:
            traces = [checkpoint.trace(first, pair, truncate)]
        result = check.of(traces[0], traces[1] if is_similarity and tab else None)
        measures = {
            name: (*result.effects[name], result.loo_correlation(name)) for name in result.explanations
        }
        measures[RANDOM] = (*result.random.mean(axis=0), np.nan)
        return measures, sum(trace.encoding.dropped for trace in traces)


def _row_names() -> tuple[str, ...]:
    return (*methods(), RANDOM)


@dataclass(frozen=True, eq=False, repr=False)
class FaithfulnessSummaryResult(Result):
    """Faithfulness of each method over many texts.

    Attributes:
        values: float64 [text, method, measure], in the order of `methods` with the random orders last, and of
            `MEASURES`; NaN where a method or its rank correlation is not available.
    """

    question: FaithfulnessSummary
    values: Array

    @property
    def means(self) -> Array:
        """Means over the texts that have a value, [method, measure]; NaN if there is none."""
        counts = (~np.isnan(self.values)).sum(axis=0)
        means: Array = np.divide(
            np.nansum(self.values, axis=0), counts, out=np.full(counts.shape, np.nan), where=counts > 0
        )
        return means

    def frame(self) -> pd.DataFrame:
        """Return one row per method, with the random orders last: method, the `MEASURES`, texts (their
        number).
        """
        table: dict[str, Any] = {"method": _row_names()}
        table |= dict(zip(MEASURES, self.means.T, strict=True))
        return pd.DataFrame(table | {"texts": (~np.isnan(self.values[..., 0])).sum(axis=0)})
