"""One query's attention, step by step from q and k to what its head gives, and checked with the model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import pandas as pd

from bert_probe.analyses.attention.head_outputs import HeadOutputs, attention_parts, head_outputs
from bert_probe.core import frames
from bert_probe.core.field_types import Index, Optional
from bert_probe.core.field_types_of_words import TokenSelector
from bert_probe.core.inputs import OneTrace
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Array, Trace

LAYER, HEAD, TOKEN = Index("layer"), Index("head"), Optional(TokenSelector())

_FRACTION_BITS = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}
"""Of the numbers, by what the model computes in."""


@question("steps")
class AttentionSteps(Question):
    """How one query of one head attends: softmax(q·kᵀ × scaling + mask) v; Vaswani et al. 2017, eq. 1.

    Attributes:
        layer, head: from 0; negative ones count from the end.
        query: the token that looks: its position, or its word; None for the last word of the text.
        key: None for a table of all keys; a token for the vectors behind its weight.
    """

    inputs = OneTrace()

    layer: int = param(LAYER, default=-1, about="Layer, counted from 1.")
    head: int = param(HEAD, default=0, about="Head, counted from 1.")
    query: int | str | None = param(TOKEN, default=None, about="Token that looks: a word, or its position.")
    key: int | str | None = param(
        TOKEN,
        default=None,
        about="Give the vectors behind the weight of this token instead.",
        display_only=True,
    )

    def resolved(self, trace: Trace) -> Self:
        """With the last word of the text where no query is named."""
        found = super().resolved(trace)
        return found if found.query is not None else replace(found, query=last_word(trace))

    def of(self, trace: Trace, outputs: HeadOutputs | None = None) -> AttentionStepsResult:
        """The steps for a text, and the output of the model itself to compare with.

        Args:
            outputs: of `head_outputs`, to look at many queries and heads of a text after one pass; without
                them the model runs once more.

        Raises:
            SelectionError: no such layer, head or token; outputs of another model or text.
            UnavailableError: the architecture hides its queries, keys and values, or no model made this
                trace.
            OutOfMemoryError: the machine is too small for this text.
        """
        parts = attention_parts(trace)
        asked_for = self.resolved(trace)
        layer, head, query = asked_for.layer, asked_for.head, _position(asked_for.query)
        if outputs is None:
            outputs = head_outputs(trace)
        elif outputs.provenance != trace.provenance:
            raise SelectionError("These outputs belong to another text or model. Make them from this trace.")
        output = outputs.layers[layer][head, query]
        q = parts.queries[layer][head, query]
        checkpoint = trace.checkpoint
        config: Any = checkpoint.model.config
        kinds = getattr(config, "layer_types", None) or ()
        return AttentionStepsResult(
            asked_for,
            InputRecord.of(trace),
            trace,
            q=q,
            keys=parts.keys[layer][head],
            values=parts.values[layer][head],
            scaling=parts.scaling[layer],
            mask=_added(parts.masks[layer], head, query, len(trace.tokens)).astype(q.dtype),
            model_output=output,
            spacing=_spacing(output, checkpoint.description.dtype),
            rotary=bool(getattr(config, "rope_parameters", None)),
            local=kinds[layer : layer + 1] == ["sliding_attention"],
            sharing=_sharing(head, trace.heads, getattr(config, "num_key_value_heads", None)),
        )


@dataclass(frozen=True, eq=False, repr=False)
class AttentionStepsResult(Result):
    """One query of one head: what goes in is held, and each step is worked out from it, in float32.

    Attributes:
        trace: of the text; each of its tokens is a key.
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

    question: AttentionSteps
    trace: Trace
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

    def resolve(self, question: AttentionSteps) -> AttentionSteps:
        """Another key is found in the text."""
        return question.resolved(self.trace)

    @property
    def tokens(self) -> tuple[Token, ...]:
        """Of the text."""
        return self.trace.tokens

    @property
    def query(self) -> int:
        """Position of the query."""
        return _position(self.question.query)

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
        scaled: Array = self.dot_products * self.scaling
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
    def forbidden(self) -> int:
        """How many keys may not be attended to."""
        return int(self.masked.sum())

    @property
    def allowed_scores(self) -> Array:
        """The scores of the other keys, which are finite, [allowed key]."""
        allowed: Array = self.scores[~self.masked]
        return allowed

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
        weights: Array = self.exponentials / self.exponential_sum
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

    def summands(self, count: int) -> tuple[tuple[int, ...], Array]:
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

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The tokens by their names, the scaling, and how far the output is off."""
        key = self.question.key
        named = {} if key is None else {"key_token": str(self.tokens[_position(key)])}
        return {
            "query_token": str(self.tokens[self.query]),
            **named,
            "scaling": self.scaling,
            "difference_to_model": self.difference,
        }

    def frame(self) -> pd.DataFrame:
        """One row a key; with a key in the question the `vectors` behind its weight.

        Columns: position, token, dot_product, scaled, masked, bias, score, weight, value_length,
        weighted_length (of the value, and of weight × value). ``bias`` and ``score`` of a masked key, which
        is -inf in the softmax, are empty.
        """
        if self.question.key is not None:
            return self.vectors(_position(self.question.key))
        return pd.DataFrame(
            {
                "position": [token.position for token in self.tokens],
                frames.TOKEN: frames.names(self.tokens),
                "dot_product": self.dot_products,
                "scaled": self.scaled,
                "masked": self.masked,
                "bias": np.where(self.masked, np.nan, self.mask),
                "score": np.where(self.masked, np.nan, self.scores),
                "weight": self.weights,
                "value_length": self.value_lengths,
                "weighted_length": self.weighted_lengths,
            }
        )

    def vectors(self, key: int) -> pd.DataFrame:
        """The vectors behind one weight, a row each: q, k, q×k, v, weight×v, output, and the model's own.

        Where values are longer or shorter than queries, the dimensions that a vector lacks are empty.
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
    assert isinstance(token, int)  # the question is resolved
    return token


def last_word(trace: Trace) -> int:
    """Position of the last token of letters and digits, or else of the first token."""
    words = [token.position for token in trace.tokens if token.display.isalnum() and not token.special]
    return words[-1] if words else 0


def _added(mask: Array | None, head: int, query: int, length: int) -> Array:
    """What a mask of any of a trace's shapes adds to one query's scores, [key]."""
    if mask is None:
        return np.zeros(length)
    rows = mask if mask.ndim == 2 else mask[head if len(mask) > 1 else 0]
    row = rows[query if len(rows) > 1 else 0]
    added = np.where(row, 0, -np.inf) if row.dtype == bool else row
    return np.broadcast_to(added, (length,))


def _spacing(output: Array, dtype: str) -> float:
    largest = float(np.abs(output).max())
    exponent = math.floor(math.log2(largest)) if largest else -126
    return 2.0 ** (exponent - _FRACTION_BITS[dtype])


def _sharing(head: int, heads: int, key_heads: int | None) -> tuple[int, ...]:
    size = heads // (key_heads or heads)
    first = head // size * size
    return tuple(range(first, first + size))
