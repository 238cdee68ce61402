"""How alike two texts are, as a checkpoint that was trained for it says: the cosine of their vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.outputs.prediction import Prediction, PredictionResult
from bert_probe.analyses.vectors.cosine import cosine_of_rows
from bert_probe.analyses.vectors.pooling import PoolingConfig, pool_unpadded, recipe
from bert_probe.core import frames
from bert_probe.core.field_types import Choice
from bert_probe.core.inputs import TwoTraces
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import param, question
from bert_probe.errors import TextError, UnavailableError
from bert_probe.model.checkpoint import COMPARING
from bert_probe.model.outputs import missing
from bert_probe.model.trace import Array, Trace, read_only

SHOWN = "The cosine, or what each pair of tokens adds to it."


@question(COMPARING, command="predict")
class SentenceSimilarity(Prediction):
    """The cosine of two texts' vectors, each read by itself and pooled as the checkpoint says.

    Attributes:
        show: the "cosine", or the "contributions" to it of each token of one text with each of the other.
    """

    inputs = TwoTraces("--pair")

    task: ClassVar[str] = COMPARING

    show: str = param(
        Choice(("cosine", "contributions")),
        default="cosine",
        key="similarity_part",
        display_only=True,
        about=SHOWN,
    )

    def of(self, a: Trace, b: Trace) -> SentenceSimilarityResult:
        """The answer for two texts.

        Raises:
            UnavailableError: the checkpoint says of no pooling, or of one that is not done here.
            TextError: texts that were read as pairs.
            SelectionError: texts that different models read.
        """
        if not a.checkpoint.pools:
            raise UnavailableError(missing(a.checkpoint, COMPARING))
        how, subject = recipe(a.checkpoint, "model"), InputRecord.of(a, b)
        read = as_trained(a, how), as_trained(b, how)
        vectors = [pooled_text(trace, how) for trace in read]
        return SentenceSimilarityResult(
            self, subject, *read, how, float(cosine_of_rows(*(vector[None] for vector in vectors))[0])
        )


def as_trained(trace: Trace, how: PoolingConfig) -> Trace:
    """The trace of the same text as the checkpoint was trained to read it: a prefix before it, cut sooner."""
    encoding = trace.encoding
    if encoding.pair is not None:
        raise TextError("Each text has a vector of its own. Trace the two one by one, not as a pair.")
    text = how.text(encoding.text)
    if text == encoding.text and not encoding.dropped and len(encoding) <= (how.max_tokens or len(encoding)):
        return trace
    checkpoint = trace.checkpoint
    return checkpoint.trace_encodings(
        [checkpoint.encoder.encode(text, truncate=how.max_tokens is not None, max_tokens=how.max_tokens)]
    )[0]


def pooled_text(trace: Trace, how: PoolingConfig) -> Array:
    """A text's vector, [hidden × modes], in float64."""
    states = torch.tensor(trace.vectors(-1)).double()[None]
    pooler = None if trace.pooler is None else torch.tensor(trace.pooler).double()[None]
    found: Array = pool_unpadded(states, how, pooler)[0].numpy()
    return found


@dataclass(frozen=True, eq=False, repr=False)
class SentenceSimilarityResult(PredictionResult):
    """Two texts and the cosine of their vectors.

    Attributes:
        a, b: the traces that were pooled.
        recipe: how a text's tokens became one vector.
        cosine: -1 to 1; NaN where a vector is all zeros.
    """

    question: SentenceSimilarity
    a: Trace
    b: Trace
    recipe: PoolingConfig
    cosine: float

    @property
    def adds_up(self) -> bool:
        """Whether the cosine is a sum over pairs of tokens: where the vector is the mean of the tokens."""
        return self.recipe.modes == ("mean",)

    @property
    def contributions(self) -> Array:
        """What each token of one text with each of the other adds to the cosine, float64 [token, token].

        With A = mean of a_i and B = mean of b_j: cos(A, B) = Σ_ij a_i · b_j / (n m |A| |B|), exactly.

        Raises:
            UnavailableError: another pooling than the mean, or a vector that is all zeros.
        """
        if not self.adds_up:
            raise UnavailableError(
                f"The vector of a text is not the mean of its tokens here ({self.recipe}), so the cosine "
                "is no sum over pairs of tokens."
            )
        a, b = (trace.vectors(-1).astype(np.float64) for trace in (self.a, self.b))
        lengths = np.linalg.norm(a.mean(axis=0)) * np.linalg.norm(b.mean(axis=0))
        if not lengths:
            raise UnavailableError("A text's vector is all zeros, so it is similar to nothing.")
        return read_only(a @ b.T / (len(a) * len(b) * lengths))

    @property
    def hundredths(self) -> Array:
        """The contributions times 100, of which a cell of a picture has room for two decimals."""
        return read_only(100 * self.contributions)

    @property
    def off(self) -> float:
        """How far the sum of all contributions is from the cosine."""
        return abs(float(self.contributions.sum()) - self.cosine)

    @property
    def specials_share(self) -> float:
        """What the pairs with a special token add to the cosine."""
        words = [[not token.special for token in trace.tokens] for trace in (self.a, self.b)]
        cells = self.contributions
        return float(cells.sum() - cells[np.ix_(*words)].sum())

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The pooling; the cosine that the contributions add up to."""
        return {"pooling": self.recipe.about, "cosine": self.cosine}

    def frame(self) -> pd.DataFrame:
        """One number, cosine; or of contributions a row for each token of A and a column for each of B."""
        if self.question.show == "contributions":
            return frames.matrix(self.contributions, self.a.tokens, self.b.tokens)
        return pd.DataFrame({"cosine": [self.cosine]})
