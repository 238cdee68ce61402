"""Similarity of two texts: the similarity score of their sentence vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from bert_probe.analyses.outputs.prediction import Prediction, PredictionResult
from bert_probe.analyses.vectors.pooling import (
    DIMENSIONS_HELP,
    PROMPT_HELP,
    PoolingConfig,
    offered_dimensions,
    pair_contributions,
    prompt_positions,
    resolve_pooling,
    text_vector,
    token_parts,
    trace_pooled,
    why_not_a_sum,
)
from bert_probe.analyses.vectors.similarity import score
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, Name, Number, Optional
from bert_probe.core.inputs import TwoTraces
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.errors import TextError, UnavailableError
from bert_probe.model.checkpoint import SENTENCE_SIMILARITY, Checkpoint
from bert_probe.model.outputs import missing_head_message
from bert_probe.model.trace import Array, Trace, read_only

SHOWN = (
    "Table: the score, the contribution of each token pair, or the score for several numbers of dimensions."
)


PAIR_PROMPT_HELP = "Name of the checkpoint's prompt that is prepended to the second text."


@dataclass(frozen=True, repr=False)
class SentencePairQuestion(Question):
    """Base class of questions that can explain the similarity score of two sentence vectors.

    Attributes:
        prompt, pair_prompt, dimensions: see `SentenceSimilarity`; used for sentence similarity only.
    """

    prompt: str | None = param(Optional(Name()), default=None, about=PROMPT_HELP, kw_only=True)
    pair_prompt: str | None = param(Optional(Name()), default=None, about=PAIR_PROMPT_HELP, kw_only=True)
    dimensions: int | None = param(
        Optional(Number(1)),
        default=None,
        key="vector_dimensions",
        about=DIMENSIONS_HELP,
        kw_only=True,
    )

    @property
    def similarity(self) -> SentenceSimilarity:
        """The `SentenceSimilarity` question with the same prompts and dimensions."""
        return SentenceSimilarity(
            prompt=self.prompt, pair_prompt=self.pair_prompt, dimensions=self.dimensions
        )


@question(SENTENCE_SIMILARITY, command="predict")
class SentenceSimilarity(Prediction):
    """The similarity score of the sentence vectors of two texts, with the checkpoint's own pooling.

    The score is computed by the similarity function that the checkpoint declares, by default the cosine.

    Attributes:
        show: the table to return: "score" for the score; "contributions" for the contribution of each pair of
            tokens, one from each text; "dimensions" for the score with several numbers of dimensions.
        prompt, pair_prompt: name of the checkpoint's prompt that is prepended to the first and to the second
            text, or "none". If None, the checkpoint's default prompt.
        dimensions: number of dimensions to which the vectors are truncated. If None, the checkpoint's own
            number.
    """

    inputs = TwoTraces("--pair")

    task: ClassVar[str] = SENTENCE_SIMILARITY

    show: str = param(
        Choice(("score", "contributions", "dimensions")),
        default="score",
        key="similarity_part",
        display_only=True,
        about=SHOWN,
    )
    prompt: str | None = param(Optional(Name()), default=None, about=PROMPT_HELP)
    pair_prompt: str | None = param(Optional(Name()), default=None, about=PAIR_PROMPT_HELP)
    dimensions: int | None = param(
        Optional(Number(1)), default=None, key="vector_dimensions", about=DIMENSIONS_HELP
    )

    def of(self, a: Trace, b: Trace) -> SentenceSimilarityResult:
        """Return the similarity score of two traced texts.

        Raises:
            UnavailableError: the checkpoint does not declare its pooling, or the pooling is not supported.
            CheckpointError: see `resolve_pooling`.
            TextError: a trace contains a text pair.
            TooLongError: a text with its prompt is too long.
            SelectionError: the traces are from different models, or the checkpoint does not have the prompt
                or has fewer dimensions than selected.
        """
        recipe, pair_recipe = self.poolings(a.checkpoint)
        inputs = InputRecord.of(a, b)
        a, b = trace_as_trained(a, recipe), trace_as_trained(b, pair_recipe)
        value = score(text_vector(a, recipe), text_vector(b, pair_recipe), recipe.similarity)
        return SentenceSimilarityResult(self, inputs, a, b, recipe, pair_recipe, value)

    def poolings(self, checkpoint: Checkpoint) -> tuple[PoolingConfig, PoolingConfig]:
        """Return the pooling configurations of the first and of the second text.

        Raises:
            UnavailableError, CheckpointError, SelectionError: see `of`.
        """
        if not checkpoint.has_pooling:
            raise UnavailableError(missing_head_message(checkpoint, SENTENCE_SIMILARITY))
        first, second = (
            resolve_pooling(checkpoint, "model", prompt, self.dimensions)
            for prompt in (self.prompt, self.pair_prompt)
        )
        return first, second

    @property
    def swapped(self) -> SentenceSimilarity:
        """The question for the same two texts in the other order."""
        return replace(self, prompt=self.pair_prompt, pair_prompt=self.prompt)


def trace_as_trained(trace: Trace, pooling: PoolingConfig) -> Trace:
    """Return the trace of a text with the prompt and the maximum length of a pooling configuration.

    The text is traced again only if the prompt or the maximum length changes the model's input.
    """
    encoding = trace.encoding
    if encoding.pair is not None:
        raise TextError("Similarity compares two separate texts. Trace each text separately, not as a pair.")
    text = pooling.text(encoding.text)
    if (
        text == encoding.text
        and not encoding.dropped
        and len(encoding) <= (pooling.max_tokens or len(encoding))
    ):
        return trace
    return trace_pooled(trace.checkpoint, encoding.text, pooling)


@dataclass(frozen=True, eq=False, repr=False)
class SentenceSimilarityResult(PredictionResult):
    """The similarity score of the sentence vectors of two texts a and b.

    Attributes:
        a, b: traces of the texts as the model reads them, with their prompts.
        recipe, pair_recipe: pooling configurations of a and of b, which differ only in the prompt.
        score: similarity score of the sentence vectors; NaN if it is the cosine and a vector is zero.
        calibration: the comparison of the score with random pairs of reference sentences; None unless
            `calibrate_result` has added this comparison.
    """

    question: SentenceSimilarity
    a: Trace
    b: Trace
    recipe: PoolingConfig
    pair_recipe: PoolingConfig
    score: float
    calibration: Mapping[str, Any] | None = None

    @property
    def not_a_sum(self) -> str:
        """A sentence that states why the score is not a sum over token pairs; "" if no reason applies."""
        return why_not_a_sum(self.recipe)

    @property
    def contributions(self) -> Array:
        """Contribution of each pair of tokens to the score, float64 [token of a, token of b].

        The contributions add up to the score; see `pair_contributions`.

        Raises:
            UnavailableError: the score is not a sum over token pairs, or a vector is zero.
        """
        if self.not_a_sum:
            raise UnavailableError(f"{self.not_a_sum} Choose the table of the score instead.")
        a, b = (token_parts(trace.vectors(-1), recipe) for trace, recipe in self._sides)
        return pair_contributions(a, b, self.recipe.similarity)

    @property
    def _sides(self) -> tuple[tuple[Trace, PoolingConfig], ...]:
        return (self.a, self.recipe), (self.b, self.pair_recipe)

    @property
    def prompt_positions(self) -> tuple[tuple[int, ...], ...]:
        """Positions of the tokens of the prompt in a and in b."""
        return tuple(prompt_positions(trace.tokens, recipe) for trace, recipe in self._sides)

    @property
    def scores_by_dimension(self) -> pd.DataFrame:
        """Table of the score with several numbers of dimensions; see `offered_dimensions`.

        The columns are "dimensions" and the name of the similarity function.
        """
        full = [replace(recipe, dimensions=None) for _, recipe in self._sides]
        a, b = (text_vector(side[0], recipe) for side, recipe in zip(self._sides, full, strict=True))
        sizes = offered_dimensions(len(a), self.recipe.dimensions)
        similarity = self.recipe.similarity
        values = [score(a[:size], b[:size], similarity) for size in sizes]
        return pd.DataFrame({"dimensions": sizes, similarity: values})

    @property
    def percent(self) -> Array:
        """The contributions times 100, so that two decimals are enough in a heatmap cell."""
        return read_only(100 * self.contributions)

    @property
    def off(self) -> float:
        """Absolute difference between the sum of the contributions and the score, due to rounding."""
        return abs(float(self.contributions.sum()) - self.score)

    @property
    def specials_share(self) -> float:
        """Sum of the contributions of all pairs in which at least one token is special."""
        are_words = [[not token.special for token in trace.tokens] for trace in (self.a, self.b)]
        contributions = self.contributions
        return float(contributions.sum() - contributions[np.ix_(*are_words)].sum())

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The poolings, the score and its calibration."""
        pair = {} if self.pair_recipe == self.recipe else {"pair_pooling": self.pair_recipe.about}
        calibration = {} if self.calibration is None else {"calibration": self.calibration}
        return {"pooling": self.recipe.about, **pair, self.recipe.similarity: self.score, **calibration}

    def frame(self) -> pd.DataFrame:
        """Return the table that ``show`` of the question selects.

        "score" gives one row with the score; "contributions" gives one row per token of a and one column per
        token of b; "dimensions" gives `scores_by_dimension`.
        """
        if self.question.show == "dimensions":
            return self.scores_by_dimension
        if self.question.show == "contributions":
            return frames.matrix(self.contributions, self.a.tokens, self.b.tokens)
        return pd.DataFrame({self.recipe.similarity: [self.score]})
