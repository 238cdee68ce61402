"""Value zeroing: how a layer's output changes when a token's value vector is zeroed (Mohebbi et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch

from bert_probe.analyses.attention.measures import AttentionMeasure
from bert_probe.analyses.vectors.similarity import cosine_of_rows
from bert_probe.errors import TooLongError, UnavailableError, memory_errors
from bert_probe.model.capture import AttentionCall, changed_outputs
from bert_probe.model.forward import BATCH_TOKENS
from bert_probe.model.layers import ModuleCall, record_forward_pass
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace, read_only, resolve_index, tensor_view

MAX_TOKENS = 1024
"""Maximum number of tokens of a text for value zeroing.

The layer runs once for each token, so the cost grows with the square of the length.
"""

_cache: WeakKeyDictionary[Trace, dict[int, Array]] = WeakKeyDictionary()
"""Value zeroing matrices of each trace by layer; in float32, each matrix takes at most 4 MB."""


def value_zeroing(trace: Trace, layer: int, progress: Progress = no_progress) -> Array:
    """Return how much a layer's output at each query changes when the value vector of each key is zeroed.

    The change is the cosine distance, 0 to 2, between the layer's outputs with and without the key's value
    (Mohebbi et al. 2023, section 3). The value is zeroed in all heads at once, and attention weights are
    unchanged. The output includes the residual connection and the feed-forward block of the layer. The result
    has shape [query, key], and its rows do not sum to 1.

    Args:
        trace: the model's forward pass over the text.
        layer: layer index from 0; negative values count from the end.
        progress: called with the number of tokens whose values have been zeroed and the total.

    Raises:
        SelectionError: the layer does not exist.
        TooLongError: the text has more than `MAX_TOKENS` tokens.
        UnavailableError: the architecture does not expose its values or layers, or the trace has no model,
            or the model has changed since the trace was made.
        OutOfMemoryError: the text needs more memory than is available.
    """
    layer = resolve_index(layer, trace.layers, "layer")
    if trace.values is None:
        raise UnavailableError(
            f"{trace.architecture} does not expose its value vectors, so they cannot be zeroed. "
            "Choose another measure."
        )
    length = len(trace.tokens)
    if length > MAX_TOKENS:
        raise TooLongError(
            f"The text has {length:,} tokens, but value zeroing accepts at most {MAX_TOKENS:,}. "
            "Shorten the text or choose another measure."
        )
    no_memory = f"Value zeroing of {length:,} tokens needs more memory than is available. Shorten the text."
    with memory_errors(no_memory), torch.inference_mode(), trace.checkpoint.running():
        progress(0, length)
        step = record_forward_pass(trace).layer(layer)
        weights = tensor_view(trace.attention(layer)).to(trace.checkpoint.device)
        values = tensor_view(trace.values[layer]).to(trace.checkpoint.device)
        untouched = _vectors(step, 1)[0]
        changes = np.empty((length, length), dtype=trace.states[layer].dtype)
        size = max(1, BATCH_TOKENS // length)
        for first in range(0, length, size):
            keys = torch.arange(first, min(first + size, length), device=weights.device)
            zeroed = _vectors(step, len(keys), _Zeroed(keys, weights, values))
            for key, vectors in zip(keys.tolist(), zeroed, strict=True):
                changes[:, key] = 1 - cosine_of_rows(vectors, untouched)
            progress(min(first + size, length), length)
    return changes


@dataclass(frozen=True, eq=False)
class _Zeroed:
    """Callback that subtracts the contribution of one key from the attention output of each batch row.

    Attributes:
        keys: position of the key that each batch row zeroes, shape [row].
        weights: attention weights of the layer, shape [head, query, key].
        values: value vectors of the layer, shape [head, key, dim].
    """

    keys: torch.Tensor
    weights: torch.Tensor
    values: torch.Tensor

    def __call__(self, _layer: int, call: AttentionCall) -> torch.Tensor:
        # The contribution of the key that each batch row zeroes has shape [head, query, row, dim].
        read = self.weights[:, :, self.keys, None] * self.values[:, None, self.keys]
        return call.output - read.permute(2, 1, 0, 3).to(call.output.dtype)


def _vectors(layer: ModuleCall, rows: int, zeroed: _Zeroed | None = None) -> Array:
    """Return the layer's output for a batch of copies of the text, shape [row, token, hidden].

    Args:
        layer: the recorded call of the layer, with its input.
        rows: number of copies.
        zeroed: callback that zeroes the value of a different key in each row; None to zero nothing.
    """
    states = layer.input_states.expand(rows, -1, -1)
    if zeroed is None:
        output = layer.on(states)
    else:
        with changed_outputs(zeroed):
            output = layer.on(states)
    vectors: Array = output.double().cpu().numpy()
    return vectors


def _cached_value_zeroing(trace: Trace, layer: int, _residual: float, progress: Progress) -> Array:
    matrices = _cache.setdefault(trace, {})
    layer = resolve_index(layer, trace.layers, "layer")
    if layer not in matrices:
        matrices[layer] = read_only(value_zeroing(trace, layer, progress))
    return matrices[layer]


def _takes_long(trace: Trace, layer: int) -> bool:
    return resolve_index(layer, trace.layers, "layer") not in _cache.get(trace, {})


MEASURE = AttentionMeasure(
    name="value-zeroing",
    label="Value zeroing",
    title="Value zeroing in",
    value="cosine distance after zeroing",
    total="change",
    meaning="How much a token's output vector of this layer changes when the value vector of another token "
    "is zeroed in the layer (Mohebbi et al. 2023). The change includes all parts of the layer, but not the "
    "later layers.",
    order=4,
    of_layer=_cached_value_zeroing,
    shares=False,
    takes_long=_takes_long,
)
