"""What each head does over many sentences: means, and how far they can be relied on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bert_probe.analyses.attention.attention import WORDS
from bert_probe.analyses.attention.head_measures import MEASURES
from bert_probe.analyses.attention.heads import Heads, Labels, check_grid, head_labels
from bert_probe.analyses.vectors.encoded import encoded
from bert_probe.core import frames
from bert_probe.core.field_types import Flag, Number
from bert_probe.core.inputs import SentenceList
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, memory_errors
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding
from bert_probe.model.forward import batches
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, read_only
from bert_probe.text.sentence_files import numbered

BATCH_TOKENS = 2048
"""Padded tokens whose traces are held at once; a trace holds every layer, so fewer than in a plain pass."""
_BLOCK = 50
"""Resamples that are averaged in one product of matrices."""


@question("heads over sentences", command="head-means")
class HeadMeans(Question):
    """Profiles of all heads, averaged over sentences; percentile bootstrap, Efron and Tibshirani 1993.

    The interval tells how much the mean would change with other sentences of the same kind. It says
    nothing about another kind of text.

    Attributes:
        words: merge pieces into words first.
        confidence: share of the resampled means that lie within the interval, above 0 and below 1.
        resamples: how often as many sentences are drawn with replacement.
        seed: of the drawing; the same one gives the same interval.
    """

    inputs = SentenceList()

    words: bool = param(Flag(), default=False, about=WORDS)
    confidence: float = param(
        Number(0, 1, whole=False), default=0.95, about="Share of the resampled means within the interval."
    )
    resamples: int = param(Number(1), default=1000, about="Times that the sentences are drawn again.")
    seed: int = param(Number(0), default=0, about="Of the drawing.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.confidence < 1:
            raise SelectionError(
                f"The confidence {self.confidence:g} is not between 0 and 1. Give for example 0.95."
            )

    def of(
        self,
        checkpoint: Checkpoint,
        sentences: Sequence[str],
        truncate: bool = False,
        report: Progress = no_progress,
    ) -> HeadMeansResult:
        """The means over sentences, each of which is read by itself and counts the same, short or long.

        Args:
            sentences: one an entry; blank ones do not count. None has a pair.
            truncate: cut sentences that are too long instead of refusing them.
            report: told how many sentences are done, and of how many.

        Raises:
            EmptyTextError, TooLongError, TextError: no sentence, or one that cannot be read, by its line.
            OutOfMemoryError: the machine is too small for these sentences.
            UnavailableError: a model in memory that changes meanwhile.
        """
        checkpoint = checkpoint.now()
        lines = [(line, text, None) for line, text in numbered(sentences, "sentence")]
        encodings = encoded(checkpoint, lines, truncate, report)
        values = self._measured(checkpoint, encodings, report)
        low, high = self._interval(values, lambda: report(len(encodings), len(encodings)))
        mean = _named(values.mean(axis=0))
        dropped = sum(encoding.dropped for encoding in encodings)
        subject = InputRecord.of_sentences(checkpoint, [encoding.text for encoding in encodings], dropped)
        return HeadMeansResult(self, subject, mean, _named(low), _named(high), head_labels(mean))

    def _measured(self, checkpoint: Checkpoint, encodings: Sequence[Encoding], report: Progress) -> Array:
        """Every measure of each sentence, float64 [sentence, measure, layer, head]."""
        about = checkpoint.description
        with memory_errors(
            f"The measures of {len(encodings):,} sentences need more memory than is free. Take fewer."
        ):
            values = np.empty((len(encodings), len(MEASURES), about.layers, about.heads))
        profile = Heads(self.words)
        done = 0
        for group in batches([len(encoding) for encoding in encodings], BATCH_TOKENS, checkpoint.pads):
            traces = checkpoint.trace_encodings([encodings[index] for index in group])
            for index, trace in zip(group, traces, strict=True):
                measured = profile.of(trace).values
                values[index] = [measured[name] for name in MEASURES]
            done += len(group)
            report(done, len(encodings))
        return values

    def _interval(self, values: Array, told: Callable[[], None]) -> tuple[Array, Array]:
        """Percentiles over resampled means of ``values`` [sentence, …]: those of the lower and upper end."""
        flat = values.reshape(len(values), -1)
        with memory_errors(f"{self.resamples:,} resamples need more memory than is free. Take fewer."):
            means = np.empty((self.resamples, flat.shape[1]))
        drawn = _draws(len(values), self.resamples, self.seed)
        for start in range(0, self.resamples, _BLOCK):
            told()
            # How often each sentence was drawn, as a row; their sum by a product instead of by gathering.
            times = np.stack([next(drawn) for _ in range(min(_BLOCK, self.resamples - start))])
            means[start : start + len(times)] = times @ flat / len(values)
        ends = [50 * (1 - self.confidence), 50 * (1 + self.confidence)]
        low, high = np.percentile(means, ends, axis=0).reshape(2, *values.shape[1:])
        return low, high


@dataclass(frozen=True, eq=False, repr=False)
class HeadMeansResult(Result):
    """Measures of every head, averaged over sentences.

    Attributes:
        mean: name of a measure → float64 [layer, head]; the measures of `HeadsResult`.
        low, high: ends of the percentile bootstrap interval of that mean over the sentences.
        labels: [layer][head], by the same rule as for one sentence, from the means.
    """

    question: HeadMeans
    mean: Mapping[str, Array]
    low: Mapping[str, Array]
    high: Mapping[str, Array]
    labels: Labels

    def __post_init__(self) -> None:
        check_grid(self.labels, self.mean, self.low, self.high)

    @property
    def sentences(self) -> int:
        """How many there were."""
        return int(self.inputs.sentences["sentences"])

    @property
    def tokens_dropped(self) -> int:
        """Tokens that were cut off, over all sentences."""
        return int(self.inputs.sentences["tokens_dropped"])

    def frame(self) -> pd.DataFrame:
        """A row for each head: layer, head, each measure's mean and its ``_low`` and ``_high``, label."""
        columns: dict[str, Array] = {}
        for name, mean in self.mean.items():
            columns |= {name: mean, f"{name}_low": self.low[name], f"{name}_high": self.high[name]}
        return frames.by_head(columns, self.labels)


def _draws(count: int, resamples: int, seed: int) -> Iterator[Array]:
    generator = np.random.default_rng(seed)
    for _ in range(resamples):
        yield np.bincount(generator.integers(count, size=count), minlength=count).astype(np.float64)


def _named(values: Array) -> dict[str, Array]:
    return {name: read_only(measure) for name, measure in zip(MEASURES, values, strict=True)}
