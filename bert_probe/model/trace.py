"""A trace: the values recorded for a text in one forward pass, from which attention weights are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_probe.errors import SelectionError, ShapeError, UnavailableError, memory_errors
from bert_probe.model.encoding import Encoding, Token
from bert_probe.model.lengths import check_attention_bytes

if TYPE_CHECKING:
    import torch

    import bert_probe
    from bert_probe.model.checkpoint import Checkpoint

Array = np.ndarray

_WHOLE_BYTES = 64_000_000
"""Maximum size in bytes of the attention scores whose softmax is computed in one call, which needs as much
memory again. Larger scores are replaced by their softmax head by head.
"""
CAUSAL = "This model reads from left to right: a token cannot attend to the tokens after it."
"""Note shown with the attention of a causal model."""


def resolve_index(index: int, count: int, name: str) -> int:
    """Convert a Python index, which may be negative, to an index from 0 to ``count`` - 1.

    Args:
        name: the name of the index in error messages, for example "layer".

    Raises:
        SelectionError: the index is out of range or not an integer.
    """
    if isinstance(index, bool) or not isinstance(index, int | np.integer):
        raise SelectionError(f"{name} must be a whole number, not {index!r}.")
    if not -count <= index < count:
        raise SelectionError(
            f"There is no {name} {index}: valid indices are 0 to {count - 1}, or -{count} to -1."
        )
    return int(index) % count


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """The recorded values of one forward pass, or external attention.

    All arrays are read-only, and float32, or float64 for a float64 model.

    Attributes:
        encoding: the tokens and the model's inputs.
        states: hidden states of shape [token, hidden]: the embedding output, then one array per layer. Empty
            for external attention without vectors.
        pooler: the pooler's output, of shape [hidden], or None if the model has no pooler.
        provenance: model, weights digest, libraries and text that produced the arrays.
        queries, keys, values: arrays of shape [head, token, head dim], one per layer; None if
            they cannot be recorded.
        scaling: the factor that multiplies q·k in each layer; None without q and k.
        masks: for each layer, an array of shape [query or 1, key] or [head, query or 1, key], either bool
            (True: may attend) or added to the scores; None in a layer where every token may attend to all
            tokens.
        softcaps: for each layer the limit c for the scaled products x = q·k × scaling, which become
            c × tanh(x ÷ c) before the mask is added; None for a layer without a limit. Empty if no layer has
            a limit.
        weights: attention of shape [head, query, key] for each layer; stored only without q and k.
        made_by: the checkpoint that computed the trace; None for external attention.
        caveat: a warning to show with the attention if its rows do not sum to 1; otherwise "".
    """

    encoding: Encoding
    states: tuple[Array, ...]
    pooler: Array | None
    provenance: Mapping[str, Any]
    queries: tuple[Array, ...] | None = None
    keys: tuple[Array, ...] | None = None
    values: tuple[Array, ...] | None = None
    scaling: tuple[float, ...] | None = None
    masks: tuple[Array | None, ...] | None = None
    softcaps: tuple[float | None, ...] = ()
    weights: tuple[Array, ...] | None = None
    made_by: Checkpoint | None = None
    caveat: str = ""

    def __post_init__(self) -> None:
        if (self.queries is None) == (self.weights is None):
            raise ShapeError("A trace needs either q, k and v or the attention weights.")
        length, layers = len(self.encoding), self.layers
        for name, arrays, ndim, axis, count in (
            ("states", self.states or None, 2, 0, layers + 1),
            ("queries", self.queries, 3, 1, layers),
            ("keys", self.keys, 3, 1, layers),
            ("values", self.values, 3, 1, layers),
            ("weights", self.weights, 3, 1, layers),
        ):
            if arrays is not None and (
                len(arrays) != count
                or any(array.ndim != ndim or array.shape[axis] != length for array in arrays)
            ):
                shapes = [array.shape for array in arrays]
                raise ShapeError(
                    f"{name} must contain {count} arrays over {length} tokens, not arrays of shapes {shapes}."
                )
        self._check_attention_parts()

    def _check_attention_parts(self) -> None:
        """Raise ShapeError if the shapes or lengths of q, k, v, scaling and masks do not match."""
        if self.weights is not None:
            if any(array.shape[1:] != (len(self.encoding),) * 2 for array in self.weights):
                raise ShapeError(
                    "weights must have shape [head, query, key] in each layer, with one query and one key "
                    "per token."
                )
            return
        if self.keys is None or self.values is None or self.scaling is None or self.masks is None:
            raise ShapeError("queries must be passed together with keys, values, scaling and masks.")
        assert self.queries is not None  # not None, as checked in `__post_init__`
        if not len(self.scaling) == len(self.masks) == self.layers:
            raise ShapeError(
                f"scaling and masks must have {self.layers} entries, one per layer, not "
                f"{len(self.scaling)} and {len(self.masks)}."
            )
        if self.softcaps and len(self.softcaps) != self.layers:
            raise ShapeError(
                f"softcaps must have {self.layers} entries, one per layer, not {len(self.softcaps)}."
            )
        for query, key, value, mask in zip(self.queries, self.keys, self.values, self.masks, strict=True):
            if query.shape != key.shape or query.shape[:2] != value.shape[:2]:
                raise ShapeError(
                    f"The shapes of q, {query.shape}, k, {key.shape}, and v, {value.shape}, do not match."
                )
            scores = (query.shape[0], query.shape[1], query.shape[1])
            if mask is not None and any(
                size not in (1, full) for size, full in zip(mask.shape[::-1], scores[::-1], strict=False)
            ):
                raise ShapeError(
                    f"The shape of a mask, {mask.shape}, does not match scores of shape {scores}."
                )

    @cached_property
    def hidden_states(self) -> Array:
        """Return all hidden states, of shape [layer + 1, token, hidden]; index 0 is the embedding output.

        Raises:
            UnavailableError: the trace has external attention without vectors, or the hidden size differs
                between layers.
        """
        states = self._states()
        if len({layer.shape for layer in states}) > 1:
            raise UnavailableError(
                "The hidden size of this model differs between layers, so its hidden states do not fit into "
                "one array. Use the method vectors, which returns those of one layer."
            )
        return self._stack(states)

    @cached_property
    def q(self) -> Array | None:
        """Return queries of shape [layer, head, token, head dim]; None if they cannot be recorded.

        Queries are recorded as passed to the attention function, after any rotary position embeddings.
        """
        return None if self.queries is None else self._stack(self.queries)

    @cached_property
    def k(self) -> Array | None:
        """Return keys, of the same shape as `q`; in grouped-query attention, they are repeated per head."""
        return None if self.keys is None else self._stack(self.keys)

    @cached_property
    def v(self) -> Array | None:
        """Return values, of the same shape as `q`; in grouped-query attention, they are repeated per head."""
        return None if self.values is None else self._stack(self.values)

    @property
    def tokens(self) -> tuple[Token, ...]:
        """Return the tokens in input order; each token is a `str` with position, id, segment and word."""
        return self.encoding.tokens

    @property
    def checkpoint(self) -> Checkpoint:
        """Return the checkpoint that computed this trace.

        Raises:
            UnavailableError: the trace has external attention.
        """
        if self.made_by is None:
            raise UnavailableError(
                "This analysis needs the model that computed the attention, but the attention was "
                "loaded without its model. Open the model with load or wrap, and trace the text."
            )
        return self.made_by

    @property
    def architecture(self) -> str:
        """Return the model's class name, for error messages."""
        return str(self.provenance.get("architecture", "This model"))

    @cached_property
    def is_causal(self) -> bool:
        """Return whether each token attends only to itself and to earlier tokens, in every layer."""
        if self.made_by is not None:
            return self.made_by.initial_description.is_causal
        weights = (self.attention(layer) for layer in range(self.layers))
        return len(self.encoding) > 1 and not any(np.triu(layer, k=1).any() for layer in weights)

    @property
    def note(self) -> str:
        """Return notes to show with the attention: the `caveat`, and `CAUSAL` for a causal model."""
        return " ".join(sentence for sentence in (self.caveat, CAUSAL * self.is_causal) if sentence)

    @property
    def layers(self) -> int:
        """Return the number of layers, without the embeddings."""
        return len(self._attention_source)

    @property
    def heads(self) -> int:
        """Return the number of attention heads in a layer."""
        return int(self._attention_source[0].shape[0])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the data type of the queries, or of the attention weights in a trace without queries."""
        return self._attention_source[0].dtype

    @property
    def _attention_source(self) -> tuple[Array, ...]:
        """Return the arrays that determine the numbers of layers and heads and the dtype, one per layer.

        These are the queries, or the attention weights if the trace has no queries.
        """
        arrays = self.weights if self.queries is None else self.queries
        assert arrays is not None  # not None, as checked in `__post_init__`
        return arrays

    @property
    def cls(self) -> Array | None:
        """Return the last-layer vector of [CLS] or <s>, of shape [hidden]; None if there is none.

        The result is None if the first token is not special, or if the model is causal. In a causal model,
        the first token attends only to itself, so its vector would be the same for every text.

        Raises:
            UnavailableError: the trace has external attention without vectors.
        """
        return self.vectors(-1)[0] if self.tokens[0].special and not self.is_causal else None

    def __repr__(self) -> str:
        text = self.encoding.text
        return f"<Trace of {len(self.tokens)} tokens: “{text if len(text) <= 40 else f'{text[:39]}…'}”>"

    @property
    def nbytes(self) -> int:
        """Return the size of text, tokens and all arrays in bytes, including cached stacked arrays."""
        groups = (self.states, self.queries, self.keys, self.values, self.masks, self.weights)
        # Layers may share a mask; a shared mask counts once.
        unique = {id(array): array for group in groups for array in group or () if array is not None}
        stacked = [self.__dict__.get(name) for name in ("hidden_states", "q", "k", "v")]
        arrays = [*unique.values(), self.pooler, *stacked]
        return self.encoding.nbytes + sum(array.nbytes for array in arrays if array is not None)

    def vectors(self, layer: int) -> Array:
        """Return the token vectors of a layer, of shape [token, hidden]; layer 0 is the embedding output.

        Raises:
            SelectionError: the layer does not exist.
            UnavailableError: the trace has external attention without vectors.
        """
        return self._states()[resolve_index(layer, self.layers + 1, "layer")]

    def _states(self) -> tuple[Array, ...]:
        if not self.states:
            raise UnavailableError(
                "This analysis needs token vectors, but the attention was loaded without token vectors. "
                "Trace the text with a checkpoint from load or wrap."
            )
        return self.states

    def softcap(self, layer: int) -> float | None:
        """Return the limit for the scaled query-key products of a layer (0-based); None for no limit."""
        return self.softcaps[layer] if self.softcaps else None

    def head_view(
        self, layer: int = -1, heads: int | Sequence[int] | str = "mean", **options: Any
    ) -> bert_probe.HeadView:
        """Show the attention in a notebook as lines between tokens; see `bert_probe.head_view`."""
        import bert_probe

        return bert_probe.head_view(self, layer, heads, **options)

    def model_view(self, **options: Any) -> bert_probe.Frame:
        """Show thumbnails of all heads in a notebook; see `bert_probe.model_view`."""
        import bert_probe

        return bert_probe.model_view(self, **options)

    def scores(self, layer: int, head: int | None = None) -> Array:
        """Return the scores before the softmax, q·k × scaling + mask; -inf where masked.

        In a layer with a limit c (see `softcaps`), the scores are c × tanh(q·k × scaling ÷ c) + mask.

        Args:
            layer, head: indices from 0; negative indices count from the end. None for all heads.

        Returns:
            Scores of shape [head, query, key], or [query, key] for one head.

        Raises:
            SelectionError: the layer or head does not exist.
            UnavailableError: queries and keys of the architecture cannot be recorded.
        """
        layer = resolve_index(layer, self.layers, "layer")
        heads = self._heads(head)
        with memory_errors(self._no_memory):
            scores = self._scores(layer, heads).numpy()
        return scores if head is None else scores[0]

    def attention(self, layer: int, head: int | None = None) -> Array:
        """Return the attention weights, the softmax of the `scores`; Vaswani et al. 2017, eq. 1.

        Args:
            layer, head: indices from 0; negative indices count from the end. None for all heads.

        Returns:
            Weights of shape [head, query, key], or [query, key] for one head. Rows sum to 1, except in
            attention with a `caveat`; columns do not.

        Raises:
            SelectionError: the layer or head does not exist.
        """
        layer = resolve_index(layer, self.layers, "layer")
        weights = self.attention_of(layer, self._heads(head))
        return weights if head is None else weights[0]

    def attention_of(self, layer: int, heads: slice) -> Array:
        """Return attention of shape [head, query, key] for a slice of heads, without checking indices."""
        if self.weights is not None:
            return self.weights[layer][heads]
        import torch  # imported here because external attention and tokenization work without torch

        with memory_errors(self._no_memory):
            scores = self._scores(layer, heads)
            if scores.nbytes <= _WHOLE_BYTES:
                return torch.softmax(scores, dim=-1).numpy()
            for of_head in scores:
                of_head.copy_(torch.softmax(of_head, dim=-1))
            return scores.numpy()

    def mean_attention(self, layer: int) -> Array:
        """Return a layer's attention averaged over its heads, of shape [query, key]; rows sum to 1.

        Raises:
            SelectionError: the layer does not exist.
        """
        weights = self.attention(layer)
        with memory_errors(self._no_memory):
            mean: Array = weights.mean(axis=0)
        return mean

    @property
    def _no_memory(self) -> str:
        return (
            f"Attention over {len(self.encoding):,} tokens needs more memory than is available. "
            "Request one head at a time, or shorten the text."
        )

    def _stack(self, arrays: tuple[Array, ...]) -> Array:
        with memory_errors(
            f"Together, the arrays of {len(arrays)} layers need more memory than is available."
        ):
            return read_only(np.stack(arrays))

    def _heads(self, head: int | None) -> slice:
        """Return the slice that selects a head, or all heads if `head` is None.

        With an index instead of a slice, torch would use another kernel, which rounds differently.
        """
        if head is None:
            return slice(None)
        index = resolve_index(head, self.heads, "head")
        return slice(index, index + 1)

    def _scores(self, layer: int, heads: slice) -> torch.Tensor:
        if self.queries is None or self.keys is None or self.scaling is None or self.masks is None:
            raise UnavailableError(
                f"{self.architecture} does not expose its queries and keys, so its attention scores are "
                "unavailable. Its attention weights are available."
            )
        import torch

        check_attention_bytes(len(self.encoding), len(self.queries[layer][heads]))
        query, key = tensor_view(self.queries[layer][heads]), tensor_view(self.keys[layer][heads])
        scores = torch.matmul(query, key.transpose(-1, -2)).mul_(self.scaling[layer])
        softcap = self.softcap(layer)
        if softcap is not None:
            scores.div_(softcap).tanh_().mul_(softcap)
        mask = self.masks[layer]
        if mask is None:
            return scores
        added = tensor_view(mask[heads] if mask.ndim == 3 else mask)
        return scores.masked_fill_(~added, -torch.inf) if added.dtype == torch.bool else scores.add_(added)


class _Writeable:
    """Exposes the memory of an array as writeable through NumPy's array interface."""

    def __init__(self, array: Array) -> None:
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = array.__array_interface__ | {"data": (address, False)}
        self.array = array  # this reference keeps the array's memory allocated


def tensor_view(array: Array) -> torch.Tensor:
    """Return a tensor that shares the memory of an array, even a read-only one. Do not write to the tensor.

    `torch.from_numpy` warns about read-only arrays, and `torch.from_dlpack` rejects them before torch 2.9.
    """
    import torch  # imported here because external attention works without torch

    return torch.from_numpy(np.asarray(_Writeable(array)))


def read_only(array: Array) -> Array:
    """Make an array read-only and return it."""
    array.flags.writeable = False
    return array
