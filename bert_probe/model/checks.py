"""What is measured once, when a model is opened: whether its attention can be read, and how.

Each runs a short text, before anybody else has the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from bert_probe.errors import ArchitectureError
from bert_probe.model.capture import recording
from bert_probe.model.checkpoint import Checkpoint, Description
from bert_probe.model.config import SUPPORTED
from bert_probe.model.forward import as_array, batch, run_plainly
from bert_probe.model.trace import Trace

CHECK_TEXT = "Two words and a few more"
DTYPES = ("float64", "float32", "float16", "bfloat16")
"""In which attention can be computed here."""

_PASSES = 64
"""Units in the last place of the largest number by which a layer may differ between two passes. All three
layers of the tests' families differed by 10 at most where it was measured; other processors need room."""
_WEIGHTS = 32
"""Units by which a weight may be off for scores of size 1; the quickest exponentials alone are off by 20."""
_OUTPUT = 4
"""Units of the model's own dtype, to which weights and outputs are rounded."""


def between_passes(about: Description) -> float:
    """How far the same numbers of two passes may be apart, as a share of the largest of them.

    In another batch the same sums are made in another order, and each layer adds its rounding to that of
    those below. Some models compute parts in float32 whatever their dtype, so float64 promises no more.
    """
    return _PASSES * (about.layers + 1) * max(_unit(about.dtype), _unit("float32"))


def _unit(dtype: str) -> float:
    """From 1 to the next number of a dtype."""
    return float(torch.finfo(getattr(torch, dtype)).eps)


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
    about = checkpoint.description
    for layer, (off, explained) in enumerate(replays(checkpoint)):
        if not off <= explained:
            raise ArchitectureError(
                f"{about.architecture} changes its attention in a way that cannot be read "
                f"(layer {layer + 1} is off by {off:.2g}). Supported: {SUPPORTED}."
            )


def replays(checkpoint: Checkpoint) -> Iterator[tuple[float, float]]:
    """Of each layer, how far weights times values are from what its heads returned, and how far rounding
    explains; none where q, k and v are hidden."""
    encoding = checkpoint.encode(CHECK_TEXT, truncate=True)
    trace = checkpoint.trace_encodings([encoding])[0]
    if trace.values is None:
        return
    with recording() as calls:
        run_plainly(checkpoint, encoding)
    for layer, call in enumerate(calls):
        replay = np.swapaxes(trace.attention(layer) @ trace.values[layer], 0, 1)
        yield float(np.abs(replay - as_array(call.output[0])).max()), _explained(trace, layer)


def _explained(trace: Trace, layer: int) -> float:
    """How far rounding may take a head's output, for vectors of this size.

    Weights and outputs are rounded to the model's dtype. Scores are added up in float32 at least; what is
    lost there grows with the lengths of q and k, and is lost as a share of the weight.
    """
    assert trace.queries is not None  # they come with the values
    assert trace.keys is not None
    assert trace.values is not None
    assert trace.scaling is not None
    query, key = (float(np.linalg.norm(part[layer], axis=-1).max()) for part in (trace.queries, trace.keys))
    scores = trace.scaling[layer] * query * key
    dtype = str(trace.provenance["dtype"])
    inner = _unit("float64" if dtype == "float64" else "float32")
    share = _OUTPUT * _unit(dtype) + _WEIGHTS * inner * (1 + scores)
    return share * float(np.abs(trace.values[layer]).max())


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
            run_plainly(checkpoint, checkpoint.encode(CHECK_TEXT, truncate=True))
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(found)


def pads(checkpoint: Checkpoint) -> bool:
    """Whether padding changes nothing in this model but last digits.

    Some mix neighbouring tokens before the attention (the trigrams of MobileBERT, the convolutions of
    ConvBERT), so that the last token sees the padding after it. Their texts are batched by length.
    """
    short, long = (
        checkpoint.encode(text, truncate=True) for text in (CHECK_TEXT, f"{CHECK_TEXT} {CHECK_TEXT}")
    )
    padded = batch(checkpoint, [short, long])
    other = padded | {"input_ids": padded["input_ids"].clone()}
    other["input_ids"][0, len(short) :] = other["input_ids"][1, len(short) :]
    one, same = _states(checkpoint, padded, len(short)), _states(checkpoint, other, len(short))
    # Of one shape, so each sum is made in the same order: whatever differs has seen what the padding holds.
    if not all(torch.equal(a, b) for a, b in zip(one, same, strict=True)):
        return False
    alone = _states(checkpoint, batch(checkpoint, [short]), len(short))
    size = max(1.0, *(float(state.abs().max()) for state in alone))
    off = max(float((a - b).abs().max()) for a, b in zip(alone, one, strict=True))
    return off <= between_passes(checkpoint.description) * size


def _states(checkpoint: Checkpoint, inputs: Mapping[str, torch.Tensor], length: int) -> list[torch.Tensor]:
    """Hidden states of the first text of a batch, [token, hidden] each."""
    with torch.inference_mode(), checkpoint.running() as model:
        return [state[0, :length] for state in model(**inputs, output_hidden_states=True).hidden_states]
