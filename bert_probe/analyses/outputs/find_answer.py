"""Where a text answers a question: the answer of a head that was trained to find the first and last token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from bert_probe.analyses.outputs.prediction import Prediction, PredictionResult, softmax
from bert_probe.core import frames
from bert_probe.core.field_types import Flag, Number
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import param, question
from bert_probe.errors import TextError
from bert_probe.model.checkpoint import ANSWERING, Checkpoint
from bert_probe.model.encoding import Encoding
from bert_probe.model.outputs import OutputHead, output_of
from bert_probe.model.trace import Array, Trace


@question(ANSWERING, command="predict")
class FindAnswer(Prediction):
    """The parts of a text, the pair, that answer a question, the text; likeliest first, none overlapping.

    Attributes:
        top: how many.
        longest: tokens of an answer, at most.
        overlap: tokens that two windows share, where the text is too long for the model.
        no_answer: let "no answer" take part: the first token of the input, where models are trained to point
            when the text does not say.
    """

    inputs = OneTrace()

    task: ClassVar[str] = ANSWERING

    top: int = param(Number(1), default=5)
    longest: int = param(Number(1, 1000), default=15, about="Tokens of an answer, at most.  [default: 15]")
    overlap: int = param(
        Number(0, 10_000), default=128, about="Tokens that windows of a long text share.  [default: 128]"
    )
    no_answer: bool = param(Flag(), default=False, about="Let “no answer” take part.")

    def of(self, trace: Trace) -> FindAnswerResult:
        """The answers in a traced pair; of one that was cut to fit the whole is read, in windows.

        Raises:
            UnavailableError: the checkpoint has no such head.
            TextError: there is no pair.
        """
        found, windows = self.candidates(trace)
        return FindAnswerResult(
            self.resolved(trace),
            InputRecord.of(trace),
            str(trace.encoding.pair),
            tuple(_best(found, self.top)),
            windows,
        )

    def candidates(self, trace: Trace) -> tuple[Mapping[str, Array], int]:
        """Start, end and probability of all that may be an answer, and the number of windows.

        Raises:
            UnavailableError, TextError: as `of`.
        """
        checkpoint, encoding = trace.checkpoint, trace.encoding
        output = output_of(checkpoint, ANSWERING)
        if encoding.pair is None:
            raise TextError(
                "An answer is looked for in a second text. Give the question, and the text as its pair."
            )
        windows = (
            [(encoding, output.logits(trace))]
            if not encoding.dropped
            else self._read(checkpoint, output, encoding)
        )
        shares = [(window, *self._shares(window, logits)) for window, logits in windows]
        found = _together([_candidates(*share, self.longest) for share in shares])
        if self.no_answer:
            found = _together(
                [found, _NOTHING | {"probability": [min(float(one[0].prod()) for _, one, _ in shares)]}]
            )
        return found, len(windows)

    def _read(
        self, checkpoint: Checkpoint, output: OutputHead, cut: Encoding
    ) -> list[tuple[Encoding, Array]]:
        """Each window of the whole text, and what the head gives for it, [token, start or end]."""
        windows = checkpoint.encoder.windows(cut.text, cut.pair or "", self.overlap)
        return [(window, output.logits_alone(checkpoint, window)) for window in windows]

    def _shares(self, window: Encoding, logits: Array) -> tuple[Array, list[int]]:
        """Softmax over the tokens of the text, 0 at all others, [token, start or end]; and their places."""
        places = [token.position for token in window.tokens if token.segment == 1 and not token.special]
        taking_part = [*([0] if self.no_answer else []), *places]
        shares = np.zeros(logits.shape)
        shares[taking_part] = softmax(logits[taking_part].T).T
        return shares, places


@dataclass(frozen=True)
class AnswerSpan:
    """A part of the text that answers the question; start and end are None for "no answer".

    Attributes:
        start, end: characters of the text.
        probability: softmax of its first token among all tokens of the text, times that of its last.
    """

    start: int | None
    end: int | None
    probability: float


_NOTHING = {"start": [-1], "end": [-1]}
"""The place of "no answer"."""


def _candidates(window: Encoding, shares: Array, places: Sequence[int], longest: int) -> dict[str, Any]:
    """All parts of a window that are not too long: start, end and probability of each."""
    first, more = np.divmod(np.arange(len(places) * longest), longest)
    first, last = first[first + more < len(places)], (first + more)[first + more < len(places)]
    starts, ends = (
        np.array([getattr(window.tokens[place], side) for place in places]) for side in ("start", "end")
    )
    chances = shares[places]
    return {"start": starts[first], "end": ends[last], "probability": chances[first, 0] * chances[last, 1]}


def _together(several: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    return {name: np.concatenate([one[name] for one in several]) for name in several[0]}


def _best(found: Mapping[str, Array], most: int) -> list[AnswerSpan]:
    """The likeliest of which none overlaps with a likelier one."""
    kept: list[AnswerSpan] = []
    for index in np.argsort(-found["probability"], kind="stable"):
        start, end = int(found["start"][index]), int(found["end"][index])
        probability = float(found["probability"][index])
        one = AnswerSpan(None, None, probability) if start < 0 else AnswerSpan(start, end, probability)
        if not any(_overlap(one, other) for other in kept):
            kept.append(one)
        if len(kept) == most:
            break
    return kept


def _overlap(one: AnswerSpan, other: AnswerSpan) -> bool:
    if one.start is None or one.end is None or other.start is None or other.end is None:
        return False
    return one.start < other.end and other.start < one.end


@dataclass(frozen=True, eq=False, repr=False)
class FindAnswerResult(PredictionResult):
    """Answers found in a text, likeliest first.

    Attributes:
        context: the text.
        answers: none of which overlap.
        windows: how many parts the text was read in; the shares of each sum to 1 by themselves.
    """

    question: FindAnswer
    context: str
    answers: tuple[AnswerSpan, ...]
    windows: int

    @property
    def notes(self) -> tuple[str, ...]:
        """That the text was read in windows."""
        if self.windows < 2:
            return ()
        return (
            f"The text is longer than the model reads: {self.windows} windows that overlap, "
            "each with probabilities of its own.",
        )

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The windows."""
        return {"windows": self.windows}

    def text(self, answer: AnswerSpan) -> str:
        """As it is written; "" for "no answer"."""
        return self.context[answer.start : answer.end] if answer.start is not None else ""

    def frame(self) -> pd.DataFrame:
        """A row for each answer: rank, start, end, text, probability; “no answer” has no place."""
        return pd.DataFrame(
            {
                "rank": range(1, len(self.answers) + 1),
                "start": frames.optional([answer.start for answer in self.answers]),
                "end": frames.optional([answer.end for answer in self.answers]),
                "text": pd.Series([self.text(answer) for answer in self.answers], dtype=object),
                "probability": [answer.probability for answer in self.answers],
            }
        )
