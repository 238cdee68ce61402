"""Confidence of each head: the largest attention weight of a query, averaged over the queries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from bert_probe.core import frames
from bert_probe.core.field_types import Flag
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError
from bert_probe.model.trace import Array, Trace, read_only


@question("head confidence", command="confidence")
class HeadConfidence(Question):
    """Confidence of each head: the largest attention weight of a query, averaged over the queries.

    Voita et al. 2019, "Analyzing Multi-Head Self-Attention", section 4, leave out the end-of-sentence token.
    This question leaves out all special tokens, as queries and as keys, unless ``specials`` is true. Weights
    are not renormalized. In a causal model, the first token of a text attends only to itself, so it is left
    out as a query unless it is the only token. A confident head is not necessarily an important head.

    Attributes:
        specials: include special tokens such as [CLS] and [SEP].
    """

    inputs = OneTrace()

    specials: bool = param(Flag(), default=False, about="Include special tokens such as [CLS] and [SEP].")

    def of(self, trace: Trace) -> HeadConfidenceResult:
        """Return the confidence of each head on a text.

        Raises:
            SelectionError: the text has only special tokens, and ``specials`` is false.
            OutOfMemoryError: a layer's attention needs more memory than is available.
        """
        tokens = trace.encoding.tokens
        keys = [index for index, token in enumerate(tokens) if self.specials or not token.special]
        if not keys:
            raise SelectionError("The text has only special tokens. Use a longer text, or set specials=True.")
        queries = [position for position in keys if position or not trace.is_causal] or keys
        selection = np.ix_(range(trace.heads), queries, keys)
        confidence = [
            trace.attention(layer)[selection].max(axis=-1).mean(axis=-1, dtype=np.float64)
            for layer in range(trace.layers)
        ]
        return HeadConfidenceResult(self, InputRecord.of(trace), read_only(np.stack(confidence)))


@dataclass(frozen=True, eq=False, repr=False)
class HeadConfidenceResult(Result):
    """Confidence of every head on one text.

    Attributes:
        confidence: confidence of each head; float64, shape [layer, head], 0 to 1.
    """

    question: HeadConfidence
    confidence: Array

    def frame(self) -> pd.DataFrame:
        """Return a table with a row for each head: layer and head, counted from 1, and confidence."""
        return frames.by_head({"confidence": self.confidence})
