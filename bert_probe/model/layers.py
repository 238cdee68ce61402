"""The layers of a model one by one, found by watching a text pass through it, to be run again alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bert_probe.errors import UnavailableError
from bert_probe.model.capture import recording
from bert_probe.model.forward import as_array, batch
from bert_probe.model.trace import Trace


@dataclass(frozen=True, eq=False)
class ModuleCall:
    """A module's call within a pass.

    Attributes:
        before, after: attention calls counted before it and after it.
        args, kwargs: what it was given.
        output: what it returned.
    """

    module: torch.nn.Module
    before: int
    after: int
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Any

    @property
    def vectors(self) -> Any:
        """Of its output."""
        return _vectors(self.output)

    @property
    def given(self) -> Any:
        """The vectors that a layer reads, [1, token, hidden]; None for a module that is given none so."""
        return self.args[0] if self.args else self.kwargs.get("hidden_states")

    def on(self, states: torch.Tensor) -> Any:
        """The same module on other vectors, [row, token, hidden], everything else as it was."""
        kwargs = _rows(dict(self.kwargs), len(states))
        if not self.args:
            return _vectors(self.module(**{**kwargs, "hidden_states": states}))
        return _vectors(self.module(states, *_rows(self.args[1:], len(states)), **kwargs))


def _vectors(output: Any) -> Any:
    """A layer returns its vectors, or a tuple that begins with them."""
    return output[0] if isinstance(output, tuple) else output


@dataclass(frozen=True, eq=False)
class ForwardPass:
    """A text's way through the layers, in the model's own precision, on its device.

    Attributes:
        trace: of the text.
        calls: of all modules, in the order in which they end.
        heads: what each layer's heads returned, [token, head, head dim].
        states: hidden states [token, hidden], one a layer after that of the embeddings.
    """

    trace: Trace
    calls: tuple[ModuleCall, ...]
    heads: tuple[torch.Tensor, ...]
    states: tuple[torch.Tensor, ...]

    def layer(self, layer: int) -> ModuleCall:
        """The outermost module below the model within which this layer's attention is called and no other's.

        Raises:
            UnavailableError: there is none.
        """
        found = [
            call
            for call in self.calls
            if (call.before, call.after) == (layer, layer + 1) and self._whole(call.vectors)
        ]
        if not found:
            raise UnavailableError(f"{self.trace.architecture} does not show its layers one by one.")
        return found[-1]  # what ends last holds all the others

    def steps(self) -> tuple[ModuleCall, ...]:
        """The layers, and the norm that follows the last one where there is any; each is given what the one
        before it returned, and the last one returns the last hidden state.

        Raises:
            UnavailableError: the model does more between its layers than hand vectors on.
        """
        steps = [self.layer(layer) for layer in range(self.trace.layers)]
        if (norm := self.norm) is not None:
            steps.append(norm)
        ends = [*(step.given for step in steps[1:]), self.states[-1][None]]
        if not all(
            self._whole(end) and torch.equal(step.vectors, end) for step, end in zip(steps, ends, strict=True)
        ):
            raise UnavailableError(
                f"{self.trace.architecture} does more between its layers than pass vectors on."
            )
        return tuple(steps)

    @property
    def norm(self) -> ModuleCall | None:
        """What belongs to no layer and makes the last hidden state: the norm in which some models end.

        Raises:
            UnavailableError: no module makes it.
        """
        found = [
            call
            for call in self.calls
            if self._whole(call.vectors) and torch.equal(call.vectors[0], self.states[-1])
        ]
        if not found:
            raise UnavailableError(f"{self.trace.architecture} does not show its layers one by one.")
        # What ends last holds all the others: a layer, which has parts, or a norm, which has none.
        return None if [*found[-1].module.children()] else found[-1]

    def check_pooler(self) -> None:
        """Whether `pooled` makes of the last layer what the model made of it.

        Raises:
            UnavailableError: families name their poolers in different ways, and this one's is not known here.
        """
        expected = self.trace.pooler
        if expected is None:
            return
        pooled = self.pooled(self.states[-1][None])
        assert pooled is not None  # there is an output of it
        off = float(np.abs(as_array(pooled)[0] - expected).max())
        if not off <= max(1e-5, 16 * torch.finfo(self.states[-1].dtype).eps):
            raise UnavailableError(
                f"The pooler of {self.trace.architecture} is not known here, so its answer "
                "cannot be followed through the layers."
            )

    def pooled(self, states: torch.Tensor) -> torch.Tensor | None:
        """What the pooler makes of last hidden states [row, token, hidden]; of a bare layer, its tanh.

        None where the model has none.
        """
        if self.trace.pooler is None:
            return None
        pooler: Any = self.trace.checkpoint.model.get_submodule("pooler")
        found: torch.Tensor = (
            torch.tanh(pooler(states[:, 0])) if isinstance(pooler, torch.nn.Linear) else pooler(states)
        )
        return found

    def _whole(self, vectors: Any) -> bool:
        return (
            isinstance(vectors, torch.Tensor)
            and vectors.ndim == 3
            and vectors.shape[:2] == (1, len(self.trace.tokens))
        )


def passing(trace: Trace) -> ForwardPass:
    """Watch a text pass through the model that made its trace.

    Whoever calls it is within `Checkpoint.running`, and in `torch.inference_mode`; or, where gradients are to
    pass through its layers later, in `torch.no_grad`.
    """
    checkpoint = trace.checkpoint
    with checkpoint.running() as model, recording() as heads, _watched(model, lambda: len(heads)) as seen:
        output = model(**batch(checkpoint, [trace.encoding]), output_hidden_states=True)
    return ForwardPass(
        trace,
        tuple(seen),
        tuple(call.output[0] for call in heads),
        tuple(states[0] for states in output.hidden_states),
    )


def _rows(given: Any, count: int) -> Any:
    """The same with every tensor of a batch of one as a batch of ``count`` equal rows."""
    if isinstance(given, torch.Tensor):
        return given.expand(count, *given.shape[1:]) if given.ndim > 1 and len(given) == 1 else given
    if isinstance(given, dict):
        return {name: _rows(value, count) for name, value in given.items()}
    return tuple(_rows(value, count) for value in given) if type(given) in (tuple, list) else given


@contextmanager
def _watched(model: torch.nn.Module, counted: Callable[[], int]) -> Iterator[list[ModuleCall]]:
    """Calls of all modules within the model in this thread, in the order in which they end."""
    seen: list[ModuleCall] = []
    began: list[int] = []
    me = threading.get_ident()

    def begin(_module: torch.nn.Module, _args: Any) -> None:
        if threading.get_ident() == me:
            began.append(counted())

    def end(module: torch.nn.Module, args: Any, *rest: Any) -> None:
        # Another thread may call it while it is being taken away, and then without the keywords.
        if threading.get_ident() == me:
            kwargs, output = rest
            seen.append(ModuleCall(module, began.pop(), counted(), args, kwargs, output))

    hooks: list[Any] = []
    try:
        for module in set(model.modules()) - {model}:
            hooks.append(module.register_forward_pre_hook(begin))
            hooks.append(module.register_forward_hook(end, with_kwargs=True))
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
