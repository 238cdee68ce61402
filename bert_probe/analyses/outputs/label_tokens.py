"""Which label each token has: the answer of a head that was trained on tokens, as for names of persons."""

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
from bert_probe.model.checkpoint import LABELLING, Checkpoint
from bert_probe.model.outputs import output_of
from bert_probe.model.trace import Array, Trace, read_only

OUTSIDE = "O"
"""The label of what belongs to nothing, in the usual schemes (Ramshaw and Marcus 1995)."""

AGGREGATIONS: Mapping[str, str] = {
    "none": "A label for each token.",
    "simple": "Neighbouring tokens of one label together; a word may fall apart.",
    "first": "Words have the label of their first token; neighbours of one label together.",
    "average": "Words have the label that is likeliest on the mean of their tokens; neighbours together.",
    "max": "Words have the label of their surest token; neighbours of one label together.",
}


@question(LABELLING, command="predict")
class LabelTokens(Prediction):
    """The likeliest label of each token, or of words and their neighbours together.

    Attributes:
        aggregation: see `AGGREGATIONS`; all as transformers' pipeline does it.
        outside: keep what has the label O, which belongs to nothing.
    """

    inputs = OneTrace()

    task: ClassVar[str] = LABELLING

    aggregation: str = param(
        Choice(AGGREGATIONS),
        default="none",
        about="What becomes of a word of several tokens, and neighbours.",
    )
    outside: bool = param(Flag(), default=False, about="Keep tokens with the label O as well.")

    def of(self, trace: Trace) -> LabelTokensResult:
        """The answer for a text.

        Raises:
            UnavailableError: the checkpoint has no such head.
            TextError: a text with a pair.
        """
        checkpoint = trace.checkpoint
        output = output_of(checkpoint, LABELLING)
        if trace.encoding.pair is not None:
            raise TextError("Labels are given to the tokens of one text. Leave the second text out.")
        shares = softmax(output.logits(trace))
        spans = checkpoint.encoder.spans(trace.encoding)
        own = [token.position for token in trace.tokens if not token.special]
        continued = _continues(checkpoint, trace, spans)
        tokens = [_LabeledToken(*spans[place], shares[place], continued[place]) for place in own]
        labelled = _labelled(tokens, output.labels, self.aggregation)
        return LabelTokensResult(
            self.resolved(trace),
            InputRecord.of(trace),
            trace,
            output.labels,
            read_only(shares),
            tuple(one for one in labelled if self.outside or one.label != OUTSIDE),
        )


@dataclass(frozen=True)
class LabeledSpan:
    """A part of a text with its label.

    Attributes:
        start, end: characters of the text.
        label: of the checkpoint, without B- and I- where neighbours were put together.
        probability: of the label, or the mean over what was put together.
    """

    start: int
    end: int
    label: str
    probability: float

    @property
    def kind(self) -> str:
        """The label without B- and I-, which say where it begins and goes on."""
        return _bare(self.label)


@dataclass(frozen=True, eq=False)
class _LabeledToken:
    """A token: its characters, the shares of its labels, and whether it goes on with a word."""

    start: int
    end: int
    shares: Array
    continues: bool


def _continues(checkpoint: Checkpoint, trace: Trace, spans: Sequence[tuple[int, int]]) -> list[bool]:
    """Whether each token goes on with the word before it, by the rule of transformers' pipeline.

    With marks for that in the vocabulary (##ing), a token that is longer than its text is marked; without
    them it is one that no space goes before.
    """
    tokenizer, text = checkpoint.tokenizer, trace.encoding.text
    marked = bool(getattr(tokenizer.backend_tokenizer.model, "continuing_subword_prefix", None))

    def continues(token: str, start: int, end: int) -> bool:
        return len(token) != end - start if marked else start > 0 and " " not in text[start - 1 : start + 1]

    return [
        token.id != tokenizer.unk_token_id and continues(token.token, *span)
        for token, span in zip(trace.tokens, spans, strict=True)
    ]


def _labelled(pieces: Sequence[_LabeledToken], labels: Sequence[str], aggregation: str) -> list[LabeledSpan]:
    groups: list[list[_LabeledToken]] = []
    for piece in pieces:
        if groups and piece.continues and aggregation in _WORDS:
            groups[-1].append(piece)
        else:
            groups.append([piece])
    found = []
    for group in groups:
        shares = _WORDS.get(aggregation, _first)([piece.shares for piece in group])
        best = int(shares.argmax())
        found.append(LabeledSpan(group[0].start, group[-1].end, labels[best], float(shares[best])))
    return found if aggregation == "none" else _together(found)


def _first(shares: Sequence[Array]) -> Array:
    return shares[0]


def _surest(shares: Sequence[Array]) -> Array:
    return max(shares, key=lambda one: float(one.max()))


def _mean(shares: Sequence[Array]) -> Array:
    mean: Array = np.mean(shares, axis=0)
    return mean


_WORDS: Mapping[str, Callable[[Sequence[Array]], Array]] = {"first": _first, "average": _mean, "max": _surest}


def _together(labelled: Sequence[LabeledSpan]) -> list[LabeledSpan]:
    """Neighbours of one label as one, unless the later one begins anew, as B- says."""
    groups: list[list[LabeledSpan]] = []
    for one in labelled:
        begins = one.label.startswith("B-")
        if groups and not begins and _bare(one.label) == _bare(groups[-1][-1].label):
            groups[-1].append(one)
        else:
            groups.append([one])
    return [
        LabeledSpan(
            group[0].start,
            group[-1].end,
            group[0].label.split("-", 1)[-1],
            float(np.mean([one.probability for one in group])),
        )
        for group in groups
    ]


def _bare(label: str) -> str:
    return label[2:] if label.startswith(("B-", "I-")) else label


@dataclass(frozen=True, eq=False, repr=False)
class LabelTokensResult(PredictionResult):
    """Labels of the parts of a text.

    Attributes:
        trace: of the text.
        labels: all that there are, as the checkpoint names them.
        probabilities: of each label at each token, special ones among them; float64 [token, label], rows sum
            to 1.
        parts_of_text: what has a label, in the order of the text.
    """

    question: LabelTokens
    trace: Trace
    labels: tuple[str, ...]
    probabilities: Array
    parts_of_text: tuple[LabeledSpan, ...]

    def __post_init__(self) -> None:
        if self.probabilities.shape != (len(self.trace.tokens), len(self.labels)):
            raise ShapeError(f"{len(self.labels)} labels do not fit {self.probabilities.shape}.")

    @property
    def kinds(self) -> tuple[str, ...]:
        """All that parts of a text may be, by the names of the labels without B- and I-."""
        return tuple(dict.fromkeys(map(_bare, self.labels)))

    @property
    def metadata(self) -> Mapping[str, Any]:
        """How many tokens were looked at, as those without a label are left out."""
        return {"tokens_labelled": sum(not token.special for token in self.trace.tokens)}

    def frame(self) -> pd.DataFrame:
        """A row for each part of the text: start, end, text, label, probability."""
        text, parts = self.trace.encoding.text, self.parts_of_text
        return pd.DataFrame(
            {
                "start": [part.start for part in parts],
                "end": [part.end for part in parts],
                "text": pd.Series([text[part.start : part.end] for part in parts], dtype=object),
                "label": pd.Series([part.label for part in parts], dtype=object),
                "probability": [part.probability for part in parts],
            }
        )
