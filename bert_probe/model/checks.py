"""What is measured once, when a model is opened: whether its attention can be read, and how.

Each runs a short text, before anybody else has the model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from bert_probe.errors import ArchitectureError
from bert_probe.model.capture import recording
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.config import SUPPORTED
from bert_probe.model.forward import run_plainly

_CHECK_TEXT = "Two words and a few more"
_PADDING_TOLERANCE = 1e-5
TOLERANCE = {"float64": 1e-5, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
"""How far two ways to the same numbers may differ, by dtype; times the largest where above 1."""


def listens(network: Any) -> bool:
    """Whether every layer of the model calls our attention function."""
    device = next(network.parameters()).device
    ids = torch.ones((1, 4), dtype=torch.long, device=device)
    # Not in inference mode, whose tensors a model may keep, and could then no longer be trained with.
    with torch.no_grad(), recording() as calls:
        output = network(input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True)
    states = getattr(output, "hidden_states", None)
    return bool(calls) and states is not None and len(calls) == len(states) - 1


def self_check(checkpoint: Checkpoint) -> None:
    """See on a short text that attention recomputed from q, k, v is what the model computed.

    Where they are hidden, `forward.run` looks at the model's own weights in every trace.

    It refuses architectures that do something to their scores which the capture does not see.

    Raises:
        ArchitectureError: the attention is hidden, or does not add up.
    """
    encoding = checkpoint.encode(_CHECK_TEXT, truncate=True)
    trace = checkpoint.trace_encodings([encoding])[0]
    about = checkpoint.description
    if trace.values is None:
        return
    with recording() as calls:
        run_plainly(checkpoint, encoding)
    for layer, call in enumerate(calls):
        replay = np.swapaxes(trace.attention(layer) @ trace.values[layer], 0, 1)
        off = float(np.abs(replay - call.output[0].float().cpu().numpy()).max())
        if not off <= TOLERANCE[about.dtype] * max(1.0, float(np.abs(replay).max())):
            raise ArchitectureError(
                f"{about.architecture} changes its attention in a way that cannot be read "
                f"(layer {layer + 1} is off by {off:.2g}). Supported: {SUPPORTED}."
            )


def projections(checkpoint: Checkpoint) -> tuple[torch.nn.Linear | None, ...]:
    """Each layer's output projection: the linear module that is given exactly what its heads returned.

    Found by watching a short text go by, before anybody else has the model.
    """
    if not checkpoint.description.shows_qkv:
        return ()
    found: list[torch.nn.Linear | None] = [None] * checkpoint.description.layers

    def look(module: torch.nn.Linear, given: tuple[torch.Tensor, ...]) -> None:
        if calls and given[0].numel() == calls[-1].output.numel():
            heads = calls[-1].output.reshape(given[0].shape)
            if found[len(calls) - 1] is None and torch.equal(heads, given[0]):
                found[len(calls) - 1] = module

    linears = [module for module in checkpoint.model.modules() if isinstance(module, torch.nn.Linear)]
    hooks = [module.register_forward_pre_hook(look) for module in linears]
    try:
        with recording() as calls:
            run_plainly(checkpoint, checkpoint.encode(_CHECK_TEXT, truncate=True))
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(found)


def pads(checkpoint: Checkpoint) -> bool:
    """Whether padding changes nothing in this model.

    Some mix neighbouring tokens before the attention (the trigrams of MobileBERT, the convolutions of
    ConvBERT), so that the last token sees the padding after it. Their texts are batched by length.
    """
    short, long = (
        checkpoint.encode(text, truncate=True) for text in (_CHECK_TEXT, f"{_CHECK_TEXT} {_CHECK_TEXT}")
    )
    alone = checkpoint.trace_encodings([short])[0]
    padded = checkpoint.trace_encodings([short, long])[0]
    size = max(1.0, max(float(np.abs(state).max()) for state in alone.states))
    off = max(float(np.abs(a - b).max()) for a, b in zip(alone.states, padded.states, strict=True))
    return off <= _PADDING_TOLERANCE * size
