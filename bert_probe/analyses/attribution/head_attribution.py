"""Which heads one number of an answer depends on: each switched off, and by its gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.attribution.attribution import TargetQuestion, subject_of
from bert_probe.analyses.attribution.head_ablation import REPLACED, REPLACEMENTS, model_with_heads
from bert_probe.analyses.outputs.target import TargetOutput
from bert_probe.core import frames
from bert_probe.core.field_types import Choice
from bert_probe.core.inputs import OneOrTwoTraces
from bert_probe.core.question import param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError
from bert_probe.model.capture import recording, switched_off
from bert_probe.model.forward import BATCH_TOKENS, as_array
from bert_probe.model.gradients import onward
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace, read_only

SHOWN = ("heads", "layers", "importance")


@question("why, by heads", command="head-attribution")
class HeadAttribution(TargetQuestion):
    """How one number of the model's answer changes when each head, or all of a layer, is switched off.

    Beside it the head's importance by its gradient; Michel et al. 2019.

    Attributes:
        replacement: a head's output, before the output projection, becomes "zero", or its "mean" over the
            text's tokens.
        show: the table: each of the "heads", all heads of each of the "layers", or the "importance".
    """

    inputs = OneOrTwoTraces("--pair")

    replacement: str = param(Choice(REPLACEMENTS), default="zero", about=REPLACED)
    show: str = param(Choice(SHOWN), default="heads", key="why_heads", display_only=True, about="Table.")

    def of(
        self, trace: Trace, other: Trace | None = None, report: Progress = no_progress
    ) -> HeadAttributionResult:
        """Every head by itself, and every layer's heads together; many in one batched pass.

        Args:
            report: told how many are done, and of how many.

        Raises:
            UnavailableError: as `Attribution.of`, or the architecture does not let its heads be reached.
            SelectionError, TextError, OutOfMemoryError: as `Attribution.of`.
        """
        number = self.number(trace, other)
        read = number.trace
        checkpoint = model_with_heads(read)
        layers, heads = read.layers, read.heads
        off = np.zeros((layers, layers * (heads + 1), heads), dtype=bool)
        for layer in range(layers):
            for head in range(heads):
                off[layer, layer * heads + head, head] = True
            off[layer, layers * heads + layer] = True
        value = float(number.of([number.untouched])[0])
        values, size = [], max(1, BATCH_TOKENS // len(read.tokens))
        for start in range(0, off.shape[1], size):
            some = torch.from_numpy(off[:, start : start + size]).to(checkpoint.device)
            with switched_off(some, self.replacement):
                values.append(number.of([number.untouched] * some.shape[1]))
            report(min(start + size, off.shape[1]), off.shape[1])
        changes = np.concatenate(values) - value
        return HeadAttributionResult(
            self.about(number, trace),
            subject_of(trace, other),
            number.name,
            value,
            read_only(changes[: layers * heads].reshape(layers, heads)),
            read_only(changes[layers * heads :]),
            read_only(_importance(number)),
        )


def _importance(number: TargetOutput) -> Array:
    """What each head returns times the gradient of the number there, summed, its size; [layer, head]."""
    with onward(number.trace) as way:
        with recording() as calls:
            states, pooled = way.to_end(way.start())
        value = number.on(way.inputs, states, pooled)
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
    """What a number becomes without heads.

    Attributes:
        number: what it is; value: for the model as it is.
        changes: without each head, the number minus ``value``, float64 [layer, head].
        layers: without all heads of a layer, [layer].
        importance: |Σ output · gradient| of each head, [layer, head], from one pass.
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
                f"changes {self.changes.shape}, importance {self.importance.shape} and layers "
                f"{self.layers.shape} must be [layer, head] and [layer]."
            )

    @property
    def agreement(self) -> float:
        """Spearman's rank correlation of the importance with the size of the changes, -1 to 1."""
        from scipy.stats import spearmanr  # which takes long to import

        return float(spearmanr(self.importance.ravel(), np.abs(self.changes).ravel()).statistic)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The number by name, its value, and how far gradient and effect agree."""
        return {"number": self.number, "value": self.value, "rank_correlation": self.agreement}

    def frame(self) -> pd.DataFrame:
        """What the question shows: layer, head, change; or layer, change; or layer, head, importance."""
        if self.question.show == "layers":
            return pd.DataFrame({"layer": range(1, len(self.layers) + 1), "change": self.layers})
        if self.question.show == "importance":
            return frames.by_head({"importance": self.importance})
        return frames.by_head({"change": self.changes})
