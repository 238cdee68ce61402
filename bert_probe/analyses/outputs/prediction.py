"""Predictions of task heads: text classification, next-sentence prediction, and token classification."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from bert_probe.core.field_types import Choice, Flag, Number, Optional
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result, SortOrder
from bert_probe.errors import ShapeError, TextError
from bert_probe.model.checkpoint import (
    NEXT_SENTENCE_PREDICTION,
    TEXT_CLASSIFICATION,
    TOKEN_CLASSIFICATION,
    Checkpoint,
)
from bert_probe.model.outputs import OutputHead, output_head
from bert_probe.model.trace import Array, Trace, read_only

CERTAINTY = (
    "A probability is the model's confidence, not the chance that the prediction is correct. "
    "Models can be confident and wrong."
)


class Prediction(Question):
    """Base class of questions about the predictions of a task head.

    All predictions share one command, whose option ``--task`` selects the question.
    """

    task: ClassVar[str]

    def options(self) -> list[str]:
        """Return the command-line options, starting with the task."""
        return ["--task", self.task, *super().options()]


class PredictionResult(Result):
    """Base class of the results of a `Prediction`."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences to display with the table of the result."""
        return ()


def softmax(logits: Array) -> Array:
    """Return the softmax over the last axis, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    weights = np.exp(shifted)
    probabilities: Array = weights / weights.sum(axis=-1, keepdims=True)
    return probabilities


def sigmoid(logits: Array) -> Array:
    """Return 1 / (1 + exp(−x)) for each value x, in float64, without overflow for large values."""
    probability: Array = 0.5 * (1 + np.tanh(0.5 * logits.astype(np.float64)))
    return probability


@question(TEXT_CLASSIFICATION, command="predict")
class ClassifyText(Prediction):
    """The predicted classes of a text or text pair, most probable first.

    Attributes:
        top: maximum number of classes. If None, all classes are returned.
    """

    inputs = OneTrace()

    task: ClassVar[str] = TEXT_CLASSIFICATION

    top: int | None = param(Optional(Number(1)), default=None)

    def of(self, trace: Trace) -> ClassifyTextResult:
        """Return the predicted classes of a traced text.

        Raises:
            UnavailableError: the checkpoint has no sequence-classification head.
        """
        output = output_head(trace.checkpoint, TEXT_CLASSIFICATION)
        logits = output.logits(trace)
        problem = problem_type(output)
        scores, limit = output.scores(logits), output.score_limit(trace.checkpoint)
        is_truncated = scores is not None and limit is not None and len(trace.encoding) > limit
        order = np.argsort(-logits, kind="stable")[: self.top]
        return ClassifyTextResult(
            self.resolved(trace),
            InputRecord.of(trace),
            problem,
            tuple(output.labels[index] for index in order),
            read_only(logits[order]),
            read_only(PROBABILITIES[problem](logits)[order]),
            None if scores is None or is_truncated else read_only(scores[order]),
            limit if is_truncated else None,
        )


def problem_type(output: OutputHead) -> str:
    """Return the problem type of a sequence-classification head, as in the `transformers` configuration.

    If the configuration has no problem type, a head with one label is multi-label, because it makes a
    yes-or-no decision, and other heads are single-label.
    """
    single = "multi_label_classification" if len(output.labels) == 1 else "single_label_classification"
    return output.problem or single


def _no_probabilities(logits: Array) -> Array:
    return np.full(logits.shape, np.nan)


PROBABILITIES = {
    "single_label_classification": softmax,
    "multi_label_classification": sigmoid,
    "regression": _no_probabilities,
}


@dataclass(frozen=True, eq=False, repr=False)
class ClassifyTextResult(PredictionResult):
    """The predicted classes of a text, most probable first. All arrays have shape [label].

    Attributes:
        problem: "single_label_classification": exactly one class applies; "multi_label_classification": each
            class applies or not, independently; "regression": the logit is the prediction and has no
            probability.
        labels: class names from the checkpoint's configuration.
        logits: outputs of the head.
        probabilities: softmax of the logits or, for multi-label heads, sigmoid of each logit, float64; NaN
            for regression.
        scores: the output of `CrossEncoder.predict` in sentence-transformers, which applies the checkpoint's
            activation function to the logits; None if the checkpoint is not a cross-encoder, or would
            truncate the text.
        score_limit: number of tokens to which `CrossEncoder.predict` would truncate the text, if this is why
            `scores` is None.
    """

    question: ClassifyText
    problem: str
    labels: tuple[str, ...]
    logits: Array
    probabilities: Array
    scores: Array | None = None
    score_limit: int | None = None

    def __post_init__(self) -> None:
        if not self.logits.shape == self.probabilities.shape == (len(self.labels),):
            raise ShapeError(
                f"logits and probabilities must have shape [{len(self.labels)} labels], not "
                f"{self.logits.shape} and {self.probabilities.shape}."
            )

    @property
    def sort_order(self) -> SortOrder:
        """The order of the classes, by descending logit."""
        return SortOrder("logit")

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence if the score of a cross-encoder is not shown because the text is too long."""
        if self.score_limit is None:
            return ()
        return (
            "The score of the cross-encoder is not shown: it is computed from at most "
            f"{self.score_limit:,} tokens, but this text has more. Shorten the text.",
        )

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The `notes`, if there are any."""
        return {"notes": list(self.notes)} if self.notes else {}

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per class.

        Columns: label, probability, logit and, for cross-encoders, score.
        """
        score = {} if self.scores is None else {"score": self.scores}
        return pd.DataFrame(
            {
                "label": pd.Series(self.labels, dtype=object),
                "probability": self.probabilities,
                "logit": self.logits,
                **score,
            }
        )


FOLLOWS = ("next", "not next")
"""Labels of the two logits of the next-sentence head, in order (Devlin et al. 2019, section 3.1)."""


@question(NEXT_SENTENCE_PREDICTION, command="predict")
class NextSentence(Prediction):
    """Next-sentence prediction: whether the second text of a pair follows the first."""

    inputs = OneTrace()

    task: ClassVar[str] = NEXT_SENTENCE_PREDICTION

    def of(self, trace: Trace) -> NextSentenceResult:
        """Predict whether the second text of a traced pair follows the first.

        Raises:
            UnavailableError: the checkpoint has no next-sentence head.
            TextError: the trace has no second text.
        """
        output = output_head(trace.checkpoint, NEXT_SENTENCE_PREDICTION)
        if trace.encoding.pair is None:
            raise TextError("Next-sentence prediction needs two texts. Pass the second text as the pair.")
        logits = output.logits(trace)
        return NextSentenceResult(
            self.resolved(trace), InputRecord.of(trace), logits, read_only(softmax(logits))
        )


@dataclass(frozen=True, eq=False, repr=False)
class NextSentenceResult(PredictionResult):
    """The probability that the second text follows the first. All arrays have shape [2], as `FOLLOWS`.

    Attributes:
        logits: outputs of the head.
        probabilities: softmax of the logits, float64.
    """

    question: NextSentence
    logits: Array
    probabilities: Array

    def __post_init__(self) -> None:
        if not self.logits.shape == self.probabilities.shape == (len(FOLLOWS),):
            raise ShapeError(f"logits must have shape (2,), [next, not next], not {self.logits.shape}.")

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per label: label, probability, logit."""
        return pd.DataFrame({"label": list(FOLLOWS), "probability": self.probabilities, "logit": self.logits})


OUTSIDE = "O"
"""The label of tokens outside all entities in BIO schemes (Ramshaw and Marcus 1995)."""

AGGREGATIONS: Mapping[str, str] = {
    "none": "One label per token.",
    "simple": "Adjacent tokens with the same label are merged; a word may be split.",
    "first": "A word has the label of its first token; adjacent words with the same label are merged.",
    "average": "A word has the label with the highest mean probability over its tokens; adjacent words "
    "with the same label are merged.",
    "max": "A word has the label of its most confident token; adjacent words with the same label are merged.",
}


@question(TOKEN_CLASSIFICATION, command="predict")
class LabelTokens(Prediction):
    """The most probable label of each token, or of tokens merged into words or entities.

    Attributes:
        aggregation: how tokens are merged, as in the `transformers` pipeline; see `AGGREGATIONS`.
        outside: include spans with the label O.
    """

    inputs = OneTrace()

    task: ClassVar[str] = TOKEN_CLASSIFICATION

    aggregation: str = param(
        Choice(AGGREGATIONS),
        default="none",
        about="How tokens are merged into words and entities.",
    )
    outside: bool = param(Flag(), default=False, about="Include tokens with the label O.")

    def of(self, trace: Trace) -> LabelTokensResult:
        """Return the predicted labels of the tokens of a traced text.

        Raises:
            UnavailableError: the checkpoint has no token-classification head.
            TextError: the trace contains a text pair.
        """
        checkpoint = trace.checkpoint
        output = output_head(checkpoint, TOKEN_CLASSIFICATION)
        if trace.encoding.pair is not None:
            raise TextError("Token classification takes one text. Remove the second text.")
        probabilities = softmax(output.logits(trace))
        offsets = checkpoint.encoder.spans(trace.encoding)
        continues = _continues_word(checkpoint, trace, offsets)
        tokens = [
            _LabeledToken(*offsets[token.position], probabilities[token.position], continues[token.position])
            for token in trace.tokens
            if not token.special
        ]
        spans = _aggregate(tokens, output.labels, self.aggregation)
        return LabelTokensResult(
            self.resolved(trace),
            InputRecord.of(trace),
            trace,
            output.labels,
            read_only(probabilities),
            tuple(span for span in spans if self.outside or span.label != OUTSIDE),
        )


@dataclass(frozen=True)
class LabeledSpan:
    """A span of a text with its label.

    Attributes:
        start, end: character offsets in the text.
        label: a label of the checkpoint, without its B- or I- prefix if tokens were merged.
        probability: probability of the label, or its mean over the merged tokens.
    """

    start: int
    end: int
    label: str
    probability: float

    @property
    def kind(self) -> str:
        """The label without its B- or I- prefix."""
        return _strip_prefix(self.label)


@dataclass(frozen=True, eq=False)
class _LabeledToken:
    """A token's character offsets and label probabilities, and whether the token continues a word."""

    start: int
    end: int
    probabilities: Array
    continues: bool


def _continues_word(checkpoint: Checkpoint, trace: Trace, spans: Sequence[tuple[int, int]]) -> list[bool]:
    """Return whether each token continues the word of the previous token, as in the `transformers` pipeline.

    If the vocabulary has a continuation prefix (##ing), a token continues a word if the prefix makes it
    longer than its span of the text. In other vocabularies, a token without a space before it continues a
    word.
    """
    tokenizer, text = checkpoint.tokenizer, trace.encoding.text
    model = tokenizer.backend_tokenizer.model if tokenizer.is_fast else None
    has_prefix = bool(getattr(model, "continuing_subword_prefix", None))

    def continues(token: str, start: int, end: int) -> bool:
        return (
            len(token) != end - start if has_prefix else start > 0 and " " not in text[start - 1 : start + 1]
        )

    return [
        token.id != tokenizer.unk_token_id and continues(token.token, *span)
        for token, span in zip(trace.tokens, spans, strict=True)
    ]


def _aggregate(tokens: Sequence[_LabeledToken], labels: Sequence[str], aggregation: str) -> list[LabeledSpan]:
    groups: list[list[_LabeledToken]] = []
    for token in tokens:
        if groups and token.continues and aggregation in _WORDS:
            groups[-1].append(token)
        else:
            groups.append([token])
    spans = []
    for group in groups:
        probabilities = _WORDS.get(aggregation, _first)([token.probabilities for token in group])
        best = int(probabilities.argmax())
        spans.append(LabeledSpan(group[0].start, group[-1].end, labels[best], float(probabilities[best])))
    return spans if aggregation == "none" else _merge(spans)


def _first(probabilities: Sequence[Array]) -> Array:
    return probabilities[0]


def _most_confident(probabilities: Sequence[Array]) -> Array:
    return max(probabilities, key=lambda row: float(row.max()))


def _mean(probabilities: Sequence[Array]) -> Array:
    mean: Array = np.mean(probabilities, axis=0)
    return mean


_WORDS: Mapping[str, Callable[[Sequence[Array]], Array]] = {
    "first": _first,
    "average": _mean,
    "max": _most_confident,
}


def _merge(spans: Sequence[LabeledSpan]) -> list[LabeledSpan]:
    """Merge adjacent spans with the same label, unless the prefix B- starts a new entity."""
    groups: list[list[LabeledSpan]] = []
    for span in spans:
        is_start = span.label.startswith("B-")
        if groups and not is_start and span.kind == groups[-1][-1].kind:
            groups[-1].append(span)
        else:
            groups.append([span])
    return [
        LabeledSpan(
            group[0].start,
            group[-1].end,
            group[0].label.split("-", 1)[-1],
            float(np.mean([span.probability for span in group])),
        )
        for group in groups
    ]


def _strip_prefix(label: str) -> str:
    return label[2:] if label.startswith(("B-", "I-")) else label


@dataclass(frozen=True, eq=False, repr=False)
class LabelTokensResult(PredictionResult):
    """The labels of the spans of a text.

    Attributes:
        trace: the trace of the text.
        labels: all labels of the checkpoint.
        probabilities: probability of each label at each token, including special tokens; float64 [token,
            label], rows sum to 1.
        spans: the labeled spans, in the order of the text.
    """

    question: LabelTokens
    trace: Trace
    labels: tuple[str, ...]
    probabilities: Array
    spans: tuple[LabeledSpan, ...]

    def __post_init__(self) -> None:
        if self.probabilities.shape != (len(self.trace.tokens), len(self.labels)):
            raise ShapeError(
                f"probabilities must have shape [{len(self.trace.tokens)} tokens, {len(self.labels)} "
                f"labels], not {self.probabilities.shape}."
            )

    @property
    def kinds(self) -> tuple[str, ...]:
        """All labels without their B- and I- prefixes."""
        return tuple(dict.fromkeys(map(_strip_prefix, self.labels)))

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The number of labeled tokens, including tokens that the table omits."""
        return {"tokens_labeled": sum(not token.special for token in self.trace.tokens)}

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per labeled span: start, end, text, label, probability."""
        text, spans = self.trace.encoding.text, self.spans
        return pd.DataFrame(
            {
                "start": [span.start for span in spans],
                "end": [span.end for span in spans],
                "text": pd.Series([text[span.start : span.end] for span in spans], dtype=object),
                "label": pd.Series([span.label for span in spans], dtype=object),
                "probability": [span.probability for span in spans],
            }
        )
