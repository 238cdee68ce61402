"""Value zeroing: what a layer makes of a token when it cannot read another one's value."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from bert_probe.analyses.cosine import cosine_of_rows
from bert_probe.analyses.measures import Measure
from bert_probe.errors import TooLongError, UnavailableError, memory_errors
from bert_probe.model.capture import AttentionCall, changing, recording
from bert_probe.model.forward import BATCH_TOKENS, run_plainly
from bert_probe.model.progress import Report, ignore
from bert_probe.model.trace import Array, Trace, read_only, resolve

MOST = 1024
"""Tokens; the layer runs once for each of them, so the work grows with their square."""

_known: WeakKeyDictionary[Trace, dict[int, Array]] = WeakKeyDictionary()
"""What was computed, by layer, as long as the trace is there: at most 4 MB of a layer in float32."""


def value_zeroing(trace: Trace, layer: int, report: Report = ignore) -> Array:
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
    with memory_errors(no_memory), trace.checkpoint.running():
        report(0, length)
        step = _layer_step(trace, layer)
        # One row of weights and values for each zeroed key, on the model's device.
        weights = from_dlpack(trace.attention(layer)).to(trace.checkpoint.device)
        values = from_dlpack(trace.values[layer]).to(trace.checkpoint.device)
        untouched = step.run(None)[0]
        changes = np.empty((length, length), dtype=trace.states[layer].dtype)
        size = max(1, BATCH_TOKENS // length)
        for first in range(0, length, size):
            keys = torch.arange(first, min(first + size, length), device=weights.device)
            for key, vectors in zip(keys.tolist(), step.run(_Zeroed(keys, weights, values)), strict=True):
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


@dataclass(frozen=True, eq=False)
class _LayerStep:
    """One layer of the model with what it was given for a text, to be run again by itself."""

    trace: Trace
    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def run(self, zeroed: _Zeroed | None) -> Array:
        """The layer's output, [row, token, hidden]: as it is, or a row for each zeroed key."""
        if zeroed is None:
            return self._vectors(self.module, self.args, self.kwargs)
        args, kwargs = _rows((self.args, dict(self.kwargs)), len(zeroed.keys))
        with changing(zeroed):
            return self._vectors(self.module, args, kwargs)

    def _vectors(self, module: torch.nn.Module, args: Any, kwargs: Any) -> Array:
        with torch.inference_mode(), self.trace.checkpoint.running():
            vectors: Array = _first(module(*args, **kwargs)).double().cpu().numpy()
        return vectors


def _rows(given: Any, count: int) -> Any:
    """The same with every tensor of a batch of one as a batch of ``count`` equal rows."""
    if isinstance(given, torch.Tensor):
        return given.expand(count, *given.shape[1:]) if given.ndim > 1 and len(given) == 1 else given
    if isinstance(given, dict):
        return {name: _rows(value, count) for name, value in given.items()}
    return tuple(_rows(value, count) for value in given) if type(given) in (tuple, list) else given


def _first(output: Any) -> Any:
    """A layer returns its vectors, or a tuple that begins with them."""
    return output[0] if isinstance(output, tuple) else output


def _layer_step(trace: Trace, layer: int) -> _LayerStep:
    """The layer, found by watching the text pass through the model: the outermost module below the model
    within which this layer's attention is called and no other's."""
    checkpoint = trace.checkpoint
    found: list[_LayerStep] = []
    with (
        checkpoint.running() as model,
        recording() as calls,
        _watched(model, lambda: len(calls)) as seen,
    ):
        run_plainly(checkpoint, trace.encoding)
    for module, before, after, args, kwargs, output in seen:
        vectors = _first(output)
        whole = isinstance(vectors, torch.Tensor) and vectors.shape[:2] == (1, len(trace.tokens))
        if (before, after) == (layer, layer + 1) and whole and vectors.ndim == 3:
            found.append(_LayerStep(trace, module, args, kwargs))
    if not found:
        raise UnavailableError(f"{trace.architecture} does not show its layers one by one.")
    return found[-1]  # what ends last holds all the others


Call = tuple[torch.nn.Module, int, int, tuple[Any, ...], dict[str, Any], Any]
"""A module's call: attention calls counted before and after it, what it was given, what it returned."""


@contextmanager
def _watched(model: torch.nn.Module, counted: Any) -> Iterator[list[Call]]:
    """Calls of all modules within the model in this thread, in the order in which they end."""
    seen: list[Call] = []
    began: list[int] = []
    me = threading.get_ident()

    def begin(_module: torch.nn.Module, _args: Any) -> None:
        if threading.get_ident() == me:
            began.append(counted())

    def end(module: torch.nn.Module, args: Any, *rest: Any) -> None:
        # Another thread may call it while it is being taken away, and then without the keywords.
        if threading.get_ident() == me:
            kwargs, output = rest
            seen.append((module, began.pop(), counted(), args, kwargs, output))

    hooks: list[Any] = []
    try:
        for module in set(model.modules()) - {model}:
            hooks.append(module.register_forward_pre_hook(begin))
            hooks.append(module.register_forward_hook(end, with_kwargs=True))
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _kept(trace: Trace, layer: int, _residual: float, report: Report) -> Array:
    """`value_zeroing`, once for each layer of a trace: words, and special tokens left out, come from it."""
    known = _known.setdefault(trace, {})
    layer = resolve(layer, trace.layers, "layer")
    if layer not in known:
        known[layer] = read_only(value_zeroing(trace, layer, report))
    return known[layer]


def _takes_long(trace: Trace, layer: int) -> bool:
    return resolve(layer, trace.layers, "layer") not in _known.get(trace, {})


MEASURE = Measure(
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
