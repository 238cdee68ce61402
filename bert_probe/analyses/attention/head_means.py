"""Profiles of attention heads, averaged over sentences, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bert_probe.analyses.attention.attention import WORDS_HELP
from bert_probe.analyses.attention.heads import MEASURES, Heads, Labels, check_grid, head_labels
from bert_probe.core import frames
from bert_probe.core.field_types import Flag, Number
from bert_probe.core.inputs import SentenceList
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, memory_errors
from bert_probe.model.checkpoint import Checkpoint, encode_texts
from bert_probe.model.encoding import Encoding
from bert_probe.model.forward import group_by_length
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, read_only
from bert_probe.text.sentence_files import with_line_numbers

BATCH_TOKENS = 2048
"""Maximum number of tokens in a batch, padding included.

The limit is low because a trace stores the vectors of every layer.
"""
MAX_RESAMPLES = 20_000
"""Maximum number of bootstrap resamples; the means of all resamples are in memory at once."""
_BLOCK = 50
"""Number of bootstrap resamples whose means are computed in one matrix product."""


@question("head means", command="head-means")
class HeadMeans(Question):
    """Profiles of all heads, averaged over sentences, with percentile bootstrap intervals.

    An interval estimates how much the mean would vary with other sentences of the same kind (Efron and
    Tibshirani 1993, chapter 13). The interval does not apply to other kinds of text.

    Attributes:
        words: merge subword tokens into words before measuring.
        confidence: share of the resampled means that the interval contains, above 0 and below 1.
        resamples: number of bootstrap resamples, at most `MAX_RESAMPLES`.
        seed: seed of the random resampling.
    """

    inputs = SentenceList()

    words: bool = param(Flag(), default=False, about=WORDS_HELP)
    confidence: float = param(
        Number(0, 1, integer=False),
        default=0.95,
        about="Confidence level of the bootstrap interval, between 0 and 1.",
    )
    resamples: int = param(Number(1, MAX_RESAMPLES), default=1000, about="Number of bootstrap resamples.")
    seed: int = param(Number(0), default=0, about="Seed of the random resampling.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.confidence < 1:
            raise SelectionError(
                f"confidence must be between 0 and 1, for example 0.95, not {self.confidence:g}."
            )

    def of(
        self,
        checkpoint: Checkpoint,
        sentences: Sequence[str],
        truncate: bool = False,
        progress: Progress = no_progress,
    ) -> HeadMeansResult:
        """Return the mean of each measure over sentences, which are separate inputs of equal weight.

        Args:
            checkpoint: the model.
            sentences: the sentences; blank ones are skipped.
            truncate: truncate sentences that are too long instead of raising an error.
            progress: called with the number of sentences done and the total.

        Raises:
            EmptyTextError, TooLongError, TextError: there are no sentences, or a sentence cannot be encoded.
                The message states the line number of the sentence.
            OutOfMemoryError: the sentences need more memory than is available.
            UnavailableError: the model in memory changes during the computation.
        """
        checkpoint = checkpoint.snapshot()
        lines = [(line, text, None) for line, text in with_line_numbers(sentences, "sentence")]
        encodings = encode_texts(checkpoint, lines, truncate, progress)
        values = self._measured(checkpoint, encodings, progress)
        low, high = self._interval(values, lambda: progress(len(encodings), len(encodings)))
        mean = _by_measure(values.mean(axis=0))
        dropped = sum(encoding.dropped for encoding in encodings)
        inputs = InputRecord.of_sentences(checkpoint, [encoding.text for encoding in encodings], dropped)
        return HeadMeansResult(self, inputs, mean, _by_measure(low), _by_measure(high), head_labels(mean))

    def _measured(self, checkpoint: Checkpoint, encodings: Sequence[Encoding], progress: Progress) -> Array:
        """Return the measures of all heads for each sentence.

        The result is float64 of shape [sentence, measure, layer, head]; measures are in the order of
        `MEASURES`.
        """
        description = checkpoint.description
        with memory_errors(
            f"The measures of {len(encodings):,} sentences need more memory than is available. "
            "Use fewer sentences."
        ):
            values = np.empty((len(encodings), len(MEASURES), description.layers, description.heads))
        profile = Heads(self.words)
        done = 0
        for batch in group_by_length(
            [len(encoding) for encoding in encodings], BATCH_TOKENS, checkpoint.pads
        ):
            traces = checkpoint.trace_encodings([encodings[index] for index in batch])
            for index, trace in zip(batch, traces, strict=True):
                measured = profile.of(trace).values
                values[index] = [measured[name] for name in MEASURES]
            done += len(batch)
            progress(done, len(encodings))
        return values

    def _interval(self, values: Array, check_cancelled: Callable[[], None]) -> tuple[Array, Array]:
        """Return the lower and upper bounds of the bootstrap interval of the mean over sentences.

        Args:
            values: the values to average, shape [sentence, …]; each bound has the shape of one sentence's
                values.
            check_cancelled: function that raises an error if the work was cancelled.
        """
        flat = values.reshape(len(values), -1)
        with memory_errors(
            f"{self.resamples:,} resamples need more memory than is available. Use fewer resamples."
        ):
            means = np.empty((self.resamples, flat.shape[1]))
        counts = _resample_counts(len(values), self.resamples, self.seed)
        for start in range(0, self.resamples, _BLOCK):
            check_cancelled()
            # Multiplying by the counts is faster than collecting the sentences of every resample.
            block = np.stack([next(counts) for _ in range(min(_BLOCK, self.resamples - start))])
            means[start : start + len(block)] = block @ flat / len(values)
        ends = [50 * (1 - self.confidence), 50 * (1 + self.confidence)]
        low, high = np.percentile(means, ends, axis=0).reshape(2, *values.shape[1:])
        return low, high


@dataclass(frozen=True, eq=False, repr=False)
class HeadMeansResult(Result):
    """Measures of every head, averaged over sentences.

    Attributes:
        mean: mapping from the name of each measure to its means, float64 of shape [layer, head]; see
            `HeadsResult`.
        low, high: lower and upper bounds of the bootstrap interval of each mean, with the names and shapes of
            ``mean``.
        labels: label of each head, derived from the means and indexed by layer and head; see `head_labels`.
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
        """Number of sentences that were averaged."""
        return int(self.inputs.sentences["sentences"])

    @property
    def tokens_dropped(self) -> int:
        """Number of tokens removed by truncation, summed over the sentences."""
        return int(self.inputs.sentences["tokens_dropped"])

    def frame(self) -> pd.DataFrame:
        """Return a table with a row for each head.

        Columns: layer, head, the mean of each measure with its interval (``_low`` and ``_high``), label.
        """
        columns: dict[str, Array] = {}
        for name, mean in self.mean.items():
            columns |= {name: mean, f"{name}_low": self.low[name], f"{name}_high": self.high[name]}
        return frames.by_head(columns, self.labels)


def _resample_counts(count: int, resamples: int, seed: int) -> Iterator[Array]:
    """Yield, for each resample, how often it contains each sentence, float64 of shape [sentence]."""
    generator = np.random.default_rng(seed)
    for _ in range(resamples):
        yield np.bincount(generator.integers(count, size=count), minlength=count).astype(np.float64)


def _by_measure(values: Array) -> dict[str, Array]:
    return {name: read_only(measure) for name, measure in zip(MEASURES, values, strict=True)}
