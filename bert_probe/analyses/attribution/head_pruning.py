"""How many heads a classifier can do without: its accuracy as they are switched off, the least first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.attribution.head_attribution import HeadAttribution
from bert_probe.analyses.outputs.target import some_of
from bert_probe.core.field_types import Number
from bert_probe.core.inputs import SentenceList
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError, TextError
from bert_probe.model.capture import switched_off
from bert_probe.model.checkpoint import CLASSIFYING, Checkpoint
from bert_probe.model.forward import BATCH_TOKENS, as_array, batch, batches, forward
from bert_probe.model.outputs import OutputHead, output_of
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace, read_only
from bert_probe.text.sentence_files import numbered

ORDERS = ("effect", "importance", "random")
PARTED = "\t"
"""Stands between the label, the text and, where there is one, its pair in a line."""


@question("heads removed", command="head-pruning")
class HeadPruning(Question):
    """Accuracy over labelled texts as heads are switched off, one part after the other; Michel et al. 2019.

    The least important go first: by the "effect" that each has by itself on the logit of the right class, by
    its "importance" there by the gradient, both means over the texts, and in "random" order for comparison.

    Attributes:
        parts: of all heads that are taken away at a time, as many as there are steps.
        seed: of the random order.
    """

    inputs = SentenceList()

    parts: int = param(Number(1, 100), default=10, about="Number of steps.  [default: 10]")
    seed: int = param(Number(0), default=0, about="Seed of the random order.  [default: 0]")

    def of(
        self,
        checkpoint: Checkpoint,
        sentences: Sequence[str],
        truncate: bool = False,
        report: Progress = no_progress,
    ) -> HeadPruningResult:
        """The curve of each order.

        Args:
            sentences: one an entry: the label, a tab, the text, and perhaps a tab and its pair.
            truncate: cut texts that are too long instead of refusing them.
            report: told how many texts are done, and of how many.

        Raises:
            EmptyTextError, TooLongError, TextError: no text, or a line without a label of the checkpoint or
                without a text.
            UnavailableError: no head for classes, or an architecture that does not let its heads be reached.
        """
        checkpoint = checkpoint.now()
        output = output_of(checkpoint, CLASSIFYING)
        texts = [*_labelled(checkpoint, output, sentences, truncate)]
        effects, importances = [], []
        for done, (trace, label) in enumerate(texts):
            report(done, 2 * len(texts))
            found = HeadAttribution(CLASSIFYING, output.labels[label]).of(trace)
            effects.append(-found.changes)
            importances.append(found.importance)
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
        report(2 * len(texts), 2 * len(texts))
        dropped = sum(trace.encoding.dropped for trace, _ in texts)
        lines = [line for _, line in numbered(sentences, "labelled text")]
        subject = InputRecord.of_sentences(checkpoint, lines, dropped)
        return HeadPruningResult(self, subject, read_only(counts), read_only(curves))


def _labelled(
    checkpoint: Checkpoint, output: OutputHead, sentences: Sequence[str], truncate: bool
) -> Iterator[tuple[Trace, int]]:
    for place, line in numbered(sentences, "labelled text"):
        label, tab, rest = line.partition(PARTED)
        text, second, pair = rest.partition(PARTED)
        if not tab or label not in output.labels:
            some = some_of(output.labels)
            raise TextError(f"Line {place}: it must begin with a label and a tab; the labels are {some}.")
        try:
            yield checkpoint.trace(text, pair if second else None, truncate), output.labels.index(label)
        except TextError as error:
            raise type(error)(f"Line {place}: {error}") from None


def _accuracy(
    texts: Sequence[tuple[Trace, int]], output: OutputHead, gone: Array, shape: tuple[int, ...]
) -> float:
    """The share of the texts whose likeliest class is the right one, without some heads."""
    layers, heads = shape
    off = np.zeros((layers, 1, heads), dtype=bool)
    off[gone // heads, 0, gone % heads] = True
    checkpoint, right = texts[0][0].checkpoint, 0
    for group in batches([len(trace.encoding) for trace, _ in texts], BATCH_TOKENS, checkpoint.pads):
        encodings = [texts[index][0].encoding for index in group]
        switched = torch.from_numpy(off.repeat(len(group), axis=1)).to(checkpoint.device)
        with switched_off(switched, "zero"):
            given, _ = forward(checkpoint, encodings)
        with torch.inference_mode(), checkpoint.running():
            pooled = getattr(given, "pooler_output", None)
            logits = as_array(output.answer(batch(checkpoint, encodings), given.last_hidden_state, pooled))
        right += int((logits.argmax(axis=-1) == [texts[index][1] for index in group]).sum())
    return right / len(texts)


@dataclass(frozen=True, eq=False, repr=False)
class HeadPruningResult(Result):
    """Accuracies without heads.

    Attributes:
        removed: how many are off, from none to all, [step].
        accuracies: float64 [order, step], in the order of `ORDERS`.
    """

    question: HeadPruning
    removed: Array
    accuracies: Array

    def __post_init__(self) -> None:
        if self.accuracies.shape != (len(ORDERS), len(self.removed)):
            raise ShapeError(f"accuracies {self.accuracies.shape} for {len(self.removed)} steps.")

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The accuracy of the model as it is."""
        return {"accuracy": float(self.accuracies[0, 0])}

    def frame(self) -> pd.DataFrame:
        """A row for each order and step: order, removed, accuracy."""
        return pd.DataFrame(
            {
                "order": np.repeat(ORDERS, len(self.removed)),
                "removed": np.tile(self.removed, len(ORDERS)),
                "accuracy": self.accuracies.ravel(),
            }
        )
