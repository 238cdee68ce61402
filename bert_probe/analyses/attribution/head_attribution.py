"""Attribution of a prediction to attention heads, and pruning of heads in the order of their attributions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.attribution.attribution import TargetQuestion, input_record
from bert_probe.analyses.attribution.head_ablation import REPLACEMENT_HELP, REPLACEMENTS, model_with_heads
from bert_probe.analyses.outputs.prediction import problem_type
from bert_probe.analyses.outputs.target import TargetOutput, format_labels
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, Number
from bert_probe.core.inputs import OneOrTwoTraces, SentenceList
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError, TextError, UnavailableError
from bert_probe.model.capture import heads_switched_off, recording
from bert_probe.model.checkpoint import TEXT_CLASSIFICATION, Checkpoint
from bert_probe.model.forward import BATCH_TOKENS, as_array, batch, forward, group_by_length
from bert_probe.model.gradients import forward_from_embeddings
from bert_probe.model.outputs import OutputHead, output_head
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace, read_only
from bert_probe.text.sentence_files import with_line_numbers

TABLES = ("heads", "layers", "importance")


@question("head attribution", command="head-attribution")
class HeadAttribution(TargetQuestion):
    """Change of one output value when each attention head, or all heads of a layer, are ablated.

    The result also contains the gradient-based importance of each head (Michel et al. 2019).

    Attributes:
        replacement: what replaces the output of a head before the output projection: "zero", or "mean" for
            its mean over the tokens of the text.
        show: the table to return: "heads" for the change without each head, "layers" for the change without
            all heads of each layer, or "importance" for the importance of each head.
    """

    inputs = OneOrTwoTraces("--pair")

    replacement: str = param(Choice(REPLACEMENTS), default="zero", about=REPLACEMENT_HELP)
    show: str = param(
        Choice(TABLES), default="heads", key="attribution_heads", display_only=True, about="Table to show."
    )

    def of(
        self, trace: Trace, other: Trace | None = None, progress: Progress = no_progress
    ) -> HeadAttributionResult:
        """Return the change of the target value without each head and without all heads of each layer.

        Args:
            progress: called with the number of ablations done and the total.

        Raises:
            UnavailableError: see `Attribution.of`. Also raised if the architecture does not expose its heads.
            SelectionError, TextError, OutOfMemoryError: see `Attribution.of`.
        """
        number = self.number(trace, other)
        masked_trace = number.trace
        checkpoint = model_with_heads(masked_trace)
        layers, heads = masked_trace.layers, masked_trace.heads
        off = np.zeros((layers, layers * (heads + 1), heads), dtype=bool)
        for layer in range(layers):
            for head in range(heads):
                off[layer, layer * heads + head, head] = True
            off[layer, layers * heads + layer] = True
        value = float(number.of([number.untouched])[0])
        values, size = [], max(1, BATCH_TOKENS // len(masked_trace.tokens))
        for start in range(0, off.shape[1], size):
            rows = torch.from_numpy(off[:, start : start + size]).to(checkpoint.device)
            with heads_switched_off(rows, self.replacement):
                values.append(number.of([number.untouched] * rows.shape[1]))
            progress(min(start + size, off.shape[1]), off.shape[1])
        changes = np.concatenate(values) - value
        return HeadAttributionResult(
            self.about(number, trace),
            input_record(trace, other),
            number.name,
            value,
            read_only(changes[: layers * heads].reshape(layers, heads)),
            read_only(changes[layers * heads :]),
            read_only(_importance(number)),
        )


def _importance(number: TargetOutput) -> Array:
    """Return the importance of each head, |Σ output · gradient of the target value|, shape [layer, head]."""
    with forward_from_embeddings(number.trace) as forward_pass:
        with recording() as calls:
            states, pooled = forward_pass.to_end(forward_pass.start())
        value = number.on(forward_pass.inputs, states, pooled)
        outputs = [call.output for call in calls]
        gradients = torch.autograd.grad(value.sum(), outputs)
    return np.stack(
        [
            np.abs((as_array((output * gradient)[0].detach()).astype(np.float64)).sum(axis=(0, 2)))
            for output, gradient in zip(outputs, gradients, strict=True)
        ]
    )


@dataclass(frozen=True, eq=False, repr=False)
class HeadAttributionResult(Result):
    """Changes of the target value when attention heads are ablated.

    Attributes:
        number: description of the target output.
        value: target value without ablation.
        changes: target value without each head minus ``value``, float64 of shape [layer, head].
        layers: target value without all heads of each layer minus ``value``, shape [layer].
        importance: importance of each head, |Σ output · gradient|, shape [layer, head].
    """

    question: HeadAttribution
    number: str
    value: float
    changes: Array
    layers: Array
    importance: Array

    def __post_init__(self) -> None:
        if self.changes.shape != self.importance.shape or self.layers.shape != self.changes.shape[:1]:
            raise ShapeError(
                "changes and importance must have shape [layer, head], and layers must have shape "
                f"[layer], not {self.changes.shape}, {self.importance.shape} and {self.layers.shape}."
            )

    @property
    def agreement(self) -> float:
        """Spearman's rank correlation of the heads' importance with their absolute change, -1 to 1.

        NaN if all heads have the same importance or the same change.
        """
        from scipy.stats import spearmanr  # imported here because the import is slow

        sides = self.importance.ravel(), np.abs(self.changes).ravel()
        if any(side.min() == side.max() for side in sides):
            return float("nan")
        return float(spearmanr(*sides).statistic)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Description and value of the target output, and the rank correlation `agreement`."""
        return {"number": self.number, "value": self.value, "rank_correlation": self.agreement}

    def frame(self) -> pd.DataFrame:
        """Return the table that ``show`` of the question selects.

        Columns of "heads": layer, head, change; of "layers": layer, change; of "importance": layer, head,
        importance.
        """
        if self.question.show == "layers":
            return pd.DataFrame({"layer": range(1, len(self.layers) + 1), "change": self.layers})
        if self.question.show == "importance":
            return frames.by_head({"importance": self.importance})
        return frames.by_head({"change": self.changes})


ORDERS = ("effect", "importance", "random")
SEPARATOR = "\t"
"""Character between the label, the text and the optional second text on a line."""


@question("head pruning", command="head-pruning")
class HeadPruning(Question):
    """Accuracy on labeled texts as an increasing number of heads is ablated (Michel et al. 2019).

    Heads are ablated in three orders. "effect" and "importance" ablate the least important heads first, by
    the mean decrease of the true class's logit without the head, or by the mean gradient-based importance
    of the head for this logit. "random" ablates them in random order, for comparison.

    Attributes:
        parts: number of steps of about equal size, from no ablated head to all heads ablated.
        seed: random seed of the random order.
    """

    inputs = SentenceList()

    parts: int = param(
        Number(1, 100),
        default=10,
        about="Number of steps from no ablated head to all heads ablated.  [default: 10]",
    )
    seed: int = param(Number(0), default=0, about="Seed of the random order of the heads.  [default: 0]")

    def of(
        self,
        checkpoint: Checkpoint,
        sentences: Sequence[str],
        truncate: bool = False,
        progress: Progress = no_progress,
    ) -> HeadPruningResult:
        """Return the accuracy at each step of each order in which heads are ablated.

        Args:
            sentences: labeled texts, each written as label, tab, text, and optionally tab and second text.
            truncate: truncate texts that are too long instead of raising an error.
            progress: called with the number of texts done and the total.

        Raises:
            EmptyTextError, TooLongError, TextError: there are no lines, or a line has no text or does not
                start with one of the checkpoint's labels.
            UnavailableError: the checkpoint has no classification head that predicts one label per text, or
                its architecture does not expose its attention heads.
        """
        checkpoint = checkpoint.snapshot()
        output = output_head(checkpoint, TEXT_CLASSIFICATION)
        if problem_type(output) != "single_label_classification":
            raise UnavailableError(
                "The accuracy needs a classification head that predicts one label per text, but this head "
                f"has the problem type {problem_type(output)}. Choose a model with such a head."
            )
        texts = [*_trace_labeled(checkpoint, output, sentences, truncate)]
        effects, importances = [], []
        for done, (trace, label) in enumerate(texts):
            progress(done, 2 * len(texts))
            attribution = HeadAttribution(TEXT_CLASSIFICATION, output.labels[label]).of(trace)
            effects.append(-attribution.changes)
            importances.append(attribution.importance)
        ranked = {
            "effect": np.argsort(np.mean(effects, axis=0), axis=None, kind="stable"),
            "importance": np.argsort(np.mean(importances, axis=0), axis=None, kind="stable"),
            "random": np.random.default_rng(self.seed).permutation(effects[0].size),
        }
        counts = np.unique(np.linspace(0, effects[0].size, self.parts + 1).round().astype(int))
        curves = np.array(
            [
                [_accuracy(texts, output, order[:count], effects[0].shape) for count in counts]
                for order in (ranked[name] for name in ORDERS)
            ]
        )
        progress(2 * len(texts), 2 * len(texts))
        dropped = sum(trace.encoding.dropped for trace, _ in texts)
        lines = [line for _, line in with_line_numbers(sentences, "labeled text")]
        inputs = InputRecord.of_sentences(checkpoint, lines, dropped)
        return HeadPruningResult(self, inputs, read_only(counts), read_only(curves))


def _trace_labeled(
    checkpoint: Checkpoint, output: OutputHead, sentences: Sequence[str], truncate: bool
) -> Iterator[tuple[Trace, int]]:
    for number, line in with_line_numbers(sentences, "labeled text"):
        label, tab, remainder = line.partition(SEPARATOR)
        text, pair_tab, pair = remainder.partition(SEPARATOR)
        if not tab or label not in output.labels:
            labels = format_labels(output.labels)
            raise TextError(
                f"Line {number} must start with a label and a tab, followed by the text. The labels are "
                f"{labels}. Write lines of this form to a .txt file; the label column of a table is not read."
            )
        try:
            yield checkpoint.trace(text, pair if pair_tab else None, truncate), output.labels.index(label)
        except TextError as error:
            raise type(error)(f"Line {number}: {error}") from None


def _accuracy(
    texts: Sequence[tuple[Trace, int]], output: OutputHead, removed: Array, shape: tuple[int, ...]
) -> float:
    """Return the accuracy over the texts with some attention heads ablated.

    Args:
        texts: trace and class index of each text.
        output: the classification head.
        removed: flat indices of the ablated heads.
        shape: numbers of layers and heads of the model.
    """
    layers, heads = shape
    off = np.zeros((layers, 1, heads), dtype=bool)
    off[removed // heads, 0, removed % heads] = True
    checkpoint, correct = texts[0][0].checkpoint, 0
    for group in group_by_length([len(trace.encoding) for trace, _ in texts], BATCH_TOKENS, checkpoint.pads):
        encodings = [texts[index][0].encoding for index in group]
        switched = torch.from_numpy(off.repeat(len(group), axis=1)).to(checkpoint.device)
        with heads_switched_off(switched, "zero"):
            outputs, _ = forward(checkpoint, encodings)
        with torch.inference_mode(), checkpoint.running():
            pooled = getattr(outputs, "pooler_output", None)
            logits = as_array(output.answer(batch(checkpoint, encodings), outputs.last_hidden_state, pooled))
        correct += int((logits.argmax(axis=-1) == [texts[index][1] for index in group]).sum())
    return correct / len(texts)


@dataclass(frozen=True, eq=False, repr=False)
class HeadPruningResult(Result):
    """Accuracies as an increasing number of attention heads is ablated.

    Attributes:
        removed: number of ablated heads at each step, from none to all, shape [step].
        accuracies: accuracy at each step, float64 of shape [order, step], 0 to 1; orders as in `ORDERS`.
    """

    question: HeadPruning
    removed: Array
    accuracies: Array

    def __post_init__(self) -> None:
        if self.accuracies.shape != (len(ORDERS), len(self.removed)):
            raise ShapeError(
                f"accuracies must have shape [{len(ORDERS)}, {len(self.removed)}], not "
                f"{self.accuracies.shape}."
            )

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The accuracy of the model without ablation."""
        return {"accuracy": float(self.accuracies[0, 0])}

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per order and step: order, removed, accuracy."""
        return pd.DataFrame(
            {
                "order": np.repeat(ORDERS, len(self.removed)),
                "removed": np.tile(self.removed, len(ORDERS)),
                "accuracy": self.accuracies.ravel(),
            }
        )
