"""Activation patching: copying activations from one text's forward pass into another text's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.outputs.sentence_similarity import trace_as_trained
from bert_probe.analyses.outputs.target import TargetOutput, select_output
from bert_probe.analyses.vectors.pooling import (
    DIMENSIONS_HELP,
    NO_PROMPT,
    PROMPT_HELP,
    PoolingConfig,
    available_poolings,
    pool_unpadded,
    prompt_positions,
    resolve_pooling,
)
from bert_probe.analyses.vectors.similarity import cosine_of_rows
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, FieldType, Name, Number, Optional, WordSelector
from bert_probe.core.inputs import TwoTraces
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError, TextError, memory_errors
from bert_probe.model.capture import AttentionCall, changed_outputs
from bert_probe.model.checkpoint import (
    FILL_MASK,
    NEXT_SENTENCE_PREDICTION,
    QUESTION_ANSWERING,
    SENTENCE_SIMILARITY,
    TEXT_CLASSIFICATION,
    TOKEN_CLASSIFICATION,
    Checkpoint,
)
from bert_probe.model.encoding import Token
from bert_probe.model.forward import BATCH_TOKENS, as_array, batch
from bert_probe.model.layers import ForwardPass, record_forward_pass
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace, read_only
from bert_probe.text.alignment import align_traces

COMPONENTS = ("tokens", "heads")
PATCHABLE = (
    FILL_MASK,
    TEXT_CLASSIFICATION,
    TOKEN_CLASSIFICATION,
    QUESTION_ANSWERING,
    NEXT_SENTENCE_PREDICTION,
    SENTENCE_SIMILARITY,
)
"""Tasks whose predictions can be patched, in order of preference."""
PAIR_TASKS = (QUESTION_ANSWERING, NEXT_SENTENCE_PREDICTION)
"""Tasks that need text pairs."""


@question("activation patching", command="patch")
class ActivationPatching(Question):
    """Share of text A's prediction that is restored by copying activations from A's forward pass into B's.

    Activation patching is described in Vig et al. 2020 and Meng et al. 2022. Components are patched one at a
    time. For each component, the result has the share of the difference between B's and A's target values
    that the patch restores. Unlike attention weights, the share measures a causal effect, because the model
    is run with the patch.

    The target value is one output value of the model's task head: by default, the value of A's most probable
    prediction. Without a task head, the target value is the cosine with A's sentence vector. For
    question answering and next-sentence prediction, A and B must be text pairs.

    Attributes:
        component: "tokens" to patch the vector of one token after one layer, or "heads" to patch the output
            of one attention head at all aligned tokens.
        task: task of the task head. If None, the first task of `PATCHABLE` that the model and the texts
            support, or the cosine if there is no such task.
        target: the class, label, word, or rank of an answer span whose value is predicted. If None, A's most
            probable prediction.
        at: the token of A whose label or word is predicted.
        prompt: for the cosine: name of the checkpoint's prompt to put before both texts, or "none". If None,
            the checkpoint's default prompt. Both texts have the same prompt, because they are variants of one
            text.
        dimensions: for the cosine: number of dimensions to which the sentence vectors are truncated. If None,
            the checkpoint's own number.
    """

    inputs = TwoTraces(pair_options=("--pair-a", "--pair-b"))

    component: str = param(
        Choice(COMPONENTS),
        default="tokens",
        key="patch",
        about="Activations copied from TEXT_A into TEXT_B: token vectors or head outputs.",
    )
    task: str | None = param(
        Optional(Choice(PATCHABLE)),
        default=None,
        key="patch_task",
        about="The task to predict, if the model has several task heads.",
    )
    target: str | None = param(
        Optional(FieldType()),
        default=None,
        key="patch_target",
        about="The prediction to compare: a class, a label, a word, or the rank of an answer span.",
    )
    at: int | str | None = param(
        Optional(WordSelector()),
        default=None,
        key="patch_at",
        about="The word of TEXT_A whose label is predicted, for token classification.",
    )
    prompt: str | None = param(Optional(Name()), default=None, about=PROMPT_HELP)
    dimensions: int | None = param(
        Optional(Number(1)), default=None, key="vector_dimensions", about=DIMENSIONS_HELP
    )

    def of(self, a: Trace, b: Trace, progress: Progress = no_progress) -> ActivationPatchingResult:
        """Return the effect of patching each component of A's forward pass into B's.

        Args:
            a, b: the forward passes over the two texts. Activations are copied from ``a`` into ``b``.
            progress: called with the number of components done and the total.

        Raises:
            SelectionError: the traces are from different models, the texts have no token in common, the
                prediction is the same for both texts, or the predicted token has no counterpart in B.
            TextError: the task needs text pairs, but an input is a single text.
            UnavailableError: the architecture does not expose its layers, a trace has no model, or the
                checkpoint has no task head for the task.
            OutOfMemoryError: there is not enough memory.
        """
        inputs = InputRecord.of(a, b)
        number = self._number(a, b)
        has_pair = any(trace.encoding.pair is not None for trace in (a, b))
        pooling = self._pooling(a.checkpoint, has_pair) if number is None else None
        if pooling is not None and not has_pair and pooling.changes_text:
            a, b = (trace_as_trained(trace, pooling) for trace in (a, b))
        places = counterparts(a, b)
        with (
            memory_errors("Patching these texts does not fit in memory. Shorten the texts."),
            torch.inference_mode(),
            b.checkpoint.running(),
        ):
            target = number if pooling is None else pooling
            assert target is not None
            patched = _PatchedText(record_forward_pass(a), record_forward_pass(b), places, target)
            baseline = patched.untouched()
            values = patched.tokens(progress) if self.component == "tokens" else patched.heads(progress)
        tokens_a, tokens_b = (
            tuple(trace.tokens[position] for position in side)
            for trace, side in zip((a, b), zip(*places, strict=True), strict=True)
        )
        is_complete = len(places) == len(a.tokens) == len(b.tokens)
        single, together = read_only(values[:, :-1]), read_only(values[:, -1])
        name = "" if number is None else number.name
        resolved = (
            self if number is None else replace(self.resolved(a), task=number.task, target=number.target)
        )
        return ActivationPatchingResult(
            resolved,
            inputs,
            tokens_a,
            tokens_b,
            is_complete,
            name,
            baseline,
            patched.goal,
            single,
            together,
            () if pooling is None else prompt_positions(tokens_a, pooling),
        )

    def _pooling(self, checkpoint: Checkpoint, has_pair: bool) -> PoolingConfig:
        """Return the configuration of the sentence vectors, which uses the model's first available pooling.

        Raises:
            TextError: a prompt is set, but the inputs are text pairs.
        """
        if has_pair and self.prompt not in (None, NO_PROMPT):
            raise TextError(
                "A prompt applies to single texts, not to text pairs. Omit the prompt, or pass single texts."
            )
        prompt = NO_PROMPT if has_pair else self.prompt
        return resolve_pooling(checkpoint, available_poolings(checkpoint)[0], prompt, self.dimensions)

    def _number(self, a: Trace, b: Trace) -> TargetOutput | None:
        """Return the task head's output whose value is the target value, or None for the cosine."""
        # By default, skip masked-word prediction for texts without a mask, and pair tasks for single texts.
        has_pairs = a.encoding.pair is not None and b.encoding.pair is not None
        has_mask = a.checkpoint.tokenizer.mask_token_id in a.encoding.ids
        is_applicable = {FILL_MASK: has_mask} | dict.fromkeys(PAIR_TASKS, has_pairs)
        tasks = [task for task in PATCHABLE if task in a.checkpoint.outputs and is_applicable.get(task, True)]
        task = self.task or next(iter(tasks), None)
        if task in PAIR_TASKS and not has_pairs:
            raise TextError(f"{task} needs text pairs. Pass a second text for each of the two texts.")
        if task is None or task == SENTENCE_SIMILARITY:
            if self.target is not None or self.at is not None:
                raise SelectionError(
                    "`target` and `at` apply to predictions, but the cosine similarity is measured. Omit "
                    "`target` and `at`."
                )
            return None
        if self.prompt is not None or self.dimensions is not None:
            raise SelectionError(
                f"prompt and dimensions apply to the cosine only, not to {task}. Omit prompt and "
                f"dimensions, or set the task to {SENTENCE_SIMILARITY}."
            )
        number = select_output(a, None, task, self.target, self.resolved(a).at)  # type: ignore[arg-type]
        if number.trace is not a:
            raise SelectionError(
                "Activation patching needs the mask token in both texts, but the word would be masked in "
                "only one text. Write the mask token in both texts."
            )
        return number


@dataclass(frozen=True, eq=False, repr=False)
class ActivationPatchingResult(Result):
    """The effect of copying activations from A's forward pass into B's, for each component.

    Attributes:
        tokens_a, tokens_b: the aligned tokens of A and of B.
        whole: whether all tokens of both texts are aligned. In this case, patching all tokens after any layer
            turns B's forward pass into A's.
        number: description of the target output; "" for the cosine with A's sentence vector.
        nothing: target value for B without patching.
        goal: target value for A; 1 for the cosine.
        answers: target values with one component patched, float64: for tokens, shape [layer + 1, token],
            where row 0 is the embeddings; for heads, shape [layer, head].
        together: target values with all components of one layer patched; for tokens, shape [layer + 1]; for
            heads, shape [layer].
        prompt_positions: positions of the tokens of the checkpoint's prompt in A.
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
    prompt_positions: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.tokens_a)
        fits = self.answers.ndim == 2 and self.together.shape == self.answers.shape[:1]
        if not fits or (self.question.component == "tokens" and self.answers.shape[1] != count):
            raise ShapeError(
                f"answers has shape {self.answers.shape} and together has shape {self.together.shape}, which "
                f"does not fit {count} tokens."
            )

    @property
    def recovered(self) -> Array:
        """Share of the difference between B's and A's target values that patching each component restores.

        The shape is that of `answers`. At 0, the target value is B's, and at 1, it is A's. A negative share
        means that patching increases the difference. The shares of several components do not necessarily add
        up to the effect of patching them together.
        """
        return self._share(self.answers)

    @property
    def recovered_together(self) -> Array:
        """Share of the difference between B's and A's target values that patching a whole layer restores.

        The shape is that of `together`.
        """
        return self._share(self.together)

    def _share(self, values: Array) -> Array:
        share: Array = (values - self.nothing) / (self.goal - self.nothing)
        return share

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Target values, the share that patching each layer restores, and whether all tokens are aligned."""
        values = {"number": self.number, "of_a": self.goal, "of_b": self.nothing} if self.number else {}
        return {
            **(values or {"cosine": self.nothing}),
            "recovered_together": self.recovered_together.tolist(),
            "all_tokens": self.whole,
            **({"prompt_positions": list(self.prompt_positions)} if self.prompt_positions else {}),
        }

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per patched component.

        Columns for tokens: layer (0 is the embeddings), position and token in A, recovered. Columns for
        heads: layer and head, counted from 1, and recovered.
        """
        if self.question.component == "heads":
            return frames.by_head({"recovered": self.recovered})
        layers, count = self.answers.shape
        return pd.DataFrame(
            {
                "layer": np.repeat(np.arange(layers), count),
                "position": [token.position for token in self.tokens_a] * layers,
                frames.TOKEN: frames.plain_strings(self.tokens_a) * layers,
                "recovered": self.recovered.ravel(),
            }
        )


def counterparts(a: Trace, b: Trace) -> tuple[tuple[int, int], ...]:
    """Return the positions in A and in B of each pair of aligned tokens, in ascending order.

    Identical tokens are aligned as in `align_traces`. If A and B have the same number of tokens between two
    pairs of aligned tokens, before the first pair or after the last pair, these tokens are aligned in order.

    Raises:
        SelectionError: no tokens are aligned.
    """
    identical = align_traces(a, b).pairs
    aligned = list(identical)
    anchors = [(-1, -1), *identical, (len(a.tokens), len(b.tokens))]
    for (left_a, left_b), (right_a, right_b) in pairwise(anchors):
        gaps = range(left_a + 1, right_a), range(left_b + 1, right_b)
        if len(gaps[0]) == len(gaps[1]):
            aligned += zip(*gaps, strict=True)
    if not aligned:
        raise SelectionError("The two texts have no word in common. Use texts that share some words.")
    return tuple(sorted(aligned))


AnswerFn = Callable[[torch.Tensor], Array]
"""Type of a function that computes target values from last hidden states.

The function takes hidden states of shape [row, token, hidden], and returns float64 of shape [row].
"""


class _PatchedText:
    """B's forward pass, with methods that patch activations of A into it and return the target values."""

    def __init__(
        self,
        a: ForwardPass,
        b: ForwardPass,
        aligned: Sequence[tuple[int, int]],
        target: TargetOutput | PoolingConfig,
    ) -> None:
        self.a, self.b = a, b
        device = b.states[0].device
        self.from_, self.to = (torch.tensor(side, device=device) for side in zip(*aligned, strict=True))
        self.steps = b.steps()
        self.answer_fn, self.goal = (
            self._cosine(target) if isinstance(target, PoolingConfig) else self._number(target, dict(aligned))
        )

    def _cosine(self, pooling: PoolingConfig) -> tuple[AnswerFn, float]:
        """Return a function that computes the cosine with A's sentence vector, and the cosine for A, 1."""
        target = pool_unpadded(self.a.states[-1][None], pooling).cpu().numpy()

        def cosines(states: torch.Tensor) -> Array:
            vectors = pool_unpadded(states, pooling).cpu().numpy()
            return cosine_of_rows(vectors, np.broadcast_to(target, vectors.shape))

        return cosines, 1.0

    def _number(self, number: TargetOutput, aligned: Mapping[int, int]) -> tuple[AnswerFn, float]:
        """Return a function that computes the target value from B's hidden states, and A's target value.

        Args:
            number: the target output of A.
            aligned: mapping from each aligned position in A to the position in B.

        Raises:
            SelectionError: the prediction is at a token of A without a counterpart in B.
        """
        unaligned = [place for place in number.places if place not in aligned]
        if unaligned:
            token = self.a.trace.tokens[unaligned[0]]
            raise SelectionError(
                f"The prediction is at {token}, which has no counterpart in the second text. "
                "Use texts that share this token."
            )
        self.b.check_pooler()
        number_b = replace(
            number, trace=self.b.trace, places=tuple(aligned[place] for place in number.places)
        )
        inputs = batch(self.b.trace.checkpoint, [self.b.trace.encoding])

        def values(states: torch.Tensor) -> Array:
            return as_array(number_b.on(inputs, states, self.b.pooled(states))).astype(np.float64)

        inputs_a, last = batch(self.a.trace.checkpoint, [self.a.trace.encoding]), self.a.states[-1][None]
        return values, float(number.on(inputs_a, last, self.a.pooled(last))[0])

    def untouched(self) -> float:
        """Return B's target value without patching.

        Raises:
            SelectionError: B's target value equals A's, except for rounding.
        """
        states = self.b.states[-1]
        value = float(self.answer_fn(states[None])[0])
        rounding = 16 * torch.finfo(states.dtype).eps * max(1.0, abs(self.goal))
        if abs(value - self.goal) <= rounding:
            raise SelectionError(
                "The two texts have the same prediction, so patching cannot change the prediction. Use "
                "texts with different predictions."
            )
        return value

    def tokens(self, progress: Progress) -> Array:
        """Return the target value after patching the vector of each token after each layer, one at a time.

        The shape is [layer + 1, token + 1]; row 0 is the embeddings. In the last column, all tokens are
        patched.
        """

        def run(layer: int, mask: torch.Tensor) -> torch.Tensor:
            states = self.b.states[layer].repeat(len(mask), 1, 1)
            patch = self.a.states[layer][self.from_]
            states[:, self.to] = torch.where(mask[..., None], patch, states[:, self.to])
            # After the last layer, no layer is left to run: the states already include the final norm.
            return states if layer == self.b.trace.layers else self._onward(states, layer)

        return self._grid(run, self.b.trace.layers + 1, len(self.to), progress)

    def heads(self, progress: Progress) -> Array:
        """Return the target value after patching the output of each head, one head at a time.

        The shape is [layer, head + 1]. In the last column, all heads of the layer are patched.
        """

        def run(layer: int, mask: torch.Tensor) -> torch.Tensor:
            patch = self.a.heads[layer][self.from_]

            def change(_: int, call: AttentionCall) -> torch.Tensor:
                output = call.output.clone()
                output[:, self.to] = torch.where(mask[:, None, :, None], patch, output[:, self.to])
                return output

            step = self.steps[layer]
            with changed_outputs(change):
                states = step.on(step.input_states.expand(len(mask), -1, -1))
            return self._onward(states, layer + 1)

        return self._grid(run, self.b.trace.layers, self.b.trace.heads, progress)

    def _grid(
        self, run: Callable[[int, torch.Tensor], torch.Tensor], layers: int, parts: int, progress: Progress
    ) -> Array:
        """Return the target values for patching one component of one layer, computed in batches.

        The shape is [layer, component + 1]. In the last column, all components are patched.

        Args:
            run: function that patches components of a layer and returns the last hidden states. Its arguments
                are the layer and a mask of the components to patch, bool of shape [row, component].
            layers: number of layers to patch, including the embeddings for tokens.
            parts: number of components of a layer.
        """
        single = torch.eye(parts, dtype=torch.bool, device=self.to.device)
        masks = torch.cat([single, torch.ones_like(single[:1])])
        values = np.empty((layers, len(masks)))
        size = max(1, BATCH_TOKENS // len(self.b.trace.tokens))
        progress(0, values.size)
        for layer in range(layers):
            for start in range(0, len(masks), size):
                rows = slice(start, start + size)
                values[layer, rows] = self.answer_fn(run(layer, masks[rows]))
                progress(layer * len(masks) + min(start + size, len(masks)), values.size)
        return values

    def _onward(self, states: torch.Tensor, layer: int) -> torch.Tensor:
        """Run hidden states through a layer and all later layers, and return the last hidden states."""
        for step in self.steps[layer:]:
            states = step.on(states)
        return states
