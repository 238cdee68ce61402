"""Classification and clustering of labeled texts from frozen sentence vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from bert_probe.analyses.evaluation.measures import RESAMPLES, bootstrap, bootstrap_means, interval
from bert_probe.analyses.evaluation.similarity_evaluation import CURVE_HELP, NO_CURVE, NO_OTHER
from bert_probe.analyses.evaluation.vector_comparison import VectorComparison, compare_vectors, vector_formats
from bert_probe.analyses.vectors.pooling import DIMENSIONS_HELP, PROMPT_HELP, PoolingConfig, resolve_pooling
from bert_probe.analyses.vectors.sentences import POOLED, POOLING, TextVectors, encode_texts
from bert_probe.core import frames
from bert_probe.core.evaluation_inputs import EvaluationFiles
from bert_probe.core.field_types import Choice, Flag, Name, Number, Optional
from bert_probe.core.inputs import TABLE, FileInput
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result, SortOrder
from bert_probe.errors import EmptyTextError, ShapeError, TextError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress, final_progress, no_progress, step_progress
from bert_probe.model.trace import Array
from bert_probe.text.duplicates import group_rows, text_key
from bert_probe.text.labeled_texts import CLASSES, LabeledTexts

MEASURES = ("accuracy", "macro_f1", "calibration_error", "v_measure")
BINS = 15
"""Number of equally wide confidence bins of the expected calibration error (Guo et al. 2017)."""
MAX_CLASSES = 200
"""Maximum number of classes of the labeled texts."""
MAX_PROBABILITIES = 100_000
"""Maximum number of texts times the number of classes over HTTP and on a page.

The number is limited because the computation cannot be cancelled while a fold is fitted.
"""
STARTS = 10
"""Number of k-means runs with different initial centers; the run with the lowest inertia is used."""
_MAX_ITERATIONS = 2_000
_TABLES = ("summary", "texts", "moved", "confusion", "reliability", "vectors", "neighbors", "curve")


@question("label evaluation", command="evaluate-labels")
class LabelEvaluation(Question):
    """Quality of frozen sentence vectors for classifying and clustering labeled texts.

    scikit-learn's logistic regression with stratified cross-validation gives accuracy, macro F1 and expected
    calibration error. Texts that differ only in case, spaces or accents, or that have the same tokens, are in
    the same fold. k-means with as many clusters as classes gives the V-measure. The 95% bootstrap intervals
    resample the texts. With a second model, the result also has the differences between the models, computed
    on the same folds and resamples.

    Attributes:
        pooling: pooling of token vectors. If None, the checkpoint's own pooling if it has one, otherwise the
            mean.
        prompt: name of the checkpoint's prompt that is prepended to each text, or "none"; see
            `resolve_pooling` for the default.
        dimensions: number of dimensions to which the vectors are truncated.
        folds: number of folds of the cross-validation; at most the number of distinct texts in the smallest
            class.
        regularization: inverse strength C of the L2 penalty of the logistic regression.
        curve: also evaluate the classification with fewer dimensions, int8 vectors and binary vectors.
        show: the table to return. "summary" has the measures with intervals; "texts" has the texts, sorted by
            ascending probability of their label; "confusion" is the confusion matrix; "reliability" is the
            reliability curve; "curve" has the accuracy of each vector format. With a second model, "moved"
            has the texts whose probability changed most, "vectors" has the agreement on nearest neighbors,
            and "neighbors" has the neighbors that changed.
    """

    inputs = EvaluationFiles(
        {"texts": FileInput(formats=(TABLE,), help="A table with the columns text and label.")}
    )

    pooling: str | None = param(Optional(POOLING), default=None, about=POOLED)
    prompt: str | None = param(Optional(Name()), default=None, about=PROMPT_HELP)
    dimensions: int | None = param(Optional(Number(1)), default=None, about=DIMENSIONS_HELP)
    folds: int = param(Number(2, 20), default=5, about="Number of folds of the cross-validation.")
    regularization: float = param(
        Number(1e-6, 1e6, integer=False),
        default=1.0,
        about="Inverse regularization strength C of the logistic regression (L2 penalty).",
    )
    curve: bool = param(Flag(), default=False, about=CURVE_HELP)
    show: str = param(
        Choice(_TABLES),
        default="summary",
        display_only=True,
        key="label_table",
        about=(
            "Table: summary, texts, texts whose prediction changed, confusion matrix, reliability, agreement "
            "of the two models' vectors, changed nearest neighbors, or curve."
        ),
    )

    def of(
        self,
        checkpoint: Checkpoint,
        texts: LabeledTexts,
        truncate: bool = False,
        other: Checkpoint | None = None,
        progress: Progress = no_progress,
    ) -> LabelEvaluationResult:
        """Encode the texts, and classify and cluster their vectors.

        Args:
            checkpoint: the model.
            texts: texts with one class each, as returned by `read_labeled_texts`.
            truncate: truncate texts that are too long instead of raising an error.
            other: a model to compare with.
            progress: called with the amount of work done and the total. After the last fold, all work is
                reported as done.

        Raises:
            TextError, EmptyTextError, TooLongError: the labels are not classes, or a text cannot be encoded.
            UnavailableError: there is only one class, or a class has only one distinct text; see also
                `resolve_pooling`.
            SelectionError, CheckpointError: see `resolve_pooling`.
        """
        labels = _check_classes(texts)
        keys = [text_key(row.text) for row in texts.rows]
        _splits(texts, labels, self.folds, group_rows(keys))  # report errors before the texts are encoded
        checkpoints = [checkpoint.snapshot(), *([] if other is None else [other.snapshot()])]
        last = final_progress(progress, 2 * len(texts.rows) * len(checkpoints))
        encoded: list[tuple[PoolingConfig, TextVectors]] = []
        sentences = [row.text for row in texts.rows]
        lines = [f"Line {row.line:,}" for row in texts.rows]
        for number, model in enumerate(checkpoints):
            is_own = model.sentence_model is not None or model.sentence_model_error is not None
            recipe = resolve_pooling(
                model, self.pooling or ("model" if is_own else "mean"), self.prompt, self.dimensions
            )
            step = step_progress(progress, number, 2 * len(checkpoints))
            encoded.append(
                (recipe, encode_texts(model, recipe, sentences, truncate, lambda n: lines[n - 1], step))
            )
        groups = group_rows(keys, *(model_vectors.groups for _, model_vectors in encoded))
        splits = _splits(texts, labels, self.folds, groups)
        models = []
        for number, (recipe, model_vectors) in enumerate(encoded, len(encoded)):
            fitting = step_progress(progress, number, 2 * len(checkpoints))
            vectors = model_vectors.vectors
            probabilities = self._probabilities(vectors, labels, splits, fitting)
            clusters = _clusters(vectors, len(texts.labels), final_progress(fitting, len(splits)))
            models.append(ClassifiedTexts(recipe, vectors, probabilities, clusters))
        dropped = sum(sum(model_vectors.dropped) for _, model_vectors in encoded)
        record = InputRecord.of_tagged(checkpoints[0], {"texts": texts}, dropped)
        comparison = None
        if other is not None:
            record = record.with_other_model(InputRecord.of_model(checkpoints[1]))
            comparison = _compare(texts, models[0], models[1], last)
        curve = self._curve(checkpoints[0], models[0], labels, splits, last) if self.curve else None
        samples = bootstrap(
            lambda weights: np.stack([_measures(weights, labels, model) for model in models], axis=1),
            len(labels),
            last,
            size=len(texts.labels) ** 2,  # one value per cell of a contingency table
        )
        return LabelEvaluationResult(
            self, record, texts, labels, len(splits), tuple(models), samples, curve, comparison
        )

    def check_limits(self, *inputs: Any) -> None:
        """Raise UnavailableError if the number of texts times classes exceeds `MAX_PROBABILITIES`."""
        texts = inputs[1]
        if not isinstance(texts, LabeledTexts):
            return  # `of` raises an error for data of another type
        limit = MAX_PROBABILITIES // max(1, len(texts.labels))
        if len(texts.rows) > limit:
            raise UnavailableError(
                f"The app evaluates at most {limit:,} texts with {len(texts.labels):,} classes, not "
                f"{len(texts.rows):,}. Use fewer texts, or the command line."
            )

    def _probabilities(
        self, vectors: Array, labels: Array, splits: Sequence[tuple[Array, Array]], progress: Progress
    ) -> Array:
        """Return the class probabilities of each text, predicted when it is held out, [text, class].

        Args:
            splits: indices of the training texts and of the held-out texts of each fold.
            progress: called with the number of folds done and the total.
        """
        from sklearn.linear_model import LogisticRegression

        # This loop replaces cross_val_predict of scikit-learn, which cannot be cancelled.
        parts = []
        for fold, (training, held_out) in enumerate(splits):
            progress(fold, len(splits))
            model = LogisticRegression(C=self.regularization, max_iter=_MAX_ITERATIONS)
            model.fit(vectors[training], labels[training])
            parts.append(model.predict_proba(vectors[held_out]))
        order = np.argsort(np.concatenate([held_out for _, held_out in splits]))
        probabilities: Array = np.concatenate(parts)[order]
        return probabilities

    def _curve(
        self,
        checkpoint: Checkpoint,
        model: ClassifiedTexts,
        labels: Array,
        splits: Sequence[tuple[Array, Array]],
        progress: Progress,
    ) -> pd.DataFrame:
        rows = []
        own = checkpoint.sentence_model if self.pooling in (None, "model") else None
        for form in vector_formats(model.vectors.shape[1], own):
            probabilities = self._probabilities(form.convert(model.vectors), labels, splits, progress)
            correct = (probabilities.argmax(axis=1) == labels).astype(float)
            bounds = interval(bootstrap_means(correct, progress))
            row = (form.dimensions, form.precision, form.bytes_per_vector, correct.mean(), *bounds)
            rows.append(row)
        names = ["dimensions", "precision", "bytes_per_vector", "accuracy", "low", "high"]
        return pd.DataFrame(rows, columns=names)


@dataclass(frozen=True, eq=False)
class ClassifiedTexts:
    """The predictions for labeled texts, from the sentence vectors of one model.

    Attributes:
        recipe: the pooling configuration.
        vectors: the sentence vectors, [text, dimension].
        probabilities: class probabilities of each text, predicted when it is held out, [text, class].
        clusters: k-means cluster index of each text, [text].
    """

    recipe: PoolingConfig
    vectors: Array
    probabilities: Array
    clusters: Array

    @cached_property
    def predicted(self) -> Array:
        """Index of the most probable class for each text, [text]."""
        predicted: Array = self.probabilities.argmax(axis=1)
        return predicted


def _check_classes(texts: LabeledTexts) -> Array:
    """Return the class index of each text, [text], after checking that the texts can be classified."""
    if not isinstance(texts, LabeledTexts):
        raise TextError("Pass labeled texts from read_labeled_texts.")
    if not texts.rows:
        raise EmptyTextError("There are no texts. Pass labeled texts.")
    if texts.kind != CLASSES:
        raise TextError(
            f"The labels are of the type {texts.kind}, but classification needs one class per text. Write "
            "the classes as words; in Python, you can also read the file with kind='classes'."
        )
    if any(row.pair is not None for row in texts.rows):
        raise TextError("The table has text pairs. Use single texts, in a column named text.")
    if not 2 <= len(texts.labels) <= MAX_CLASSES:
        classes = "1 class" if len(texts.labels) == 1 else f"{len(texts.labels):,} classes"
        raise UnavailableError(f"The texts have {classes}. Use texts of 2 to {MAX_CLASSES} classes.")
    indices = {label: index for index, label in enumerate(texts.labels)}
    return np.array([indices[str(row.label)] for row in texts.rows])


def _splits(
    texts: LabeledTexts, labels: Array, max_folds: int, groups: Sequence[int]
) -> list[tuple[Array, Array]]:
    """Return the rows of the training split and of the held-out split of each fold.

    A group is in one fold, so that no text is predicted by a model that was trained on it. The training split
    of each fold has all classes, because each class is that of the first text of at least as many groups as
    there are folds.

    Args:
        groups: for each text, the index of the first text of its group of equal texts.

    Raises:
        UnavailableError: a class has only one distinct text.
    """
    from sklearn.model_selection import StratifiedKFold

    rows, group_indices = np.unique(groups, return_inverse=True)
    counts = np.bincount(labels[rows], minlength=len(texts.labels))
    rare = [label for label, count in zip(texts.labels, counts, strict=True) if count < 2]
    if rare:
        raise UnavailableError(
            f"{len(rare):,} classes have only one text, which cannot be both in the training and in the "
            f"held-out split: {', '.join(name[:40] for name in rare[:5])}. Texts that are equal, except for "
            "case, spaces and accents, or have the same tokens, count once, with their first label. Add "
            "texts, or remove these classes."
        )
    folds = min(max_folds, counts.min())
    splits = StratifiedKFold(folds, shuffle=True, random_state=0).split(rows, labels[rows])
    held_out = [np.isin(group_indices, indices) for _, indices in splits]
    return [(np.flatnonzero(~mask), np.flatnonzero(mask)) for mask in held_out]


def _clusters(vectors: Array, count: int, progress: Progress) -> Array:
    """Return the cluster index of each text, [text], from the best of `STARTS` runs of k-means.

    Args:
        vectors: sentence vectors, [text, dimension].
        count: number of clusters; at most the number of distinct vectors is used.
        progress: called with the number of runs done and the total.
    """
    from sklearn.cluster import KMeans

    different = len(np.unique(vectors, axis=0))
    random = np.random.RandomState(0)  # one generator for all runs, as in KMeans(n_init=STARTS)
    best: Any = None
    for start in range(STARTS):
        progress(start, STARTS)
        clustering = KMeans(min(count, different), n_init=1, random_state=random).fit(vectors)
        if best is None or clustering.inertia_ < best.inertia_:
            best = clustering
    clusters: Array = best.labels_
    return clusters


def _measures(weights: Array, labels: Array, model: ClassifiedTexts) -> Array:
    """Return the `MEASURES` of one model in each resample, [resample, measure].

    Args:
        weights: how often each resample contains each text, [resample, text].
        labels: class index of each text, [text].
        model: the predictions of the model.
    """
    classes = model.probabilities.shape[1]
    counts = _contingency(weights, labels, model.predicted, classes, classes)
    total = weights.sum(axis=1)
    hits = counts[:, np.arange(classes), np.arange(classes)]
    present = counts.sum(axis=1) + counts.sum(axis=2)
    f1 = np.divide(2 * hits, present, out=np.zeros(hits.shape), where=present > 0)
    macro = f1.sum(axis=1) / (present > 0).sum(axis=1)
    table = _contingency(weights, labels, model.clusters, classes, int(model.clusters.max()) + 1)
    error = _calibration_errors(weights, model, labels)
    return np.stack([hits.sum(axis=1) / total, macro, error, _v_measure(table)], axis=1)


def _contingency(weights: Array, first: Array, second: Array, rows: int, columns: int) -> Array:
    """Return the contingency table of two label assignments for each resample, [resample, row, column].

    Args:
        weights: how often each resample contains each text, [resample, text].
        first, second: row index and column index of each text, [text].
        rows, columns: size of the table.
    """
    shape = len(first), rows * columns
    ones = sparse.csr_array((np.ones(len(first)), (np.arange(len(first)), first * columns + second)), shape)
    return np.asarray(weights @ ones).reshape(len(weights), rows, columns)


def _v_measure(counts: Array) -> Array:
    """Return the V-measure in each resample, [resample] (Rosenberg and Hirschberg 2007).

    Args:
        counts: contingency table of each resample, [resample, class, cluster].
    """

    def entropy(values: Array) -> Array:
        shares = values / values.sum(axis=-1, keepdims=True)
        entropies: Array = -(shares * np.log(np.where(shares > 0, shares, 1))).sum(axis=-1)
        return entropies

    classes, clusters = entropy(counts.sum(axis=2)), entropy(counts.sum(axis=1))
    information = classes + clusters - entropy(counts.reshape(len(counts), -1))
    total = classes + clusters
    # Both entropies are 0 only for a single class and a single cluster, for which the V-measure is 1.
    values: Array = np.divide(2 * information, total, out=np.ones(len(total)), where=total > 1e-12)
    return values


def _bins(model: ClassifiedTexts) -> Array:
    """Return the index of the confidence bin of each text, [text].

    The confidence is the probability of the most probable class.
    """
    confidence = model.probabilities.max(axis=1)
    bins: Array = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    return bins


def _calibration_errors(weights: Array, model: ClassifiedTexts, labels: Array) -> Array:
    """Return the expected calibration error in each resample, [resample].

    Args:
        weights: how often each resample contains each text, [resample, text].
        model: the predictions of the model.
        labels: class index of each text, [text].
    """
    gaps = (model.predicted == labels) - model.probabilities.max(axis=1)
    shape = len(labels), BINS
    bins = sparse.csr_array((gaps, (np.arange(len(labels)), _bins(model))), shape)
    error: Array = np.abs(np.asarray(weights @ bins)).sum(axis=1) / weights.sum(axis=1)
    return error


def _compare(
    texts: LabeledTexts, a: ClassifiedTexts, b: ClassifiedTexts, progress: Progress
) -> VectorComparison | None:
    rows = list({row.text: index for index, row in enumerate(texts.rows)}.values())
    if len(rows) < 3:
        return None
    similarities = a.recipe.similarity, b.recipe.similarity
    selected = [texts.rows[row].text for row in rows]
    return compare_vectors(a.vectors[rows], b.vectors[rows], *similarities, selected, progress)


@dataclass(frozen=True, eq=False, repr=False)
class LabelEvaluationResult(Result):
    """Classification and clustering of labeled texts by one model or two.

    Attributes:
        texts: the labeled texts.
        labels: class index of each text, [text].
        folds: number of folds that were used.
        models: the predictions of the model, and of the other model if there is one.
        samples: the `MEASURES` of bootstrap resamples, [resample, model, measure].
        curve: table of the accuracy of each vector format; None if it was not computed.
        comparison: agreement of the two models on nearest neighbors; None without a second model, or for
            fewer than three different texts.
    """

    question: LabelEvaluation
    texts: LabeledTexts
    labels: Array
    folds: int
    models: tuple[ClassifiedTexts, ...]
    samples: Array
    curve: pd.DataFrame | None
    comparison: VectorComparison | None

    def __post_init__(self) -> None:
        for model in self.models:
            if model.probabilities.shape != (len(self.labels), len(self.texts.labels)):
                raise ShapeError(
                    f"probabilities must have shape ({len(self.labels)}, {len(self.texts.labels)}), not "
                    f"{model.probabilities.shape}."
                )

    @property
    def has_other(self) -> bool:
        """Whether two models are compared."""
        return len(self.models) > 1

    @cached_property
    def measures(self) -> Array:
        """The `MEASURES` of each model, [model, measure]."""
        weights = np.ones((1, len(self.labels)))
        return np.concatenate([_measures(weights, self.labels, model) for model in self.models])

    @property
    def wins(self) -> tuple[int, int, int]:
        """Numbers of texts for which the predictions of the other model are better, equal, and worse.

        A prediction is better if it is correct and the prediction of the first model is wrong.

        Raises:
            UnavailableError: there is only one model.
        """
        self._require_other()
        first, second = (model.predicted == self.labels for model in self.models)
        return int((second & ~first).sum()), int((first == second).sum()), int((first & ~second).sum())

    @property
    def finding(self) -> str:
        """A sentence that gives the accuracy with its interval."""
        low, high = interval(self.samples[:, 0, 0])
        return (
            f"Logistic regression on frozen vectors classifies {self.measures[0, 0]:.1%} of "
            f"{len(self.labels):,} held-out texts correctly (95% interval {low:.1%} to {high:.1%})."
        )

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The poolings, the numbers of texts, classes, folds and resamples, and the numbers in `wins`."""
        values: dict[str, Any] = {
            "recipe": self.models[0].recipe.about,
            "texts": len(self.labels),
            "classes": len(self.texts.labels),
            "folds": self.folds,
            "resamples": RESAMPLES,
        }
        if self.has_other:
            values["other_recipe"] = self.models[1].recipe.about
            values |= dict(zip(("better", "equal", "worse"), self.wins, strict=True))
        return values

    def _require_other(self) -> None:
        if not self.has_other:
            raise UnavailableError(NO_OTHER)

    @property
    def sort_order(self) -> SortOrder | None:
        """The order of the tables "texts" and "moved"; None for the other tables."""
        orders = {"texts": SortOrder("probability"), "moved": SortOrder("moved", by_magnitude=True)}
        return orders.get(self.question.show)

    def frame(self) -> pd.DataFrame:
        """Return the table that ``show`` of the question selects.

        "summary": measure, value, low, high (the bounds of the 95% interval) and, with a second model, other,
        other_low, other_high, difference, difference_low, difference_high.

        "texts" and "moved": line, text, label, predicted, probability (held-out probability of the label);
        with a second model also other_predicted, other_probability and moved, the difference of the
        probabilities.

        "confusion": one row per label and one column per predicted label. "reliability", with one row per
        confidence bin: from, to, texts, confidence, accuracy. "curve": dimensions, precision,
        bytes_per_vector, accuracy, low, high. "vectors" and "neighbors": see `VectorComparison.frame` and
        `VectorComparison.changed_neighbors`.
        """
        show = self.question.show
        if show == "curve":
            if self.curve is None:
                raise UnavailableError(NO_CURVE)
            return self.curve.copy()
        if show in ("vectors", "neighbors"):
            self._require_other()
            if self.comparison is None:
                raise UnavailableError(
                    "There are fewer than three different texts, so neighbors cannot be compared. Use "
                    "at least three different texts."
                )
            return self.comparison.frame() if show == "vectors" else self.comparison.changed_neighbors()
        if show == "reliability":
            return self._reliability()
        if show == "confusion":
            return self._confusion()
        return self._texts(show) if show in ("texts", "moved") else self._summary()

    def _summary(self) -> pd.DataFrame:
        columns: dict[str, Any] = {"measure": list(MEASURES)}
        parts = [("value", "low", "high", self.measures[0], self.samples[:, 0])]
        if self.has_other:
            parts.append(("other", "other_low", "other_high", self.measures[1], self.samples[:, 1]))
            names = ("difference", "difference_low", "difference_high")
            change = self.measures[1] - self.measures[0]
            parts.append((*names, change, self.samples[:, 1] - self.samples[:, 0]))
        for value, low, high, values, samples in parts:
            bounds = [interval(samples[:, column]) for column in range(len(MEASURES))]
            columns |= {value: values, low: [b[0] for b in bounds], high: [b[1] for b in bounds]}
        return pd.DataFrame(columns)

    def _texts(self, show: str) -> pd.DataFrame:
        rows, names = self.texts.rows, self.texts.labels
        index = np.arange(len(rows))
        columns: dict[str, Any] = {
            "line": [row.line for row in rows],
            "text": frames.plain_strings([row.text for row in rows]),
            "label": frames.plain_strings([str(row.label) for row in rows]),
            "predicted": frames.plain_strings([names[i] for i in self.models[0].predicted]),
            "probability": self.models[0].probabilities[index, self.labels],
        }
        key = columns["probability"]
        if self.has_other:
            second = self.models[1]
            columns["other_predicted"] = frames.plain_strings([names[i] for i in second.predicted])
            columns["other_probability"] = second.probabilities[index, self.labels]
            columns["moved"] = columns["other_probability"] - columns["probability"]
        if show == "moved":
            self._require_other()
            key = -np.abs(columns["moved"])
        return pd.DataFrame(columns).iloc[np.argsort(key, kind="stable")].reset_index(drop=True)

    def _confusion(self) -> pd.DataFrame:
        names = self.texts.labels
        weights = np.ones((1, len(self.labels)))
        counts = _contingency(weights, self.labels, self.models[0].predicted, len(names), len(names))[0]
        table = pd.DataFrame(counts.astype(int), columns=[f"predicted {name}" for name in names])
        table.insert(0, "label", frames.plain_strings(list(names)))
        return table

    def _reliability(self) -> pd.DataFrame:
        model, rows = self.models[0], []
        bins, confidence = _bins(model), model.probabilities.max(axis=1)
        for index in range(BINS):
            selected = bins == index
            values = (confidence[selected], model.predicted[selected] == self.labels[selected])
            means = [float(value.mean()) if selected.any() else float("nan") for value in values]
            rows.append((index / BINS, (index + 1) / BINS, int(selected.sum()), *means))
        return pd.DataFrame(rows, columns=["from", "to", "texts", "confidence", "accuracy"])

    @property
    def nbytes(self) -> int:
        """Estimated size of the vectors, probabilities, resamples and texts in bytes."""
        arrays = sum(model.vectors.nbytes + model.probabilities.nbytes for model in self.models)
        return arrays + self.samples.nbytes + sum(len(row.text) for row in self.texts.rows)
