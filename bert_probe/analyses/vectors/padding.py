"""The effect on the hidden states of padding texts of different lengths in one batch."""

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
from bert_probe.model.checks import pass_tolerance
from bert_probe.model.encoding import Encoding
from bert_probe.model.forward import batch, layer_states, pad
from bert_probe.model.trace import Array, Trace, read_only

MAX_TOKENS = 4096
"""Maximum number of tokens of the batch with padding. The states of its texts are computed three times."""
MASK = "attention_mask"
COLUMNS = {"input_ids": "id", "token_type_ids": "segment", MASK: "attention_mask"}
"""Name of a model input → name of the column for this input in the table of inputs."""


@question("padding effect", command="padding")
class PaddingEffect(Question):
    """The effect of padding on hidden states, in a batch of texts padded to the length of the longest text.

    For comparison, the model also runs on each text alone, and on the batch with an attention mask of ones,
    as if padding were text.

    Attributes:
        show: the table to return: "inputs" with a row for each position of each text, or "differences" with a
            row for each text and layer.
    """

    inputs = ManyTraces("--text")

    show: str = param(
        Choice(("inputs", "differences")),
        default="inputs",
        key="padding_show",
        about="Table: model inputs, or differences of the hidden states.",
        display_only=True,
    )

    def of(self, traces: Sequence[Trace]) -> PaddingEffectResult:
        """Pad the traced texts in one batch and measure the effect of padding.

        Raises:
            SelectionError: there are fewer than two texts, more than fit in a batch, or traces of different
                models.
        """
        if isinstance(traces, Trace) or len(traces) < 2:
            raise SelectionError("A single text needs no padding. Pass at least two texts.")
        inputs = InputRecord.of(*traces)
        encodings = tuple(trace.encoding for trace in traces)
        longest = max(map(len, encodings))
        if longest * len(encodings) > MAX_TOKENS:
            raise SelectionError(
                f"{len(encodings):,} texts padded to {longest:,} tokens have {longest * len(encodings):,} "
                f"tokens, but a batch can have at most {MAX_TOKENS:,}. Use fewer or shorter texts."
            )
        checkpoint = traces[0].checkpoint.snapshot()
        padded = batch(checkpoint, encodings)
        alone = [_states(checkpoint, batch(checkpoint, [encoding]), [encoding])[0] for encoding in encodings]
        together = _states(checkpoint, padded, encodings)
        without_mask = padded | {MASK: torch.ones_like(padded["input_ids"])}
        unmasked = _states(checkpoint, without_mask, encodings) if MASK in padded else together
        return PaddingEffectResult(
            self,
            inputs,
            encodings,
            {name: read_only(rows.numpy()) for name, rows in pad(encodings, checkpoint.padding).items()},
            str(checkpoint.tokenizer.pad_token),
            read_only(_largest_differences(alone, together)),
            read_only(_largest_differences(alone, unmasked)),
            read_only(np.array([[float(np.abs(layer).max()) for layer in layers] for layers in alone])),
            pass_tolerance(checkpoint.description),
        )


@dataclass(frozen=True, eq=False, repr=False)
class PaddingEffectResult(Result):
    """A padded batch of texts, and the largest differences of their hidden states.

    Attributes:
        encodings: encodings of the texts, in their order.
        arrays: model inputs of the batch by name, each of shape [text, position].
        padding_token: name of the padding token.
        differences: largest absolute difference between a text's hidden states alone and in the batch,
            [text, layer + 1].
        unmasked: largest absolute difference between a text's hidden states alone and in the batch with an
            attention mask of ones, [text, layer + 1].
        sizes: largest absolute value of a text's hidden states, [text, layer + 1].
        explained: largest relative difference between two forward passes that rounding can explain.
    """

    question: PaddingEffect
    encodings: tuple[Encoding, ...]
    arrays: Mapping[str, Array]
    padding_token: str
    differences: Array
    unmasked: Array
    sizes: Array
    explained: float

    def __post_init__(self) -> None:
        shapes = {self.differences.shape, self.unmasked.shape, self.sizes.shape}
        if len(shapes) > 1 or len(self.differences) != len(self.encodings):
            raise ShapeError(f"All differences must have shape [text, layer + 1], not {shapes}.")

    @property
    def length(self) -> int:
        """Number of tokens of each padded text."""
        return int(self.arrays["input_ids"].shape[1])

    @property
    def padding(self) -> Array:
        """Whether each position is padding, as bools of shape [text, position]."""
        lengths = np.array([len(encoding) for encoding in self.encodings])
        padding: Array = np.arange(self.length) >= lengths[:, None]
        return padding

    @property
    def padding_share(self) -> float:
        """Share of the positions that are padding, 0 to 1."""
        return float(self.padding.mean())

    @property
    def difference(self) -> float:
        """Largest difference of a hidden state caused by padding, over all texts and layers."""
        return float(self.differences.max())

    @property
    def without_mask(self) -> float:
        """Largest difference caused by padding with an attention mask of ones, over all texts and layers."""
        return float(self.unmasked.max())

    @property
    def allowed(self) -> float:
        """Largest absolute difference of a hidden state that rounding can explain."""
        return self.explained * max(1.0, float(self.sizes.max()))

    @property
    def is_unaffected(self) -> bool:
        """Whether rounding can explain all differences caused by padding."""
        return self.difference <= self.allowed

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The largest differences, and the largest difference that rounding can explain."""
        return {
            "difference": self.difference,
            "without_mask": self.without_mask,
            "rounding_explains": self.allowed,
            "changes_nothing": self.is_unaffected,
        }

    def token(self, text: int, position: int) -> str:
        """Return the token at a position of a padded text."""
        tokens = self.encodings[text].tokens
        return str(tokens[position]) if position < len(tokens) else self.padding_token

    def frame(self) -> pd.DataFrame:
        """Return the table of inputs or of differences; texts count from 1.

        Columns of inputs: text, position, token, id, segment and attention_mask if the model takes them,
        padding. Columns of differences: text, tokens, padding (number of padding tokens), layer, difference,
        without_mask (the difference with an attention mask of ones), largest (absolute value).
        """
        return self._inputs() if self.question.show == "inputs" else self._differences()

    def _inputs(self) -> pd.DataFrame:
        texts, positions = (part.ravel() for part in np.indices((len(self.encodings), self.length)))
        tokens = [self.token(*cell) for cell in zip(texts.tolist(), positions.tolist(), strict=True)]
        inputs = {COLUMNS[name]: self.arrays[name].ravel() for name in COLUMNS if name in self.arrays}
        return pd.DataFrame(
            {
                "text": texts + 1,
                "position": positions,
                "token": pd.Series(tokens, dtype=object),
                **inputs,
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
    """Return each text's hidden states after each layer, without padding; float64 [token, hidden]."""
    count = inputs["input_ids"].numel()
    message = f"{count:,} tokens need more memory than is available. Use fewer texts."
    with memory_errors(message), torch.inference_mode(), checkpoint.running() as model:
        layers = layer_states(model(**inputs, output_hidden_states=True))
    return [
        [layer[row, : len(text)].double().cpu().numpy() for layer in layers] for row, text in enumerate(texts)
    ]


def _largest_differences(alone: Sequence[Sequence[Array]], batched: Sequence[Sequence[Array]]) -> Array:
    """Return the largest absolute difference of the hidden states, of shape [text, layer + 1].

    Args:
        alone: hidden states of each text alone, by text and layer, [token, hidden].
        batched: hidden states of each text in the batch, in the same form.
    """
    return np.array(
        [
            [float(np.abs(a - b).max()) for a, b in zip(*layers, strict=True)]
            for layers in zip(alone, batched, strict=True)
        ]
    )
