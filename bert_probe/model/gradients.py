"""Run forward passes with gradients for attribution methods.

Functions of torch are replaced for the current thread only, so other threads may use the model concurrently.
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
from bert_probe.model.capture import AttentionCall, attention
from bert_probe.model.forward import batch
from bert_probe.model.layers import ForwardPass, ModuleCall, record_forward_pass
from bert_probe.model.trace import Trace

_NORMS = {F.layer_norm, torch.layer_norm}
_SOFTMAXES = {F.softmax, torch.softmax, torch.Tensor.softmax}
_ACTIVATIONS = {torch.tanh, torch.Tensor.tanh, torch.relu, F.relu, F.gelu, F.silu, torch.sigmoid}


@dataclass(frozen=True, eq=False)
class ForwardFromEmbeddings:
    """The differentiable computation from the embedding output to the input of a task head.

    Attributes:
        forward_pass: the recorded forward pass of the text.
        steps: the layers, and the final norm if the model has one.
        inputs: model inputs of shape [1, token].
    """

    forward_pass: ForwardPass
    steps: tuple[ModuleCall, ...]
    inputs: Mapping[str, torch.Tensor]

    def start(self) -> torch.Tensor:
        """Return the embedding output of shape [1, token, hidden], as a leaf that requires gradients."""
        return self.forward_pass.states[0][None].detach().clone().requires_grad_()

    def to_end(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run all layers on embedding outputs of shape [row, token, hidden].

        Returns:
            The last hidden states, of shape [row, token, hidden], and the pooler's output, of shape
            [row, hidden], or None.
        """
        for step in self.steps:
            states = step.on(states)
        return states, self.forward_pass.pooled(states)


@contextmanager
def forward_from_embeddings(trace: Trace) -> Iterator[ForwardFromEmbeddings]:
    """Yield the forward pass of a traced text with gradients enabled.

    Raises:
        UnavailableError: the architecture does not expose its layers, or the trace has external attention.
    """
    checkpoint = trace.checkpoint
    with checkpoint.running():
        with torch.no_grad():
            forward_pass = record_forward_pass(trace)
            forward_pass.check_pooler()
            steps = forward_pass.steps()
        with torch.enable_grad():
            yield ForwardFromEmbeddings(forward_pass, steps, batch(checkpoint, [trace.encoding]))


class AttentionWithWeights:
    """A callback for `capture.changed_outputs` that computes attention explicitly and stores its weights.

    Attributes:
        weights: one tensor of shape [batch, head, query, key] for each layer, part of the autograd graph.
    """

    def __init__(self) -> None:
        self.weights: list[torch.Tensor] = []

    def __call__(self, _layer: int, call: AttentionCall) -> torch.Tensor:
        """Compute a layer's attention weights, store them, and return the head outputs."""
        weights, output = attention(call.query, call.key, call.value, call.mask, call.scaling, call.softcap)
        self.weights.append(weights)
        return output.transpose(1, 2)


class UnfusedAttention(TorchFunctionMode):
    """Torch function mode that replaces the fused kernel, which lacks forward-mode AD, by `attention`."""

    def __torch_function__(
        self, func: Any, _types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Intercept `scaled_dot_product_attention`; call every other function unchanged."""
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention:
            return func(*args, **kwargs)
        query, key, value = args[:3]
        scaling = kwargs.get("scale") or query.shape[-1] ** -0.5
        mask = kwargs.get("attn_mask")
        if kwargs.get("is_causal"):
            size = (query.shape[-2], key.shape[-2])
            mask = torch.ones(size, dtype=torch.bool, device=query.device).tril_()
        return attention(query, key, value, mask, scaling)[1]


class LinearizedModel(TorchFunctionMode):
    """Torch function mode that replaces nonlinear operations by multiplications with constant factors.

    The factors are attention weights, the inverse standard deviation in a norm, and the ratio of an
    activation's output to its input (DecompX, Modarressi et al. 2023, section 3). The factors are
    constant for autograd. The output of the forward pass does not change.

    Attributes:
        added: copies of the biases added during the forward pass, as leaf tensors that require gradients.
    """

    def __init__(self) -> None:
        super().__init__()
        self.added: list[torch.Tensor] = []

    def __torch_function__(
        self, func: Any, _types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Replace each nonlinear function by its linearized form."""
        kwargs = kwargs or {}
        if func is F.linear:
            return self._linear(*args, **kwargs)
        if func in _NORMS:
            return self._norm(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            query, key, *remaining = args
            return func(query.detach(), key.detach(), *remaining, **kwargs)
        if func in _SOFTMAXES:
            return func(args[0].detach(), *args[1:], **kwargs)
        if func in _ACTIVATIONS or func is F.normalize:
            return as_factor(args[0], func(*args, **kwargs))
        if func is F.cosine_similarity:
            a, b, cosine = args[0], args[1], func(*args, **kwargs)
            return as_factor((a * b).sum(dim=-1), cosine)
        return func(*args, **kwargs)

    def _track_bias(self, bias: torch.Tensor | None) -> torch.Tensor | None:
        """Return a copy of a bias that requires gradients, and add the copy to `added`."""
        if bias is None:
            return None
        self.added.append(bias.detach().clone().requires_grad_())
        return self.added[-1]

    def _linear(
        self, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return F.linear(inputs, weight, self._track_bias(bias))

    def _norm(
        self,
        inputs: torch.Tensor,
        shape: Sequence[int],
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        eps: float = 1e-5,
        *_options: Any,
    ) -> torch.Tensor:
        axes = tuple(range(-len(shape), 0))
        centered = inputs - inputs.mean(dim=axes, keepdim=True)
        variance = (centered.detach() ** 2).mean(dim=axes, keepdim=True)
        scaled = centered * torch.rsqrt(variance + eps)
        scaled = scaled if weight is None else scaled * weight
        tracked_bias = self._track_bias(bias)
        return scaled if tracked_bias is None else scaled + tracked_bias


def as_factor(inputs: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """Return an activation's output as the input times a factor that is constant for autograd."""
    factor = torch.where(inputs == 0, torch.zeros_like(inputs), outputs / inputs)
    return inputs * factor.detach()


@contextmanager
def linearized(*models: torch.nn.Module) -> Iterator[LinearizedModel]:
    """Within the context, linearize every nonlinear operation of this thread; see `LinearizedModel`.

    Args:
        models: models whose activation modules are linearized. A module that calls several functions is
            linearized as a single function.
    """
    thread_id = threading.get_ident()

    def hook(_module: torch.nn.Module, args: Any, output: Any) -> Any:
        return as_factor(args[0], output) if threading.get_ident() == thread_id else None

    with ExitStack() as stack:
        for module in {module for model in models for module in model.modules()}:
            if type(module).__module__ == "transformers.activations":
                stack.callback(module.register_forward_hook(hook).remove)
        yield stack.enter_context(LinearizedModel())


class InputEmbeddings(torch.nn.Module):
    """Wraps the model's word embedding in a separate module that accepts hooks; the weights are shared."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.__dict__["table"] = model.get_input_embeddings()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the word vectors of token ids, of shape [row, token, size]."""
        vectors: torch.Tensor = self.__dict__["table"](ids)
        return vectors


def run_on_vectors(
    trace: Trace, model: Any, vectors: torch.Tensor, inputs: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Run the model on word vectors instead of token ids.

    Args:
        vectors: word vectors of shape [row, token, size].
        inputs: the model inputs except the token ids, of shape [1, token].

    Returns:
        The last hidden states, of shape [row, token, hidden], and the pooler's output, of shape
        [row, hidden], or None.

    Raises:
        UnavailableError: the model accepts token ids only.
    """
    other_inputs = {
        name: values.expand(len(vectors), -1) for name, values in inputs.items() if name != "input_ids"
    }
    try:
        # A copy, because CTRL changes its input in place. The word table of I-BERT returns a tuple.
        output = model(inputs_embeds=vectors.clone(), **other_inputs)
    except (TypeError, ValueError, AttributeError, NotImplementedError) as error:
        raise UnavailableError(
            f"{trace.architecture} accepts only token IDs, not input vectors, so gradients along a path "
            "between two texts cannot be computed. Use another model."
        ) from error
    return output.last_hidden_state, getattr(output, "pooler_output", None)
