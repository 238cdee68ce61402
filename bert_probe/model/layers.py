"""Find a model's layers with hooks during one forward pass, so that each layer can be run separately."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from bert_probe.errors import UnavailableError
from bert_probe.model.capture import recording
from bert_probe.model.forward import as_array, batch, layer_states
from bert_probe.model.trace import Trace


@dataclass(frozen=True, eq=False)
class ModuleCall:
    """A call of a module during a forward pass.

    Attributes:
        module: the called module.
        attention_calls_before, attention_calls_after: number of attention calls recorded up to the start and
            up to the end of the call.
        args, kwargs: arguments of the call.
        output: return value of the call.
    """

    module: torch.nn.Module
    attention_calls_before: int
    attention_calls_after: int
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Any

    @property
    def vectors(self) -> Any:
        """Return the output of the call, or the first item if the output is a tuple or list."""
        return _vectors(self.output)

    @property
    def input_states(self) -> Any:
        """Return the vectors passed to the module, [1, token, hidden]; None for a call without vectors."""
        return self.args[0] if self.args else self.kwargs.get("hidden_states")

    def on(self, states: torch.Tensor) -> Any:
        """Run the module on new vectors of shape [row, token, hidden]; other arguments are as recorded."""
        states = states.contiguous()  # OpenAI GPT cannot read expanded tensors
        kwargs = _rows(dict(self.kwargs), len(states))
        if isinstance(alibi := self.kwargs.get("alibi"), torch.Tensor):
            # The first dimension in BLOOM and Falcon contains the heads of all rows.
            kwargs["alibi"] = alibi.repeat(len(states), *[1] * (alibi.ndim - 1))
        if not self.args:
            return _vectors(self.module(**{**kwargs, "hidden_states": states}))
        return _vectors(self.module(states, *_rows(self.args[1:], len(states)), **kwargs))


def _vectors(output: Any) -> Any:
    """Return a layer's vectors: its output, or the first item of an output tuple or list (OpenAI GPT)."""
    return output[0] if isinstance(output, tuple | list) and output else output


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """A recorded forward pass of a text, in the model's dtype and on its device.

    Attributes:
        trace: the trace of the text.
        calls: calls of all modules, in the order in which they ended.
        heads: outputs of the attention heads in each layer, of shape [token, head, head dim].
        states: hidden states of shape [token, hidden]: the embedding output, then one per layer.
    """

    trace: Trace
    calls: tuple[ModuleCall, ...]
    heads: tuple[torch.Tensor, ...]
    states: tuple[torch.Tensor, ...]

    def layer(self, layer: int) -> ModuleCall:
        """Return the module call that computes a layer.

        It is the call of the outermost module that contains the attention call of this layer and no other.

        Args:
            layer: layer, from 0.

        Raises:
            UnavailableError: no module contains exactly this attention call, or the module's output is not
                the output of the layer.
        """
        candidates = [
            call
            for call in self.calls
            if (call.attention_calls_before, call.attention_calls_after) == (layer, layer + 1)
            and self._has_all_tokens(call.vectors)
        ]
        if not candidates:
            raise UnavailableError(
                f"{self.trace.architecture} does not compute its layers in separate modules."
            )
        call = candidates[-1]  # the outermost call ends last
        norm = self.norm if layer + 1 == self.trace.layers else None
        self._check_end(call, self.states[layer + 1][None] if norm is None else norm.input_states)
        return call

    def steps(self) -> tuple[ModuleCall, ...]:
        """Return the calls of the layers and, if present, the final norm, each of which feeds the next call.

        Raises:
            UnavailableError: the model changes the vectors between its layers; see also `layer` and `norm`.
        """
        steps = [self.layer(layer) for layer in range(self.trace.layers)]
        if (norm := self.norm) is not None:
            steps.append(norm)
        for step, following in pairwise(steps):
            self._check_end(step, following.input_states)
        return tuple(steps)

    def _check_end(self, call: ModuleCall, end: Any) -> None:
        """Raise UnavailableError unless `end`, the input of the next module, equals the output of `call`."""
        if not (self._has_all_tokens(end) and torch.equal(call.vectors, end)):
            raise UnavailableError(
                f"{self.trace.architecture} changes the vectors between its layers, so they cannot be run "
                "separately."
            )

    @property
    def norm(self) -> ModuleCall | None:
        """The recorded call of the normalization module after the last layer; None if the model has none.

        Raises:
            UnavailableError: no module computes the last hidden state.
        """
        candidates = [
            call
            for call in self.calls
            if self._has_all_tokens(call.vectors)
            and torch.equal(call.vectors[0], self.states[-1])
            and call.module.__class__ is not torch.nn.Dropout  # follows the norm in T5
        ]
        if not candidates:
            raise UnavailableError(
                f"{self.trace.architecture} does not compute its layers in separate modules."
            )
        # The outermost call ends last. A module with children is a layer; one without children is a norm.
        call = candidates[-1]
        modules = self.trace.checkpoint.model.modules()
        lists = [module for module in modules if isinstance(module, torch.nn.ModuleList)]
        is_of_layer = any(call.module is module for modules in lists for module in modules)  # XLM, FlauBERT
        return None if is_of_layer or [*call.module.children()] else call

    def check_pooler(self) -> None:
        """Check that `pooled` reproduces the model's pooler output.

        Raises:
            UnavailableError: the outputs differ, because the pooler of this model family is not supported.
        """
        expected = self.trace.pooler
        if expected is None:
            return
        pooled = self.pooled(self.states[-1][None])
        assert pooled is not None  # not None, because the trace has pooler output
        difference = float(np.abs(as_array(pooled)[0] - expected).max())
        if not difference <= max(1e-5, 4 * torch.finfo(self.states[-1].dtype).eps):
            raise UnavailableError(
                f"The pooler of {self.trace.architecture} is not supported, so its output cannot be "
                "recomputed from the layers."
            )

    def pooled(self, states: torch.Tensor) -> torch.Tensor | None:
        """Apply the pooler to last hidden states, [row, token, hidden]; None if there is no pooler."""
        if self.trace.pooler is None:
            return None
        return apply_pooler(self.trace.checkpoint.model.get_submodule("pooler"), states)

    def _has_all_tokens(self, vectors: Any) -> bool:
        return (
            isinstance(vectors, torch.Tensor)
            and vectors.ndim == 3
            and vectors.shape[:2] == (1, len(self.trace.tokens))
        )


def apply_pooler(pooler: torch.nn.Module, states: torch.Tensor) -> torch.Tensor:
    """Apply a pooler to last hidden states of shape [row, token, hidden].

    If the pooler is only a linear layer, as in ALBERT, tanh is applied to its output for the first token.
    """
    pooled: torch.Tensor = (
        torch.tanh(pooler(states[:, 0])) if isinstance(pooler, torch.nn.Linear) else pooler(states)
    )
    return pooled


def record_forward_pass(trace: Trace) -> ForwardPass:
    """Run the model of a trace on its text again, and record the calls of all modules.

    Call this function inside `Checkpoint.running` and `torch.inference_mode`, or `torch.no_grad` if gradients
    must pass through the layers later.
    """
    checkpoint = trace.checkpoint
    with (
        checkpoint.running() as model,
        recording() as attention_calls,
        _recorded_calls(model, lambda: len(attention_calls)) as module_calls,
    ):
        output = model(**batch(checkpoint, [trace.encoding]), output_hidden_states=True)
    return ForwardPass(
        trace,
        tuple(module_calls),
        tuple(call.output[0] for call in attention_calls),
        tuple(states[0] for states in layer_states(output)),
    )


def _rows(value: Any, count: int) -> Any:
    """Expand every tensor with batch size 1 to ``count`` equal rows, recursively.

    Integer tensors are positions or distances, which are equal in all rows. These tensors stay unchanged,
    because DeBERTa accepts only one row.
    """
    if isinstance(value, torch.Tensor):
        is_batch = value.ndim > 0 and len(value) == 1 and value.dtype != torch.long
        return value.expand(count, *value.shape[1:]) if is_batch else value
    if isinstance(value, dict):
        return {name: _rows(item, count) for name, item in value.items()}
    return tuple(_rows(item, count) for item in value) if type(value) in (tuple, list) else value


@contextmanager
def _recorded_calls(model: torch.nn.Module, count_calls: Callable[[], int]) -> Iterator[list[ModuleCall]]:
    """Yield a list that collects the calls of all submodules in this thread, in the order in which they end.

    Args:
        count_calls: returns the number of attention calls so far.
    """
    calls: list[ModuleCall] = []
    counts_before: list[int] = []
    thread_id = threading.get_ident()

    def begin(_module: torch.nn.Module, _args: Any) -> None:
        if threading.get_ident() == thread_id:
            counts_before.append(count_calls())

    def end(module: torch.nn.Module, args: Any, *remaining: Any) -> None:
        # While the hook is being removed, another thread may call it without the keyword arguments.
        if threading.get_ident() == thread_id:
            kwargs, output = remaining
            calls.append(ModuleCall(module, counts_before.pop(), count_calls(), args, kwargs, output))

    hooks: list[Any] = []
    try:
        for module in set(model.modules()) - {model}:
            hooks.append(module.register_forward_pre_hook(begin))
            hooks.append(module.register_forward_hook(end, with_kwargs=True))
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def module_tree(model: torch.nn.Module) -> Iterator[tuple[int, str, str, int]]:
    """Yield depth (from 0), name, class name and number of parameters of each module, in module order."""
    for name, module in model.named_modules():
        depth = 0 if not name else name.count(".") + 1
        count = sum(parameter.numel() for parameter in module.parameters())
        yield depth, name.rpartition(".")[2], type(module).__name__, count
