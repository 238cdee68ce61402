"""Token classification, such as named entity recognition: the label of each token or word."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from bert_probe.analyses.outputs.prediction import Prediction, PredictionResult, softmax
from bert_probe.core.field_types import Choice, Flag
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import param, question
from bert_probe.errors import ShapeError, TextError
from bert_probe.model.checkpoint import TOKEN_CLASSIFICATION, Checkpoint
from bert_probe.model.outputs import output_head
from bert_probe.model.trace import Array, Trace, read_only

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
    """The most probable label of each token, or of merged words and entities.

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
        """Label the tokens of a traced text.

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
    """Character offsets of a token, the probabilities of its labels, and whether it continues a word."""

    start: int
    end: int
    probabilities: Array
    continues: bool


def _continues_word(checkpoint: Checkpoint, trace: Trace, spans: Sequence[tuple[int, int]]) -> list[bool]:
    """Return whether each token continues the previous word, by the rule of the `transformers` pipeline.

    If the vocabulary has a continuation prefix (##ing), a token that is longer than its text continues a
    word. In other vocabularies, a token without a space before it continues a word.
    """
    tokenizer, text = checkpoint.tokenizer, trace.encoding.text
    has_prefix = bool(getattr(tokenizer.backend_tokenizer.model, "continuing_subword_prefix", None))

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
    """Merge adjacent spans with the same label, unless B- marks the second as the start of a new entity."""
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
                f"probabilities have shape {self.probabilities.shape}; "
                f"[{len(self.trace.tokens)} tokens, {len(self.labels)} labels] is needed."
            )

    @property
    def kinds(self) -> tuple[str, ...]:
        """All labels without their B- and I- prefixes."""
        return tuple(dict.fromkeys(map(_strip_prefix, self.labels)))

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The number of tokens that were labeled, including those that the table omits."""
        return {"tokens_labeled": sum(not token.special for token in self.trace.tokens)}

    def frame(self) -> pd.DataFrame:
        """Return one row per labeled span: start, end, text, label, probability."""
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
