"""A trace: everything one text did in one forward pass, attention computed when asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_probe.errors import SelectionError, ShapeError, UnavailableError, memory_errors
from bert_probe.model.encoding import Encoding, Token

if TYPE_CHECKING:
    import torch

    import bert_probe
    from bert_probe.model.checkpoint import Checkpoint

Array = np.ndarray


def resolve(index: int, count: int, what: str) -> int:
    """A Python index, negative ones counting from the end, as one from 0 to ``count`` - 1.

    Raises:
        SelectionError: outside that range, or not a whole number.
    """
    if isinstance(index, bool) or not isinstance(index, int | np.integer):
        raise SelectionError(f"{what} must be a whole number, not {index!r}.")
    if not -count <= index < count:
        raise SelectionError(
            f"There is no {what} {index}: indices run from 0 to {count - 1}, or from -{count} to -1."
        )
    return int(index) % count


@dataclass(frozen=True, eq=False)
class Trace:
    """What a model did with one text, or attention that somebody gave for its tokens.

    All arrays are read-only, and float32; float64 where the model computes in it.

    Attributes:
        encoding: the tokens and what was given to the model.
        states: hidden states [token, hidden], one a layer after that of the embeddings; empty for attention
            that came without them.
        pooler: the pooler's output, [hidden], or None where the model has no pooler.
        provenance: model, weights, libraries and text that these numbers come from.
        queries, keys, values: [head, token, head dim], one a layer; None where the architecture
            hides them.
        scaling: the factor of q·k, one a layer; None where q and k are hidden.
        masks: one a layer, [query or 1, key] or [head, query or 1, key]: bool (True: may attend) or
            added to the scores; None where every token may attend to every other.
        weights: attention [head, query, key], one a layer, kept only where q and k are hidden.
        made_by: the checkpoint that ran; None for numbers that came from elsewhere.
        caveat: a sentence for whoever looks at the attention, where its rows do not sum to 1; else "".
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
    weights: tuple[Array, ...] | None = None
    made_by: Checkpoint | None = None
    caveat: str = ""

    def __post_init__(self) -> None:
        if (self.queries is None) == (self.weights is None):
            raise ShapeError("A trace holds either q, k and v or the attention weights.")
        length, layers = len(self.encoding), self.layers
        for name, parts, ndim, axis, count in (
            ("states", self.states or None, 2, 0, layers + 1),
            ("queries", self.queries, 3, 1, layers),
            ("keys", self.keys, 3, 1, layers),
            ("values", self.values, 3, 1, layers),
            ("weights", self.weights, 3, 1, layers),
        ):
            if parts is not None and (
                len(parts) != count or any(part.ndim != ndim or part.shape[axis] != length for part in parts)
            ):
                shapes = [part.shape for part in parts]
                raise ShapeError(
                    f"{name} has shapes {shapes}; {count} arrays over {length} tokens are needed."
                )
        self._check_attention_parts()

    def _check_attention_parts(self) -> None:
        """Refuse q, k, scaling and masks that cannot be multiplied and added together."""
        if self.weights is not None:
            if any(part.shape[1:] != (len(self.encoding),) * 2 for part in self.weights):
                raise ShapeError("weights must be [head, query, key] over the same tokens in each layer.")
            return
        if self.keys is None or self.values is None or self.scaling is None or self.masks is None:
            raise ShapeError("queries need their keys, values, scaling and masks.")
        assert self.queries is not None  # the constructor saw to it
        if not len(self.scaling) == len(self.masks) == self.layers:
            raise ShapeError(
                f"{len(self.scaling)} scalings and {len(self.masks)} masks for {self.layers} layers."
            )
        for query, key, value, mask in zip(self.queries, self.keys, self.values, self.masks, strict=True):
            if query.shape != key.shape or query.shape[:2] != value.shape[:2]:
                raise ShapeError(f"q {query.shape}, k {key.shape} and v {value.shape} do not fit together.")
            scores = (query.shape[0], query.shape[1], query.shape[1])
            if mask is not None and any(
                size not in (1, full) for size, full in zip(mask.shape[::-1], scores[::-1], strict=False)
            ):
                raise ShapeError(f"A mask of shape {mask.shape} does not fit scores of shape {scores}.")

    @cached_property
    def hidden_states(self) -> Array:
        """All hidden states, [layer + 1, token, hidden]; row 0 is the output of the embeddings.

        Raises:
            UnavailableError: the attention came without them.
        """
        return self._stack(self._held_states())

    @cached_property
    def q(self) -> Array | None:
        """Queries, [layer, head, token, head dim], as the attention function gets them (after
        rotary positions, where a model has them); None where the architecture hides them."""
        return None if self.queries is None else self._stack(self.queries)

    @cached_property
    def k(self) -> Array | None:
        """Keys, like `q`; grouped ones are repeated for each of their heads."""
        return None if self.keys is None else self._stack(self.keys)

    @cached_property
    def v(self) -> Array | None:
        """Values, like `q`; grouped ones are repeated for each of their heads."""
        return None if self.values is None else self._stack(self.values)

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The tokens, in input order; each is a `str` with its position, id, segment and word."""
        return self.encoding.tokens

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint that made this trace.

        Raises:
            UnavailableError: none did.
        """
        if self.made_by is None:
            raise UnavailableError(
                "These numbers were not made by a model that is open here, and this needs one. "
                "Open it with load or wrap, and trace the text."
            )
        return self.made_by

    @property
    def architecture(self) -> str:
        """The model's class, for messages."""
        return str(self.provenance.get("architecture", "This model"))

    @property
    def layers(self) -> int:
        """Number of layers, the embeddings not counted."""
        return len(self._attending)

    @property
    def heads(self) -> int:
        """Attention heads in a layer."""
        return int(self._attending[0].shape[0])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of all its numbers."""
        return self._attending[0].dtype

    @property
    def _attending(self) -> tuple[Array, ...]:
        """What the attention is computed from, or the attention itself: an array a layer, heads first."""
        parts = self.weights if self.queries is None else self.queries
        assert parts is not None  # the constructor saw to it
        return parts

    @property
    def cls(self) -> Array | None:
        """Last-layer vector of [CLS] (or <s>), [hidden]; None if no special token comes first.

        Raises:
            UnavailableError: the attention came without vectors.
        """
        return self.vectors(-1)[0] if self.tokens[0].special else None

    @property
    def nbytes(self) -> int:
        """Bytes of text, tokens and all arrays held, those stacked on request included."""
        groups = (self.states, self.queries, self.keys, self.values, self.masks, self.weights)
        # Layers may share one mask, which counts once.
        held = {id(array): array for group in groups for array in group or () if array is not None}
        stacked = [self.__dict__.get(name) for name in ("hidden_states", "q", "k", "v")]
        arrays = [*held.values(), self.pooler, *stacked]
        return self.encoding.nbytes + sum(array.nbytes for array in arrays if array is not None)

    def vectors(self, layer: int) -> Array:
        """Token vectors after a layer, [token, hidden]; 0 is the output of the embeddings.

        Raises:
            SelectionError: no such layer.
            UnavailableError: the attention came without vectors.
        """
        return self._held_states()[resolve(layer, self.layers + 1, "layer")]

    def _held_states(self) -> tuple[Array, ...]:
        if not self.states:
            raise UnavailableError(
                "This is attention without the vectors of its tokens, which are needed here. "
                "Trace the text with a checkpoint of load or wrap."
            )
        return self.states

    def head_view(
        self, layer: int = -1, heads: int | Sequence[int] | str = "mean", **more: Any
    ) -> bert_probe.HeadView:
        """Its attention in a notebook, as lines from token to token; see `bert_probe.head_view`."""
        import bert_probe

        return bert_probe.head_view(self, layer, heads, **more)

    def model_view(self, **more: Any) -> bert_probe.Frame:
        """All its heads in a notebook, small; see `bert_probe.model_view`."""
        import bert_probe

        return bert_probe.model_view(self, **more)

    def scores(self, layer: int, head: int | None = None) -> Array:
        """Scaled scores before the softmax, q·k × scaling + mask; -inf where masked.

        Returns:
            [head, query, key], or [query, key] of one head.

        Raises:
            SelectionError: no such layer or head.
            UnavailableError: the architecture hides its queries and keys.
        """
        layer = resolve(layer, self.layers, "layer")
        heads = self._heads(head)
        with memory_errors(self._no_memory):
            scores = self._scores(layer, heads).numpy()
        return scores if head is None else scores[0]

    def attention(self, layer: int, head: int | None = None) -> Array:
        """Attention weights, softmax(q·kᵀ × scaling + mask); Vaswani et al. 2017, eq. 1.

        Args:
            layer, head: from 0; negative ones count from the end. No head: all of them.

        Returns:
            [head, query, key], or [query, key] of one head. Each row sums to 1, but for attention with a
            `caveat`; columns do not.

        Raises:
            SelectionError: no such layer or head.
        """
        layer = resolve(layer, self.layers, "layer")
        weights = self.attention_of(layer, self._heads(head))
        return weights if head is None else weights[0]

    def attention_of(self, layer: int, heads: slice) -> Array:
        """`attention` of a layer and some heads, both from 0 and there: [head, query, key]."""
        if self.weights is not None:
            return self.weights[layer][heads]
        import torch  # not above: a trace that was given has no use for it, nor has who reads tokens alone

        with memory_errors(self._no_memory):
            return torch.softmax(self._scores(layer, heads), dim=-1).numpy()

    def mean_attention(self, layer: int) -> Array:
        """Attention weights of a layer averaged over its heads, [query, key]; rows sum to 1.

        Raises:
            SelectionError: no such layer.
        """
        weights = self.attention(layer)
        with memory_errors(self._no_memory):
            mean: Array = weights.mean(axis=0)
        return mean

    @property
    def _no_memory(self) -> str:
        return (
            f"Attention over {len(self.encoding):,} tokens needs more memory than this machine has free. "
            "Ask for one head at a time, or shorten the text."
        )

    def _stack(self, parts: tuple[Array, ...]) -> Array:
        with memory_errors(f"{len(parts)} layers together need more memory than this machine has free."):
            return read_only(np.stack(parts))

    def _heads(self, head: int | None) -> slice:
        """One head or all, as a slice: the same kernel then gives the same last digit for both."""
        if head is None:
            return slice(None)
        chosen = resolve(head, self.heads, "head")
        return slice(chosen, chosen + 1)

    def _scores(self, layer: int, heads: slice) -> torch.Tensor:
        if self.queries is None or self.keys is None or self.scaling is None or self.masks is None:
            raise UnavailableError(
                f"{self.architecture} hides its queries and keys, so there are no scores. "
                "Its attention weights are available."
            )
        import torch
        from torch.utils.dlpack import from_dlpack

        query, key = from_dlpack(self.queries[layer][heads]), from_dlpack(self.keys[layer][heads])
        scores = torch.matmul(query, key.transpose(-1, -2)).mul_(self.scaling[layer])
        mask = self.masks[layer]
        if mask is None:
            return scores
        seen = from_dlpack(mask[heads] if mask.ndim == 3 else mask)
        return scores.masked_fill_(~seen, -torch.inf) if seen.dtype == torch.bool else scores.add_(seen)


def read_only(array: Array) -> Array:
    """The same array, refusing writes from now on."""
    array.flags.writeable = False
    return array
