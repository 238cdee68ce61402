"""The model output that an attribution explains, and its value for variants of a text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from bert_probe.analyses.outputs.fill_mask import default_position, mask_position, target_tokens, trace_masked
from bert_probe.analyses.outputs.find_answer import FindAnswer
from bert_probe.analyses.outputs.prediction import FOLLOWS
from bert_probe.analyses.outputs.sentence_similarity import SentenceSimilarity, trace_as_trained
from bert_probe.analyses.vectors.pooling import pool, prompt_positions, text_vector
from bert_probe.analyses.vectors.similarity import differentiable_scores
from bert_probe.errors import SelectionError, TextError, UnavailableError
from bert_probe.model.checkpoint import (
    FILL_MASK,
    NEXT_SENTENCE_PREDICTION,
    QUESTION_ANSWERING,
    SENTENCE_SIMILARITY,
    TEXT_CLASSIFICATION,
    TOKEN_CLASSIFICATION,
    Checkpoint,
)
from bert_probe.model.encoding import Encoding, ModelInputs, token_strings
from bert_probe.model.forward import as_array, batch, forward, group_by_length
from bert_probe.model.outputs import OutputHead, no_task_message, output_head
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace

ReadOutput = Callable[
    [Mapping[str, torch.Tensor], torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor], torch.Tensor
]
"""Type of a function that computes the target value of each row of a batch, shape [row].

Its arguments are model inputs [row, token], last hidden states [row, token, hidden], pooler outputs [row,
hidden] or None, the attention mask [row, token] (1 for tokens, 0 for padding), and the token positions from
which the value is computed [row, position].
"""


@dataclass(frozen=True, eq=False)
class TargetOutput:
    """One output value of a model for a text, such as the logit of a class.

    Attributes:
        trace: trace of the text as the model reads it: a word may be masked, or a prompt prepended.
        task: task of the task head.
        name: description of the output, such as "logit of positive".
        target: the class, label, word or rank of an answer span; "" if the head has only one output.
        places: token positions from which the value is computed; empty if it depends on the whole text.
        read: function that computes the value; see `ReadOutput`.
        prompt: positions of the tokens of the checkpoint's prompt, which are not part of the text and are
            never removed.
    """

    trace: Trace
    task: str
    name: str
    target: str
    places: tuple[int, ...]
    read: ReadOutput
    prompt: tuple[int, ...] = ()

    def on(
        self, inputs: Mapping[str, torch.Tensor], states: torch.Tensor, pooled: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the target value for each row of modified hidden states, as a differentiable tensor [row].

        Args:
            inputs: model inputs of the text, [1, token] or [row, token].
            states: modified last hidden states, [row, token, hidden].
            pooled: pooler outputs, [row, hidden], or None.
        """
        rows = len(states)
        expanded = {name: values.expand(rows, -1) for name, values in inputs.items()}
        mask = torch.ones(states.shape[:2], dtype=torch.long, device=states.device)
        positions = torch.tensor(self.places, dtype=torch.long, device=states.device).expand(rows, -1)
        return self.read(expanded, states, pooled, mask, positions)

    def of(self, variants: Sequence[TextVariant], progress: Progress = no_progress) -> Array:
        """Return the target value for each variant of the text, float64 of shape [variant].

        Args:
            progress: called with the number of variants done and the total.

        Raises:
            UnavailableError: a value is not finite.
            OutOfMemoryError: there is not enough memory.
        """
        checkpoint, done = self.trace.checkpoint, 0
        values = np.empty(len(variants))
        progress(0, len(variants))
        for group in group_by_length([len(variant.inputs) for variant in variants], pads=checkpoint.pads):
            texts = [variants[index].inputs for index in group]
            output, mask = forward(checkpoint, texts)
            with torch.inference_mode(), checkpoint.running():
                positions = torch.tensor(
                    [variants[index].places for index in group], dtype=torch.long, device=mask.device
                )
                inputs = batch(checkpoint, texts)
                pooled = getattr(output, "pooler_output", None)
                values[group] = as_array(self.read(inputs, output.last_hidden_state, pooled, mask, positions))
            done += len(group)
            progress(done, len(variants))
        if not np.isfinite(values).all():
            raise UnavailableError(
                f"The {self.name} is not finite for this text, so it cannot be explained. Use float32, or "
                "another text."
            )
        return values

    @property
    def untouched(self) -> TextVariant:
        """The original text as a variant."""
        return TextVariant(self.trace.encoding, self.places)


@dataclass(frozen=True, eq=False)
class TextVariant:
    """A modified text, and the token positions from which the target value is computed."""

    inputs: Encoding | ModelInputs
    places: tuple[int, ...]


MASKED, REMOVED = "masked", "removed"
REMOVALS = (REMOVED, MASKED)


def remove_tokens(target: TargetOutput, positions: Sequence[int], how: str) -> TextVariant:
    """Return a variant of the text without the tokens at the given positions.

    The tokens are deleted if ``how`` is "removed", or replaced by mask tokens if it is "masked".

    Raises:
        UnavailableError: `how` is "masked" and the tokenizer has no mask token.
    """
    encoding, removed = target.trace.encoding, sorted(positions)
    if how == MASKED:
        mask_token = mask_id(target.trace.checkpoint)
        ids = encoding.inputs["input_ids"].copy()
        ids[removed] = mask_token
        return TextVariant(
            ModelInputs({**encoding.inputs, "input_ids": ids}, encoding.dropped), target.places
        )
    inputs = {name: np.delete(values, removed) for name, values in encoding.inputs.items()}
    places = tuple(place - sum(position < place for position in removed) for place in target.places)
    return TextVariant(ModelInputs(inputs, encoding.dropped), places)


def mask_id(checkpoint: Checkpoint) -> int:
    """Return the id of the mask token.

    Raises:
        UnavailableError: the tokenizer has no mask token.
    """
    if checkpoint.tokenizer.mask_token_id is None:
        name = checkpoint.description.name
        raise UnavailableError(
            f"The tokenizer of {name} has no mask token. Choose “removed” instead of “masked”."
        )
    return int(checkpoint.tokenizer.mask_token_id)


def select_output(
    trace: Trace,
    other: Trace | None = None,
    task: str | None = None,
    target: str | None = None,
    token_position: int | None = None,
    similarity: SentenceSimilarity | None = None,
) -> TargetOutput:
    """Return the target output for a task, by default the most probable prediction of the first task.

    Args:
        trace: the model's forward pass over the text.
        other: the second text, for sentence similarity.
        task: one of the checkpoint's tasks. If None, the first.
        target: a class, a label, a word, or the rank of an answer span. If None, the most probable one.
        token_position: position of the word to mask, or of the token whose label is explained.
        similarity: the prompts and the number of dimensions, for sentence similarity.

    Raises:
        UnavailableError: the checkpoint has no task head, or none for the task, or its tokenizer has no mask
            token.
        SelectionError: the target does not exist; the task does not accept a target or a position; or
            `similarity` is not the default, and the task is not sentence similarity.
        TextError: the second text is missing or not allowed, or the text has no word to explain.
    """
    checkpoint = trace.checkpoint
    task = task or next(iter(checkpoint.tasks), None)
    if task is None:
        raise UnavailableError(no_task_message(checkpoint))
    if task == SENTENCE_SIMILARITY:
        return _similarity_output(trace, other, target, token_position, similarity or SentenceSimilarity())
    if similarity is not None and similarity != SentenceSimilarity():
        raise SelectionError(
            f"prompt, pair_prompt and dimensions apply to {SENTENCE_SIMILARITY} only, not to {task}. Omit "
            "these options."
        )
    if other is not None:
        raise TextError(
            f"Only {SENTENCE_SIMILARITY} accepts two separate texts. Trace the two texts as one pair instead."
        )
    return _OUTPUTS[task](trace, output_head(checkpoint, task), target, token_position)


def _class_output(
    trace: Trace, output: OutputHead, target: str | None, token_position: int | None
) -> TargetOutput:
    _check_no_position(token_position, TEXT_CLASSIFICATION)
    label = _label_index(output.labels, target, output.logits(trace))
    name = output.labels[label]
    read = _read_fn(output, lambda logits: logits[:, label])
    return TargetOutput(trace, TEXT_CLASSIFICATION, f"logit of {name}", name, (), read)


def _next_sentence_output(
    trace: Trace, output: OutputHead, target: str | None, token_position: int | None
) -> TargetOutput:
    _check_no_position(token_position, NEXT_SENTENCE_PREDICTION)
    if trace.encoding.pair is None:
        raise TextError("Next-sentence prediction needs two texts. Pass the second text as the pair.")
    column = _label_index(FOLLOWS, target, output.logits(trace))
    name = FOLLOWS[column]
    return TargetOutput(
        trace,
        NEXT_SENTENCE_PREDICTION,
        f"logit of {name}",
        name,
        (),
        _read_fn(output, lambda out: out[:, column]),
    )


def _word_output(
    trace: Trace, output: OutputHead, target_word: str | None, token_position: int | None
) -> TargetOutput:
    """Return the logit of a word at a mask as the target output.

    The mask is in the text, or replaces the word at ``token_position``.
    """
    checkpoint = trace.checkpoint
    mask, to_hide = (
        mask_id(checkpoint),
        mask_position(trace, default_position(trace) if token_position is None else token_position),
    )
    masked_trace = trace if to_hide is None else trace_masked(trace, to_hide)
    masks = [token.position for token in masked_trace.tokens if token.id == mask]
    if not masks:
        raise TextError(
            "The text has no mask token and no word that can be masked. Add a mask token or a word."
        )
    # The index of the new mask is the number of masks that precede the masked word in the original text.
    before = sum(token.id == mask for token in trace.tokens[:to_hide]) if to_hide is not None else 0
    position = masks[before] if to_hide is not None or token_position is None else token_position
    logits = output.logits(masked_trace, [position])[0]
    word = int(logits.argmax()) if target_word is None else target_tokens(checkpoint, [target_word])[0][0]
    (token,) = token_strings(checkpoint.tokenizer, [word])
    name = f"logit of {token} at token {position}"
    return TargetOutput(
        masked_trace, FILL_MASK, name, token, (position,), _read_fn(output, lambda out: out[:, 0, word])
    )


def _label_output(
    trace: Trace, output: OutputHead, target: str | None, token_position: int | None
) -> TargetOutput:
    position, logits = token_position, output.logits(trace)
    if position is None:
        tokens = [token.position for token in trace.tokens if not token.special]
        entities = [
            candidate for candidate in tokens if output.labels[int(logits[candidate].argmax())] != "O"
        ]
        position = (entities or tokens)[0]
    label = _label_index(output.labels, target, logits[position])
    name = output.labels[label]
    read = _read_fn(output, lambda out: out[:, 0, label])
    return TargetOutput(
        trace, TOKEN_CLASSIFICATION, f"logit of {name} at token {position}", name, (position,), read
    )


def _answer_output(
    trace: Trace, output: OutputHead, target: str | None, token_position: int | None
) -> TargetOutput:
    """Return the sum of the start logit and the end logit of an answer span as the target output."""
    _check_no_position(token_position, QUESTION_ANSWERING)
    rank = 1 if target is None else int(target) if target.isdecimal() and len(target) < 4 else 0
    if rank < 1:
        raise SelectionError(
            f"The target of question answering must be the rank of an answer, from 1, not {target!r}."
        )
    if trace.encoding.dropped:
        raise TextError("The text was truncated, so it cannot be explained. Shorten the text.")
    result = FindAnswer(rank).of(trace)
    if len(result.answers) < rank:
        raise SelectionError(
            f"There is no answer with rank {rank}: the number of answers is {len(result.answers)}. "
            "Choose a smaller rank."
        )
    answer = result.answers[rank - 1]
    read = _read_fn(output, lambda out: out[:, 0, 0] + out[:, 1, 1])
    name = f"start + end logit of “{result.text(answer)}”"
    return TargetOutput(trace, QUESTION_ANSWERING, name, str(rank), (answer.first, answer.last), read)


_OUTPUTS: Mapping[str, Callable[[Trace, OutputHead, str | None, int | None], TargetOutput]] = {
    TEXT_CLASSIFICATION: _class_output,
    NEXT_SENTENCE_PREDICTION: _next_sentence_output,
    FILL_MASK: _word_output,
    TOKEN_CLASSIFICATION: _label_output,
    QUESTION_ANSWERING: _answer_output,
}


def _similarity_output(
    trace: Trace,
    other: Trace | None,
    target: str | None,
    token_position: int | None,
    similarity: SentenceSimilarity,
) -> TargetOutput:
    """Return the similarity score as the target output; the other text's sentence vector is constant."""
    _check_no_position(token_position, SENTENCE_SIMILARITY)
    if target is not None:
        raise SelectionError(
            f"{SENTENCE_SIMILARITY} has a single output, so it accepts no target ({target!r}). Omit the "
            "target."
        )
    if other is None:
        raise TextError("Similarity needs two texts. Pass a second text.")
    pooling, pair_pooling = similarity.poolings(trace.checkpoint)
    pooled_trace, second = trace_as_trained(trace, pooling), trace_as_trained(other, pair_pooling)
    other_vector = torch.tensor(text_vector(second, pair_pooling))[None]

    def score(
        _inputs: Any, states: torch.Tensor, pooled: torch.Tensor | None, mask: torch.Tensor, _places: Any
    ) -> torch.Tensor:
        outputs = SimpleNamespace(last_hidden_state=states, pooler_output=pooled)
        vectors = pool(outputs, mask, pooling)
        return differentiable_scores(vectors, other_vector.to(vectors), pooling.similarity)

    name = f"{pooling.score_name} with the other text"
    prompt = prompt_positions(pooled_trace.tokens, pooling)
    return TargetOutput(pooled_trace, SENTENCE_SIMILARITY, name, "", (), score, prompt)


def _read_fn(output: OutputHead, select: Callable[[torch.Tensor], torch.Tensor]) -> ReadOutput:
    """Return a function that computes one value of a task head's output.

    If positions are given, the head is applied only to the tokens at these positions, so the head must
    treat each token independently.

    Args:
        output: the task head.
        select: function that takes logits of shape [row, …] and returns the selected value of each row.
    """

    def read(
        inputs: Mapping[str, torch.Tensor],
        states: torch.Tensor,
        pooled: torch.Tensor | None,
        _mask: torch.Tensor,
        positions: torch.Tensor,
    ) -> torch.Tensor:
        if positions.shape[1]:
            rows = torch.arange(len(states), device=states.device)[:, None]
            inputs = {name: values[rows, positions] for name, values in inputs.items()}
            states = states[rows, positions]
        return select(output.answer(inputs, states, pooled))

    return read


def _label_index(labels: Sequence[str], target: str | None, logits: Array) -> int:
    if target is None:
        return int(logits.argmax())
    if target not in labels:
        raise SelectionError(f"{target!r} is not one of the {len(labels):,} labels: {format_labels(labels)}.")
    return labels.index(target)


def _check_no_position(token_position: int | None, task: str) -> None:
    if token_position is not None:
        raise SelectionError(f"The task {task} is predicted for the whole text. Omit the token.")


def format_labels(labels: Sequence[str]) -> str:
    """Return the first ten labels as text for an error message; a task head may have thousands."""
    return ", ".join(labels[:10]) + (", …" if len(labels) > 10 else "")
