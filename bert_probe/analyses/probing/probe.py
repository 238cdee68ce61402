"""Linear probes, which predict labels of words or sentences from each layer's vectors.

A probe is a multinomial logistic regression. The loss is that of scikit-learn's LogisticRegression,
Σ −log p(class) + ½ · penalty · |weights|², but the intercept is penalized too, so that classes without
examples keep a positive probability.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from bert_probe.analyses.probing import vectors
from bert_probe.analyses.vectors.pooling import resolve_pooling
from bert_probe.core.field_types import Choice, FieldType, Index, Number, Optional
from bert_probe.core.field_types_of_lists import Indices
from bert_probe.core.inputs import HELD_OUT_HELP, FileInput, Files
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError, TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, read_only
from bert_probe.text.formats import ValidationErrors
from bert_probe.text.labeled_texts import LabeledTexts

PENALTY = 1.0
"""Strength of the L2 penalty on the weights of standardized vectors, the inverse of C in scikit-learn."""
TOLERANCE = 2e-5
"""The fit ends when an iteration lowers the mean loss by less than this many nats."""
MAX_ITERATIONS = 200
CACHE_LINE_FLOATS = 16
"""Number of float32 values in a cache line."""
MIN_RELATIVE_SPREAD = 1e-7
"""Dimensions with a standard deviation below this fraction of the largest are treated as constant."""

BLOCKS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
"""Shares of the data after which the online code fits a new probe; Voita and Titov 2020, section 2.2."""

OnStep = Callable[[], None]


@dataclass(frozen=True, eq=False)
class ProbeSpace:
    """A coordinate system in which probes on the same vectors converge quickly for any labels.

    Standardized vectors are rotated to their principal axes, and each axis is scaled so that the curvature of
    the loss is about 1. The penalty remains that of the standardized vectors.

    Attributes:
        mean: mean of the vectors, [hidden].
        turn: transformation matrix, [hidden, hidden]; the coordinates of a vector are (vector − mean) @ turn,
            followed by a 1 for the intercept.
        penalties: penalty on the squared weights of each coordinate, [hidden + 1].
    """

    mean: torch.Tensor
    turn: torch.Tensor
    penalties: torch.Tensor

    @classmethod
    def of(cls, vectors: torch.Tensor, classes: int, penalty: float = PENALTY) -> ProbeSpace:
        """Compute the coordinate system for vectors of shape [row, hidden].

        Args:
            classes: number of classes of the probes.
        """
        mean, spread = standardization(vectors)
        centered = vectors - mean
        covariance = (centered.T @ centered).double() / len(vectors) / torch.outer(spread, spread)
        variances, directions = torch.linalg.eigh(covariance)
        # Add the curvature of the loss for equally probable classes and the curvature of the penalty.
        curvature = variances.clamp(min=0) / classes + penalty / len(vectors)
        turn = directions / curvature.sqrt() / spread[:, None]
        penalties = penalty * torch.cat([1 / curvature, torch.ones(1, dtype=curvature.dtype)])
        return cls(mean, turn.to(vectors.dtype), penalties)

    def within(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return the coordinates of vectors in this space, [row, hidden + 1]; the last one is 1."""
        width = vectors.shape[1] + 1
        # Matrix products take 25% less time if rows are aligned to cache lines.
        coordinates = vectors.new_ones(len(vectors), -(-width // CACHE_LINE_FLOATS) * CACHE_LINE_FLOATS)[
            :, :width
        ]
        torch.matmul(vectors - self.mean, self.turn, out=coordinates[:, :-1])
        return coordinates


def standardization(vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean and the standard deviation of each dimension, both [hidden].

    The standard deviation of a constant dimension is returned as infinity.
    """
    mean = vectors.mean(dim=0)
    spread = (vectors - mean).std(dim=0, correction=0)
    # Dividing by infinity keeps rounding errors in constant dimensions from being scaled up.
    return mean, torch.where(spread > MIN_RELATIVE_SPREAD * spread.max(), spread, torch.inf)


def fit(
    rows: torch.Tensor,
    classes: torch.Tensor,
    start: Array,
    penalties: torch.Tensor,
    on_step: OnStep = lambda: None,
    tolerance: float = TOLERANCE,
) -> Array:
    """Fit a probe and return the weights with the lowest loss, float64 of shape [coordinate, class].

    Args:
        rows: vectors in a `ProbeSpace`, [row, coordinate].
        classes: class index of each row, from 0.
        start: initial weights, [coordinate, class], such as those of a fit to fewer rows.
        penalties: penalty on the squared weights of each coordinate, [coordinate].
        on_step: called after each iteration; an exception that it raises ends the fit.
        tolerance: the fit ends when an iteration lowers the mean loss, including the penalty, by at most this
            many nats (this share of the loss if the loss is above 1), when the gradient is close to zero, or
            after `MAX_ITERATIONS` iterations.
    """
    targets = (torch.arange(len(rows)), classes)

    def loss(flat: Array) -> tuple[float, Array]:
        weights = torch.from_numpy(flat.reshape(start.shape))
        logs = torch.log_softmax(rows @ weights.to(rows.dtype), dim=1)
        cross_entropy = -logs[targets].double().mean()
        residuals = logs.exp_()
        residuals[targets] -= 1
        gradient = (rows.T @ residuals).double() / len(rows)
        penalty_gradient = penalties[:, None] * weights / len(rows)
        value = float(cross_entropy + 0.5 * (penalty_gradient * weights).sum())
        return value, (gradient + penalty_gradient).numpy().ravel()

    options = {
        "maxiter": MAX_ITERATIONS,
        "maxfun": 2 * MAX_ITERATIONS,
        "ftol": tolerance,
        "gtol": tolerance / 10,
    }
    # SciPy's BLAS threads busy-wait, which would slow down the threads of torch.
    with threadpool_limits(1, user_api="blas"):
        result: Any = minimize(
            loss,
            start.ravel(),
            jac=True,
            method="L-BFGS-B",
            callback=lambda _: on_step(),
            options=options,
        )
    weights: Array = result.x.reshape(start.shape)
    return weights


def log_probabilities(rows: torch.Tensor, weights: Array) -> torch.Tensor:
    """Return the log probability of each class in nats, of shape [row, class]."""
    return torch.log_softmax(rows @ torch.from_numpy(weights).to(rows.dtype), dim=1)


@dataclass(frozen=True, eq=False)
class LinearFit:
    """A probe fitted to all rows, and the length of the online code for their classes.

    Attributes:
        weights: weights of the probe, [coordinate, class].
        bits: length of the online code in bits: the first block is coded uniformly, each later block with the
            probe that is fitted to all blocks before it.
    """

    weights: Array
    bits: float


def fit_online(
    rows: torch.Tensor, classes: torch.Tensor, count: int, space: ProbeSpace, on_step: OnStep
) -> LinearFit:
    """Fit a probe to each share of the rows in `BLOCKS`; return the last probe and the total code length.

    Args:
        rows: vectors in ``space``, [row, coordinate].
        classes: class index of each row, [row].
        count: number of classes.
        space: the coordinate system of the vectors.
        on_step: called after each iteration of a fit.
    """
    ends = sorted({max(1, round(share * len(rows))) for share in BLOCKS})
    bits = ends[0] * np.log2(count)
    weights = np.zeros((rows.shape[1], count))
    for end, next_end in zip(ends, [*ends[1:], None], strict=True):
        weights = fit(rows[:end], classes[:end], weights, space.penalties, on_step)
        if next_end is not None:
            logs = log_probabilities(rows[end:next_end], weights)
            bits -= float(logs.gather(1, classes[end:next_end, None]).double().sum()) / np.log(2)
    return LinearFit(weights, bits)


RESAMPLES = 1000
MAX_LABELS = 500
"""Maximum number of different labels; a column with more labels probably contains text."""
LABEL_HELP = (
    "Treebank comment that contains the label of each sentence, such as genre.  [default: the tags of the "
    "words]"
)
POOLING_HELP = "How tokens are pooled into a sentence vector.  [default: mean]"


@question("probe")
class Probe(Question):
    """Accuracy of a linear map that predicts labels from a layer's frozen vectors; layer 0 is the embeddings.

    A probe shows what a layer encodes, not what the model uses. The result also has a baseline, which
    predicts the most frequent tag of each word form, and the accuracy on a control task, in which each form
    has a random tag (Hewitt and Liang 2019). The length of an online code for the labels is the MDL measure
    of Voita and Titov 2020.

    Labels belong to the words of tagged sentences, or to the texts of a table. In the control task, each
    different text has its own random label, so control labels of held-out texts cannot be predicted; see
    docs/methods.md.

    Attributes:
        label: name of the sentence comment with the labels, such as "genre". If None, labels are the tags of
            words or the labels of a table.
        pooling: how tokens are pooled into the vector of a sentence or text, one of `POOLINGS`; words use the
            mean.
        layers: layer indices, where 0 is the embeddings. If None, all layers are probed.
        confidence: confidence level of the accuracy's interval, a percentile bootstrap over the held-out
            sentences.
        seed: random seed of the order of the data, the control task and the bootstrap.
    """

    inputs = Files(
        {"data": FileInput(), "held_out": FileInput("--held-out", is_required=False, help=HELD_OUT_HELP)}
    )

    label: str | None = param(Optional(FieldType()), default=None, about=LABEL_HELP)
    pooling: str | None = param(Optional(Choice(vectors.POOLINGS)), default=None, about=POOLING_HELP)
    layers: Sequence[int] | None = param(
        Indices(Index("layer", first=0)), default=None, about="Layers, from 0 for the embeddings."
    )
    confidence: float = param(
        Number(0, 1, integer=False), default=0.95, about="Confidence level of the interval."
    )
    seed: int = param(Number(0), default=0, about="Seed of the data order, control task and bootstrap.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.confidence < 1:
            raise SelectionError(
                f"confidence must be between 0 and 1, not {self.confidence:g}. The default is 0.95."
            )

    def of(
        self,
        checkpoint: Checkpoint,
        data: vectors.LabeledData,
        held_out: vectors.LabeledData | None = None,
        truncate: bool = False,
        progress: Progress = no_progress,
    ) -> ProbeResult:
        """Fit a probe to each layer and measure it on held-out data.

        Args:
            data: result of `read_tagged_sentences`, or of `read_labeled_texts` with a class for each text.
            held_out: held-out data of the same type. If None, a fifth of the data is held out.
            truncate: truncate sentences that are too long instead of raising an error; truncated words are
                ignored.
            progress: called with the number of steps done and the total. A step is a forward pass of a batch,
                or a fit.

        Raises:
            EmptyTextError, TooLongError, TextError: there is no sentence, a sentence cannot be encoded or has
                no label (the message names its line), or there are fewer than two different labels or
                more than `MAX_LABELS`.
            SelectionError: a layer does not exist, a table is given with a label, or a pooling is given for
                words.
            OutOfMemoryError: the vectors of one layer do not fit in memory.
            UnavailableError: the model's input has no [CLS] token for the pooling "cls", or an in-memory
                model changed during the computation.
        """
        checkpoint = checkpoint.snapshot()
        self._check_labels(checkpoint, isinstance(data, LabeledTexts))
        files = {"data": data} if held_out is None else {"data": data, "held_out": held_out}
        encoded = vectors.encode_files(checkpoint, files, truncate, progress, tables=True)
        rng = np.random.default_rng(self.seed)
        is_table = isinstance(data, LabeledTexts)
        splits = [
            _rows(split, self.label, is_table, self.pooling) for split in vectors.split_data(encoded, rng)
        ]
        task = _task(*splits)
        layers = vectors.resolve_layers(checkpoint, self.layers)
        pooled = [split.pooled for split in splits]
        passes = vectors.plan_passes(checkpoint, pooled, layers)
        control = _control(task, splits, rng)
        steps = vectors.StepCounter(progress, passes.batches * len(passes.layers) + 2 * len(layers))
        fits = [
            _fit_layer(task, control, data_vectors, held_out_vectors, steps)
            for data_vectors, held_out_vectors in vectors.vectors_by_layer(checkpoint, pooled, passes, steps)
        ]
        is_correct = np.stack([layer_fit.right for layer_fit in fits])
        low, high = _interval(is_correct, splits[1].sentences, self.confidence, rng)
        question_layers = None if self.layers is None else layers
        return ProbeResult(
            replace(self, layers=question_layers),
            vectors.input_record(checkpoint, files, encoded),
            layers,
            task.labels,
            (len(splits[0].labels), len(splits[1].labels)),
            read_only(is_correct.mean(axis=1)),
            read_only(low),
            read_only(high),
            task.baseline,
            read_only(np.array([layer_fit.control for layer_fit in fits])),
            read_only(np.array([layer_fit.bits for layer_fit in fits])),
        )

    def _check_labels(self, checkpoint: Checkpoint, texts: bool) -> None:
        """Raise an error if the label or the pooling of this question is not allowed for the data.

        Args:
            checkpoint: the model.
            texts: whether the data are texts of a table instead of tagged sentences.
        """
        if texts and self.label is not None:
            raise SelectionError(
                "The option label selects a comment of a treebank, but a table has no comments: "
                "each text has one label. Omit the label."
            )
        if self.pooling and self.label is None and not texts:
            raise SelectionError(
                "The vector of a word is always the mean of its token vectors. Omit the pooling."
            )
        if self.pooling == "cls":
            resolve_pooling(checkpoint, self.pooling)


@dataclass(frozen=True, eq=False)
class _Rows:
    """The labeled words, sentences or texts of one split, each of which has one vector.

    Attributes:
        pooled: the tokens that are pooled into each vector.
        labels: label of each vector.
        forms: word form of each vector, for the baseline; "" for sentences and texts.
        kinds: word form or whole text of each vector. In the control task, vectors with the same word form
            or text have the same random label.
        sentences: sentence index of each vector.
    """

    pooled: vectors.PooledTokens
    labels: tuple[str, ...]
    forms: tuple[str, ...]
    kinds: tuple[str, ...]
    sentences: Array


@dataclass(frozen=True, eq=False)
class _Task:
    """The labels of the training vectors and of the held-out vectors, as class indices.

    Attributes:
        labels: distinct labels of the training data, sorted.
        data, held_out: label index of each training vector and of each held-out vector; -1 for a held-out
            label that does not occur in the training data.
        baseline: accuracy of predicting the most frequent label of each word form.
    """

    labels: tuple[str, ...]
    data: torch.Tensor
    held_out: torch.Tensor
    baseline: float


def _rows(split: vectors.EncodedTexts, label: str | None, is_table: bool, pooling: str | None) -> _Rows:
    if label is None and not is_table:
        pooled, sentences, words = vectors.pool_words(split)
        positions = list(zip(sentences.tolist(), words.tolist(), strict=True))
        tags = tuple(split.sentences[sentence].tags[word] for sentence, word in positions)
        forms = tuple(split.sentences[sentence].words[word] for sentence, word in positions)
        return _Rows(pooled, tags, forms, forms, sentences)
    count = len(split.sentences)
    labels = (
        tuple(str(sentence.label) for sentence in split.sentences)
        if label is None
        else _comment_values(split, label)
    )
    kinds = tuple(map(repr, split.texts))
    pooled = vectors.pool_sentences(split, pooling or "mean")
    return _Rows(pooled, labels, ("",) * count, kinds, np.arange(count))


def _comment_values(split: vectors.EncodedTexts, label: str) -> tuple[str, ...]:
    """Return the value of the comment ``label`` in each sentence; raise an error if a sentence has none."""
    errors = ValidationErrors("The file")
    for sentence in split.sentences:
        if label not in sentence.metadata:
            names = ", ".join(sentence.metadata) or "none"
            errors.add(sentence.line, f"this sentence has no comment “{label}”; its comments: {names}")
    errors.check()
    return tuple(sentence.metadata[label] for sentence in split.sentences)


def _task(data: _Rows, held_out: _Rows) -> _Task:
    labels = sorted({*data.labels})
    if not held_out.labels:
        raise TextError("No word of the held-out sentences has a token. Use other sentences.")
    if len(labels) < 2:
        description = f"is {labels[0]}" if labels else "is missing"
        raise TextError(f"Every label {description}. Use data with at least two labels.")
    if len(labels) > MAX_LABELS:
        raise TextError(
            f"There are {len(labels):,} different labels, but at most {MAX_LABELS} can be probed. Check "
            "which column contains the labels."
        )
    indices = {label: index for index, label in enumerate(labels)}
    by_form: dict[str, Counter[str]] = {}
    for form, label in zip(data.forms, data.labels, strict=True):
        by_form.setdefault(form, Counter())[label] += 1
    default = _most_common(Counter(data.labels))
    predictions = {form: _most_common(counts) for form, counts in by_form.items()}
    is_correct = [
        predictions.get(form, default) == label
        for form, label in zip(held_out.forms, held_out.labels, strict=True)
    ]
    return _Task(
        tuple(labels),
        torch.tensor([indices[label] for label in data.labels]),
        torch.tensor([indices.get(label, -1) for label in held_out.labels]),
        float(np.mean(is_correct)),
    )


def _most_common(counts: Counter[str]) -> str:
    """Return the most frequent label; in a tie, the alphabetically first label."""
    return min(counts, key=lambda label: (-counts[label], label))


def _control(
    task: _Task, splits: Sequence[_Rows], rng: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the control labels, as class indices, of the training vectors and of the held-out vectors.

    Each word form or text has one random label, drawn from the distribution of the training labels.
    """
    units = sorted({unit for split in splits for unit in split.kinds})
    labels = rng.choice(task.data.numpy(), size=len(units))
    random_labels = dict(zip(units, labels.tolist(), strict=True))
    data, held_out = (torch.tensor([random_labels[unit] for unit in split.kinds]) for split in splits)
    return data, held_out


@dataclass(frozen=True, eq=False)
class _LayerFit:
    """The results of a layer's probe."""

    right: Array  # whether each held-out prediction is correct, bool of shape [vector]
    control: float  # accuracy of the control task
    bits: float  # length of the online code


def _fit_layer(
    task: _Task,
    control: tuple[torch.Tensor, torch.Tensor],
    data: torch.Tensor,
    held_out: torch.Tensor,
    steps: vectors.StepCounter,
) -> _LayerFit:
    count = len(task.labels)
    space = ProbeSpace.of(data, count)
    rows, held_out_rows = space.within(data), space.within(held_out)
    fitted = fit_online(rows, task.data, count, space, steps.report)
    is_correct = log_probabilities(held_out_rows, fitted.weights).argmax(dim=1) == task.held_out
    steps.advance()
    control_weights = fit(rows, control[0], np.zeros_like(fitted.weights), space.penalties, steps.report)
    is_control_correct = log_probabilities(held_out_rows, control_weights).argmax(dim=1) == control[1]
    steps.advance()
    return _LayerFit(is_correct.numpy(), float(is_control_correct.double().mean()), fitted.bits)


def _interval(
    is_correct: Array, sentences: Array, confidence: float, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Return the lower and upper bounds, [layer], of a bootstrap interval of each layer's accuracy.

    Whole sentences are resampled, because the words of a sentence are not independent.

    Args:
        is_correct: whether each held-out prediction is correct, [layer, vector].
        sentences: sentence index of each held-out vector, [vector].
        confidence: confidence level of the interval, between 0 and 1.
        rng: random generator of the resampling.
    """
    sentence_indices = np.unique(sentences, return_inverse=True)[1]
    sizes = np.bincount(sentence_indices).astype(np.float64)
    hits = np.stack([np.bincount(sentence_indices, layer) for layer in is_correct], axis=1)
    count = len(sizes)
    weights = np.stack(
        [np.bincount(rng.integers(count, size=count), minlength=count) for _ in range(RESAMPLES)]
    )
    accuracies = (weights @ hits) / (weights @ sizes)[:, None]
    low, high = np.percentile(accuracies, [50 * (1 - confidence), 50 * (1 + confidence)], axis=0)
    return low, high


@dataclass(frozen=True, eq=False, repr=False)
class ProbeResult(Result):
    """Accuracy of the probe of each layer; all arrays are float64 and have shape [probed layer].

    Attributes:
        layers: probed layers; 0 is the embeddings.
        labels: the labels that the probe can predict: the different training labels, sorted.
        counts: numbers of training vectors and of held-out vectors.
        accuracies: accuracy on held-out vectors.
        low, high: bounds of the accuracy's confidence interval.
        baseline: accuracy of predicting the most frequent label of each word form; for sentences and texts,
            accuracy of predicting the most frequent training label.
        controls: accuracy of the control task.
        code_lengths: length of the online code for the training labels, in bits.
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
        arrays = (self.accuracies, self.low, self.high, self.controls, self.code_lengths)
        if {array.shape for array in arrays} != {(len(self.layers),)}:
            raise ShapeError(f"All arrays must have shape ({len(self.layers)},), with one value per layer.")

    @property
    def of_sentences(self) -> bool:
        """Whether the labels belong to sentences or texts instead of words."""
        files: Mapping[str, Any] = self.inputs.sentences["files"]
        return self.question.label is not None or "kind" in files["data"]

    @property
    def selectivities(self) -> Array:
        """Selectivity of each layer's probe: accuracy minus accuracy on the control task, [probed layer]."""
        difference: Array = self.accuracies - self.controls
        return difference

    @property
    def uniform_length(self) -> float:
        """Length in bits of a uniform code for the training labels."""
        return float(self.counts[0] * np.log2(len(self.labels)))

    @property
    def compressions(self) -> Array:
        """Compression by each layer: uniform code length divided by online code length, [probed layer]."""
        ratio: Array = self.uniform_length / self.code_lengths
        return ratio

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The pooling, the labels, the numbers of vectors, and the uniform code length."""
        pooling = {"pooling": self.question.pooling or "mean"} if self.of_sentences else {}
        return pooling | {
            "labels": list(self.labels),
            "learned_from": self.counts[0],
            "held_out": self.counts[1],
            "uniform_codelength": self.uniform_length,
        }

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per probed layer.

        Columns: layer, accuracy, low, high, baseline, control, selectivity, codelength.
        """
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
