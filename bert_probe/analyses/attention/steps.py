"""The steps that compute the attention of one query, from q and k to the head's output.

The output is compared with that of the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextvars import Context
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd

from bert_probe.analyses.weights.positions import rotaries
from bert_probe.core import frames
from bert_probe.core.field_types import Index, Optional, TokenSelector
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError, UnavailableError, memory_errors
from bert_probe.model.capture import AttentionCall, recording
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.checks import pass_tolerance
from bert_probe.model.encoding import Encoding, Token
from bert_probe.model.forward import as_array, run_for_hooks
from bert_probe.model.trace import Array, Trace, read_only

LAYER, HEAD, TOKEN = Index("layer"), Index("head"), Optional(TokenSelector())

# number of stored mantissa bits of each dtype
_FRACTION_BITS = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}


@question("attention steps", command="steps")
class AttentionSteps(Question):
    """Steps of the attention of one query: softmax(q·kᵀ × scaling + mask) v (Vaswani et al. 2017, eq. 1).

    If the model limits the scaled products, an additional step computes softcap × tanh(q·kᵀ × scaling ÷
    softcap) (Gemma Team 2024, section 2).

    Attributes:
        layer, head: indices from 0; negative values count from the end.
        query: the query, given by its position or as a word. If None, the last word of the text.
        key: the key whose vectors the table shows, given by its position or as a word. If None, the table has
            a row for each key.
    """

    inputs = OneTrace()

    layer: int = param(LAYER, default=-1, about="Layer, counted from 1.")
    head: int = param(HEAD, default=0, about="Head, counted from 1.")
    query: int | str | None = param(TOKEN, default=None, about="Query token: a word or a token position.")
    key: int | str | None = param(
        TOKEN,
        default=None,
        about="Show the vectors of this key token instead of the table of all keys.",
        display_only=True,
    )

    def resolved(self, trace: Trace) -> Self:
        """Return the question with its defaults resolved; the default query is the text's last word."""
        resolved = super().resolved(trace)
        return resolved if resolved.query is not None else replace(resolved, query=default_query(trace))

    def of(self, trace: Trace, outputs: HeadOutputs | None = None) -> AttentionStepsResult:
        """Return the steps of the attention, with the model's own output for comparison.

        Args:
            trace: the model's forward pass over the text.
            outputs: the result of `head_outputs` for this text. If None, the model runs again. Pass the
                outputs if you need several queries or heads of one text.

        Raises:
            SelectionError: the layer, head or token does not exist, or the outputs come from another model or
                text.
            UnavailableError: the architecture does not expose its queries, keys and values, or the trace has
                no model.
            OutOfMemoryError: the text needs more memory than is available.
        """
        parts = attention_parts(trace)
        resolved = self.resolved(trace)
        layer, head, query = resolved.layer, resolved.head, _position(resolved.query)
        if outputs is None:
            outputs = head_outputs(trace)
        elif outputs.provenance != trace.provenance:
            raise SelectionError(
                "These head outputs come from another text or model. Compute the head outputs from this "
                "trace."
            )
        output = outputs.layers[layer][head, query]
        q = parts.queries[layer][head, query]
        checkpoint, mask = trace.checkpoint, parts.masks[layer]
        config: Any = checkpoint.model.config
        return AttentionStepsResult(
            resolved,
            InputRecord.of(trace),
            trace,
            q=q,
            keys=parts.keys[layer][head],
            values=parts.values[layer][head],
            scaling=parts.scaling[layer],
            softcap=trace.softcap(layer),
            mask=_mask_row(mask, head, query, len(trace.tokens)).astype(q.dtype),
            model_output=output,
            spacing=_spacing(output, checkpoint.description.dtype),
            rotary=any(layer in rotary.layers for rotary in rotaries(checkpoint)),
            by_distance=_is_by_distance(mask, head),
            relative=bool(getattr(config, "relative_attention", False) and config.pos_att_type),
            local=_is_local(config, layer),
            sharing=_heads_sharing_keys(head, trace.heads, getattr(config, "num_key_value_heads", None)),
        )


@dataclass(frozen=True, eq=False, repr=False)
class AttentionStepsResult(Result):
    """The steps that compute the attention of one query in one head; each step is computed on access.

    Attributes:
        trace: the model's forward pass over the text; each of its tokens is a key.
        q: the query vector, shape [dim], after rotary position embeddings if the model has them.
        keys: key vectors, shape [key, dim], also after rotary position embeddings.
        values: value vectors, shape [key, dim]; their dim may differ from that of q and k.
        scaling: the factor by which q·k is multiplied, 1/√dim in BERT.
        softcap: limit of the scaled dot products; None if the layer has no limit.
        mask: values added to the scaled, limited scores, shape [key]: 0, -inf for a masked key, or a bias.
        model_output: the output of the model's own kernel for this head and query, shape [dim].
        spacing: distance between adjacent floating-point numbers of the model's dtype, near the largest
            absolute output.
        rotary: whether the layer has rotary position embeddings (Su et al. 2021).
        by_distance: whether the mask of this head depends only on the distance between query and key.
        relative: whether the mask contains the products of q and of k with vectors learned for each distance
            between query and key (DeBERTa; He et al. 2021).
        local: whether the config restricts this layer to a window around the query.
        sharing: indices of the heads that have the same keys and values as this head, including this head;
            several in grouped-query attention (Ainslie et al. 2023).
    """

    question: AttentionSteps
    trace: Trace
    q: Array
    keys: Array
    values: Array
    scaling: float
    softcap: float | None
    mask: Array
    model_output: Array
    spacing: float
    rotary: bool
    by_distance: bool
    relative: bool
    local: bool
    sharing: tuple[int, ...]

    def __post_init__(self) -> None:
        length = len(self.tokens)
        shapes = {
            "keys": (self.keys, (length, *self.q.shape)),
            "values": (self.values, (length, *self.model_output.shape)),
            "mask": (self.mask, (length,)),
        }
        for name, (array, shape) in shapes.items():
            if array.shape != shape or array.ndim != len(shape) or self.q.ndim != 1:
                raise ShapeError(f"{name} must have shape {shape}, not {array.shape}.")

    def resolve(self, question: AttentionSteps) -> AttentionSteps:
        """Return the question with the attended token, `key`, given by its position in the text."""
        return question.resolved(self.trace)

    @property
    def tokens(self) -> tuple[Token, ...]:
        """Tokens of the text."""
        return self.trace.tokens

    @property
    def query(self) -> int:
        """Position of the query in the text."""
        return _position(self.question.query)

    @cached_property
    def products(self) -> Array:
        """Elementwise product of q and each key, shape [key, dim]."""
        products: Array = self.q * self.keys
        return products

    @cached_property
    def dot_products(self) -> Array:
        """Dot product q · k of each key, shape [key]."""
        sums: Array = self.keys @ self.q
        return sums

    @cached_property
    def scaled(self) -> Array:
        """Scaled dot product of each key, q · k × scaling, shape [key]."""
        scaled: Array = self.dot_products * self.scaling
        return scaled

    @cached_property
    def limited(self) -> Array:
        """Limited scaled dot product of each key, softcap × tanh(scaled ÷ softcap), shape [key].

        If the layer has no limit, the values are equal to `scaled`.
        """
        if self.softcap is None:
            return self.scaled
        limited: Array = np.tanh(self.scaled / self.softcap) * self.softcap
        return limited

    @cached_property
    def scores(self) -> Array:
        """Attention score of each key, the `limited` product + mask, shape [key]; -inf for masked keys."""
        scores: Array = self.limited + self.mask
        return scores

    @property
    def masked(self) -> Array:
        """Whether each key is masked, bool of shape [key]."""
        return np.isneginf(self.mask)

    @property
    def forbidden(self) -> int:
        """Number of masked keys."""
        return int(self.masked.sum())

    @property
    def allowed_scores(self) -> Array:
        """Scores of the keys that are not masked, shape [unmasked key]; all values are finite."""
        allowed: Array = self.scores[~self.masked]
        return allowed

    @property
    def biased(self) -> bool:
        """Whether the mask adds a bias, that is, contains values other than 0 and -inf."""
        return bool(self.mask[~self.masked].any())

    @property
    def bias_note(self) -> str:
        """A sentence about the bias that the mask adds to the attention scores."""
        if not self.biased:
            return "The model does not add a bias to the attention scores."
        if self.relative:
            return (
                "The model adds a bias to the attention scores: the products of q and of k with vectors "
                "learned for the distance between the two tokens (He et al. 2021). Because q and k depend on "
                "the text, the bias does too."
            )
        if self.by_distance:
            return (
                "The model adds a bias to the attention scores: a number learned for the distance "
                "between query and key."
            )
        return "The model adds a bias to the attention scores."

    @cached_property
    def exponentials(self) -> Array:
        """Numerators of the softmax, e^(score − largest score), shape [key], 0 to 1."""
        exponentials: Array = np.exp(self.scores - self.scores.max())
        return exponentials

    @property
    def exponential_sum(self) -> float:
        """Denominator of the softmax: the sum of the `exponentials`, at least 1."""
        return float(self.exponentials.sum())

    @cached_property
    def weights(self) -> Array:
        """Attention weight of each key, shape [key]: the softmax of the scores, which sums to 1."""
        weights: Array = self.exponentials / self.exponential_sum
        return weights

    @cached_property
    def weighted_values(self) -> Array:
        """Weight × value vector of each key, shape [key, dim]."""
        weighted: Array = self.weights[:, None] * self.values
        return weighted

    @cached_property
    def output(self) -> Array:
        """Output of the head for this query, shape [dim]: the sum of the `weighted_values`."""
        output: Array = self.weights @ self.values
        return output

    @property
    def value_lengths(self) -> Array:
        """Norm of the value vector of each key, ‖v‖, shape [key]."""
        lengths: Array = np.linalg.norm(self.values, axis=1)
        return lengths

    @property
    def weighted_lengths(self) -> Array:
        """Norm of the weighted value vector of each key, ‖weight × v‖, shape [key]."""
        lengths: Array = np.linalg.norm(self.weighted_values, axis=1)
        return lengths

    @property
    def output_length(self) -> float:
        """Norm of the head's output, ‖output‖."""
        return float(np.linalg.norm(self.output))

    @property
    def difference(self) -> float:
        """Largest absolute difference between `output` and `model_output`."""
        return float(np.abs(self.output - self.model_output).max())

    @property
    def strongest(self) -> int:
        """Position of the key with the largest weight."""
        return int(self.weights.argmax())

    def summands(self, count: int) -> tuple[tuple[int, ...], Array]:
        """Split the output into the weighted values of the keys with the largest weights, and a remainder.

        Args:
            count: maximum number of keys with a separate row.

        Returns:
            The positions of the keys with a separate row, by descending weight, and an array of shape
            [row, dim] with their weighted values. If the text has more keys than ``count``, an additional
            last row is the sum over the other keys. The rows add up to `output`.
        """
        order = np.argsort(-self.weights, kind="stable")
        largest, remaining = order[:count], order[count:]
        rows = self.weighted_values[largest]
        if len(remaining):
            rows = np.vstack([rows, self.weights[remaining] @ self.values[remaining]])
        return tuple(int(key) for key in largest), rows

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The query and key as text, the scaling, and the difference from the model's output."""
        key = self.question.key
        note = {"note": self.trace.note} if self.trace.note else {}
        bias = {"bias": self.bias_note} if self.biased else {}
        key_token = {} if key is None else {"key_token": str(self.tokens[_position(key)])}
        return {
            "query_token": str(self.tokens[self.query]),
            **key_token,
            "scaling": self.scaling,
            **({} if self.softcap is None else {"softcap": self.softcap}),
            "difference_to_model": self.difference,
            **bias,
            **note,
        }

    def frame(self) -> pd.DataFrame:
        """Return a table with a row for each key or, if the question has a key, its `vectors`.

        Columns: position, token, dot_product, scaled, masked, bias, score, weight, value_length (‖v‖),
        weighted_length (‖weight × v‖). For masked keys, ``bias`` and ``score`` are empty, because
        the values are -inf. If the layer limits the scaled products, the column limited follows scaled.
        """
        if self.question.key is not None:
            return self.vectors(_position(self.question.key))
        return pd.DataFrame(
            {
                "position": [token.position for token in self.tokens],
                frames.TOKEN: frames.plain_strings(self.tokens),
                "dot_product": self.dot_products,
                "scaled": self.scaled,
                **({} if self.softcap is None else {"limited": self.limited}),
                "masked": self.masked,
                "bias": np.where(self.masked, np.nan, self.mask),
                "score": np.where(self.masked, np.nan, self.scores),
                "weight": self.weights,
                "value_length": self.value_lengths,
                "weighted_length": self.weighted_lengths,
            }
        )

    def vectors(self, key: int) -> pd.DataFrame:
        """Return a table of the vectors in the attention from the query to one key.

        The rows are q, k, q×k, v, weight×v, the head's output, and the model's output. If values and queries
        differ in size, the missing dimensions of the shorter vectors are empty.
        """
        rows = {
            "q": self.q,
            "k": self.keys[key],
            "q×k": self.products[key],
            "v": self.values[key],
            "weight×v": self.weighted_values[key],
            "output": self.output,
            "model": self.model_output,
        }
        values = np.full((len(rows), max(map(len, rows.values()))), np.nan, dtype=self.q.dtype)
        for row, vector in zip(values, rows.values(), strict=True):
            row[: len(vector)] = vector
        return frames.vectors(values, list(rows), "step")


def _position(token: int | str | None) -> int:
    # The argument is an integer, because `resolved` replaces words and None by positions.
    assert isinstance(token, int)
    return token


def default_query(trace: Trace) -> int:
    """Return the position of the last alphanumeric token of a text, or 0 if the text has none."""
    words = [token.position for token in trace.tokens if token.display.isalnum() and not token.special]
    return words[-1] if words else 0


def _mask_row(mask: Array | None, head: int, query: int, length: int) -> Array:
    """Return the values that an attention mask adds to the scores of one query, shape [key].

    Args:
        mask: the mask of a layer; see `Trace.masks` for its possible shapes. None if no key is masked.
        head, query: index of the head and position of the query.
        length: number of keys.
    """
    if mask is None:
        return np.zeros(length)
    rows = mask if mask.ndim == 2 else mask[head if len(mask) > 1 else 0]
    row = rows[query if len(rows) > 1 else 0]
    values = np.where(row, 0, -np.inf) if row.dtype == bool else row
    return np.broadcast_to(values, (length,))


def _is_by_distance(mask: Array | None, head: int) -> bool:
    """Return whether the values of a mask depend only on the distance between query and key."""
    if mask is None or mask.shape[-2] == 1:
        return False
    rows = mask if mask.ndim == 2 else mask[head if len(mask) > 1 else 0]
    return bool(np.array_equal(rows[1:, 1:], rows[:-1, :-1]))


def _spacing(output: Array, dtype: str) -> float:
    largest = float(np.abs(output).max())
    exponent = math.floor(math.log2(largest)) if largest else -126
    return 2.0 ** (exponent - _FRACTION_BITS[dtype])


def _is_local(config: Any, layer: int) -> bool:
    """Return whether a config restricts the attention of a layer to a sliding window.

    If the config has a ``sliding_window`` but no ``layer_types``, all layers use the window.
    """
    layer_types = getattr(config, "layer_types", None)
    if layer_types:
        return bool(layer_types[layer] == "sliding_attention")
    return getattr(config, "sliding_window", None) is not None


def _heads_sharing_keys(head: int, heads: int, key_heads: int | None) -> tuple[int, ...]:
    size = heads // (key_heads or heads)
    first = head // size * size
    return tuple(range(first, first + size))


@dataclass(frozen=True, eq=False)
class HeadOutputs:
    """Outputs of the model's own attention heads for one text, before the output projection.

    Attributes:
        provenance: provenance of the text's trace, which identifies the text and the model.
        layers: outputs of each layer, read-only, float32 of shape [head, token, dim].
    """

    provenance: Mapping[str, Any]
    layers: tuple[Array, ...]

    @property
    def nbytes(self) -> int:
        """Total size of the arrays in bytes."""
        return sum(layer.nbytes for layer in self.layers)


class AttentionParts(NamedTuple):
    """Queries, keys, values, scaling and masks of all layers; see `Trace` for their shapes."""

    queries: tuple[Array, ...]
    keys: tuple[Array, ...]
    values: tuple[Array, ...]
    scaling: tuple[float, ...]
    masks: tuple[Array | None, ...]


def attention_parts(trace: Trace) -> AttentionParts:
    """Return queries, keys, values, scaling and masks of all layers.

    Raises:
        UnavailableError: the architecture does not expose its queries, keys and values.
    """
    parts = (trace.queries, trace.keys, trace.values, trace.scaling, trace.masks)
    if any(part is None for part in parts):
        raise UnavailableError(
            f"{trace.architecture} does not expose its queries, keys and values, so the steps of its "
            "attention cannot be shown. Its attention weights are available."
        )
    return AttentionParts(*parts)  # type: ignore[arg-type]


def head_outputs(trace: Trace) -> HeadOutputs:
    """Run the model again on the text of a trace and return the outputs of all heads.

    Raises:
        SelectionError: the model has changed since it made the trace.
        UnavailableError: the architecture does not expose its queries, keys and values, or the trace has no
            model.
        OutOfMemoryError: the text needs more memory than is available.
    """
    queries = attention_parts(trace).queries
    checkpoint = trace.checkpoint
    description = checkpoint.description
    if trace.provenance.get("weights_sha256") != description.weights_sha256:
        raise SelectionError(_changed_model(description.name))
    # Run the model in a new context, so that an ablation in the current context has no effect.
    calls = Context().run(_record_calls, checkpoint, trace.encoding)
    if len(calls) != trace.layers:
        raise SelectionError(_changed_model(description.name))
    for call, traced in zip(calls, queries, strict=True):
        query = as_array(call.query[0])
        tolerance = pass_tolerance(description) * max(1.0, float(np.abs(traced).max()))
        if query.shape != traced.shape or not float(np.abs(query - traced).max()) <= tolerance:
            raise SelectionError(_changed_model(description.name))
    layers = (as_array(call.output[0]).swapaxes(0, 1) for call in calls)
    return HeadOutputs(trace.provenance, tuple(read_only(np.ascontiguousarray(layer)) for layer in layers))


def _record_calls(checkpoint: Checkpoint, encoding: Encoding) -> list[AttentionCall]:
    message = f"{len(encoding):,} tokens need more memory than is available. Shorten the text."
    with memory_errors(message), recording() as calls:
        run_for_hooks(checkpoint, encoding)
    return calls


def _changed_model(name: str) -> str:
    return (
        f"This trace was not computed with the current weights of {name}. "
        "Trace the text again with this checkpoint."
    )
