"""Similarity of two texts: the cosine of their sentence vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.outputs.prediction import Prediction, PredictionResult
from bert_probe.analyses.vectors.pooling import PoolingConfig, pool_unpadded, resolve_pooling
from bert_probe.analyses.vectors.similarity import cosine_of_rows
from bert_probe.core import frames
from bert_probe.core.field_types import Choice
from bert_probe.core.inputs import TwoTraces
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import param, question
from bert_probe.errors import TextError, UnavailableError
from bert_probe.model.checkpoint import SENTENCE_SIMILARITY
from bert_probe.model.outputs import missing_head_message
from bert_probe.model.trace import Array, Trace, read_only

SHOWN = "Table: the cosine, or the contribution of each token pair."


@question(SENTENCE_SIMILARITY, command="predict")
class SentenceSimilarity(Prediction):
    """The cosine of the sentence vectors of two texts, with the pooling of the checkpoint's training.

    Attributes:
        show: the table to return: the "cosine", or the "contributions" of each pair of tokens, one from each
            text.
    """

    inputs = TwoTraces("--pair")

    task: ClassVar[str] = SENTENCE_SIMILARITY

    show: str = param(
        Choice(("cosine", "contributions")),
        default="cosine",
        key="similarity_part",
        display_only=True,
        about=SHOWN,
    )

    def of(self, a: Trace, b: Trace) -> SentenceSimilarityResult:
        """Compare two traced texts.

        Raises:
            UnavailableError: the checkpoint does not declare its pooling, or the pooling is not supported.
            TextError: a trace contains a text pair.
            SelectionError: the traces are from different models.
        """
        if not a.checkpoint.has_pooling:
            raise UnavailableError(missing_head_message(a.checkpoint, SENTENCE_SIMILARITY))
        pooling, inputs = resolve_pooling(a.checkpoint, "model"), InputRecord.of(a, b)
        traces = trace_as_trained(a, pooling), trace_as_trained(b, pooling)
        vectors = [text_vector(trace, pooling) for trace in traces]
        return SentenceSimilarityResult(
            self, inputs, *traces, pooling, float(cosine_of_rows(*(vector[None] for vector in vectors))[0])
        )


def trace_as_trained(trace: Trace, pooling: PoolingConfig) -> Trace:
    """Return the trace of a text with the prompt and maximum length of the checkpoint's training."""
    encoding = trace.encoding
    if encoding.pair is not None:
        raise TextError("Similarity compares two separate texts. Trace each text on its own, not as a pair.")
    text = pooling.text(encoding.text)
    if (
        text == encoding.text
        and not encoding.dropped
        and len(encoding) <= (pooling.max_tokens or len(encoding))
    ):
        return trace
    checkpoint = trace.checkpoint
    return checkpoint.trace_encodings(
        [
            checkpoint.encoder.encode(
                text, truncate=pooling.max_tokens is not None, max_tokens=pooling.max_tokens
            )
        ]
    )[0]


def text_vector(trace: Trace, pooling: PoolingConfig) -> Array:
    """Return the sentence vector of a traced text, float64 [hidden × pooling modes]."""
    states = torch.tensor(trace.vectors(-1)).double()[None]
    pooler = None if trace.pooler is None else torch.tensor(trace.pooler).double()[None]
    vector: Array = pool_unpadded(states, pooling, pooler)[0].numpy()
    return vector


@dataclass(frozen=True, eq=False, repr=False)
class SentenceSimilarityResult(PredictionResult):
    """Two texts and the cosine of their sentence vectors.

    Attributes:
        a, b: the traces that were pooled.
        recipe: pooling of token vectors into a sentence vector.
        cosine: cosine of the sentence vectors, -1 to 1; NaN if a vector is zero.
    """

    question: SentenceSimilarity
    a: Trace
    b: Trace
    recipe: PoolingConfig
    cosine: float

    @property
    def adds_up(self) -> bool:
        """Whether the cosine is a sum over token pairs, which holds for mean pooling only."""
        return self.recipe.modes == ("mean",)

    @property
    def contributions(self) -> Array:
        """Contribution of each pair of tokens to the cosine, float64 [token of a, token of b].

        With A = mean of a_i and B = mean of b_j: cos(A, B) = Σ_ij a_i · b_j / (n m |A| |B|), exactly.

        Raises:
            UnavailableError: the pooling is not the mean, or a vector is zero.
        """
        if not self.adds_up:
            raise UnavailableError(
                f"Contributions need mean pooling, but this model's pooling is {self.recipe}. "
                "Choose the cosine instead."
            )
        a, b = (trace.vectors(-1).astype(np.float64) for trace in (self.a, self.b))
        norm = np.linalg.norm(a.mean(axis=0)) * np.linalg.norm(b.mean(axis=0))
        if not norm:
            raise UnavailableError("The sentence vector of a text is zero, so its cosine is undefined.")
        return read_only(a @ b.T / (len(a) * len(b) * norm))

    @property
    def percent(self) -> Array:
        """The contributions times 100, so that they fit into a heatmap cell with two decimals."""
        return read_only(100 * self.contributions)

    @property
    def off(self) -> float:
        """The absolute difference between the sum of the contributions and the cosine."""
        return abs(float(self.contributions.sum()) - self.cosine)

    @property
    def specials_share(self) -> float:
        """The sum of the contributions of pairs with a special token."""
        are_words = [[not token.special for token in trace.tokens] for trace in (self.a, self.b)]
        contributions = self.contributions
        return float(contributions.sum() - contributions[np.ix_(*are_words)].sum())

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The pooling and the cosine."""
        return {"pooling": self.recipe.about, "cosine": self.cosine}

    def frame(self) -> pd.DataFrame:
        """Return one row with the cosine, or the contributions (rows: tokens of a, columns: tokens of b)."""
        if self.question.show == "contributions":
            return frames.matrix(self.contributions, self.a.tokens, self.b.tokens)
        return pd.DataFrame({"cosine": [self.cosine]})
