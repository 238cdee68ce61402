"""How an answer depends on what went before it: passes through which gradients flow, in one thread alone.

Nothing here changes the model that others share: what is put in its place is put there for this thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from bert_probe.errors import UnavailableError
from bert_probe.model.capture import AttentionCall
from bert_probe.model.forward import batch
from bert_probe.model.layers import ForwardPass, ModuleCall, passing
from bert_probe.model.trace import Trace

_NORMS = {F.layer_norm, torch.layer_norm}
_SHARES = {F.softmax, torch.softmax, torch.Tensor.softmax}
_CURVES = {torch.tanh, torch.Tensor.tanh, torch.relu, F.relu, F.gelu, F.silu, torch.sigmoid}


@dataclass(frozen=True, eq=False)
class ForwardFromEmbeddings:
    """From the output of the embeddings to what a trained head reads, with gradients.

    Attributes:
        passed: the text's own pass.
        steps: the layers, and a norm after them where there is one.
        inputs: what the model is given, [1, token].
    """

    passed: ForwardPass
    steps: tuple[ModuleCall, ...]
    inputs: Mapping[str, torch.Tensor]

    def start(self) -> torch.Tensor:
        """The output of the embeddings, [1, token, hidden], of which a gradient can be taken."""
        return self.passed.states[0][None].detach().clone().requires_grad_()

    def to_end(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The last hidden states, [row, token, hidden], and the pooler's output, [row, hidden], or None."""
        for step in self.steps:
            states = step.on(states)
        return states, self.passed.pooled(states)


@contextmanager
def onward(trace: Trace) -> Iterator[ForwardFromEmbeddings]:
    """A text's way through the model again, through which gradients flow.

    Raises:
        UnavailableError: the architecture does not show its layers one by one, or no model made the trace.
    """
    checkpoint = trace.checkpoint
    with checkpoint.running():
        with torch.no_grad():
            passed = passing(trace)
            passed.check_pooler()
            steps = passed.steps()
        with torch.enable_grad():
            yield ForwardFromEmbeddings(passed, steps, batch(checkpoint, [trace.encoding]))


class AttentionWithWeights:
    """Change for `capture.changing`: attention with its weights in sight, which it keeps.

    Attributes:
        weights: of each layer, [batch, head, query, key], in the graph.
    """

    def __init__(self) -> None:
        self.weights: list[torch.Tensor] = []

    def __call__(self, _layer: int, call: AttentionCall) -> torch.Tensor:
        """What the heads return, by way of the weights."""
        weights, output = _attention(call.query, call.key, call.value, call.mask, call.scaling)
        self.weights.append(weights)
        return output.transpose(1, 2)


def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights [batch, head, query, key], and what they make of the values, [batch, head, query, dim]."""
    groups = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
    scores = query @ key.transpose(-1, -2) * scaling
    if mask is not None:
        mask = mask[..., : scores.shape[-2], : scores.shape[-1]]
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    weights = scores.softmax(dim=-1)
    return weights, weights @ value


class MathAttention(TorchFunctionMode):
    """Attention by its formula instead of the fused kernel, which knows no forward-mode derivative."""

    def __torch_function__(
        self, func: Any, _types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Every function of torch comes through here, and all but one are as they were."""
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention:
            return func(*args, **kwargs)
        query, key, value = args[:3]
        scaling = kwargs.get("scale") or query.shape[-1] ** -0.5
        return _attention(query, key, value, kwargs.get("attn_mask"), scaling)[1]


class LinearizedModel(TorchFunctionMode):
    """Everything that is not linear becomes a factor that no gradient passes through.

    Attention weights, the spread that a norm divides by, and the ratio of what a curve returns to what it is
    given: DecompX, Modarressi et al. 2023, section 3. Values stay as they are.

    Attributes:
        added: all that was added on the way and depends on no input, to take gradients of.
    """

    def __init__(self) -> None:
        super().__init__()
        self.added: list[torch.Tensor] = []

    def __torch_function__(
        self, func: Any, _types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Every function of torch comes through here."""
        kwargs = kwargs or {}
        if func is F.linear:
            return self._linear(*args, **kwargs)
        if func in _NORMS:
            return self._norm(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            query, key, *rest = args
            return func(query.detach(), key.detach(), *rest, **kwargs)
        if func in _SHARES:
            return func(args[0].detach(), *args[1:], **kwargs)
        if func in _CURVES or func is F.normalize:
            return as_factor(args[0], func(*args, **kwargs))
        if func is F.cosine_similarity:
            one, other, cosine = args[0], args[1], func(*args, **kwargs)
            product = (one * other).sum(dim=-1)
            return as_factor(product, cosine)
        return func(*args, **kwargs)

    def _adding(self, bias: torch.Tensor | None) -> torch.Tensor | None:
        """The same numbers, of which a gradient can be taken whatever the model allows of its own."""
        if bias is None:
            return None
        self.added.append(bias.detach().clone().requires_grad_())
        return self.added[-1]

    def _linear(
        self, given: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return F.linear(given, weight, self._adding(bias))

    def _norm(
        self,
        given: torch.Tensor,
        shape: Sequence[int],
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        eps: float = 1e-5,
        *_more: Any,
    ) -> torch.Tensor:
        axes = tuple(range(-len(shape), 0))
        centred = given - given.mean(dim=axes, keepdim=True)
        spread = (centred.detach() ** 2).mean(dim=axes, keepdim=True)
        scaled = centred * torch.rsqrt(spread + eps)
        scaled = scaled if weight is None else scaled * weight
        added = self._adding(bias)
        return scaled if added is None else scaled + added


def as_factor(given: torch.Tensor, returned: torch.Tensor) -> torch.Tensor:
    """What a curve returns, as what it is given times a factor that no gradient passes through."""
    factor = torch.where(given == 0, torch.zeros_like(given), returned / given)
    return given * factor.detach()


@contextmanager
def frozen(*models: torch.nn.Module) -> Iterator[LinearizedModel]:
    """Let everything in this thread that is not linear be a fixed factor.

    Args:
        models: whose activations may be made of several functions, and are taken as a whole.
    """
    me = threading.get_ident()

    def hook(_module: torch.nn.Module, args: Any, output: Any) -> Any:
        return as_factor(args[0], output) if threading.get_ident() == me else None

    with ExitStack() as stack:
        for module in {module for model in models for module in model.modules()}:
            if type(module).__module__ == "transformers.activations":
                stack.callback(module.register_forward_hook(hook).remove)
        yield stack.enter_context(LinearizedModel())


class InputEmbeddings(torch.nn.Module):
    """The model's table of input words, as a module of its own that may be hooked; its weights are shared."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.__dict__["table"] = model.get_input_embeddings()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Vectors of tokens, [row, token, size]."""
        vectors: torch.Tensor = self.__dict__["table"](ids)
        return vectors


def from_vectors(
    trace: Trace, model: Any, vectors: torch.Tensor, inputs: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The model on input vectors of words in place of their ids.

    Args:
        vectors: [row, token, size]; inputs: what it is given beside them, [1, token].

    Returns:
        The last hidden states, [row, token, hidden], and the pooler's output, [row, hidden], or None.

    Raises:
        UnavailableError: it takes ids alone.
    """
    others = {name: values.expand(len(vectors), -1) for name, values in inputs.items() if name != "input_ids"}
    try:
        output = model(inputs_embeds=vectors, **others)
    except (TypeError, ValueError, NotImplementedError) as error:
        raise UnavailableError(
            f"{trace.architecture} takes words only, and no vectors in their place, so there is no way from "
            "one text to another for it."
        ) from error
    return output.last_hidden_state, getattr(output, "pooler_output", None)
