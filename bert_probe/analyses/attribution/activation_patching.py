"""Patching: a part of one text's pass put into another's, and how much of the answer comes along with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.outputs.target import TargetOutput, number_of
from bert_probe.analyses.vectors.cosine import cosine_of_rows
from bert_probe.analyses.vectors.pooling import offered, pool_unpadded, recipe
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, FieldType, Optional
from bert_probe.core.field_types_of_words import WordSelector
from bert_probe.core.inputs import TwoTraces
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError, TextError, memory_errors
from bert_probe.model.capture import AttentionCall, changing
from bert_probe.model.checkpoint import (
    ANSWERING,
    CLASSIFYING,
    COMPARING,
    FILLING,
    FOLLOWING,
    LABELLING,
)
from bert_probe.model.encoding import Token
from bert_probe.model.forward import BATCH_TOKENS, as_array, batch
from bert_probe.model.layers import ForwardPass, passing
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace, read_only
from bert_probe.text.alignment import align_traces

PARTS = ("tokens", "heads")
ANSWERED = (FILLING, CLASSIFYING, LABELLING, ANSWERING, FOLLOWING, COMPARING)
"""Tasks, in the order in which one is taken where none is named."""
PAIRED = (ANSWERING, FOLLOWING)
"""Those that are asked of a text and its pair: a question and where the answer stands, two sentences."""


@question("patching", command="patch")
class ActivationPatching(Question):
    """How much of text A's answer comes back when a part of A's pass is put into B's.

    Vig et al. 2020, Meng et al. 2022.

    The answer is a number of a trained head, the likeliest of A unless another is named; without a head it
    is how alike the sentence vector is to A's: its cosine. Untouched, B's pass gives B's answer; put wholly
    in its place, A's gives A's. What is between is how much of that way one part alone goes. It is an effect,
    measured by running the model, unlike what attention shows. An answer in a text, start and end of a span,
    and whether a text follows are asked of two pairs.

    Attributes:
        what: "tokens": the vector of one token after one layer; "heads": what one head returns, at all
            tokens that have a counterpart.
        task: of those the checkpoint was trained for; None for the first that this text can be asked, and for
            the cosine where there is none.
        target: which number of the answer: a class, a label, a word, of answers in a text the rank; None for
            the likeliest of A.
        at: the token of A that the answer is of, where it stands at one.
    """

    inputs = TwoTraces(pair_options=("--pair-a", "--pair-b"))

    what: str = param(
        Choice(PARTS), default="tokens", key="patch", about="What of TEXT_A is put into TEXT_B."
    )
    task: str | None = param(
        Optional(Choice(ANSWERED)), default=None, key="patch_task", about="Which trained head answers."
    )
    target: str | None = param(
        Optional(FieldType()), default=None, key="patch_target", about="Which class, label, word or rank."
    )
    at: int | str | None = param(
        Optional(WordSelector()), default=None, key="patch_at", about="The word of TEXT_A that has the label."
    )

    def of(self, a: Trace, b: Trace, report: Progress = no_progress) -> ActivationPatchingResult:
        """Put each part of A's pass into B's, one at a time, many in one batch.

        Args:
            report: told how many parts are done, and of how many.

        Raises:
            SelectionError: traces of different models, texts with the same answer, so that there is nothing
                to recover, or with nothing in common; an answer at a token that B has no counterpart of.
            TextError: a task that is asked of two pairs, and a text without.
            UnavailableError: the architecture does not show its layers one by one, no model made the traces,
                or the checkpoint was not trained for the task.
            OutOfMemoryError: the machine is too small for these texts.
        """
        subject = InputRecord.of(a, b)
        places = counterparts(a, b)
        number = self._number(a, b)
        with (
            memory_errors("To patch these texts needs more memory than is free. Shorten them."),
            torch.inference_mode(),
            b.checkpoint.running(),
        ):
            patched = _PatchedText(passing(a), passing(b), places, number)
            nothing = patched.untouched()
            answers = patched.tokens(report) if self.what == "tokens" else patched.heads(report)
        tokens_a, tokens_b = (
            tuple(trace.tokens[place] for place in side)
            for trace, side in zip((a, b), zip(*places, strict=True), strict=True)
        )
        whole = len(places) == len(a.tokens) == len(b.tokens)
        each, together = read_only(answers[:, :-1]), read_only(answers[:, -1])
        named = "" if number is None else number.name
        asked_for = (
            self if number is None else replace(self.resolved(a), task=number.task, target=number.target)
        )
        return ActivationPatchingResult(
            asked_for, subject, tokens_a, tokens_b, whole, named, nothing, patched.goal, each, together
        )

    def _number(self, a: Trace, b: Trace) -> TargetOutput | None:
        """What a trained head answers for A; None for the cosine."""
        # A word is asked for where the text has a mask, an answer of pairs where there are, or it is named.
        paired = a.encoding.pair is not None and b.encoding.pair is not None
        masked = a.checkpoint.tokenizer.mask_token_id in a.encoding.ids
        fits = {FILLING: masked} | dict.fromkeys(PAIRED, paired)
        there = [task for task in ANSWERED if task in a.checkpoint.outputs and fits.get(task, True)]
        task = self.task or next(iter(there), None)
        if task in PAIRED and not paired:
            raise TextError(f"{task} is asked of a text and its pair. Give each of the two texts its pair.")
        if task is None or task == COMPARING:
            if self.target is not None or self.at is not None:
                raise SelectionError("The cosine is one number of the whole text. Leave target and at out.")
            return None
        number = number_of(a, None, task, self.target, self.resolved(a).at)  # type: ignore[arg-type]
        if number.trace is not a:
            raise SelectionError("Write the mask into both texts, so that each pass has it.")
        return number


@dataclass(frozen=True, eq=False, repr=False)
class ActivationPatchingResult(Result):
    """What parts of A's pass do in B's.

    Attributes:
        tokens_a, tokens_b: the tokens that stand for each other, of either text.
        whole: whether these are all tokens of both texts; then all of them together, after any layer, make
            B's pass into A's.
        number: what the answer is; "" for the cosine with A's sentence vector.
        nothing: the answer of B as it is; for the cosine that of the two sentence vectors.
        goal: the answer of A; for the cosine 1.
        answers: the answer with one part patched, float64: [layer + 1, token], row 0 being the output of
            the embeddings, or [layer, head].
        together: with all parts of a layer patched at once, [layer + 1] or [layer].
    """

    question: ActivationPatching
    tokens_a: tuple[Token, ...]
    tokens_b: tuple[Token, ...]
    whole: bool
    number: str
    nothing: float
    goal: float
    answers: Array
    together: Array

    def __post_init__(self) -> None:
        count = len(self.tokens_a)
        fits = self.answers.ndim == 2 and self.together.shape == self.answers.shape[:1]
        if not fits or (self.question.what == "tokens" and self.answers.shape[1] != count):
            raise ShapeError(
                f"answers {self.answers.shape} for {count} tokens, together {self.together.shape}."
            )

    @property
    def recovered(self) -> Array:
        """The share of the way from B's answer to A's that each part goes: 0 none of it, 1 all.

        Below 0 it leads away from A. The shares of several parts need not add up.
        """
        return self._share(self.answers)

    @property
    def recovered_together(self) -> Array:
        """The same for all parts of a layer at once."""
        return self._share(self.together)

    def _share(self, answers: Array) -> Array:
        share: Array = (answers - self.nothing) / (self.goal - self.nothing)
        return share

    @property
    def metadata(self) -> Mapping[str, Any]:
        """B's own answer, what all parts of each layer do together, and whether these are all of the text."""
        answer = {"number": self.number, "of_a": self.goal, "of_b": self.nothing} if self.number else {}
        return {
            **(answer or {"cosine": self.nothing}),
            "recovered_together": self.recovered_together.tolist(),
            "all_tokens": self.whole,
        }

    def frame(self) -> pd.DataFrame:
        """A row for each part.

        layer, position, token, recovered: layer 0 is the output of the embeddings, position and token are
        A's. Or layer, head, recovered, counted from 1.
        """
        if self.question.what == "heads":
            return frames.by_head({"recovered": self.recovered})
        layers, count = self.answers.shape
        return pd.DataFrame(
            {
                "layer": np.repeat(np.arange(layers), count),
                "position": [token.position for token in self.tokens_a] * layers,
                frames.TOKEN: frames.names(self.tokens_a) * layers,
                "recovered": self.recovered.ravel(),
            }
        )


def counterparts(a: Trace, b: Trace) -> tuple[tuple[int, int], ...]:
    """Positions of A and B that stand for each other, rising in both.

    Tokens that are the same, as in `align_traces`; and what stands between two of these in place of each
    other, one by one, where it is as many tokens in A as in B.

    Raises:
        SelectionError: there are none.
    """
    same = align_traces(a, b).pairs
    found = list(same)
    anchors = [(-1, -1), *same, (len(a.tokens), len(b.tokens))]
    for (left_a, left_b), (right_a, right_b) in pairwise(anchors):
        between = range(left_a + 1, right_a), range(left_b + 1, right_b)
        if len(between[0]) == len(between[1]):
            found += zip(*between, strict=True)
    if not found:
        raise SelectionError("The two texts have nothing in common. Give two that share some of their words.")
    return tuple(sorted(found))


Answers = Callable[[torch.Tensor], Array]
"""Last hidden states [row, token, hidden] → answers, float64 [row]."""


class _PatchedText:
    """B's pass with parts of A's in it, and the answers."""

    def __init__(
        self, a: ForwardPass, b: ForwardPass, places: Sequence[tuple[int, int]], number: TargetOutput | None
    ) -> None:
        self.a, self.b = a, b
        device = b.states[0].device
        self.from_, self.to = (torch.tensor(side, device=device) for side in zip(*places, strict=True))
        self.steps = b.steps()
        self.answers, self.goal = self._cosine() if number is None else self._of_head(number, dict(places))

    def _cosine(self) -> tuple[Answers, float]:
        """Cosines with A's sentence vector."""
        checkpoint = self.b.trace.checkpoint
        how = recipe(checkpoint, offered(checkpoint)[0])
        target = pool_unpadded(self.a.states[-1][None], how).cpu().numpy()

        def answers(states: torch.Tensor) -> Array:
            vectors = pool_unpadded(states, how).cpu().numpy()
            return cosine_of_rows(vectors, np.broadcast_to(target, vectors.shape))

        return answers, 1.0

    def _of_head(self, number: TargetOutput, places: Mapping[int, int]) -> tuple[Answers, float]:
        """The same number of the head, read where the token of B stands for that of A."""
        alone = [place for place in number.places if place not in places]
        if alone:
            token = self.a.trace.tokens[alone[0]]
            raise SelectionError(f"{token}, which the answer is of, has no counterpart in the second text.")
        self.b.check_pooler()
        there = replace(number, trace=self.b.trace, places=tuple(places[place] for place in number.places))
        inputs = batch(self.b.trace.checkpoint, [self.b.trace.encoding])

        def answers(states: torch.Tensor) -> Array:
            return as_array(there.on(inputs, states, self.b.pooled(states))).astype(np.float64)

        given, last = batch(self.a.trace.checkpoint, [self.a.trace.encoding]), self.a.states[-1][None]
        return answers, float(number.on(given, last, self.a.pooled(last))[0])

    def untouched(self) -> float:
        """B's answer.

        Raises:
            SelectionError: it is A's.
        """
        answer = float(self.answers(self.b.states[-1][None])[0])
        # A cosine may be 1 but for its rounding; then it is not below.
        if answer == self.goal or (self.goal == 1 and not answer < 1):
            raise SelectionError(
                "The two texts have the same answer, so nothing of it can be recovered. Give two that differ."
            )
        return answer

    def tokens(self, report: Progress) -> Array:
        """The answers with each token's vector patched, and with all of them, [layer + 1, token + 1]."""

        def put(layer: int, mask: torch.Tensor) -> torch.Tensor:
            states = self.b.states[layer].repeat(len(mask), 1, 1)
            theirs = self.a.states[layer][self.from_]
            states[:, self.to] = torch.where(mask[..., None], theirs, states[:, self.to])
            # The last hidden state is what comes out of all steps, a norm after the layers among them.
            return states if layer == self.b.trace.layers else self._onward(states, layer)

        return self._grid(put, self.b.trace.layers + 1, len(self.to), report)

    def heads(self, report: Progress) -> Array:
        """The answers with what each head returns patched, and with all of a layer's, [layer, head + 1]."""

        def put(layer: int, mask: torch.Tensor) -> torch.Tensor:
            theirs = self.a.heads[layer][self.from_]

            def change(_: int, call: AttentionCall) -> torch.Tensor:
                output = call.output.clone()
                output[:, self.to] = torch.where(mask[:, None, :, None], theirs, output[:, self.to])
                return output

            step = self.steps[layer]
            with changing(change):
                states = step.on(step.given.expand(len(mask), -1, -1))
            return self._onward(states, layer + 1)

        return self._grid(put, self.b.trace.layers, self.b.trace.heads, report)

    def _grid(
        self, put: Callable[[int, torch.Tensor], torch.Tensor], layers: int, parts: int, report: Progress
    ) -> Array:
        """Answers [layer, part + 1], many rows in a batch.

        Args:
            put: a layer, and for each row which parts are patched, bool [row, part] → last hidden states.
        """
        one_each = torch.eye(parts, dtype=torch.bool, device=self.to.device)
        masks = torch.cat([one_each, torch.ones_like(one_each[:1])])
        answers = np.empty((layers, len(masks)))
        size = max(1, BATCH_TOKENS // len(self.b.trace.tokens))
        report(0, answers.size)
        for layer in range(layers):
            for start in range(0, len(masks), size):
                rows = slice(start, start + size)
                answers[layer, rows] = self.answers(put(layer, masks[rows]))
                report(layer * len(masks) + min(start + size, len(masks)), answers.size)
        return answers

    def _onward(self, states: torch.Tensor, layer: int) -> torch.Tensor:
        """What a layer of B reads, through it and all after it."""
        for step in self.steps[layer:]:
            states = step.on(states)
        return states
