"""Value zeroing: what a layer makes of a token when it cannot read another one's value."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from bert_probe.analyses.attention.measures import AttentionMeasure
from bert_probe.analyses.vectors.cosine import cosine_of_rows
from bert_probe.errors import TooLongError, UnavailableError, memory_errors
from bert_probe.model.capture import AttentionCall, changing
from bert_probe.model.forward import BATCH_TOKENS
from bert_probe.model.layers import ModuleCall, passing
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace, read_only, resolve

MOST = 1024
"""Tokens; the layer runs once for each of them, so the work grows with their square."""

_known: WeakKeyDictionary[Trace, dict[int, Array]] = WeakKeyDictionary()
"""What was computed, by layer, as long as the trace is there: at most 4 MB of a layer in float32."""


def value_zeroing(trace: Trace, layer: int, report: Progress = no_progress) -> Array:
    """How much each token's next vector changes when a token's value vector is zeroed, [query, key].

    1 − cosine between what the layer gives for the query with and without the key's value, in all heads at
    once, while the weights stay as they are; 0 to 2. Mohebbi et al. 2023, section 3. Rows do not sum to 1.
    It sees the whole layer, its residual connection and feed-forward part included, and no other layer.

    Args:
        report: told how many tokens' values have been zeroed, and of how many.

    Raises:
        SelectionError: no such layer.
        TooLongError: more than `MOST` tokens.
        UnavailableError: the architecture hides its values or its layers, or the trace has no model, or one
            that has changed since.
        OutOfMemoryError: the machine is too small for this text.
    """
    layer = resolve(layer, trace.layers, "layer")
    if trace.values is None:
        raise UnavailableError(f"{trace.architecture} hides its values, so none of them can be zeroed.")
    length = len(trace.tokens)
    if length > MOST:
        raise TooLongError(
            f"{length:,} tokens; value zeroing runs a layer once for each, and takes at most {MOST:,}. "
            "Shorten the text or choose another measure."
        )
    no_memory = f"Value zeroing of {length:,} tokens needs more memory than is free. Shorten the text."
    with memory_errors(no_memory), torch.inference_mode(), trace.checkpoint.running():
        report(0, length)
        step = passing(trace).layer(layer)
        # One row of weights and values for each zeroed key, on the model's device.
        weights = from_dlpack(trace.attention(layer)).to(trace.checkpoint.device)
        values = from_dlpack(trace.values[layer]).to(trace.checkpoint.device)
        untouched = _vectors(step, 1)[0]
        changes = np.empty((length, length), dtype=trace.states[layer].dtype)
        size = max(1, BATCH_TOKENS // length)
        for first in range(0, length, size):
            keys = torch.arange(first, min(first + size, length), device=weights.device)
            zeroed = _vectors(step, len(keys), _Zeroed(keys, weights, values))
            for key, vectors in zip(keys.tolist(), zeroed, strict=True):
                changes[:, key] = 1 - cosine_of_rows(vectors, untouched)
            report(min(first + size, length), length)
    return changes


@dataclass(frozen=True, eq=False)
class _Zeroed:
    """Takes from the heads' output what they read from one key, another one in each row of the batch."""

    keys: torch.Tensor
    weights: torch.Tensor
    values: torch.Tensor

    def __call__(self, _layer: int, call: AttentionCall) -> torch.Tensor:
        read = (
            self.weights[:, :, self.keys, None] * self.values[:, None, self.keys]
        )  # [head, query, key, dim]
        return call.output - read.permute(2, 1, 0, 3).to(call.output.dtype)


def _vectors(layer: ModuleCall, rows: int, zeroed: _Zeroed | None = None) -> Array:
    """The layer's output, [row, token, hidden]: as it is, or a row for each zeroed key."""
    states = layer.given.expand(rows, -1, -1)
    if zeroed is None:
        output = layer.on(states)
    else:
        with changing(zeroed):
            output = layer.on(states)
    vectors: Array = output.double().cpu().numpy()
    return vectors


def _kept(trace: Trace, layer: int, _residual: float, report: Progress) -> Array:
    """`value_zeroing`, once for each layer of a trace: words, and special tokens left out, come from it."""
    known = _known.setdefault(trace, {})
    layer = resolve(layer, trace.layers, "layer")
    if layer not in known:
        known[layer] = read_only(value_zeroing(trace, layer, report))
    return known[layer]


def _takes_long(trace: Trace, layer: int) -> bool:
    return resolve(layer, trace.layers, "layer") not in _known.get(trace, {})


MEASURE = AttentionMeasure(
    name="value-zeroing",
    label="Value zeroing",
    title="Value zeroing in",
    value="1 − cosine without the value",
    total="change",
    meaning="How much a token's next vector changes when another token's value is zeroed in this layer "
    "(Mohebbi et al. 2023). It counts the whole layer, but not what later layers make of it.",
    order=4,
    of_layer=_kept,
    shares=False,
    takes_long=_takes_long,
)
