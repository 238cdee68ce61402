"""What each layer knows: a linear probe of its vectors for every label of words, or of sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.probing import reading, vectors
from bert_probe.analyses.probing.linear import ProbeSpace, fit, learn, log_probabilities
from bert_probe.analyses.vectors.pooling import recipe
from bert_probe.core.field_types import Choice, FieldType, Index, Number, Optional
from bert_probe.core.field_types_of_lists import Indices
from bert_probe.core.inputs import HELD_OUT, FileInput, Files
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError, TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, read_only
from bert_probe.text.labeled_texts import LabeledTexts
from bert_probe.text.validation import ValidationErrors

RESAMPLES = 1000
MOST_LABELS = 500
"""A text column taken for labels would have more."""
LABEL = "Comment whose value is to be told of each sentence, such as genre; else the tag of each word."
POOLING = "What is a sentence's vector.  [default: mean]"


@question("probe")
class Probe(Question):
    """How well labels can be read off a layer's frozen vectors by a linear map; layer 0 is the embeddings'.

    A probe says what can be read off, not what the model uses. Beside its accuracy stand the most frequent
    tag of each word form, a control task, in which each form has a random tag (Hewitt and Liang 2019), and
    the length of an online code for the labels (Voita and Titov 2020).

    The data say what has the labels: the words of tagged sentences, or the texts of a table. A text is a form
    of its own: no control can be told of a text that was never seen, see docs/methods.md.

    Attributes:
        label: comment that labels sentences, such as "genre"; None for the tags of words, or for a table.
        pooling: what makes the vector of a sentence or text, one of `POOLINGS`; words are means of pieces.
        layers: from 0, the output of the embeddings; None for all.
        confidence: of the interval, a percentile bootstrap over the held-out sentences.
        seed: of the order of the data, the control task and the bootstrap.
    """

    inputs = Files(
        {"data": FileInput(), "held_out": FileInput("--held-out", is_required=False, help=HELD_OUT)}
    )

    label: str | None = param(Optional(FieldType()), default=None, about=LABEL)
    pooling: str | None = param(Optional(Choice(vectors.POOLINGS)), default=None, about=POOLING)
    layers: Sequence[int] | None = param(
        Indices(Index("layer", first=0)), default=None, about="From 0, the output of the embeddings."
    )
    confidence: float = param(Number(0, 1, whole=False), default=0.95, about="Of the interval.")
    seed: int = param(Number(0), default=0, about="Of order, control task and bootstrap.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.confidence < 1:
            raise SelectionError(
                f"The confidence {self.confidence:g} is not between 0 and 1. Give for example 0.95."
            )

    def of(
        self,
        checkpoint: Checkpoint,
        data: reading.Texts,
        held_out: reading.Texts | None = None,
        truncate: bool = False,
        report: Progress = no_progress,
    ) -> ProbeResult:
        """The probes of every layer, each fitted to the data and measured on what is held out.

        Args:
            data: of `read_tagged_sentences`, or of `read_labeled_texts` with a class for each text.
            held_out: of the same kind, to measure on; None holds out a fifth of the data.
            truncate: cut sentences that are too long instead of refusing them; words cut off do not count.
            report: told how many steps are done, and of how many: batches that are read, and fits.

        Raises:
            EmptyTextError, TooLongError, TextError: no sentence, one that cannot be read or has no such
                label, by its line; one label only, or more than `MOST_LABELS`.
            SelectionError: a layer that the model does not have; a comment of texts that have none; a pooling
                where words have the labels.
            OutOfMemoryError: the machine is too small for the vectors of one layer.
            UnavailableError: an input without a first token to be the vector; a model in memory that changes
                meanwhile.
        """
        checkpoint = checkpoint.now()
        self._check_whose(checkpoint, isinstance(data, LabeledTexts))
        files = {"data": data} if held_out is None else {"data": data, "held_out": held_out}
        every = reading.read(checkpoint, files, truncate, report, tables=True)
        rng = np.random.default_rng(self.seed)
        texts = isinstance(data, LabeledTexts)
        parts = [_rows(part, self.label, texts, self.pooling) for part in reading.parted(every, rng)]
        task = _task(*parts)
        layers = vectors.chosen(checkpoint, self.layers)
        pooled = [part.pooled for part in parts]
        passes = vectors.planned(checkpoint, pooled, layers)
        control = _control(task, parts, rng)
        steps = vectors.StepCounter(report, passes.batches * len(passes.layers) + 2 * len(layers))
        found = [
            _probed(task, control, of_data, of_held_out, steps)
            for of_data, of_held_out in vectors.by_layer(checkpoint, pooled, passes, steps)
        ]
        right = np.stack([one.right for one in found])
        low, high = _interval(right, parts[1].sentences, self.confidence, rng)
        chosen = None if self.layers is None else layers
        return ProbeResult(
            replace(self, layers=chosen),
            reading.subject(checkpoint, files, every),
            layers,
            task.labels,
            (len(parts[0].labels), len(parts[1].labels)),
            read_only(right.mean(axis=1)),
            read_only(low),
            read_only(high),
            task.baseline,
            read_only(np.array([one.control for one in found])),
            read_only(np.array([one.bits for one in found])),
        )

    def _check_whose(self, checkpoint: Checkpoint, texts: bool) -> None:
        """Refuse what does not go with whose labels these are."""
        if texts and self.label is not None:
            raise SelectionError("A table has one label for each text, and no comments. Leave out the label.")
        if self.pooling and self.label is None and not texts:
            raise SelectionError("The vector of a word is the mean of its pieces. Leave out the pooling.")
        if self.pooling == "cls":
            recipe(checkpoint, self.pooling)


@dataclass(frozen=True, eq=False)
class _Rows:
    """What is to be told of some sentences.

    Attributes:
        pooled: whose vectors.
        labels: one for each vector.
        forms: words, by which labels are guessed without a model; one and the same for all sentences.
        kinds: of which each has a random label in the control task: words, or whole texts.
        sentences: of each vector.
    """

    pooled: vectors.PooledTokens
    labels: tuple[str, ...]
    forms: tuple[str, ...]
    kinds: tuple[str, ...]
    sentences: Array


@dataclass(frozen=True, eq=False)
class _Task:
    """Labels as numbers.

    Attributes:
        labels: those of the data, sorted.
        data, held_out: of each vector its label's number; -1 for one that the data does not have.
        baseline: accuracy of the most frequent label of each form.
    """

    labels: tuple[str, ...]
    data: torch.Tensor
    held_out: torch.Tensor
    baseline: float


def _rows(part: reading.EncodedTexts, label: str | None, texts: bool, pooling: str | None) -> _Rows:
    if label is None and not texts:
        pooled, sentences, words = vectors.of_words(part)
        places = list(zip(sentences.tolist(), words.tolist(), strict=True))
        tags = tuple(part.sentences[sentence].tags[word] for sentence, word in places)
        forms = tuple(part.sentences[sentence].words[word] for sentence, word in places)
        return _Rows(pooled, tags, forms, forms, sentences)
    count = len(part.sentences)
    labels = (
        tuple(str(sentence.label) for sentence in part.sentences) if label is None else _said(part, label)
    )
    kinds = tuple(map(repr, part.texts))
    pooled = vectors.of_sentences(part, pooling or "mean")
    return _Rows(pooled, labels, ("",) * count, kinds, np.arange(count))


def _said(part: reading.EncodedTexts, label: str) -> tuple[str, ...]:
    """What the comment of each sentence says.

    Raises:
        TextError: it has none of this name; by its line.
    """
    faults = ValidationErrors("The file")
    for one in part.sentences:
        if label not in one.about:
            known = ", ".join(one.about) or "none at all"
            faults.add(one.line, f"no comment “{label}” before this sentence; there is {known}")
    faults.check()
    return tuple(sentence.about[label] for sentence in part.sentences)


def _task(data: _Rows, held_out: _Rows) -> _Task:
    labels = sorted({*data.labels})
    if not held_out.labels:
        raise TextError("Nothing is held out: no word of those sentences becomes a token. Give others.")
    if len(labels) < 2:
        named = f"is {labels[0]}" if labels else "is missing"
        raise TextError(f"Every label {named}: there is nothing to tell apart. Give data with two or more.")
    if len(labels) > MOST_LABELS:
        raise TextError(
            f"There are {len(labels):,} different labels; at most {MOST_LABELS} can be probed. Look which "
            "column is the label."
        )
    number = {label: index for index, label in enumerate(labels)}
    by_form: dict[str, Counter[str]] = {}
    for form, label in zip(data.forms, data.labels, strict=True):
        by_form.setdefault(form, Counter())[label] += 1
    usual = _most(Counter(data.labels))
    guesses = {form: _most(counts) for form, counts in by_form.items()}
    right = [
        guesses.get(form, usual) == label for form, label in zip(held_out.forms, held_out.labels, strict=True)
    ]
    return _Task(
        tuple(labels),
        torch.tensor([number[label] for label in data.labels]),
        torch.tensor([number.get(label, -1) for label in held_out.labels]),
        float(np.mean(right)),
    )


def _most(counts: Counter[str]) -> str:
    """The most frequent; of equal ones the first in the alphabet."""
    return min(counts, key=lambda label: (-counts[label], label))


def _control(
    task: _Task, parts: Sequence[_Rows], rng: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """A random label for each word form, or text, drawn as those of the data are distributed: for data, held
    out."""
    kinds = sorted({kind for part in parts for kind in part.kinds})
    labels = rng.choice(task.data.numpy(), size=len(kinds))
    drawn = dict(zip(kinds, labels.tolist(), strict=True))
    data, held_out = (torch.tensor([drawn[kind] for kind in part.kinds]) for part in parts)
    return data, held_out


@dataclass(frozen=True, eq=False)
class _LayerFit:
    """A layer: whether each held-out label was told rightly, accuracy of the control task, code length."""

    right: Array
    control: float
    bits: float


def _probed(
    task: _Task,
    control: tuple[torch.Tensor, torch.Tensor],
    data: torch.Tensor,
    held_out: torch.Tensor,
    steps: vectors.StepCounter,
) -> _LayerFit:
    count = len(task.labels)
    space = ProbeSpace.of(data, count)
    rows, asked_of = space.within(data), space.within(held_out)
    learned = learn(rows, task.data, count, space, steps.tell)
    right = log_probabilities(asked_of, learned.weights).argmax(dim=1) == task.held_out
    steps.done()
    of_forms = fit(rows, control[0], np.zeros_like(learned.weights), space.penalties, steps.tell)
    by_control = log_probabilities(asked_of, of_forms).argmax(dim=1) == control[1]
    steps.done()
    return _LayerFit(right.numpy(), float(by_control.double().mean()), learned.bits)


def _interval(
    right: Array, sentences: Array, confidence: float, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Percentile bootstrap of each layer's accuracy: whole sentences are drawn, as words of one are alike."""
    places = np.unique(sentences, return_inverse=True)[1]
    sizes = np.bincount(places).astype(np.float64)
    hits = np.stack([np.bincount(places, one) for one in right], axis=1)
    count = len(sizes)
    drawn = np.stack(
        [np.bincount(rng.integers(count, size=count), minlength=count) for _ in range(RESAMPLES)]
    )
    shares = (drawn @ hits) / (drawn @ sizes)[:, None]
    low, high = np.percentile(shares, [50 * (1 - confidence), 50 * (1 + confidence)], axis=0)
    return low, high


@dataclass(frozen=True, eq=False, repr=False)
class ProbeResult(Result):
    """What can be read off each layer; all arrays are float64 [layer probed].

    Attributes:
        layers: that were probed, from 0, the output of the embeddings.
        labels: what was told apart.
        counts: of vectors that were learned from, and that were held out.
        accuracies: share of the held-out labels that the probe tells; low, high: ends of its interval.
        baseline: accuracy of the most frequent label of each word form; of sentences, of the most frequent.
        controls: accuracy of the control task.
        code_lengths: of the online code for the labels that were learned from, in bits.
    """

    question: Probe
    layers: tuple[int, ...]
    labels: tuple[str, ...]
    counts: tuple[int, int]
    accuracies: Array
    low: Array
    high: Array
    baseline: float
    controls: Array
    code_lengths: Array

    def __post_init__(self) -> None:
        shapes = {
            one.shape for one in (self.accuracies, self.low, self.high, self.controls, self.code_lengths)
        }
        if shapes != {(len(self.layers),)}:
            raise ShapeError(f"{len(self.layers)} layers were probed; a number for each is needed.")

    @property
    def of_sentences(self) -> bool:
        """Whether whole sentences or texts have the labels, and not words."""
        files: Mapping[str, Any] = self.inputs.sentences["files"]
        return self.question.label is not None or "kind" in files["data"]

    @property
    def selectivities(self) -> Array:
        """By how much the probe is better at its task than at the control task."""
        difference: Array = self.accuracies - self.controls
        return difference

    @property
    def uniform_length(self) -> float:
        """Bits of the labels that were learned from, were all equally likely."""
        return float(self.counts[0] * np.log2(len(self.labels)))

    @property
    def compressions(self) -> Array:
        """How many times shorter the online code is than the uniform one."""
        times: Array = self.uniform_length / self.code_lengths
        return times

    @property
    def metadata(self) -> Mapping[str, Any]:
        """How many there were, and what the code lengths are to be compared with."""
        pooling = {"pooling": self.question.pooling or "mean"} if self.of_sentences else {}
        return pooling | {
            "labels": list(self.labels),
            "learned_from": self.counts[0],
            "held_out": self.counts[1],
            "uniform_codelength": self.uniform_length,
        }

    def frame(self) -> pd.DataFrame:
        """A row for each layer."""
        return pd.DataFrame(
            {
                "layer": self.layers,
                "accuracy": self.accuracies,
                "low": self.low,
                "high": self.high,
                "baseline": self.baseline,
                "control": self.controls,
                "selectivity": self.selectivities,
                "codelength": self.code_lengths,
            }
        )
