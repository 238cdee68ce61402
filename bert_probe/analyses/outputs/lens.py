"""The logit lens: the predictions that the model's task head makes from the vectors of each layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.outputs.fill_mask import (
    blocks,
    check_prediction_count,
    position_blocks,
    ranks_among,
    target_tokens,
    top_choices,
    trace_masked,
)
from bert_probe.analyses.outputs.prediction import PROBABILITIES, problem_type, softmax
from bert_probe.analyses.outputs.tuned_lens import TuneLensResult, load_lens
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, FileName, Number, Optional, WordList, WordSelector
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError, UnavailableError
from bert_probe.model.checkpoint import FILL_MASK, TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION, Checkpoint
from bert_probe.model.encoding import Token, token_strings
from bert_probe.model.forward import as_tensor
from bert_probe.model.layers import record_forward_pass
from bert_probe.model.outputs import OutputHead, missing_head_message, output_head
from bert_probe.model.trace import Array, Trace, read_only

TASKS = (FILL_MASK, TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION)
"""Tasks whose heads can be applied to any layer, in order of preference."""

CAVEAT = (
    "The task head was trained on the last layer only. Its predictions for earlier layers show how close the "
    "vectors of these layers are to a prediction, not a decision of the model."
)


@question("lens")
class Lens(Question):
    """The logit lens: the predictions that the model's own task head makes from the vectors of each layer.

    For the last layer, the lens gives exactly the model's prediction (nostalgebraist 2020). If the model
    applies a norm after its last layer, the lens applies the same norm to the vectors of every layer.

    Attributes:
        task: task of the task head. If None, the first of `TASKS` that the checkpoint has.
        top: maximum number of words or labels.
        targets: restrict predictions at masks to these words; see `FillMask`.
        mask: position or name of a word to mask, in addition to the masks in the text.
        tuned: file of a tuned lens (see `TuneLens`), which is applied at masks to every layer but the last.
        show: the table to return: "answers" has one row per predicted word or label, "entropy" one row per
            layer and token.
    """

    inputs = OneTrace()

    task: str | None = param(
        Optional(Choice(TASKS)),
        default=None,
        about="The task to predict, if the model has several task heads.",
    )
    top: int = param(Number(1), default=5, about="Maximum number of predictions.")
    targets: tuple[str, ...] = param(
        WordList(), default=(), about="Restrict predictions at masks to these words."
    )
    mask: int | str | None = param(
        Optional(WordSelector()), default=None, about="Mask this word of the text."
    )
    tuned: str | None = param(
        Optional(FileName()),
        default=None,
        key="lens_tuned",
        about="File with a tuned lens, which replaces the logit lens at masks.",
    )
    show: str = param(
        Choice(("answers", "entropy")),
        default="answers",
        key="lens_show",
        display_only=True,
        about="Table to show.",
    )

    def of(self, trace: Trace) -> LensResult:
        """Return the predictions of the task head from the vectors of each layer.

        Words are predicted at the masks of the text or, if it has no mask, at all tokens.

        Raises:
            UnavailableError: the checkpoint has no task head for the task, its architecture does not
                expose its layers, or the trace has no model.
            SelectionError: the word to mask is not in the text; targets, a mask or a tuned lens are given for
                a classification head; or a tuned lens is given for a text without masks.
            WeightsError: the file is not a tuned lens of this checkpoint.
        """
        output = _output(trace.checkpoint, self.task)
        if output.task != FILL_MASK and (self.targets or self.mask is not None or self.tuned is not None):
            raise SelectionError(
                f"Target words, masks and tuned lenses need a {FILL_MASK} head, but this task head is for "
                f"{output.task}. Omit these options, or choose another task."
            )
        lens = None if self.tuned is None else load_lens(self.tuned, trace.checkpoint)
        resolved = self.resolved(trace)
        masked_trace = trace if resolved.mask is None else trace_masked(trace, int(resolved.mask))
        tokens = _places(masked_trace, output)
        if (
            lens is not None
            and masked_trace.checkpoint.tokenizer.mask_token_id not in masked_trace.encoding.ids
        ):
            raise SelectionError(
                "A tuned lens applies to masks, but the text has none. Add a mask, or choose a word to mask."
            )
        targets = sorted({word for word, _ in target_tokens(masked_trace.checkpoint, self.targets)})
        to_probabilities = (
            PROBABILITIES[problem_type(output)] if output.task == TEXT_CLASSIFICATION else softmax
        )
        layers = []
        for blocks_of_logits in _by_layer(masked_trace, output, [token.position for token in tokens], lens):
            parts = [_predictions(logits, self.top, targets, to_probabilities) for logits in blocks_of_logits]
            layers.append([np.concatenate(arrays) for arrays in zip(*parts, strict=True)])
        ids, ranks, top_logits, top_probabilities, entropy = (
            read_only(np.stack(arrays)) for arrays in zip(*layers, strict=True)
        )
        return LensResult(
            resolved,
            InputRecord.of(trace),
            output.task,
            masked_trace,
            tokens,
            _names(output, masked_trace, ids),
            ids,
            ranks,
            top_logits,
            top_probabilities,
            entropy,
            {} if lens is None else {"sha256": lens.digest, **lens.metadata, "verdict": lens.verdict},
        )

    def check_limits(self, *inputs: Any) -> None:
        """Raise UnavailableError if there are too many predictions; see `check_prediction_count`."""
        (trace,) = inputs
        output = _output(trace.checkpoint, self.task)
        masks = trace.encoding.ids.count(trace.checkpoint.tokenizer.mask_token_id)
        places = len(_places(trace, output)) if self.mask is None else masks + 1
        words = (
            trace.checkpoint.description.vocabulary_size if output.task == FILL_MASK else len(output.labels)
        )
        check_prediction_count((trace.layers + 1) * max(1, places), self.top, words, len(self.targets))


@dataclass(frozen=True, eq=False, repr=False)
class LensResult(Result):
    """The predictions of the task head from the vectors of each layer.

    Arrays have shape [layer + 1, position, answer], where layer 0 is the embeddings.

    Attributes:
        task: task of the task head.
        read: the trace of the masked text.
        places: the tokens at which the task head predicts. Empty for text classification, where the
            arrays have a single position.
        names: the predicted words or labels as text, indexed by layer, position and answer.
        ids: vocabulary ids of the predicted words, or indices of the predicted labels.
        ranks: ranks among all words or labels, from 1.
        logits: outputs of the task head.
        probabilities: softmax or, for multi-label heads, sigmoid of the logits, float64; NaN for regression.
        entropy: entropy of the probabilities over all words or labels, in bits, [layer + 1, position]; NaN if
            the probabilities do not sum to 1.
        tuned: digest, losses and verdict of the tuned lens; empty for the logit lens.
    """

    question: Lens
    task: str
    read: Trace
    places: tuple[Token, ...]
    names: tuple[tuple[tuple[str, ...], ...], ...]
    ids: Array
    ranks: Array
    logits: Array
    probabilities: Array
    entropy: Array
    tuned: Mapping[str, Any]

    def __post_init__(self) -> None:
        shape = (self.read.layers + 1, max(1, len(self.places)))
        shapes = {array.shape for array in (self.ids, self.ranks, self.logits, self.probabilities)}
        if len(shapes) > 1 or self.ids.shape[:2] != shape or self.entropy.shape != shape:
            raise ShapeError(
                f"All arrays must begin with shape [{shape[0]} layers including the embeddings, {shape[1]} "
                f"positions], not {shapes} and {self.entropy.shape}."
            )

    @property
    def settled(self) -> Array:
        """Lowest layer from which on the top prediction is that of the last layer, int [position].

        Layer 0 is the embeddings.
        """
        same = self.ids[:, :, 0] == self.ids[-1, :, 0]
        # Count the layers, from the last down, whose top prediction is that of the last layer.
        agreeing = np.cumprod(same[::-1], axis=0).sum(axis=0)
        layers: Array = len(same) - agreeing
        return layers

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The task, the masked text if the question masked a word, and the tuned lens."""
        encoding = self.read.encoding
        has_mask = self.question.mask is not None
        texts = {"masked_text": encoding.text, "masked_pair": encoding.pair} if has_mask else {}
        return {"head": self.task, **texts, **({"tuned_lens": dict(self.tuned)} if self.tuned else {})}

    def frame(self) -> pd.DataFrame:
        """Return the table that ``show`` of the question selects.

        Columns of "answers": layer, position, rank, token, probability for words; layer, position, rank,
        label, probability, logit for labels. Columns of "entropy": layer, position, token, entropy_bits. Text
        classification has no position and no token.
        """
        layers, places, count = self.ids.shape
        repeats = 1 if self.question.show == "entropy" else count
        columns: dict[str, Any] = {"layer": np.repeat(np.arange(layers), places * repeats)}
        if self.places:
            columns["position"] = np.tile(
                np.repeat([place.position for place in self.places], repeats), layers
            )
        if self.question.show == "entropy":
            columns |= {frames.TOKEN: frames.plain_strings(self.places) * layers} if self.places else {}
            return pd.DataFrame(columns | {"entropy_bits": self.entropy.ravel()})
        column = frames.TOKEN if self.task == FILL_MASK else "label"
        names = [name for layer in self.names for place in layer for name in place]
        columns |= {
            "rank": self.ranks.ravel(),
            column: pd.Series(names, dtype=object),
            "probability": self.probabilities.ravel(),
        }
        return pd.DataFrame(columns | ({} if self.task == FILL_MASK else {"logit": self.logits.ravel()}))


def _output(checkpoint: Checkpoint, task: str | None) -> OutputHead:
    if task is not None:
        return output_head(checkpoint, task)
    tasks = [task for task in TASKS if task in checkpoint.outputs]
    if not tasks:
        raise UnavailableError(missing_head_message(checkpoint, f"{', '.join(TASKS[:-1])} or {TASKS[-1]}"))
    return output_head(checkpoint, tasks[0])


def _places(read: Trace, output: OutputHead) -> tuple[Token, ...]:
    """Return the tokens at which the task head predicts.

    For masked-word prediction, the tokens are the masks, or all tokens if the text has no mask; for token
    classification, all tokens; for text classification, none.
    """
    if output.task == TEXT_CLASSIFICATION:
        return ()
    masks = [token for token in read.tokens if token.id == read.checkpoint.tokenizer.mask_token_id]
    return tuple(masks if output.task == FILL_MASK and masks else read.tokens)


def _predictions(
    logits: Array, top: int, targets: Sequence[int], to_probabilities: Callable[[Array], Array]
) -> tuple[Array, ...]:
    """Return the top predictions at each position, and the entropy over all words or labels.

    Args:
        logits: shape [position, answer].
        top: maximum number of predictions at a position.
        targets: ascending indices of the words to choose from; all if empty.
        to_probabilities: function that converts logits to probabilities.

    Returns:
        The indices, ranks, logits and probabilities of the predictions, [position, top], and the entropy in
        bits, [position].
    """
    ids = top_choices(logits, top, targets)
    top_logits = np.take_along_axis(logits, ids, axis=-1)
    parts = []
    for rows in blocks(len(logits)):
        probabilities = to_probabilities(logits[rows])
        parts.append((np.take_along_axis(probabilities, ids[rows], axis=-1), _entropy(probabilities)))
    of_positions = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return ids, ranks_among(logits, top_logits), top_logits, *of_positions


def _by_layer(
    read: Trace, output: OutputHead, positions: Sequence[int], lens: TuneLensResult | None
) -> Iterator[Iterator[Array]]:
    """Yield, for each layer including the embeddings, an iterator of logits of the task head, in blocks.

    The iterator yields arrays of shape [position, answer]. It must be used before the next one is requested.
    The logits for the last layer are those of the model.

    Args:
        read: the trace of the masked text.
        output: the task head.
        positions: token positions at which the head predicts; empty for text classification.
        lens: the tuned lens; None for the logit lens.
    """
    parts = position_blocks(read.checkpoint, positions) if output.task == FILL_MASK else [positions]
    with torch.inference_mode(), read.checkpoint.running() as model:
        passed = record_forward_pass(read)
        passed.check_pooler()
        norm = passed.norm
        for layer in range(read.layers):
            states = as_tensor(read.vectors(layer), model)[None]
            states = states if lens is None else lens.on(layer, states)
            states = states if norm is None else norm.on(states)
            pooled = passed.pooled(states)
            compute = partial(output.logits_on, read, states, pooled)
            yield (np.atleast_2d(compute(part or None)) for part in parts)
    yield (np.atleast_2d(output.logits(read, part or None)) for part in parts)


def _entropy(probabilities: Array) -> Array:
    """Return the entropy over the last axis in bits; NaN where the probabilities do not sum to 1."""
    bits = -(
        probabilities * np.log2(probabilities, out=np.zeros_like(probabilities), where=probabilities > 0)
    ).sum(axis=-1)
    is_distribution = np.isclose(probabilities.sum(axis=-1), 1.0)
    entropy: Array = np.where(is_distribution, np.maximum(bits, 0.0), np.nan)
    return entropy


def _names(output: OutputHead, read: Trace, ids: Array) -> tuple[tuple[tuple[str, ...], ...], ...]:
    if output.task != FILL_MASK:
        return tuple(tuple(tuple(output.labels[index] for index in row) for row in layer) for layer in ids)
    tokenizer = read.checkpoint.tokenizer
    return tuple(tuple(tuple(token_strings(tokenizer, row)) for row in layer) for layer in ids.tolist())
