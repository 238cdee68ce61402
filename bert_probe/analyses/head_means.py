"""What each head does over many sentences: means, and how far they can be relied on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bert_probe.analyses.head_measures import MEASURES
from bert_probe.analyses.heads import head_labels, head_profiles
from bert_probe.errors import EmptyTextError, SelectionError, TextError, memory_errors
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding
from bert_probe.model.forward import batches
from bert_probe.model.progress import Report, ignore
from bert_probe.model.trace import Array, read_only
from bert_probe.text.sentence_files import Sentence, sentences_of

BATCH_TOKENS = 2048
"""Padded tokens whose traces are held at once; a trace holds every layer, so fewer than in a plain pass."""
_BLOCK = 50
"""Resamples that are averaged in one product of matrices."""


@dataclass(frozen=True, eq=False)
class ProfileMeans:
    """Measures of every head, averaged over sentences, each of which counts the same, short or long.

    Attributes:
        mean: name of a measure → float64 [layer, head]; the measures of `HeadProfiles`.
        low, high: ends of the percentile bootstrap interval of that mean over the sentences.
        labels: [layer][head], by the same rule as for one sentence, from the means.
        sentences: how many there were.
        digest: SHA-256 of the sentences, each ended by a line feed, in UTF-8.
        tokens_dropped: tokens that were cut off, over all sentences.
        words: whether pieces were merged into words.
        confidence, resamples, seed: of the bootstrap.
    """

    mean: dict[str, Array]
    low: dict[str, Array]
    high: dict[str, Array]
    labels: tuple[tuple[str, ...], ...]
    sentences: int
    digest: str
    tokens_dropped: int
    words: bool
    confidence: float
    resamples: int
    seed: int

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.labels)

    @property
    def heads(self) -> int:
        """Heads in a layer."""
        return len(self.labels[0])


def read_sentences(content: bytes) -> tuple[str, ...]:
    """Sentences for `profile_sentences`, as the command line reads them; see `sentences_of`."""
    return sentences_of(content, "The file")


def profile_sentences(
    checkpoint: Checkpoint,
    sentences: Sequence[str],
    words: bool = False,
    *,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    truncate: bool = False,
    report: Report = ignore,
) -> ProfileMeans:
    """Profile every head on each sentence, and average; percentile bootstrap, Efron and Tibshirani 1993.

    The interval tells how much the mean would change with other sentences of the same kind. It says
    nothing about another kind of text.

    Args:
        sentences: one a line; blank lines do not count. A sentence has no pair.
        words: merge pieces into words first.
        confidence: share of the resampled means that lie within the interval, above 0 and below 1.
        resamples: how often as many sentences are drawn with replacement.
        seed: of the drawing; the same one gives the same interval.
        truncate: cut sentences that are too long instead of refusing them.
        report: told how many sentences are done, and of how many.

    Raises:
        EmptyTextError, TooLongError, TextError: no sentence, too many, or one that cannot be read, by line.
        SelectionError: no such confidence or number of resamples.
        OutOfMemoryError: the machine is too small for these sentences.
    """
    if not 0 < confidence < 1:
        raise SelectionError(f"The confidence {confidence} is not between 0 and 1. Give for example 0.95.")
    if resamples < 1:
        raise SelectionError(f"{resamples} resamples are too few. Give at least 1; 1000 are usual.")
    encodings = _encoded(checkpoint, sentences, truncate, report)
    with memory_errors(
        f"The measures of {len(encodings):,} sentences need more memory than is free. Take fewer."
    ):
        values = np.empty((len(encodings), len(MEASURES), *_shape(checkpoint)))
    done = 0
    groups = batches([len(one) for one in encodings], BATCH_TOKENS, checkpoint.pads)
    for group in groups:
        traces = checkpoint.trace_encodings([encodings[index] for index in group])
        for index, trace in zip(group, traces, strict=True):
            profiles = head_profiles(trace, words).values
            values[index] = [profiles[name] for name in MEASURES]
        done += len(group)
        report(done, len(encodings))
    low, high = _interval(values, confidence, resamples, seed, lambda: report(done, done))
    mean = _named(values.mean(axis=0))
    return ProfileMeans(
        mean=mean,
        low=_named(low),
        high=_named(high),
        labels=head_labels(mean),
        sentences=len(encodings),
        digest=hashlib.sha256("".join(f"{one.text}\n" for one in encodings).encode()).hexdigest(),
        tokens_dropped=sum(one.dropped for one in encodings),
        words=words,
        confidence=confidence,
        resamples=resamples,
        seed=seed,
    )


def _encoded(
    checkpoint: Checkpoint, sentences: Sequence[str], truncate: bool, report: Report
) -> list[Encoding]:
    """All of them before any is traced: a mistake in the last line is told at once."""
    if isinstance(sentences, str):
        raise TextError("Give a list of sentences, one an entry.")
    numbered = [(number, text) for number, text in enumerate(sentences, 1) if not _blank(text)]
    if not numbered:
        raise EmptyTextError("There is no sentence. Give one a line.")
    encodings = []
    for number, text in numbered:
        report(0, len(numbered))
        try:
            encodings.append(checkpoint.encode(text, truncate=truncate))
        except TextError as error:
            line = text.line if isinstance(text, Sentence) else number
            raise type(error)(f"Line {line}: {error}") from None
    return encodings


def _blank(text: str) -> bool:
    return isinstance(text, str) and not text.strip()


def _shape(checkpoint: Checkpoint) -> tuple[int, int]:
    return checkpoint.description.layers, checkpoint.description.heads


def _interval(
    values: Array, confidence: float, resamples: int, seed: int, told: Callable[[], None]
) -> tuple[Array, Array]:
    """Percentiles over resampled means of ``values`` [sentence, …]: those of the lower and upper end."""
    count = len(values)
    flat = values.reshape(count, -1)
    means = np.empty((resamples, flat.shape[1]))
    drawn = _draws(count, resamples, seed)
    for start in range(0, resamples, _BLOCK):
        told()
        # How often each sentence was drawn, as a row; their sum by a product instead of by gathering.
        times = np.stack([next(drawn) for _ in range(min(_BLOCK, resamples - start))])
        means[start : start + len(times)] = times @ flat / count
    ends = [50 * (1 - confidence), 50 * (1 + confidence)]
    low, high = np.percentile(means, ends, axis=0).reshape(2, *values.shape[1:])
    return low, high


def _draws(count: int, resamples: int, seed: int) -> Iterator[Array]:
    generator = np.random.default_rng(seed)
    for _ in range(resamples):
        yield np.bincount(generator.integers(count, size=count), minlength=count).astype(np.float64)


def _named(values: Array) -> dict[str, Array]:
    return {name: read_only(measure) for name, measure in zip(MEASURES, values, strict=True)}
