"""One query's attention, step by step from q and k to what its head gives, and checked with the model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextvars import Context
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bert_probe.errors import SelectionError, ShapeError, UnavailableError, memory_errors
from bert_probe.model.capture import AttentionCall, recording
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.checks import TOLERANCE
from bert_probe.model.encoding import Encoding, Token
from bert_probe.model.forward import run_plainly
from bert_probe.model.trace import Array, Trace, read_only, resolve

_FRACTION_BITS = {"float64": 23, "float32": 23, "float16": 10, "bfloat16": 7}
"""Of the numbers as they arrive here, by what the model computes in; float64 is kept as float32."""


@dataclass(frozen=True, eq=False)
class HeadOutputs:
    """What every head of the model itself returned for one text, before the output projection.

    Attributes:
        provenance: that of the trace of the same text.
        layers: float32 [head, token, dim], one a layer, read-only.
    """

    provenance: Mapping[str, Any]
    layers: tuple[Array, ...]


@dataclass(frozen=True, eq=False)
class AttentionSteps:
    """How one query of one head attends: softmax(q·kᵀ × scaling + mask) v; Vaswani et al. 2017, eq. 1.

    What goes in is held, and each step is worked out from it, in float32.

    Attributes:
        tokens: of the text; each is a key.
        layer, head, query: indices from 0; the query is a token's position.
        q: the query's vector, [dim]; like ``keys``, after rotary positions where a model has them.
        keys: [key, dim].
        values: [key, dim]; this dim may differ from that of q and k.
        scaling: the factor of q·k, 1/√dim in BERT.
        mask: what is added to the scaled scores, [key]: 0, -inf where the key may not be attended to,
            or a bias.
        model_output: what the model's own kernel returned for this head and query, [dim].
        spacing: from one number of the model's dtype to the next, at the size of the largest output.
        rotary: the config says that q and k are turned by their positions; Su et al. 2021.
        local: the config says that this layer sees a window around the query only.
        sharing: heads with these same keys and values, from 0, this one among them; more than one where
            keys are grouped; Ainslie et al. 2023.
    """

    tokens: tuple[Token, ...]
    layer: int
    head: int
    query: int
    q: Array
    keys: Array
    values: Array
    scaling: float
    mask: Array
    model_output: Array
    spacing: float
    rotary: bool
    local: bool
    sharing: tuple[int, ...]

    def __post_init__(self) -> None:
        length = len(self.tokens)
        wanted = {
            "keys": (self.keys, (length, *self.q.shape)),
            "values": (self.values, (length, *self.model_output.shape)),
            "mask": (self.mask, (length,)),
        }
        for name, (array, shape) in wanted.items():
            if array.shape != shape or array.ndim != len(shape) or self.q.ndim != 1:
                raise ShapeError(f"{name} has shape {array.shape}; {shape} is needed.")

    @cached_property
    def products(self) -> Array:
        """q and each key, multiplied dimension by dimension, [key, dim]."""
        products: Array = self.q * self.keys
        return products

    @cached_property
    def dot_products(self) -> Array:
        """q · k: the sums of the `products`, [key]."""
        sums: Array = self.keys @ self.q
        return sums

    @cached_property
    def scaled(self) -> Array:
        """q · k × scaling, [key]."""
        scaled: Array = self.dot_products * np.float32(self.scaling)
        return scaled

    @cached_property
    def scores(self) -> Array:
        """q · k × scaling + mask, [key]; -inf where masked."""
        scores: Array = self.scaled + self.mask
        return scores

    @property
    def masked(self) -> Array:
        """Which keys may not be attended to, bool [key]."""
        return np.isneginf(self.mask)

    @property
    def biased(self) -> bool:
        """Whether anything but 0 and -inf is added to the scaled scores."""
        return bool(self.mask[~self.masked].any())

    @cached_property
    def exponentials(self) -> Array:
        """e^(score − largest score), [key], 0 to 1: what the softmax divides by its sum."""
        exponentials: Array = np.exp(self.scores - self.scores.max())
        return exponentials

    @property
    def exponential_sum(self) -> float:
        """Sum of the `exponentials`, at least 1."""
        return float(self.exponentials.sum())

    @cached_property
    def weights(self) -> Array:
        """softmax of the scores, [key], 0 to 1; they sum to 1."""
        weights: Array = self.exponentials / np.float32(self.exponential_sum)
        return weights

    @cached_property
    def weighted_values(self) -> Array:
        """Each key's value times its weight, [key, dim]."""
        weighted: Array = self.weights[:, None] * self.values
        return weighted

    @cached_property
    def output(self) -> Array:
        """What the head gives for this query: the sum of the `weighted_values`, [dim]."""
        output: Array = self.weights @ self.values
        return output

    @property
    def value_lengths(self) -> Array:
        """‖v‖ of each key, [key]."""
        lengths: Array = np.linalg.norm(self.values, axis=1)
        return lengths

    @property
    def weighted_lengths(self) -> Array:
        """‖weight × v‖ of each key, [key]."""
        lengths: Array = np.linalg.norm(self.weighted_values, axis=1)
        return lengths

    @property
    def output_length(self) -> float:
        """‖output‖."""
        return float(np.linalg.norm(self.output))

    @property
    def difference(self) -> float:
        """Largest absolute difference of `output` to what the model returned."""
        return float(np.abs(self.output - self.model_output).max())

    @property
    def strongest(self) -> int:
        """The key of the largest weight."""
        return int(self.weights.argmax())

    def parts(self, count: int) -> tuple[tuple[int, ...], Array]:
        """The output as a sum of few parts: the keys of the largest weights, and all others together.

        Args:
            count: keys that stand for themselves, at most.

        Returns:
            Their positions, largest weight first, and their weighted values, [part, dim]. With more keys
            than ``count`` there is one more row, the sum of the others. The rows add up to `output`.
        """
        order = np.argsort(-self.weights, kind="stable")
        first, others = order[:count], order[count:]
        rows = self.weighted_values[first]
        if len(others):
            rows = np.vstack([rows, self.weights[others] @ self.values[others]])
        return tuple(int(key) for key in first), rows


def attention_steps(
    checkpoint: Checkpoint,
    trace: Trace,
    layer: int,
    head: int,
    query: int,
    outputs: HeadOutputs | None = None,
) -> AttentionSteps:
    """The steps of one query in one head, and the output of the model itself to compare with.

    Args:
        layer, head, query: from 0; negative ones count from the end.
        outputs: of `head_outputs`, to look at many queries and heads of a text after one pass; without
            them the model runs once more.

    Raises:
        SelectionError: no such layer, head or token; a trace or outputs of another model or text.
        UnavailableError: the architecture hides its queries, keys and values.
        OutOfMemoryError: the machine is too small for this text.
    """
    queries, keys, values, scaling, masks = _shown(trace)
    layer = resolve(layer, trace.layers, "layer")
    head = resolve(head, trace.heads, "head")
    query = resolve(query, len(trace.tokens), "token")
    if outputs is None:
        outputs = head_outputs(checkpoint, trace)
    elif outputs.provenance != trace.provenance:
        raise SelectionError("These outputs belong to another text or model. Make them from this trace.")
    output = outputs.layers[layer][head, query]
    config = checkpoint.model.config
    kinds = getattr(config, "layer_types", None) or ()
    return AttentionSteps(
        tokens=trace.tokens,
        layer=layer,
        head=head,
        query=query,
        q=queries[layer][head, query],
        keys=keys[layer][head],
        values=values[layer][head],
        scaling=scaling[layer],
        mask=_added(masks[layer], head, query, len(trace.tokens)),
        model_output=output,
        spacing=_spacing(output, checkpoint.description.dtype),
        rotary=bool(getattr(config, "rope_parameters", None)),
        local=kinds[layer : layer + 1] == ["sliding_attention"],
        sharing=_sharing(head, trace.heads, getattr(config, "num_key_value_heads", None)),
    )


def head_outputs(checkpoint: Checkpoint, trace: Trace) -> HeadOutputs:
    """What every head returned for the text of a trace, in one more forward pass of the model itself.

    Raises:
        SelectionError: the trace was made by another model, so its queries are not those of the pass.
        UnavailableError: the architecture hides its queries, keys and values.
        OutOfMemoryError: the machine is too small for this text.
    """
    queries = _shown(trace)[0]
    about = checkpoint.description
    if trace.provenance.get("weights_sha256") != about.weights_sha256:
        raise SelectionError(_another(about.name))
    # In a context of its own, lest heads that are switched off around this call be missing from it.
    calls = Context().run(_calls, checkpoint, trace.encoding)
    if len(calls) != trace.layers:
        raise SelectionError(_another(about.name))
    for call, traced in zip(calls, queries, strict=True):
        seen: Array = call.query[0].float().cpu().numpy()
        allowed = TOLERANCE[about.dtype] * max(1.0, float(np.abs(traced).max()))
        if seen.shape != traced.shape or not float(np.abs(seen - traced).max()) <= allowed:
            raise SelectionError(_another(about.name))
    layers = (call.output[0].float().cpu().numpy().swapaxes(0, 1) for call in calls)
    return HeadOutputs(trace.provenance, tuple(read_only(np.ascontiguousarray(layer)) for layer in layers))


def replay_differences(trace: Trace, outputs: HeadOutputs, layer: int) -> Array:
    """Largest absolute difference of weights · v to what each head of a layer returned, float32 [head].

    Raises:
        SelectionError: no such layer.
        UnavailableError: the architecture hides its queries, keys and values.
    """
    values = _shown(trace)[2]
    layer = resolve(layer, trace.layers, "layer")
    # A head at a time, so that memory holds one matrix of a long text.
    replays = (trace.attention(layer, head) @ values[layer][head] for head in range(trace.heads))
    off = [np.abs(one - seen).max() for one, seen in zip(replays, outputs.layers[layer], strict=True)]
    return np.array(off, dtype=np.float32)


def _calls(checkpoint: Checkpoint, encoding: Encoding) -> list[AttentionCall]:
    message = f"{len(encoding):,} tokens need more memory than this machine has free. Shorten the text."
    with memory_errors(message), recording() as calls:
        run_plainly(checkpoint, encoding)
    return calls


def _shown(trace: Trace) -> tuple[Any, ...]:
    """Queries, keys, values, scaling and masks of all layers."""
    parts = (trace.queries, trace.keys, trace.values, trace.scaling, trace.masks)
    if any(part is None for part in parts):
        raise UnavailableError(
            f"{trace.provenance['architecture']} hides its queries, keys and values, so its attention cannot "
            "be followed step by step. Its attention weights are available."
        )
    return parts


def _another(name: str) -> str:
    return (
        f"This trace was not made by {name} as it is opened here. Trace the text again with this checkpoint."
    )


def _added(mask: Array | None, head: int, query: int, length: int) -> Array:
    """What a mask of any of a trace's shapes adds to one query's scores, float32 [key]."""
    if mask is None:
        return np.zeros(length, dtype=np.float32)
    rows = mask if mask.ndim == 2 else mask[head if len(mask) > 1 else 0]
    row = rows[query if len(rows) > 1 else 0]
    added = np.where(row, 0, -np.inf) if row.dtype == bool else row
    return np.broadcast_to(added.astype(np.float32), (length,))


def _spacing(output: Array, dtype: str) -> float:
    largest = float(np.abs(output).max())
    exponent = math.floor(math.log2(largest)) if largest else -126
    return 2.0 ** (exponent - _FRACTION_BITS[dtype])


def _sharing(head: int, heads: int, key_heads: int | None) -> tuple[int, ...]:
    size = heads // (key_heads or heads)
    first = head // size * size
    return tuple(range(first, first + size))
