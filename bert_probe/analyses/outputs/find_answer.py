"""Extractive question answering: the spans of a text that answer a question."""

from __future__ import annotations

from bisect import bisect_left, insort
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
from bert_probe.errors import TextError, UnavailableError
from bert_probe.model.checkpoint import QUESTION_ANSWERING, Checkpoint
from bert_probe.model.encoding import Encoding
from bert_probe.model.outputs import OutputHead, output_head
from bert_probe.model.trace import Array, Trace

MAX_WINDOWS = 100
"""Maximum number of windows in which a request over HTTP, or a page of a public server, reads a context."""
MAX_SPANS = 5_000_000
"""Maximum number of spans of a context that such a request or page compares."""


@question(QUESTION_ANSWERING, command="predict")
class FindAnswer(Prediction):
    """The spans of a text that answer a question, most probable first and without overlaps.

    The first text of the pair is the question. The second text, the context, contains the answers.

    Attributes:
        top: maximum number of answers.
        longest: maximum number of tokens in an answer.
        overlap: number of tokens that adjacent windows share, if the text is too long for the model.
        no_answer: include "no answer" among the candidates. For an unanswerable question, models trained on
            unanswerable questions predict the first token of the input as both start and end.
    """

    inputs = OneTrace()

    task: ClassVar[str] = QUESTION_ANSWERING

    top: int = param(Number(1), default=5)
    longest: int = param(
        Number(1, 1000), default=15, about="Maximum number of tokens in an answer.  [default: 15]"
    )
    overlap: int = param(
        Number(0, 10_000), default=128, about="Number of tokens shared by adjacent windows.  [default: 128]"
    )
    no_answer: bool = param(Flag(), default=False, about="Include “no answer” among the candidates.")

    def of(self, trace: Trace) -> FindAnswerResult:
        """Return the answers in a traced text pair.

        If the pair was truncated, the complete context is read in overlapping windows.

        Raises:
            UnavailableError: the checkpoint has no question-answering head.
            TextError: the trace has no pair.
        """
        candidates, windows = self.candidates(trace)
        return FindAnswerResult(
            self.resolved(trace),
            InputRecord.of(trace),
            str(trace.encoding.pair),
            tuple(_best(candidates, self.top)),
            windows,
        )

    def check_limits(self, *inputs: Any) -> None:
        """Raise UnavailableError if the context has more than `MAX_WINDOWS` windows or `MAX_SPANS` spans."""
        encoding = inputs[0].encoding
        windows, room = 1, len(encoding)
        if encoding.pair is not None and encoding.dropped:
            # The question is not truncated, so that a long one leaves few tokens of the context per window.
            encoder = inputs[0].checkpoint.encoder
            windows, room = encoder.count_windows(encoding.text, encoding.pair, self.overlap)
        spans = windows * room * min(self.longest, room)
        for count, name, maximum in ((windows, "windows", MAX_WINDOWS), (spans, "spans", MAX_SPANS)):
            if count > maximum:
                raise UnavailableError(
                    f"The context has {count:,} {name}, but the app computes at most {maximum:,}. Use "
                    "a shorter context or question, shorter answers, or the command line."
                )

    def candidates(self, trace: Trace) -> tuple[Mapping[str, Array], int]:
        """Return all candidate spans, and the number of windows.

        The spans are arrays of shape [span], named like the attributes of `AnswerSpan`; "start" and "end" are
        −1 for "no answer".

        Raises:
            UnavailableError, TextError: see `of`.
        """
        checkpoint, encoding = trace.checkpoint, trace.encoding
        output = output_head(checkpoint, QUESTION_ANSWERING)
        if encoding.pair is None:
            raise TextError(
                "Question answering needs two texts. Pass the question as the text, and the context as its "
                "pair."
            )
        windows = (
            [(encoding, output.logits(trace))]
            if not encoding.dropped
            else self._windows(checkpoint, output, encoding)
        )
        scored = [(window, *self._probabilities(window, logits)) for window, logits in windows]
        candidates = _concatenate(
            [_spans(window, scores, positions, self.longest) for window, scores, positions in scored]
        )
        if self.no_answer:
            no_answer = min(float(scores[0].prod()) for _, scores, _ in scored)
            candidates = _concatenate([candidates, _NO_ANSWER | {"probability": [no_answer]}])
        return candidates, len(windows)

    def _windows(
        self, checkpoint: Checkpoint, output: OutputHead, truncated: Encoding
    ) -> list[tuple[Encoding, Array]]:
        """Return each window of the complete text pair with its start and end logits, shape [token, 2]."""
        windows = checkpoint.encoder.windows(truncated.text, truncated.pair or "", self.overlap)
        return [(window, output.logits_alone(checkpoint, window)) for window in windows]

    def _probabilities(self, window: Encoding, logits: Array) -> tuple[Array, list[int]]:
        """Return the start and end probabilities, [token, 2], and the positions of the context's tokens.

        The softmax is over the tokens of the context and, with ``no_answer``, the first token of the input.
        All other tokens have probability 0.
        """
        positions = [token.position for token in window.tokens if token.segment == 1 and not token.special]
        eligible = [*([0] if self.no_answer else []), *positions]
        probabilities = np.zeros(logits.shape)
        probabilities[eligible] = softmax(logits[eligible].T).T
        return probabilities, positions


@dataclass(frozen=True)
class AnswerSpan:
    """A span of the context that answers the question.

    Attributes:
        start, end: character offsets in the context; None for "no answer".
        first, last: positions of the first and the last token in the window; 0 for "no answer".
        probability: start probability of the first token times end probability of the last token, 0 to 1.
    """

    start: int | None
    end: int | None
    first: int
    last: int
    probability: float


# offsets and positions that represent "no answer" in arrays of candidates
_NO_ANSWER = {"start": [-1], "end": [-1], "first": [0], "last": [0]}


def _spans(
    window: Encoding, probabilities: Array, positions: Sequence[int], max_tokens: int
) -> dict[str, Any]:
    """Return the spans of at most ``max_tokens`` tokens in a window; see `FindAnswer.candidates`.

    Args:
        window: the window of the text pair.
        probabilities: start and end probability of each token, [token, 2].
        positions: token positions of the context.
        max_tokens: maximum number of tokens of a span.
    """
    first, extra = np.divmod(np.arange(len(positions) * max_tokens), max_tokens)
    first, last = first[first + extra < len(positions)], (first + extra)[first + extra < len(positions)]
    starts, ends = (
        np.array([getattr(window.tokens[position], side) for position in positions])
        for side in ("start", "end")
    )
    scores = probabilities[positions]
    return {
        "start": starts[first],
        "end": ends[last],
        "first": np.array(positions)[first],
        "last": np.array(positions)[last],
        "probability": scores[first, 0] * scores[last, 1],
    }


def _concatenate(tables: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def _best(candidates: Mapping[str, Array], count: int) -> list[AnswerSpan]:
    """Return the ``count`` most probable spans, skipping spans that overlap a more probable span.

    Args:
        candidates: the spans; see `FindAnswer.candidates`.
        count: maximum number of spans.
    """
    answers: list[AnswerSpan] = []
    taken: list[tuple[int, int]] = []  # sorted and without overlaps, so that their ends are sorted, too
    order = np.argsort(-candidates["probability"], kind="stable")
    for block in np.split(order, range(_SPANS_AT_ONCE, len(order), _SPANS_AT_ONCE)):
        for index in block[~_overlaps(candidates["start"][block], candidates["end"][block], taken)]:
            numbers = (int(candidates[name][index]) for name in ("start", "end", "first", "last"))
            start, end, first, last = numbers
            probability = float(candidates["probability"][index])
            if start < 0:
                answers.append(AnswerSpan(None, None, first, last, probability))
            else:
                before = bisect_left(taken, (end,))
                if before and taken[before - 1][1] > start:
                    continue
                insort(taken, (start, end))
                answers.append(AnswerSpan(start, end, first, last, probability))
            if len(answers) == count:
                return answers
    return answers


_SPANS_AT_ONCE = 10_000
"""Number of spans that are compared with the answers at once."""


def _overlaps(start: Array, end: Array, taken: Sequence[tuple[int, int]]) -> Array:
    """Return whether each span overlaps one of the spans in `taken`, bool [span]."""
    starts, ends = np.array(taken, dtype=np.int64).reshape(-1, 2).T
    before = np.searchsorted(starts, end)  # number of spans that start before the end
    overlaps: Array = np.concatenate([[-1], ends])[before] > start
    return overlaps


@dataclass(frozen=True, eq=False, repr=False)
class FindAnswerResult(PredictionResult):
    """The answers found in a context, most probable first.

    Attributes:
        context: the second text of the pair, which contains the answers.
        answers: spans of the context, which do not overlap.
        windows: number of windows in which the context was read. Start and end probabilities are normalized
            within each window.
    """

    question: FindAnswer
    context: str
    answers: tuple[AnswerSpan, ...]
    windows: int

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence that states the number of windows; empty if the text was read as one window."""
        if self.windows < 2:
            return ()
        return (
            f"The text is longer than the model's maximum, so it was read in {self.windows} overlapping "
            "windows. Probabilities are normalized within each window.",
        )

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The number of windows in which the text was read."""
        return {"windows": self.windows}

    def text(self, answer: AnswerSpan) -> str:
        """Return the text of an answer; "" for "no answer"."""
        return self.context[answer.start : answer.end] if answer.start is not None else ""

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per answer: rank, start, end, text, probability.

        The offsets of "no answer" are empty.
        """
        return pd.DataFrame(
            {
                "rank": range(1, len(self.answers) + 1),
                "start": frames.nullable_integers([answer.start for answer in self.answers]),
                "end": frames.nullable_integers([answer.end for answer in self.answers]),
                "text": pd.Series([self.text(answer) for answer in self.answers], dtype=object),
                "probability": [answer.probability for answer in self.answers],
            }
        )
