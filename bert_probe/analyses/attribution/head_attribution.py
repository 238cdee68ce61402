"""Head attribution: how much one output value depends on each head, by ablation and by gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.attribution.attribution import TargetQuestion, input_record
from bert_probe.analyses.attribution.head_ablation import REPLACEMENT_HELP, REPLACEMENTS, model_with_heads
from bert_probe.analyses.outputs.target import TargetOutput
from bert_probe.core import frames
from bert_probe.core.field_types import Choice
from bert_probe.core.inputs import OneOrTwoTraces
from bert_probe.core.question import param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError
from bert_probe.model.capture import heads_switched_off, recording
from bert_probe.model.forward import BATCH_TOKENS, as_array
from bert_probe.model.gradients import forward_from_embeddings
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace, read_only

TABLES = ("heads", "layers", "importance")


@question("head attribution", command="head-attribution")
class HeadAttribution(TargetQuestion):
    """How one output value of the model changes when each head, or each layer's heads, are switched off.

    The result also has the gradient-based importance of each head; Michel et al. 2019.

    Attributes:
        replacement: what replaces a head's output, before the output projection: "zero", or its "mean" over
            the tokens of the text.
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
        """Measure the target value without each head, and without all heads of each layer.

        Args:
            progress: called with the number of runs done and the total.

        Raises:
            UnavailableError: see `Attribution.of`; also if the architecture does not expose its heads.
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
    """Return |Σ output · gradient of the target value| for each head, [layer, head]."""
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
    """How the target value changes when heads are switched off.

    Attributes:
        number: description of the target output.
        value: target value of the unchanged model.
        changes: target value without each head minus ``value``, float64 [layer, head].
        layers: target value without all heads of each layer minus ``value``, [layer].
        importance: |Σ output · gradient| of each head, [layer, head].
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
        """Spearman's rank correlation between importance and absolute change, -1 to 1."""
        from scipy.stats import spearmanr  # slow to import

        return float(spearmanr(self.importance.ravel(), np.abs(self.changes).ravel()).statistic)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Description and value of the target output, and the correlation of importance and change."""
        return {"number": self.number, "value": self.value, "rank_correlation": self.agreement}

    def frame(self) -> pd.DataFrame:
        """Return the table that the question selects.

        Columns of "heads": layer, head, change; of "layers": layer, change; of "importance": layer, head,
        importance.
        """
        if self.question.show == "layers":
            return pd.DataFrame({"layer": range(1, len(self.layers) + 1), "change": self.layers})
        if self.question.show == "importance":
            return frames.by_head({"importance": self.importance})
        return frames.by_head({"change": self.changes})
