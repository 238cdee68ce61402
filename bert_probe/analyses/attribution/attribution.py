"""Attribution of a prediction, or of the similarity of two texts, to words or tokens."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
import torch
from torch.autograd import forward_ad as _forward_ad

from bert_probe.analyses.attribution.methods import (
    BASELINES,
    AttributionScores,
    AttributionTarget,
    attribution_target,
    methods,
)
from bert_probe.analyses.outputs.sentence_similarity import SentencePairQuestion
from bert_probe.analyses.outputs.target import REMOVALS, TargetOutput, select_output
from bert_probe.analyses.vectors.pooling import PoolingConfig, pool_unpadded
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, FieldType, Flag, Number, Optional, WordSelector
from bert_probe.core.inputs import OneOrTwoTraces, TwoTraces
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import param, question
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError, TextError, UnavailableError, memory_errors
from bert_probe.model.checkpoint import SENTENCE_SIMILARITY, TASKS
from bert_probe.model.encoding import Token
from bert_probe.model.forward import BATCH_TOKENS, UNFUSED_SCORES, as_array, batch
from bert_probe.model.gradients import InputEmbeddings, UnfusedAttention, run_on_vectors
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace, read_only
from bert_probe.text.words import Unit

METHOD_HELP = "Attribution method (see docs/methods.md)."
REMOVAL_HELP = "Whether the words are removed from the text or replaced by the mask token."
BASELINE_HELP = "Baseline token of integrated gradients."


@dataclass(frozen=True, repr=False)
class TargetQuestion(SentencePairQuestion):
    """Base class of questions that explain one output value of the model.

    Attributes:
        task: task of the task head. If None, the task of the checkpoint's first head.
        target: the class, label, word, or rank of an answer span whose value is explained. If None, the most
            probable prediction.
        at: the word to mask for a masked-word prediction, or the token whose label is explained.
    """

    second: ClassVar[str] = "--pair"

    task: str | None = param(
        Optional(Choice(TASKS)),
        default=None,
        about="The task to predict, if the model has several task heads.",
    )
    target: str | None = param(
        Optional(FieldType()),
        default=None,
        about="The class, label or word to explain; for answer spans, the rank.",
    )
    at: int | str | None = param(
        Optional(WordSelector()),
        default=None,
        about="The word to mask, or the word whose label is explained.",
    )

    def number(self, trace: Trace, other: Trace | None) -> TargetOutput:
        """Return the model output whose value is explained.

        Raises:
            UnavailableError, SelectionError, TextError: see `select_output`.
        """
        at = self.resolved(trace).at
        position = None if at is None else int(at)
        return select_output(trace, other, self.task, self.target, position, self.similarity)

    def about(self, number: TargetOutput, trace: Trace) -> Self:
        """Return the question with its default task and target replaced by those of the explained output."""
        return replace(self.resolved(trace), task=number.task, target=number.target or None)


@question("attribution", command="why")
class Attribution(TargetQuestion):
    """Attribution scores: how much one output value of the model depends on each token or word.

    Attributes:
        method: name of an attribution method; see `methods`.
        words: score whole words instead of tokens.
        removal: how a word is ablated: "removed" from the text, or "masked" by the mask token. If None,
            "masked" for predictions at single tokens, and "removed" otherwise.
        baseline: baseline token of integrated gradients. If None, the first of `BASELINES` that the tokenizer
            has.
    """

    inputs = OneOrTwoTraces("--pair")

    method: str = param(Choice(methods), default="leave-one-out", about=METHOD_HELP)
    words: bool = param(Flag(), default=False, about="Score whole words instead of tokens.")
    removal: str | None = param(Optional(Choice(REMOVALS)), default=None, about=REMOVAL_HELP)
    baseline: str | None = param(Optional(Choice(BASELINES)), default=None, about=BASELINE_HELP)

    def of(
        self, trace: Trace, other: Trace | None = None, progress: Progress = no_progress
    ) -> AttributionResult:
        """Return the score of each token or word of a text.

        Args:
            trace: the text whose tokens or words are scored.
            other: for sentence similarity only: the second text, whose sentence vector is held constant.
            progress: called with the number of steps done and the total.

        Raises:
            UnavailableError: the checkpoint has no head for the task, or its architecture does not support
                the method.
            SelectionError: the class, label, word or answer does not exist.
            TextError: the second text is missing.
            OutOfMemoryError: there is not enough memory.
        """
        number = self.number(trace, other)
        target = attribution_target(number, self.words, self.removal, self.baseline)
        value = float(number.of([number.untouched])[0])
        scores = methods()[self.method].of(target, progress)
        return attribution_result(
            self.about(number, trace), input_record(trace, other), target, value, scores
        )

    def options(self) -> list[str]:
        """Return the command-line options, which always include --method.

        Without --method, the command would show the similarity scores of two texts.
        """
        method = [] if self.method != "leave-one-out" else ["--method", self.method]
        return [*method, *super().options()]


def input_record(trace: Trace, other: Trace | None) -> InputRecord:
    """Return the provenance of a trace or, if there is a second text, of both traces."""
    return InputRecord.of(trace) if other is None else InputRecord.of(trace, other)


def attribution_result(
    resolved: Attribution,
    inputs: InputRecord,
    target: AttributionTarget,
    value: float,
    scores: AttributionScores,
) -> AttributionResult:
    """Return the scores of an attribution method as an `AttributionResult`.

    Args:
        resolved: the question, with its defaults resolved.
        inputs: the provenance of the texts.
        target: the output value that is explained.
        value: the target value for the unchanged text.
        scores: the scores of the tokens or words.
    """
    return AttributionResult(
        resolved,
        inputs,
        target.number.name,
        value,
        target.units,
        read_only(scores.units.astype(np.float64)),
        scores.metadata,
        target.prompt_units,
    )


@dataclass(frozen=True, eq=False, repr=False)
class AttributionResult(Result):
    """Attribution scores of the tokens or words of a text, for one target output.

    Attributes:
        number: description of the target output.
        value: target value for the unchanged text.
        units: tokens or words of the text as the model reads it.
        scores: score of each unit, float64 of shape [unit]; NaN for units that the method does not score.
        said: details of the computation, such as the baseline token, the number of steps, the approximation
            error, or the contribution of biases.
        prompt_units: indices of the units that contain tokens of the checkpoint's prompt.
    """

    question: Attribution
    number: str
    value: float
    units: tuple[Token | Unit, ...]
    scores: Array
    said: Mapping[str, Any]
    prompt_units: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.scores.shape != (len(self.units),):
            raise ShapeError(
                f"scores must have shape ({len(self.units)},), one score per token or word, not "
                f"{self.scores.shape}."
            )

    @property
    def shares(self) -> Array:
        """Scores divided by the sum of their absolute values, so that methods can be compared.

        The shares are float64 of shape [unit], -1 to 1. They are NaN for special tokens, whose scores the sum
        excludes, and for units that the method does not score.
        """
        own = np.where([unit.special for unit in self.units], np.nan, self.scores)
        total = np.nansum(np.abs(own))
        shares: Array = own / total if total else own
        return shares

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Description and value of the target output, and details of the method."""
        prompt = {"prompt_positions": [self.units[index].position for index in self.prompt_units]}
        return {
            "number": self.number,
            "value": self.value,
            **self.said,
            **(prompt if self.prompt_units else {}),
        }

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per token or word: position, token, score."""
        return pd.DataFrame(
            {
                "position": [unit.position for unit in self.units],
                frames.TOKEN: frames.plain_strings(self.units),
                "score": self.scores,
            }
        )


forward_ad: Any = _forward_ad  # typed as Any, because its functions have no type annotations
_dual_level_lock = threading.Lock()
"""Serializes forward-mode differentiation, because torch has only one level for all threads."""

METHOD = "integrated-jacobians"


@question("similarity attribution", command="similarity-attribution")
class SimilarityAttribution(SentencePairQuestion):
    """Contribution of each pair of tokens, one from each text, to the similarity score of the two texts.

    The method is integrated Jacobians (Moeller et al. 2023): gradients are integrated along the linear path
    from an uninformative baseline to each text. The contribution of a pair is the dot product of the two
    tokens' contributions to their sentence vectors; for the cosine, this product is divided by the norms of
    both sentence vectors.

    Attributes:
        baseline: the baseline token. If None, the first of `BASELINES` that the tokenizer has.
        steps: number of interpolation steps.
        prompt, pair_prompt, dimensions: see `SentenceSimilarity`.
    """

    inputs = TwoTraces()

    baseline: str | None = param(Optional(Choice(BASELINES)), default=None, about=BASELINE_HELP)
    steps: int = param(Number(1, 1000), default=32, about="Number of interpolation steps.  [default: 32]")

    def of(self, a: Trace, b: Trace, progress: Progress = no_progress) -> SimilarityAttributionResult:
        """Return the contribution of each token pair to the score of the texts.

        Args:
            progress: called after each batch of tokens with the number of derivatives computed, one per token
                and step, and the total.

        Raises:
            UnavailableError: the checkpoint does not declare its pooling, its architecture does not accept
                input embeddings, or its similarity score is a distance.
            TextError: a trace contains a text pair.
            OutOfMemoryError: there is not enough memory.
        """
        if any(trace.encoding.pair is not None for trace in (a, b)):
            raise TextError(
                "Similarity compares two separate texts. Trace each text separately, not as a pair."
            )
        poolings = self.similarity.poolings(a.checkpoint)
        pooling = poolings[0]
        if pooling.similarity not in ("cosine", "dot"):
            raise UnavailableError(
                f"The {pooling.score_name} is not a product of two vectors, so it cannot be decomposed into "
                "contributions of token pairs. Explain the score of one text instead."
            )
        sides = [
            attribution_target(
                select_output(trace, other, SENTENCE_SIMILARITY, similarity=similarity),
                baseline=self.baseline,
            )
            for trace, other, similarity in ((a, b, self.similarity), (b, a, self.similarity.swapped))
        ]
        done, total = 0, self.steps * sum(len(side.trace.encoding) for side in sides)

        def on_batch(directions: int) -> None:
            nonlocal done
            done += directions
            progress(done, total)

        message = "Attribution of these texts does not fit in memory. Shorten the texts."
        with memory_errors(message), a.checkpoint.running() as model:
            paths = [
                _integrate(side, recipe, model, self.steps, on_batch)
                for side, recipe in zip(sides, poolings, strict=True)
            ]
        norms = float(np.linalg.norm(paths[0].vector) * np.linalg.norm(paths[1].vector))
        norm = norms if pooling.similarity == "cosine" else 1.0
        if not norm:
            raise UnavailableError(
                "The sentence vector of a text is zero, so the cosine is undefined. Use another text."
            )
        first, second = paths
        contributions = first.tokens @ second.tokens.T / norm
        return SimilarityAttributionResult(
            self.resolved(a),
            InputRecord.of(a, b),
            sides[0].trace.tokens,
            sides[1].trace.tokens,
            read_only(contributions),
            float(first.vector @ second.vector / norm),
            float(
                (first.start @ second.vector + first.vector @ second.start - first.start @ second.start)
                / norm
            ),
            sides[0].baseline,
            pooling.similarity,
            (sides[0].number.prompt, sides[1].number.prompt),
        )


@dataclass(frozen=True, eq=False)
class _InterpolationPath:
    """Contributions of a text's tokens to its sentence vector, integrated from the baseline to the text.

    Attributes:
        tokens: contribution of each token to the sentence vector, float64 of shape [token, size].
        start, vector: sentence vectors of the baseline and of the text, shape [size].
    """

    tokens: Array
    start: Array
    vector: Array


def _integrate(
    side: AttributionTarget, pooling: PoolingConfig, model: Any, steps: int, on_batch: Callable[[int], None]
) -> _InterpolationPath:
    trace, embeddings = side.trace, InputEmbeddings(model)
    modules = pooling.vector_modules
    if pooling.similarity == "cosine" and modules and modules[-1].kind == "Normalize":
        # Sentence vectors are not L2-normalized here, because `of` divides the contributions by both norms.
        modules = modules[:-1]
    unnormalized = dataclasses.replace(pooling, vector_modules=modules)
    inputs = batch(trace.checkpoint, [trace.encoding])

    def vector(vectors: torch.Tensor) -> torch.Tensor:
        states, pooled = run_on_vectors(trace, model, vectors, inputs)
        return pool_unpadded(states, unnormalized, pooled)

    with torch.no_grad(), UnfusedAttention():
        end, start = embeddings(inputs["input_ids"]), embeddings(side.ids_without())
        ends = [as_array(vector(point)[0]).astype(np.float64) for point in (start, end)]
        count = end.shape[1]
        # Each direction changes the vector of one token only.
        directions = torch.eye(count, dtype=end.dtype, device=end.device)[..., None] * (end - start)
        moving = (end - start)[0].abs().sum(dim=-1).nonzero()[:, 0]
        tokens = np.zeros((count, len(ends[0])))
        size = max(1, min(BATCH_TOKENS // count, UNFUSED_SCORES // count**2))
        for fraction, weight in _quadrature(steps):
            point = start + fraction * (end - start)
            for rows in moving.split(size):
                tokens[rows.cpu().numpy()] += weight * _directional_derivative(
                    vector, point, directions[rows]
                )
                on_batch(len(rows))
            # The derivatives of tokens that equal the baseline token are 0 and are not computed.
            on_batch(count - len(moving))
    return _InterpolationPath(tokens, *ends)


def _directional_derivative(vector: Any, point: torch.Tensor, directions: torch.Tensor) -> Array:
    """Return the directional derivatives of the sentence vector, shape [direction, size].

    Args:
        vector: function that returns the sentence vectors for input embeddings.
        point: the input embeddings at which the derivatives are computed, shape [1, token, hidden].
        directions: directions in the space of input embeddings, shape [direction, token, hidden].
    """
    with _dual_level_lock, forward_ad.dual_level():
        dual = vector(forward_ad.make_dual(point.expand_as(directions).contiguous(), directions))
        tangent = forward_ad.unpack_dual(dual).tangent
        return as_array(tangent).astype(np.float64)


def _quadrature(steps: int) -> Iterator[tuple[float, float]]:
    """Yield the points, 0 to 1, and the weights of Gauss-Legendre quadrature with ``steps`` points."""
    points, weights = np.polynomial.legendre.leggauss(steps)
    yield from zip((points + 1) / 2, weights / 2, strict=True)


@dataclass(frozen=True, eq=False, repr=False)
class SimilarityAttributionResult(Result):
    """Contributions of token pairs to the similarity score of two texts.

    Attributes:
        tokens_a, tokens_b: tokens of the texts as the model reads them.
        contributions: contribution of each token pair to the score, float64 of shape
            [token of A, token of B].
        score: similarity score of the two sentence vectors.
        reference: contribution of the baseline vectors, which is not attributed to any token pair.
        baseline: the baseline token.
        similarity: the similarity function: "cosine" or "dot".
        prompt_positions: positions of the tokens of the checkpoint's prompt in A and in B.
    """

    question: SimilarityAttribution
    tokens_a: tuple[Token, ...]
    tokens_b: tuple[Token, ...]
    contributions: Array
    score: float
    reference: float
    baseline: str
    similarity: str
    prompt_positions: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    def __post_init__(self) -> None:
        if self.contributions.shape != (len(self.tokens_a), len(self.tokens_b)):
            raise ShapeError(
                f"contributions must have shape [{len(self.tokens_a)}, {len(self.tokens_b)}], "
                f"not {self.contributions.shape}."
            )

    @property
    def off(self) -> float:
        """Absolute error of the numerical integration: |sum of contributions + reference − score|."""
        return abs(float(self.contributions.sum()) + self.reference - self.score)

    @property
    def percent(self) -> Array:
        """The contributions times 100, so that two decimals are enough in a heatmap cell."""
        return read_only(100 * self.contributions)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Similarity score, contribution of the baseline, integration error, and baseline token."""
        return {
            self.similarity: self.score,
            "reference": self.reference,
            "error": self.off,
            "baseline_token": self.baseline,
            **({"prompt_positions": list(self.prompt_positions)} if any(self.prompt_positions) else {}),
        }

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per token of A and one column per token of B."""
        return frames.matrix(self.contributions, self.tokens_a, self.tokens_b)
