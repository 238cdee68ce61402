"""The pooler, computed again from the [CLS] vector and checked with the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.attention.replay import allowed, off_by, vectors
from bert_probe.core import frames
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError, UnavailableError
from bert_probe.model.trace import Array, Trace


@question("pooler")
class Pooler(Question):
    """How the pooler's output is made: tanh(W · CLS + b); Devlin et al. 2019, section 3.1."""

    inputs = OneTrace()

    def of(self, trace: Trace) -> PoolerResult:
        """The pooler's steps for a text, and the model's own output to compare with.

        Raises:
            UnavailableError: the model has no pooler, or one that computes something else; or no model
                made this trace.
        """
        checkpoint = trace.checkpoint
        other = f"The pooler of {trace.architecture} is not a linear layer and a tanh"
        with torch.inference_mode(), checkpoint.running() as model:
            pooler = getattr(model, "pooler", None)
            if trace.pooler is None or pooler is None:
                raise UnavailableError(f"{trace.architecture} here has no pooler.")
            dense = pooler if isinstance(pooler, torch.nn.Linear) else getattr(pooler, "dense", None)
            if not isinstance(dense, torch.nn.Linear):
                raise UnavailableError(f"{other}.")
            cls = trace.vectors(-1)[0]
            given = torch.tensor(cls, device=dense.weight.device, dtype=dense.weight.dtype)
            linear = dense(given[None])[0]
            steps = (cls, vectors(linear), vectors(torch.tanh(linear)), trace.pooler)
        found = PoolerResult(self.resolved(trace), InputRecord.of(trace), *steps)
        # Families name their activation in different ways, so the numbers have the last word.
        if not found.difference <= allowed(dense.weight, trace.pooler):
            raise UnavailableError(f"{other} of [CLS] (they are off by {found.difference:.2g}).")
        return found


@dataclass(frozen=True, eq=False, repr=False)
class PoolerResult(Result):
    """tanh(W · CLS + b) beside the model's pooler output. Arrays are [hidden], float32.

    Attributes:
        cls: last-layer vector of [CLS].
        linear: W · CLS + b.
        replay: tanh of it.
        model_output: what the model's pooler computes.
    """

    question: Pooler
    cls: Array
    linear: Array
    replay: Array
    model_output: Array

    def __post_init__(self) -> None:
        shapes = [part.shape for part in (self.cls, self.linear, self.replay, self.model_output)]
        if len(set(shapes)) > 1 or self.cls.ndim != 1:
            raise ShapeError(f"The pooler's steps have shapes {shapes}; one [hidden] is needed.")

    @property
    def difference(self) -> float:
        """Largest absolute difference of ``replay`` to ``model_output``."""
        return off_by(self.replay, self.model_output)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """How far the replay is off."""
        return {"difference_to_model": self.difference}

    def frame(self) -> pd.DataFrame:
        """The steps, a row each: cls, linear, tanh, and the model's own output."""
        rows = np.stack([self.cls, self.linear, self.replay, self.model_output])
        return frames.vectors(rows, ["cls", "W·cls + b", "tanh(W·cls + b)", "model"], "step")
