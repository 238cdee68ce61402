"""Which words of two texts meet in their cosine, followed down to the input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.autograd import forward_ad as _forward_ad

from bert_probe.analyses.attribution.attribution import BASELINE
from bert_probe.analyses.attribution.methods import BASELINES, AttributionTarget, explained
from bert_probe.analyses.outputs.target import number_of
from bert_probe.analyses.vectors.pooling import pool_unpadded, recipe
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, Number, Optional
from bert_probe.core.inputs import TwoTraces
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError, TextError, UnavailableError, memory_errors
from bert_probe.model.checkpoint import COMPARING
from bert_probe.model.encoding import Token
from bert_probe.model.forward import BATCH_TOKENS, as_array, batch
from bert_probe.model.gradients import InputEmbeddings, MathAttention, from_vectors
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace, read_only

forward_ad: Any = _forward_ad  # which has no types

METHOD = "integrated-jacobians"


@question("why alike", command="similarity-attribution")
class SimilarityAttribution(Question):
    """What each word of one text with each of the other adds to their cosine, from input to output.

    Integrated Jacobians, Moeller et al. 2023: both texts are followed along the straight way from a text
    without information, and every token's share of the one way is multiplied with every token's share of the
    other.

    Attributes:
        baseline: the token that stands for no information; None for the first that the tokenizer has.
        steps: on the way.
    """

    inputs = TwoTraces()

    baseline: str | None = param(Optional(Choice(BASELINES)), default=None, about=BASELINE)
    steps: int = param(
        Number(1, 1000), default=32, about="Steps on the path from the baseline.  [default: 32]"
    )

    def of(self, a: Trace, b: Trace, report: Progress = no_progress) -> SimilarityAttributionResult:
        """The contributions.

        Args:
            report: told how many steps are done, and of how many.

        Raises:
            UnavailableError: the checkpoint says of no pooling, or its architecture takes words alone.
            TextError: texts that were read as pairs.
            OutOfMemoryError: the machine is too small for these texts.
        """
        if any(trace.encoding.pair is not None for trace in (a, b)):
            raise TextError("Each text has a vector of its own. Trace the two one by one, not as a pair.")
        sides = [
            explained(number_of(one, other, COMPARING), baseline=self.baseline)
            for one, other in ((a, b), (b, a))
        ]
        done = 0

        def told(steps: int) -> None:
            nonlocal done
            done += steps
            report(done, 2 * self.steps)

        no_memory = "To follow these texts to the input needs more memory than is free. Shorten them."
        with memory_errors(no_memory), a.checkpoint.running() as model:
            ways = [_way(side, model, self.steps, told) for side in sides]
        lengths = float(np.linalg.norm(ways[0].vector) * np.linalg.norm(ways[1].vector))
        if not lengths:
            raise UnavailableError("A text's vector is all zeros, so it is similar to nothing.")
        first, second = ways
        cells = first.tokens @ second.tokens.T / lengths
        return SimilarityAttributionResult(
            self.resolved(a),
            InputRecord.of(a, b),
            sides[0].trace.tokens,
            sides[1].trace.tokens,
            read_only(cells),
            float(first.vector @ second.vector / lengths),
            float(
                (first.start @ second.vector + first.vector @ second.start - first.start @ second.start)
                / lengths
            ),
            sides[0].baseline,
        )


@dataclass(frozen=True, eq=False)
class _InterpolationPath:
    """A text's way from the baseline.

    Attributes:
        tokens: what each token's part of the way does to the vector, float64 [token, size].
        start, vector: the vector at the baseline and at the text, [size].
    """

    tokens: Array
    start: Array
    vector: Array


def _way(side: AttributionTarget, model: Any, steps: int, told: Any) -> _InterpolationPath:
    trace = side.trace
    how, words = recipe(trace.checkpoint, "model"), InputEmbeddings(model)
    # The length of the vector is a factor of the whole cosine, and no part of it.
    bare = type(how)(how.modes)
    inputs = batch(trace.checkpoint, [trace.encoding])

    def vector(given: torch.Tensor) -> torch.Tensor:
        states, pooled = from_vectors(trace, model, given, inputs)
        return pool_unpadded(states, bare, pooled)

    with torch.no_grad(), MathAttention():
        end, start = words(inputs["input_ids"]), words(side.ids_without())
        ends = [as_array(vector(one)[0]).astype(np.float64) for one in (start, end)]
        count = end.shape[1]
        # A row for each token: only its own part of the way is gone.
        parts = torch.eye(count, dtype=end.dtype, device=end.device)[..., None] * (end - start)
        moving = (end - start)[0].abs().sum(dim=-1).nonzero()[:, 0]
        tokens = np.zeros((count, len(ends[0])))
        size = max(1, BATCH_TOKENS // count)
        for at, weight in _points(steps):
            here = start + at * (end - start)
            for rows in moving.split(size):
                tokens[rows.cpu().numpy()] += weight * _pushed(vector, here, parts[rows])
            told(1)
    return _InterpolationPath(tokens, *ends)


def _pushed(vector: Any, here: torch.Tensor, directions: torch.Tensor) -> Array:
    """The derivative of the vector at a point in some directions, [row, size]."""
    with forward_ad.dual_level():
        found = vector(forward_ad.make_dual(here.expand_as(directions).contiguous(), directions))
        slope = forward_ad.unpack_dual(found).tangent
        return as_array(slope).astype(np.float64)


def _points(steps: int) -> Iterator[tuple[float, float]]:
    """Where the way is looked at, 0 to 1, and with what weight: Gauss and Legendre's."""
    points, weights = np.polynomial.legendre.leggauss(steps)
    yield from zip((points + 1) / 2, weights / 2, strict=True)


@dataclass(frozen=True, eq=False, repr=False)
class SimilarityAttributionResult(Result):
    """What pairs of input tokens add to a cosine.

    Attributes:
        tokens_a, tokens_b: of the texts as the model reads them.
        contributions: float64 [token of A, token of B].
        cosine: of the two texts.
        reference: what the baselines have in the cosine, which belongs to no pair of words.
        baseline: the token that stands for no information.
    """

    question: SimilarityAttribution
    tokens_a: tuple[Token, ...]
    tokens_b: tuple[Token, ...]
    contributions: Array
    cosine: float
    reference: float
    baseline: str

    def __post_init__(self) -> None:
        if self.contributions.shape != (len(self.tokens_a), len(self.tokens_b)):
            raise ShapeError(
                f"contributions {self.contributions.shape} for {len(self.tokens_a)} and {len(self.tokens_b)} "
                "tokens."
            )

    @property
    def off(self) -> float:
        """How far contributions and reference together are from the cosine: the error of the steps."""
        return abs(float(self.contributions.sum()) + self.reference - self.cosine)

    @property
    def hundredths(self) -> Array:
        """The contributions times 100, of which a cell of a picture has room for two decimals."""
        return read_only(100 * self.contributions)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The cosine, what the baselines have in it, and the error."""
        return {
            "cosine": self.cosine,
            "reference": self.reference,
            "error": self.off,
            "baseline_token": self.baseline,
        }

    def frame(self) -> pd.DataFrame:
        """A row for each token of A, a column for each of B."""
        return frames.matrix(self.contributions, self.tokens_a, self.tokens_b)
