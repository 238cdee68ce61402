"""One number of an answer: what is explained, for a text and for whatever the text is changed into."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from bert_probe.analyses.outputs.fill_mask import masked, target, to_mask, usual_word
from bert_probe.analyses.outputs.find_answer import FindAnswer
from bert_probe.analyses.outputs.next_sentence import FOLLOWS
from bert_probe.analyses.outputs.sentence_similarity import as_trained, pooled_text
from bert_probe.analyses.vectors.pooling import pool, recipe
from bert_probe.errors import SelectionError, TextError, UnavailableError
from bert_probe.model.checkpoint import (
    ANSWERING,
    CLASSIFYING,
    COMPARING,
    FILLING,
    FOLLOWING,
    LABELLING,
    Checkpoint,
)
from bert_probe.model.encoding import Encoding, ModelInputs
from bert_probe.model.forward import as_array, batch, batches, forward
from bert_probe.model.outputs import OutputHead, missing, output_of
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace

Reading = Callable[
    [Mapping[str, torch.Tensor], torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor], torch.Tensor
]
"""Inputs [row, token], last hidden states [row, token, hidden], pooler's output [row, hidden], 1 at tokens
and 0 at padding [row, token], places [row, place] → the number, [row]."""


@dataclass(frozen=True, eq=False)
class TargetOutput:
    """A number that a model answers for a text.

    Attributes:
        trace: of the text as the model reads it, which may have a mask that the reader's text has not.
        task: what was trained for it.
        name: what it is, for people.
        target: which of the answer's numbers, as the question names it; "" where there is one only.
        places: the tokens that it is read at; none where it is read of the whole text.
        read: how.
    """

    trace: Trace
    task: str
    name: str
    target: str
    places: tuple[int, ...]
    read: Reading

    def on(
        self, inputs: Mapping[str, torch.Tensor], states: torch.Tensor, pooled: torch.Tensor | None
    ) -> torch.Tensor:
        """The number for other vectors of this text, [row], through which gradients flow.

        Args:
            inputs: what the model was given, [1, token] or [row, token].
            states: last hidden states, [row, token, hidden]; pooled: [row, hidden], or None.
        """
        rows = len(states)
        wide = {name: values.expand(rows, -1) for name, values in inputs.items()}
        mask = torch.ones(states.shape[:2], dtype=torch.long, device=states.device)
        places = torch.tensor(self.places, dtype=torch.long, device=states.device).expand(rows, -1)
        return self.read(wide, states, pooled, mask, places)

    def of(self, variants: Sequence[Variant], report: Progress = no_progress) -> Array:
        """The number for each variant of the text, float64 [variant]; many in a pass.

        Args:
            report: told how many are done, and of how many.

        Raises:
            UnavailableError: numbers that are not finite.
            OutOfMemoryError: the machine is too small.
        """
        checkpoint, done = self.trace.checkpoint, 0
        found = np.empty(len(variants))
        report(0, len(variants))
        for group in batches([len(variant.inputs) for variant in variants], pads=checkpoint.pads):
            texts = [variants[index].inputs for index in group]
            output, mask = forward(checkpoint, texts)
            with torch.inference_mode(), checkpoint.running():
                places = torch.tensor(
                    [variants[index].places for index in group], dtype=torch.long, device=mask.device
                )
                given = batch(checkpoint, texts)
                pooled = getattr(output, "pooler_output", None)
                found[group] = as_array(self.read(given, output.last_hidden_state, pooled, mask, places))
            done += len(group)
            report(done, len(variants))
        if not np.isfinite(found).all():
            raise UnavailableError(f"The {self.name} is not finite for this text, so nothing explains it.")
        return found

    @property
    def untouched(self) -> Variant:
        """The text as it is."""
        return Variant(self.trace.encoding, self.places)


@dataclass(frozen=True, eq=False)
class Variant:
    """What a text was changed into, and where the answer is now."""

    inputs: Encoding | ModelInputs
    places: tuple[int, ...]


MASKED, REMOVED = "masked", "removed"
WITHOUT = (REMOVED, MASKED)


def without(number: TargetOutput, positions: Sequence[int], how: str) -> Variant:
    """The text without some tokens: these left out, or each in its place a mask.

    Raises:
        UnavailableError: to be masked by a tokenizer that has no mask.
    """
    encoding, gone = number.trace.encoding, sorted(positions)
    if how == MASKED:
        mask = mask_id(number.trace.checkpoint)
        ids = encoding.inputs["input_ids"].copy()
        ids[gone] = mask
        return Variant(ModelInputs({**encoding.inputs, "input_ids": ids}, encoding.dropped), number.places)
    inputs = {name: np.delete(values, gone) for name, values in encoding.inputs.items()}
    places = tuple(place - sum(one < place for one in gone) for place in number.places)
    return Variant(ModelInputs(inputs, encoding.dropped), places)


def mask_id(checkpoint: Checkpoint) -> int:
    """The token that stands for a missing one.

    Raises:
        UnavailableError: the tokenizer has none.
    """
    if checkpoint.tokenizer.mask_token_id is None:
        name = checkpoint.description.name
        raise UnavailableError(f"The tokenizer of {name} has no mask. Let tokens be removed.")
    return int(checkpoint.tokenizer.mask_token_id)


def number_of(
    trace: Trace,
    other: Trace | None = None,
    task: str | None = None,
    target: str | None = None,
    at: int | None = None,
) -> TargetOutput:
    """One number of a model's answer for a text.

    Args:
        other: for how alike two texts are, the second one.
        task: of those the checkpoint was trained for; the first unless given.
        target: which number: a class, a label, a word; of answers in a text the rank. Unless given, the
            likeliest.
        at: the token that it is of: for a word the one that is masked, for a label the one that has it.

    Raises:
        UnavailableError: the checkpoint was not trained for it.
        SelectionError: no such target, or one where there is nothing to choose.
        TextError: a second text that is missing, or has no place.
    """
    checkpoint = trace.checkpoint
    task = task or next(iter(checkpoint.tasks), None)
    if task is None:
        raise UnavailableError(
            f"{checkpoint.description.name} has no trained head: it is an encoder alone, so there is no "
            "answer to explain. Open one that was trained for a task."
        )
    if task == COMPARING:
        return _alike(trace, other, target, at)
    if other is not None:
        raise TextError(f"Two texts by themselves are for {COMPARING}. Trace the text with its pair instead.")
    return _OF[task](trace, output_of(checkpoint, task), target, at)


def _class(trace: Trace, output: OutputHead, target: str | None, at: int | None) -> TargetOutput:
    _nothing_at(at, CLASSIFYING)
    label = _chosen(output.labels, target, output.logits(trace))
    read = _reading(output, lambda logits: logits[:, label])
    name = output.labels[label]
    return TargetOutput(trace, CLASSIFYING, f"logit of {name}", name, (), read)


def _follows(trace: Trace, output: OutputHead, target: str | None, at: int | None) -> TargetOutput:
    _nothing_at(at, FOLLOWING)
    if trace.encoding.pair is None:
        raise TextError("Whether one text follows another is asked of two. Give the second as the pair.")
    column = _chosen(FOLLOWS, target, output.logits(trace))
    name = FOLLOWS[column]
    return TargetOutput(
        trace, FOLLOWING, f"logit of {name}", name, (), _reading(output, lambda out: out[:, column])
    )


def _word(trace: Trace, output: OutputHead, target_word: str | None, at: int | None) -> TargetOutput:
    """A word at a mask: the first of the text, or one in place of a word."""
    checkpoint = trace.checkpoint
    mask, hide = mask_id(checkpoint), to_mask(trace, usual_word(trace) if at is None else at)
    read = trace if hide is None else checkpoint.trace(*masked(trace, hide))
    places = [token.position for token in read.tokens if token.id == mask]
    if not places:
        raise TextError("There is no mask in the text, and no word of it to mask. Write one.")
    # Masks before the word that is masked for the question stay before it.
    before = sum(token.id == mask for token in trace.tokens[:hide]) if hide is not None else 0
    place = places[before] if hide is not None or at is None else at
    logits = output.logits(read, [place])[0]
    word = int(logits.argmax()) if target_word is None else target(checkpoint, target_word)[0]
    piece = str(checkpoint.tokenizer.convert_ids_to_tokens(word))
    name = f"logit of {piece} at token {place}"
    return TargetOutput(read, FILLING, name, piece, (place,), _reading(output, lambda out: out[:, 0, word]))


def _label(trace: Trace, output: OutputHead, target: str | None, at: int | None) -> TargetOutput:
    place, logits = at, output.logits(trace)
    if place is None:
        own = [token.position for token in trace.tokens if not token.special]
        named = [one for one in own if output.labels[int(logits[one].argmax())] != "O"]
        place = (named or own)[0]
    label = _chosen(output.labels, target, logits[place])
    name = output.labels[label]
    read = _reading(output, lambda out: out[:, 0, label])
    return TargetOutput(trace, LABELLING, f"logit of {name} at token {place}", name, (place,), read)


def _answer(trace: Trace, output: OutputHead, target: str | None, at: int | None) -> TargetOutput:
    """The start of an answer and its end."""
    _nothing_at(at, ANSWERING)
    rank = 1 if target is None else int(target) if target.isdecimal() and len(target) < 4 else 0
    if rank < 1:
        raise SelectionError(f"An answer is named by its rank, from 1; {target!r} is none.")
    if trace.encoding.dropped:
        raise TextError("The text was cut, so not all of it can be explained. Give a shorter one.")
    found = FindAnswer(rank).of(trace)
    if len(found.answers) < rank:
        raise SelectionError(f"There are {len(found.answers)} answers in this text, and none of rank {rank}.")
    answer = found.answers[rank - 1]
    own = [token for token in trace.tokens if token.segment == 1 and not token.special]
    start = next(token.position for token in own if token.start == answer.start)
    end = next(token.position for token in own if token.end == answer.end and token.position >= start)
    read = _reading(output, lambda out: out[:, 0, 0] + out[:, 1, 1])
    name = f"start + end logit of “{found.text(answer)}”"
    return TargetOutput(trace, ANSWERING, name, str(rank), (start, end), read)


_OF: Mapping[str, Callable[[Trace, OutputHead, str | None, int | None], TargetOutput]] = {
    CLASSIFYING: _class,
    FOLLOWING: _follows,
    FILLING: _word,
    LABELLING: _label,
    ANSWERING: _answer,
}


def _alike(trace: Trace, other: Trace | None, target: str | None, at: int | None) -> TargetOutput:
    """The cosine with another text, whose vector stays as it is."""
    _nothing_at(at, COMPARING)
    if target is not None:
        raise SelectionError(f"{COMPARING} is one number, and {target!r} none of it. Leave the target out.")
    if other is None:
        raise TextError("How alike two texts are is asked of two. Give the second one too.")
    checkpoint = trace.checkpoint
    if not checkpoint.pools:
        raise UnavailableError(missing(checkpoint, COMPARING))
    how = recipe(checkpoint, "model")
    read, second = as_trained(trace, how), as_trained(other, how)
    theirs = torch.tensor(pooled_text(second, how))[None]

    def cosine(
        _inputs: Any, states: torch.Tensor, pooled: torch.Tensor | None, mask: torch.Tensor, _places: Any
    ) -> torch.Tensor:
        given = SimpleNamespace(last_hidden_state=states, pooler_output=pooled)
        vectors = pool(given, mask, how)
        return torch.nn.functional.cosine_similarity(vectors, theirs.to(vectors), dim=-1)

    return TargetOutput(read, COMPARING, "cosine with the other text", "", (), cosine)


def _reading(output: OutputHead, part: Callable[[torch.Tensor], torch.Tensor]) -> Reading:
    """A number of a head's answer: for the whole text, or at some tokens by one that looks at each alone."""

    def read(
        inputs: Mapping[str, torch.Tensor],
        states: torch.Tensor,
        pooled: torch.Tensor | None,
        _mask: torch.Tensor,
        places: torch.Tensor,
    ) -> torch.Tensor:
        if places.shape[1]:
            rows = torch.arange(len(states), device=states.device)[:, None]
            inputs = {name: values[rows, places] for name, values in inputs.items()}
            states = states[rows, places]
        return part(output.answer(inputs, states, pooled))

    return read


def _chosen(labels: Sequence[str], target: str | None, logits: Array) -> int:
    if target is None:
        return int(logits.argmax())
    if target not in labels:
        raise SelectionError(f"There is no {target!r} among {len(labels):,} labels: {some_of(labels)}.")
    return labels.index(target)


def _nothing_at(at: int | None, task: str) -> None:
    if at is not None:
        raise SelectionError(f"{task} is answered for the whole text, at no single token. Leave it out.")


def some_of(labels: Sequence[str]) -> str:
    """The first ten, for a sentence: a head may have ten thousand."""
    return ", ".join(labels[:10]) + (", …" if len(labels) > 10 else "")
