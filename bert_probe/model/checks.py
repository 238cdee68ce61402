"""Check, while a model is loaded, whether and how its attention can be captured.

Each check runs the model on a short text before `load` returns the model.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import pad as pad_tensor
from transformers.utils import ModelOutput

from bert_probe.errors import (
    ArchitectureError,
    CheckpointError,
    OutOfMemoryError,
    ProbeError,
    UnavailableError,
)
from bert_probe.model.architectures import WITHOUT_FULL_ATTENTION, WITHOUT_SCORES, configs_of
from bert_probe.model.capture import AttentionCall, add_mask, attention_scores, recording
from bert_probe.model.checkpoint import Checkpoint, Description
from bert_probe.model.config import SUPPORTED, reason
from bert_probe.model.eager_attention import eager_attention
from bert_probe.model.forward import (
    as_array,
    as_tensor,
    batch,
    layer_states,
    run_and_keep_calls,
    run_for_hooks,
)
from bert_probe.model.trace import Trace

if TYPE_CHECKING:
    from bert_probe.model.outputs import OutputHead

CHECK_TEXT = "Two words and a few more"
DTYPES = ("float64", "float32", "float16", "bfloat16")
"""Data types in which attention can be computed."""
_MIXED_DTYPES = re.compile("scalar type|dtype|same type|Double|Half|BFloat16")
"""Words of torch's errors for operations on tensors of different data types."""

NO_SCORES = (
    "Its attention contains a step that is not part of softmax(q · k × scaling + mask and bias terms) · v."
)

_SAME_OUTPUT = 0.02
"""Tolerance for the difference between a model's outputs with fused and with eager attention, relative to the
largest value. It is far above rounding errors and far below the effect of a missing step.
"""
_PASSES = 64
"""Tolerance per layer for the difference between two forward passes, in units in the last place of the
largest value. The largest difference measured in the three-layer models of the tests was 10; it may be larger
on other processors.
"""
_WEIGHTS = 32
"""Tolerance of an attention weight for scores of size 1, in units in the last place. Fast exponentials alone
have errors of up to 20 units.
"""
_OUTPUT = 4
"""Tolerance for rounding weights and outputs to the model's dtype, in units in the last place."""


def pass_tolerance(description: Description) -> float:
    """Return the tolerance for differences between two forward passes, relative to the largest value.

    In a different batch, sums are computed in a different order, and rounding errors accumulate over the
    layers. Some models use float32 for some steps in every dtype, so float64 has the tolerance of float32.
    """
    return _PASSES * (description.layers + 1) * max(_unit(description.dtype), _unit("float32"))


def _unit(dtype: str) -> float:
    """Return the machine epsilon of a dtype."""
    return float(torch.finfo(getattr(torch, dtype)).eps)


def missing_package(name: str, error: ImportError) -> CheckpointError:
    """Return the error for a model that needs a Python package that is not installed."""
    return CheckpointError(
        f"{name} cannot be loaded with the installed Python packages: {reason(error)}. Install the "
        "packages in requirements.txt and any package that this message names."
    )


@contextmanager
def running_errors(name: str, network: torch.nn.Module) -> Iterator[None]:
    """Within the context, convert errors of a model's test run to an ArchitectureError.

    A model that fails on plain text usually needs other input, such as a table, a page layout or a language
    ID.
    """
    try:
        yield
    except ProbeError:
        raise
    except ImportError as error:
        raise missing_package(name, error) from None
    except Exception as error:
        dtypes = {parameter.dtype for parameter in network.parameters()} - {torch.float32}
        if dtypes and isinstance(error, RuntimeError) and _MIXED_DTYPES.search(str(error)):
            dtype = str(dtypes.pop()).removeprefix("torch.")
            raise ArchitectureError(
                f"{name} ({type(network).__name__}) cannot be run in {dtype}, because it computes some "
                f"steps in another dtype: {reason(error)}. Use float32."
            ) from None
        raise ArchitectureError(
            f"{name} ({type(network).__name__}) cannot be run on plain text: {reason(error)}. "
            f"Supported: {SUPPORTED}."
        ) from None


@contextmanager
def attention_errors(name: str, config: Any) -> Iterator[None]:
    """Within the context, add the explanation in `WITHOUT_FULL_ATTENTION` to ArchitectureErrors."""
    try:
        yield
    except ArchitectureError as error:
        explanation = WITHOUT_FULL_ATTENTION.get(config.model_type)
        if explanation is None:
            raise
        raise ArchitectureError(
            f"The attention of {name} cannot be shown: {explanation} Supported: {SUPPORTED}."
        ) from error


def uses_interface(network: Any) -> bool:
    """Return whether a model computes its attention through the attention interface of transformers.

    Every layer must call `capture.recorded_attention`, and the model must have the same output as with its
    own attention code. A different output means that the fused kernel omits a step of this model's attention.
    If transformers does not support the fused kernel for a model, its mask must not hide a key to which the
    model attends: with small weights, the output is almost the same.
    """
    inputs = _check_inputs(network)
    # Avoid inference mode: a model may store tensors, and inference tensors cannot be used in training.
    with torch.no_grad():
        try:
            with recording() as calls:
                output = network(**inputs, output_hidden_states=True)
        except Exception:  # Catch all exceptions, because models may reject the mask.
            return False
        states = getattr(output, "hidden_states", None)
        if not calls or states is None or len(calls) != len(states) - 1:
            return False
        with _own_code(network):
            is_unsupported = getattr(network, "_supports_sdpa", None) is False
            own = network(**inputs, **({"output_attentions": True} if is_unsupported else {}))
    weights = getattr(own, "attentions", None) if is_unsupported else None
    if any(map(_hides_attention, calls, weights or ())):
        return False
    expected = own.last_hidden_state
    scale, difference = expected.abs().max(), (output.last_hidden_state - expected).abs().max()
    return bool(difference <= max(_SAME_OUTPUT, 16 * torch.finfo(expected.dtype).eps) * scale)


def _hides_attention(call: AttentionCall, weights: torch.Tensor | None) -> bool:
    """Return whether a recorded mask hides a key to which the model's own code gives attention."""
    if call.mask is None or weights is None:
        return False
    scores = add_mask(torch.zeros_like(weights), call.mask)
    return bool(weights[scores.isneginf()].any())


def capture_problem(network: Any) -> str:
    """Return why queries, keys and values cannot be recorded in a model's own attention code; else "".

    In every layer, the attention weights that the model returns must be the softmax of the recorded scores.
    `architectures.WITHOUT_SCORES` contains specific reasons for some model types.
    """
    with torch.no_grad(), eager_attention(), recording() as calls:
        output = network(**_check_inputs(network), output_attentions=True, output_hidden_states=True)
    problem = WITHOUT_SCORES.get(network.config.model_type, NO_SCORES)
    layers = [weights for weights in getattr(output, "attentions", None) or () if weights is not None]
    states = getattr(output, "hidden_states", None)
    if not calls or states is None or not len(calls) == len(layers) == len(states) - 1:
        return problem
    for call, expected in zip(calls, layers, strict=True):
        scores = attention_scores(call.query, call.key, call.mask, call.scaling)
        finite = scores[scores.isfinite()]
        if expected.shape != scores.shape or not finite.numel():
            return problem
        largest = float(finite.abs().max())
        tolerance = _WEIGHTS * _eager_unit(str(expected.dtype).removeprefix("torch.")) * (1 + largest)
        if not float((scores.softmax(dim=-1) - expected).abs().max()) <= tolerance:
            return problem
    return ""


def _check_inputs(network: Any) -> dict[str, torch.Tensor]:
    """Return token ids and an attention mask of shape [1, 8], without a tokenizer."""
    device = next(network.parameters()).device
    rows = len(network.get_input_embeddings().weight)
    ids = torch.arange(1, 9, device=device)[None] % rows
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _eager_unit(dtype: str) -> float:
    """Return the machine epsilon with which a model's own attention code rounds its scores."""
    return max(_unit(dtype), _unit("float32"))


@contextmanager
def _own_code(network: torch.nn.Module) -> Iterator[None]:
    """Within the context, let a model compute attention with its own code instead of the captured kernel."""
    configs = configs_of(network.modules())
    saved = [config._attn_implementation for config in configs]
    try:
        for config in configs:
            config._attn_implementation = "eager"
        yield
    finally:
        for config, implementation in zip(configs, saved, strict=True):
            config._attn_implementation = implementation


def self_check(checkpoint: Checkpoint) -> Description:
    """Check on a short text that attention recomputed from q, k and v equals the model's own attention.

    This check rejects architectures that change their scores outside the captured function. If q, k and
    v cannot be recorded, `forward.run` checks the model's own attention weights in every trace instead.

    Returns:
        The description with four values that the config lacks: the number of heads with attention weights
        (half of the heads in ConvBERT), whether no token attends to a later token, the number of values per
        token, and the number of biases.

    Raises:
        ArchitectureError: the model does not return its attention, or the recomputed attention differs.
    """
    description = checkpoint.description
    traces, calls = run_and_keep_calls(checkpoint, [checkpoint.encode(CHECK_TEXT, truncate=True)])
    for layer, (difference, tolerance) in enumerate(_replays(traces[0], calls)):
        if not difference <= tolerance:
            raise ArchitectureError(
                f"{description.architecture} changes its attention in a way that cannot be captured "
                f"(layer {layer + 1} is off by {difference:.2g}). Supported: {SUPPORTED}."
            )
    weights = (traces[0].attention(layer) for layer in range(traces[0].layers))
    is_causal = len(traces[0].tokens) > 1 and not any(np.triu(layer, k=1).any() for layer in weights)
    masks = {id(mask): mask for mask in traces[0].masks or ()}.values()
    layers = (traces[0].states, traces[0].queries, traces[0].keys, traces[0].values)
    return replace(
        description,
        heads=traces[0].heads,
        is_causal=is_causal,
        values_per_token=sum(array.size for arrays in layers for array in arrays or ())
        // len(traces[0].tokens),
        bias_count=sum(mask is not None and mask.ndim == 3 for mask in masks),
    )


def replays(checkpoint: Checkpoint) -> Iterator[tuple[float, float]]:
    """Return an iterator that yields (error of the recomputed attention, tolerance) for each layer.

    The error is the largest absolute difference between the recorded head outputs and attention weights ×
    values. The iterator is empty if q, k and v cannot be recorded.
    """
    traces, calls = run_and_keep_calls(checkpoint, [checkpoint.encode(CHECK_TEXT, truncate=True)])
    return _replays(traces[0], calls)


def _replays(trace: Trace, calls: Sequence[AttentionCall]) -> Iterator[tuple[float, float]]:
    for layer, call in enumerate(calls):
        assert trace.values is not None  # values are recorded if calls are recorded
        replay = np.swapaxes(trace.attention(layer) @ trace.values[layer], 0, 1)
        yield float(np.abs(replay - as_array(call.output[0])).max()), _rounding_tolerance(trace, layer)


def _rounding_tolerance(trace: Trace, layer: int) -> float:
    """Return the tolerance for rounding errors in the head outputs of a layer.

    Weights and outputs are rounded to the model's dtype. Scores are accumulated in float32 or better; their
    error grows with the norms of q and k, and changes the weight by the same relative amount.
    """
    assert trace.queries is not None  # queries, keys and values are either all None or all set
    assert trace.keys is not None
    assert trace.values is not None
    assert trace.scaling is not None
    query, key = (
        float(np.linalg.norm(vectors[layer], axis=-1).max()) for vectors in (trace.queries, trace.keys)
    )
    scores = trace.scaling[layer] * query * key
    dtype = str(trace.provenance["dtype"])
    accumulator_unit = _unit("float64" if dtype == "float64" else "float32")
    if trace.checkpoint.initial_description.is_eager:
        accumulator_unit = _eager_unit(dtype)
    relative = _OUTPUT * _unit(dtype) + _WEIGHTS * accumulator_unit * (1 + scores)
    return relative * float(np.abs(trace.values[layer]).max())


def projections(checkpoint: Checkpoint) -> tuple[torch.nn.Linear | None, ...]:
    """Return each layer's output projection, the linear module whose input is exactly the heads' output.

    Hooks compare each linear module's input with the heads' output while the model runs on a short text. The
    result contains None for a layer without an output projection.

    Raises:
        ArchitectureError: the model computes attention more often than it has layers.
    """
    if not checkpoint.description.shows_qkv:
        return ()
    modules: list[torch.nn.Linear | None] = [None] * checkpoint.description.layers

    def compare(module: torch.nn.Linear, inputs: tuple[torch.Tensor, ...]) -> None:
        if len(calls) > len(modules):
            raise ArchitectureError(
                f"{checkpoint.description.architecture} calls its attention function more than once in each "
                f"of its {len(modules)} layers, so attention heads cannot be assigned to layers. Supported: "
                f"{SUPPORTED}."
            )
        if calls and inputs[0].numel() == calls[-1].output.numel():
            heads = calls[-1].output.reshape(inputs[0].shape)
            if modules[len(calls) - 1] is None and torch.equal(heads, inputs[0]):
                modules[len(calls) - 1] = module

    # Adapters of the package peft add to the output of the linear module in `base_layer`.
    adapted = [module for module in checkpoint.model.modules() if hasattr(module, "base_layer")]
    parts = {id(part) for module in adapted for part in module.modules()}
    linears = [
        module
        for module in checkpoint.model.modules()
        if isinstance(module, torch.nn.Linear) and id(module) not in parts
    ]
    hooks = [module.register_forward_pre_hook(compare) for module in linears]
    try:
        with recording() as calls:
            run_for_hooks(checkpoint, checkpoint.encode(CHECK_TEXT, truncate=True))
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(modules)


def pads(checkpoint: Checkpoint) -> bool:
    """Return whether padding changes the output only by rounding errors.

    Some models mix neighboring tokens before the attention (MobileBERT with trigrams, ConvBERT with
    convolutions), so that the last token depends on the padding after it. Models with LongRoPE (Ding et al.
    2024) choose the frequencies of all positions by the longest text of a batch. For such models, all texts
    of a batch must have the same length.
    """
    if has_longrope(checkpoint.model):
        return False
    short, long = (
        checkpoint.encode(text, truncate=True) for text in (CHECK_TEXT, f"{CHECK_TEXT} {CHECK_TEXT}")
    )
    padded = batch(checkpoint, [short, long])
    changed = padded | {"input_ids": padded["input_ids"].clone()}
    changed["input_ids"][0, len(short) :] = changed["input_ids"][1, len(short) :]
    padded_states, changed_states = (
        _first_states(checkpoint, padded, len(short)),
        _first_states(checkpoint, changed, len(short)),
    )
    # The shapes are equal, so all sums have the same order. Only the padding values can cause a difference.
    if not all(torch.equal(a, b) for a, b in zip(padded_states, changed_states, strict=True)):
        return False
    expected = _first_states(checkpoint, batch(checkpoint, [short]), len(short))
    scale = max(1.0, *(float(state.abs().max()) for state in expected))
    difference = max(float((a - b).abs().max()) for a, b in zip(expected, padded_states, strict=True))
    return difference <= pass_tolerance(checkpoint.description) * scale


def has_longrope(model: torch.nn.Module) -> bool:
    """Return whether each forward pass changes the frequencies of the model to those for its longest text."""
    return any("longrope" in _rope_types(module) for module in model.modules())


def _rope_types(module: torch.nn.Module) -> Collection[str]:
    """Return the types of rotary position embeddings that a module of transformers computes."""
    # "dynamic" is harmless, because its frequencies change only beyond the maximum length of a text.
    rope_type: Any = getattr(module, "rope_type", ())
    return rope_type.values() if isinstance(rope_type, dict) else (rope_type,)


def _first_states(
    checkpoint: Checkpoint, inputs: Mapping[str, torch.Tensor], length: int
) -> list[torch.Tensor]:
    """Return the first text's hidden states, of shape [token, hidden], and pooler output, if there is one."""
    with torch.inference_mode(), checkpoint.running() as model:
        output = model(**inputs, output_hidden_states=True)
        states = [state[0, :length] for state in layer_states(output)]
    pooled = getattr(output, "pooler_output", None)
    return [*states, pooled[0]] if pooled is not None and checkpoint.description.has_pooler else states


def check_heads(checkpoint: Checkpoint, heads: Sequence[OutputHead]) -> tuple[list[OutputHead], list[str]]:
    """Check that each head's logits from a trace equal those of the complete model on the same text.

    Returns:
        The heads whose outputs agree, and a sentence for each head that is dropped.
    """
    if not heads:
        return [], []
    trace = checkpoint.trace(CHECK_TEXT, truncate=True)
    valid, refused = [], []
    for head in heads:
        try:
            difference, tolerance = _head_difference(trace, head)
            check_padding(trace, head)
        except OutOfMemoryError:
            raise
        except Exception as error:  # Catch all exceptions, because task heads raise many types.
            explanation = reason(error)
            if isinstance(error, AttributeError) and isinstance(error.obj, ModelOutput):
                explanation = (
                    f"it reads {error.name} of the encoder's output, but only the vectors are available"
                )
            refused.append(f"The head for {head.task} is not used: {explanation}.")
            continue
        if difference <= tolerance:
            valid.append(head)
        else:
            refused.append(
                f"The head for {head.task} depends on more than the encoder's output (logits computed from "
                f"the output alone would be off by {difference:.2g}), so the head is not used."
            )
    return valid, refused


def _head_difference(trace: Trace, head: OutputHead) -> tuple[float, float]:
    """Return the largest difference between a head's logits and the complete model's, and the tolerance."""
    checkpoint, actual = trace.checkpoint, head.logits(trace)
    with torch.inference_mode(), checkpoint.running():
        expected = as_array(head.stack_logits(head.model(**batch(checkpoint, [trace.encoding]))))[0]
    scale = max(1.0, float(np.abs(expected).max()))
    return float(np.abs(actual - expected).max()), pass_tolerance(checkpoint.description) * scale


def check_padding(trace: Trace, head: OutputHead) -> None:
    """Raise UnavailableError if the logits of a text change when padding follows it, as in a batch."""
    checkpoint = trace.checkpoint
    with torch.inference_mode(), checkpoint.running() as model:
        inputs = batch(checkpoint, [trace.encoding])
        if not checkpoint.pads or "attention_mask" not in inputs:
            return
        states = as_tensor(trace.vectors(-1), model)[None]
        pooled = None if trace.pooler is None else as_tensor(trace.pooler, model)[None]
        expected = head.answer(inputs, states, pooled)[0]
        padded_inputs = {name: pad_tensor(values, (0, 2)) for name, values in inputs.items()}
        padded = head.answer(padded_inputs, pad_tensor(states, (0, 0, 0, 2), value=1.0), pooled)[0]
    tolerance = pass_tolerance(checkpoint.description) * max(1.0, float(expected.abs().max()))
    if not float((padded[: len(expected)] - expected).abs().max()) <= tolerance:
        raise UnavailableError("it reads the padding after a text, so batches would have other results")
