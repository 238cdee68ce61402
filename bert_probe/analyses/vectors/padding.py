"""Texts of different lengths in one batch: what fills up shorter ones, and whether that changes anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from bert_probe.core.field_types import Choice
from bert_probe.core.inputs import ManyTraces
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError, memory_errors
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.checks import between_passes
from bert_probe.model.encoding import Encoding
from bert_probe.model.forward import BATCH_TOKENS, batch, pad
from bert_probe.model.trace import Array, Trace, read_only

MASK = "attention_mask"
COLUMNS = {"input_ids": "id", "token_type_ids": "segment", MASK: "attention_mask"}
"""What a model is given, and what it is called in a table."""


@question("padding")
class PaddingEffect(Question):
    """Texts as a model is given them in one batch, filled up to the longest of them, and what that changes.

    Each text is also read by itself, and in the batch once more with a mask of ones alone, as if padding
    were text.

    Attributes:
        show: "inputs", a row for each place of each text; "differences", a row for each text and layer.
    """

    inputs = ManyTraces("--text")

    show: str = param(
        Choice(("inputs", "differences")),
        default="inputs",
        key="padding_show",
        about="What to list.",
        display_only=True,
    )

    def of(self, traces: Sequence[Trace]) -> PaddingEffectResult:
        """The texts of some traces in one batch, in the order given.

        Raises:
            SelectionError: fewer than two texts, of different models, or more than a batch holds.
        """
        if isinstance(traces, Trace) or len(traces) < 2:
            raise SelectionError("One text needs no padding. Give a list of two or more.")
        subject = InputRecord.of(*traces)
        encodings = tuple(trace.encoding for trace in traces)
        longest = max(map(len, encodings))
        if longest * len(encodings) > BATCH_TOKENS:
            raise SelectionError(
                f"{len(encodings):,} texts filled up to {longest:,} tokens are "
                f"{longest * len(encodings):,}; a "
                f"batch has at most {BATCH_TOKENS:,}. Give fewer texts or shorter ones."
            )
        checkpoint = traces[0].checkpoint.now()
        padded = batch(checkpoint, encodings)
        alone = [_states(checkpoint, batch(checkpoint, [encoding]), [encoding])[0] for encoding in encodings]
        together = _states(checkpoint, padded, encodings)
        seen = padded | {MASK: torch.ones_like(padded["input_ids"])}
        unmasked = _states(checkpoint, seen, encodings) if MASK in padded else together
        return PaddingEffectResult(
            self,
            subject,
            encodings,
            {name: read_only(rows.numpy()) for name, rows in pad(encodings, checkpoint.padding).items()},
            str(checkpoint.tokenizer.pad_token),
            read_only(_apart(alone, together)),
            read_only(_apart(alone, unmasked)),
            read_only(np.array([[float(np.abs(layer).max()) for layer in one] for one in alone])),
            between_passes(checkpoint.description),
        )


@dataclass(frozen=True, eq=False, repr=False)
class PaddingEffectResult(Result):
    """Texts in one batch.

    Attributes:
        encodings: the texts, in their order.
        arrays: what the model is given, name → [text, place].
        filling: the token that fills up shorter texts.
        differences: the largest between the vectors of a text alone and in the batch, [text, layer + 1].
        unmasked: the same where the mask says of padding that it is text.
        sizes: the largest number of a text's vectors, [text, layer + 1].
        explained: how far two passes may be apart by rounding, as a share of the largest number.
    """

    question: PaddingEffect
    encodings: tuple[Encoding, ...]
    arrays: Mapping[str, Array]
    filling: str
    differences: Array
    unmasked: Array
    sizes: Array
    explained: float

    def __post_init__(self) -> None:
        shapes = {self.differences.shape, self.unmasked.shape, self.sizes.shape}
        if len(shapes) > 1 or len(self.differences) != len(self.encodings):
            raise ShapeError(f"The differences have shapes {shapes}; [text, layer + 1] is needed of each.")

    @property
    def length(self) -> int:
        """Places of each text in the batch."""
        return int(self.arrays["input_ids"].shape[1])

    @property
    def padding(self) -> Array:
        """Whether a place is padding, [text, place]."""
        lengths = np.array([len(encoding) for encoding in self.encodings])
        found: Array = np.arange(self.length) >= lengths[:, None]
        return found

    @property
    def filled(self) -> float:
        """The share of the places that are padding, 0 to 1."""
        return float(self.padding.mean())

    @property
    def difference(self) -> float:
        """The largest that padding makes, over all texts and layers."""
        return float(self.differences.max())

    @property
    def without_mask(self) -> float:
        """The largest that it would make without the mask."""
        return float(self.unmasked.max())

    @property
    def allowed(self) -> float:
        """How large a difference rounding explains."""
        return self.explained * max(1.0, float(self.sizes.max()))

    @property
    def changes_nothing(self) -> bool:
        """Whether padding changes nothing but last digits."""
        return self.difference <= self.allowed

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The differences, and how much of one rounding explains."""
        return {
            "difference": self.difference,
            "without_mask": self.without_mask,
            "rounding_explains": self.allowed,
            "changes_nothing": self.changes_nothing,
        }

    def token(self, text: int, place: int) -> str:
        """What stands at a place of a text, as the vocabulary has it."""
        tokens = self.encodings[text].tokens
        return str(tokens[place]) if place < len(tokens) else self.filling

    def frame(self) -> pd.DataFrame:
        """Texts count from 1. Inputs: text, position, token, id, segment and attention_mask where the model
        takes them, padding. Differences: text, tokens, padding, layer, difference, without_mask, largest."""
        return self._inputs() if self.question.show == "inputs" else self._differences()

    def _inputs(self) -> pd.DataFrame:
        texts, places = (part.ravel() for part in np.indices((len(self.encodings), self.length)))
        tokens = [self.token(*one) for one in zip(texts.tolist(), places.tolist(), strict=True)]
        given = {COLUMNS[name]: self.arrays[name].ravel() for name in COLUMNS if name in self.arrays}
        return pd.DataFrame(
            {
                "text": texts + 1,
                "position": places,
                "token": pd.Series(tokens, dtype=object),
                **given,
                "padding": self.padding.ravel(),
            }
        )

    def _differences(self) -> pd.DataFrame:
        texts, layers = (part.ravel() for part in np.indices(self.differences.shape))
        return pd.DataFrame(
            {
                "text": texts + 1,
                "tokens": [len(self.encodings[text]) for text in texts],
                "padding": [self.length - len(self.encodings[text]) for text in texts],
                "layer": layers,
                "difference": self.differences.ravel(),
                "without_mask": self.unmasked.ravel(),
                "largest": self.sizes.ravel(),
            }
        )


def _states(
    checkpoint: Checkpoint, inputs: Mapping[str, torch.Tensor], texts: Sequence[Encoding]
) -> list[list[Array]]:
    """Vectors of each text after each layer, without those of padding, float64 [token, hidden]."""
    count = inputs["input_ids"].numel()
    small = f"{count:,} tokens need more memory than this machine has free. Give fewer texts."
    with memory_errors(small), torch.inference_mode(), checkpoint.running() as model:
        layers = model(**inputs, output_hidden_states=True).hidden_states
    return [
        [layer[row, : len(text)].double().cpu().numpy() for layer in layers] for row, text in enumerate(texts)
    ]


def _apart(alone: Sequence[Sequence[Array]], other: Sequence[Sequence[Array]]) -> Array:
    """The largest difference in each text and layer, [text, layer + 1]."""
    pairs = [zip(one, two, strict=True) for one, two in zip(alone, other, strict=True)]
    return np.array([[float(np.abs(a - b).max()) for a, b in layers] for layers in pairs])
