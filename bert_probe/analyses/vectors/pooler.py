"""The pooler's output, recomputed from the [CLS] vector and checked against the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.attention.replay import largest_difference, rounding_tolerance, to_array
from bert_probe.core import frames
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError, UnavailableError
from bert_probe.model.trace import Array, Trace


@question("pooler")
class Pooler(Question):
    """Steps of the pooler's output: tanh(W · CLS + b); Devlin et al. 2019, section 3.1."""

    inputs = OneTrace()

    def of(self, trace: Trace) -> PoolerResult:
        """Return the pooler's steps for a text, and the model's own output for comparison.

        Raises:
            UnavailableError: the model has no pooler, the pooler is not a linear layer and a tanh, or the
                trace has no model.
        """
        checkpoint = trace.checkpoint
        unsupported = f"The pooler of {trace.architecture} is not a linear layer and a tanh"
        with torch.inference_mode(), checkpoint.running() as model:
            pooler = getattr(model, "pooler", None)
            if trace.pooler is None or pooler is None:
                raise UnavailableError(f"This {trace.architecture} has no pooler.")
            dense = pooler if isinstance(pooler, torch.nn.Linear) else getattr(pooler, "dense", None)
            if not isinstance(dense, torch.nn.Linear):
                raise UnavailableError(f"{unsupported}, so its steps cannot be shown.")
            cls = trace.vectors(-1)[0]
            vector = torch.tensor(cls, device=dense.weight.device, dtype=dense.weight.dtype)
            linear = dense(vector[None])[0]
            steps = (cls, to_array(linear), to_array(torch.tanh(linear)), trace.pooler)
        result = PoolerResult(self.resolved(trace), InputRecord.of(trace), *steps)
        # Architectures name their activation differently, so the outputs are compared instead.
        if not result.difference <= rounding_tolerance(dense.weight, trace.pooler):
            raise UnavailableError(f"{unsupported}: its output differs by {result.difference:.2g}.")
        return result


@dataclass(frozen=True, eq=False, repr=False)
class PoolerResult(Result):
    """Steps of tanh(W · CLS + b), and the model's pooler output; arrays are float32 [hidden].

    Attributes:
        cls: vector of [CLS] after the last layer.
        linear: W · CLS + b.
        replay: tanh(W · CLS + b).
        model_output: output of the model's pooler.
    """

    question: Pooler
    cls: Array
    linear: Array
    replay: Array
    model_output: Array

    def __post_init__(self) -> None:
        shapes = [part.shape for part in (self.cls, self.linear, self.replay, self.model_output)]
        if len(set(shapes)) > 1 or self.cls.ndim != 1:
            raise ShapeError(f"The pooler's steps have shapes {shapes}, but all must be [hidden].")

    @property
    def difference(self) -> float:
        """Largest absolute difference between ``replay`` and ``model_output``."""
        return largest_difference(self.replay, self.model_output)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The difference from the model's output."""
        return {"difference_to_model": self.difference}

    def frame(self) -> pd.DataFrame:
        """Return a row for each step: cls, linear, tanh, and the model's output."""
        rows = np.stack([self.cls, self.linear, self.replay, self.model_output])
        return frames.vectors(rows, ["cls", "W·cls + b", "tanh(W·cls + b)", "model"], "step")
