"""The lens: what a trained head makes of each layer's vectors, and so from where on its answer is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.outputs.classify_text import PROBABILITIES, problem_of
from bert_probe.analyses.outputs.fill_mask import masked, target
from bert_probe.analyses.outputs.prediction import softmax
from bert_probe.analyses.outputs.tuned_lens import TuneLensResult
from bert_probe.analyses.outputs.tuned_lens_files import opened
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, FileName, Number, Optional
from bert_probe.core.field_types_of_words import WordList, WordSelector
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError, UnavailableError
from bert_probe.model.checkpoint import CLASSIFYING, FILLING, LABELLING, Checkpoint
from bert_probe.model.encoding import Token
from bert_probe.model.layers import passing
from bert_probe.model.outputs import OutputHead, as_tensor, missing, output_of
from bert_probe.model.trace import Array, Trace, read_only

TASKS = (FILLING, CLASSIFYING, LABELLING)
"""Tasks whose heads can be put on any layer, in the order in which one is taken where none is named."""

CAVEAT = (
    "The head was trained on the last layer only. What it makes of a layer before says how near that layer's "
    "vectors are, in the head's terms, to an answer; not what the model had decided there."
)


@question("lens")
class Lens(Question):
    """What the model's own output head makes of each layer's vectors; nostalgebraist 2020, "the logit lens".

    The last layer is the model's answer exactly. A model that ends in a norm of its own gets that norm on
    every layer.

    Attributes:
        task: which head; None for the first of `TASKS` that the checkpoint has.
        top: how many words or labels, likeliest first.
        targets: at masks these words only, and no others; see `FillMask`.
        mask: a token; its word is masked, beside the masks that the text has.
        tuned: the file of a tuned lens, see `TuneLens`: each layer but the last is read through it. At masks.
        show: "answers", a row for each word or label; or "entropy", a row for each layer and token.
    """

    inputs = OneTrace()

    task: str | None = param(Optional(Choice(TASKS)), default=None, about="Which trained head.")
    top: int = param(Number(1), default=5, about="How many, likeliest first.")
    targets: tuple[str, ...] = param(WordList(), default=(), about="Only these words.")
    mask: int | str | None = param(
        Optional(WordSelector()), default=None, about="Mask this word of the text."
    )
    tuned: str | None = param(
        Optional(FileName()), default=None, key="lens_tuned", about="At masks: read through this tuned lens."
    )
    show: str = param(
        Choice(("answers", "entropy")),
        default="answers",
        key="lens_show",
        display_only=True,
        about="The table.",
    )

    def of(self, trace: Trace) -> LensResult:
        """The head on every layer: at the masks of a text, or, where it has none, at all tokens.

        Raises:
            UnavailableError: the checkpoint has no such head, does not show its layers, or no model made the
                trace.
            SelectionError: a word that is not in the text; a target, a mask or a tuned lens for a head of
                labels; a tuned lens for a text without a mask.
            WeightsError: a file that holds no tuned lens of this checkpoint.
        """
        output = _output(trace.checkpoint, self.task)
        if output.task != FILLING and (self.targets or self.mask is not None or self.tuned is not None):
            raise SelectionError(
                f"Words, masks and tuned lenses go with {FILLING}; this is the head for {output.task}."
            )
        tuned = None if self.tuned is None else opened(self.tuned, trace.checkpoint)
        asked_for = self.resolved(trace)
        read = (
            trace if asked_for.mask is None else trace.checkpoint.trace(*masked(trace, int(asked_for.mask)))
        )
        places = _places(read, output)
        if tuned is not None and read.checkpoint.tokenizer.mask_token_id not in read.encoding.ids:
            raise SelectionError(
                "A tuned lens has learned at masks, and there is none in the text. Write one, or name a word "
                "that is to be masked."
            )
        wanted = sorted({target(read.checkpoint, word)[0] for word in self.targets})
        share = PROBABILITIES[problem_of(output)] if output.task == CLASSIFYING else softmax
        layers = []
        for logits in _by_layer(read, output, [place.position for place in places], tuned):
            shares = share(logits)
            among = np.argsort(-(logits[:, wanted] if wanted else logits), axis=-1, kind="stable")[
                :, : self.top
            ]
            ids = np.asarray(wanted)[among] if wanted else among
            chosen = np.take_along_axis(logits, ids, axis=-1)
            ranks = (logits[:, None, :] > chosen[..., None]).sum(axis=-1) + 1
            layers.append((ids, ranks, chosen, np.take_along_axis(shares, ids, axis=-1), _entropy(shares)))
        ids, ranks, chosen, likely, entropy = (
            read_only(np.stack(part)) for part in zip(*layers, strict=True)
        )
        return LensResult(
            asked_for,
            InputRecord.of(trace),
            output.task,
            read,
            places,
            _names(output, read, ids),
            ids,
            ranks,
            chosen,
            likely,
            entropy,
            {} if tuned is None else {"sha256": tuned.digest, **tuned.metadata, "verdict": tuned.verdict},
        )


@dataclass(frozen=True, eq=False, repr=False)
class LensResult(Result):
    """What a head makes of each layer. Arrays are [layer + 1, place, answer], row 0 of the embeddings.

    Attributes:
        task: of the head.
        read: the trace of the text with its masks.
        places: the tokens that are asked about; none for a head for whole texts, which has one place.
        names: words or labels, as ``ids`` has them.
        ids: of the words in the vocabulary, or of the labels.
        ranks: place among all words or labels, from 1.
        logits: what the head gives.
        probabilities: as the head's own answer has them, float64; NaN for a number.
        entropy: of the probabilities over all words or labels, in bits, [layer + 1, place]: 0 where one has
            it all; NaN where they are not shares of one whole.
        tuned: digest, losses and verdict of the lens through which the layers before the last were read; none
            of the plain one.
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
        shapes = {part.shape for part in (self.ids, self.ranks, self.logits, self.probabilities)}
        if len(shapes) > 1 or self.ids.shape[:2] != shape or self.entropy.shape != shape:
            raise ShapeError(
                f"Answers of shapes {shapes} do not fit {shape[0]} layers and {shape[1]} places."
            )

    @property
    def settled(self) -> Array:
        """The first layer from which on the likeliest is the last layer's likeliest, [place]."""
        same = self.ids[:, :, 0] == self.ids[-1, :, 0]
        # Counted from the end, as many layers as agree without a gap.
        agreeing = np.cumprod(same[::-1], axis=0).sum(axis=0)
        layers: Array = len(same) - agreeing
        return layers

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The head, the text that it read where a word was masked for the question, and the tuned lens."""
        encoding = self.read.encoding
        changed = self.question.mask is not None
        read = {"masked_text": encoding.text, "masked_pair": encoding.pair} if changed else {}
        return {"head": self.task, **read, **({"tuned_lens": dict(self.tuned)} if self.tuned else {})}

    def frame(self) -> pd.DataFrame:
        """The table that the question shows.

        "answers": layer, position, rank, token, probability; of labels: layer, position (of tokens), rank,
        label, probability, logit. "entropy": layer, position, token, entropy_bits.
        """
        layers, places, count = self.ids.shape
        each = 1 if self.question.show == "entropy" else count
        columns: dict[str, Any] = {"layer": np.repeat(np.arange(layers), places * each)}
        if self.places:
            columns["position"] = np.tile(np.repeat([place.position for place in self.places], each), layers)
        if self.question.show == "entropy":
            columns |= {frames.TOKEN: frames.names(self.places) * layers} if self.places else {}
            return pd.DataFrame(columns | {"entropy_bits": self.entropy.ravel()})
        named = frames.TOKEN if self.task == FILLING else "label"
        names = [name for layer in self.names for place in layer for name in place]
        columns |= {
            "rank": self.ranks.ravel(),
            named: pd.Series(names, dtype=object),
            "probability": self.probabilities.ravel(),
        }
        return pd.DataFrame(columns | ({} if self.task == FILLING else {"logit": self.logits.ravel()}))


def _output(checkpoint: Checkpoint, task: str | None) -> OutputHead:
    if task is not None:
        return output_of(checkpoint, task)
    there = [one for one in TASKS if one in checkpoint.outputs]
    if not there:
        raise UnavailableError(missing(checkpoint, f"{', '.join(TASKS[:-1])} or {TASKS[-1]}"))
    return output_of(checkpoint, there[0])


def _places(read: Trace, output: OutputHead) -> tuple[Token, ...]:
    """Masks, or all tokens where there is none; all tokens for labels; none for a text as a whole."""
    if output.task == CLASSIFYING:
        return ()
    masks = [token for token in read.tokens if token.id == read.checkpoint.tokenizer.mask_token_id]
    return tuple(masks if output.task == FILLING and masks else read.tokens)


def _by_layer(
    read: Trace, output: OutputHead, positions: Sequence[int], tuned: TuneLensResult | None
) -> Iterator[Array]:
    """What the head gives for each layer, [place, word or label]; the last one is the model's own answer."""
    with torch.inference_mode(), read.checkpoint.running() as model:
        passed = passing(read)
        passed.check_pooler()
        norm = passed.norm
        for layer in range(read.layers):
            states = as_tensor(read.vectors(layer), model)[None]
            states = states if tuned is None else tuned.on(layer, states)
            states = states if norm is None else norm.on(states)
            yield np.atleast_2d(output.logits_on(read, states, passed.pooled(states), positions or None))
    yield np.atleast_2d(output.logits(read, positions or None))


def _entropy(shares: Array) -> Array:
    """Of rows that sum to 1, in bits; NaN for others."""
    bits = -(shares * np.log2(shares, out=np.zeros_like(shares), where=shares > 0)).sum(axis=-1)
    whole = np.isclose(shares.sum(axis=-1), 1.0)
    found: Array = np.where(whole, np.maximum(bits, 0.0), np.nan)
    return found


def _names(output: OutputHead, read: Trace, ids: Array) -> tuple[tuple[tuple[str, ...], ...], ...]:
    if output.task != FILLING:
        return tuple(tuple(tuple(output.labels[one] for one in row) for row in layer) for layer in ids)
    names = read.checkpoint.tokenizer.convert_ids_to_tokens
    return tuple(tuple(tuple(names(row)) for row in layer) for layer in ids.tolist())
