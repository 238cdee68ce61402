"""Hidden states of a text after a layer, for all tokens or for [CLS], or the pooler's output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pandas as pd

from bert_probe.analyses.vectors.similarity import VECTOR_LAYER, VECTOR_LAYER_HELP
from bert_probe.core import frames
from bert_probe.core.field_types import Choice
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError, UnavailableError
from bert_probe.model.trace import Array, Trace

Which = Literal["tokens", "cls", "pooler"]


@question("hidden states", command="embeddings")
class HiddenStates(Question):
    """The hidden states of a text after one layer.

    Attributes:
        layer: layer index, where 0 is the output of the embeddings; negative values count from the end. The
            pooler reads only the last layer.
        which: "tokens": a vector for each token; "cls": the vector of [CLS]; "pooler": the pooler's output.
    """

    inputs = OneTrace()

    layer: int = param(VECTOR_LAYER, default=-1, key="vector_layer", about=VECTOR_LAYER_HELP)
    which: Which = param(
        Choice(("tokens", "cls", "pooler")),
        default="tokens",
        key="vectors",
        option="--vectors",
        about="A vector for each token, the vector of [CLS], or the pooler's output.",
    )

    def of(self, trace: Trace) -> HiddenStatesResult:
        """Return the hidden states of a text.

        Raises:
            SelectionError: the layer does not exist, or the pooler is selected for a layer
                other than the last.
            UnavailableError: the model has no pooler, or its input does not begin with [CLS].
        """
        resolved = self.resolved(trace)
        names: tuple[str, ...] = trace.tokens
        values = trace.vectors(resolved.layer)
        if self.which == "cls":
            if trace.cls is None:
                raise UnavailableError(
                    "This model has no [CLS] token that attends to the whole text. Use tokens."
                )
            names, values = names[:1], values[:1]
        elif self.which == "pooler":
            if trace.pooler is None:
                raise UnavailableError(f"This {trace.architecture} has no pooler. Use cls.")
            if resolved.layer != trace.layers:
                raise SelectionError(
                    f"The pooler reads the last layer, {trace.layers}, not {resolved.layer}. Omit the layer."
                )
            names, values = ("pooler",), trace.pooler[None]
        return HiddenStatesResult(resolved, InputRecord.of(trace), names, values)


@dataclass(frozen=True, eq=False, repr=False)
class HiddenStatesResult(Result):
    """Hidden states of a text after one layer.

    Attributes:
        names: the token of each vector, or "pooler".
        values: the vectors, float32 [vector, hidden].
    """

    question: HiddenStates
    names: tuple[str, ...]
    values: Array

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or len(self.values) != len(self.names):
            raise ShapeError(
                f"values has shape {self.values.shape}, but must be [{len(self.names)}, hidden]."
            )

    def frame(self) -> pd.DataFrame:
        """Return one row per vector, with one column per dimension."""
        return frames.vectors(self.values, self.names)
