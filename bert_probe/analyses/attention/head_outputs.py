"""What each head of the model itself returned for a text, in one more pass."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import Context
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bert_probe.errors import SelectionError, UnavailableError, memory_errors
from bert_probe.model.capture import AttentionCall, recording
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.checks import between_passes
from bert_probe.model.encoding import Encoding
from bert_probe.model.forward import as_array, run_plainly
from bert_probe.model.trace import Array, Trace, read_only


@dataclass(frozen=True, eq=False)
class HeadOutputs:
    """What every head of the model itself returned for one text, before the output projection.

    Attributes:
        provenance: that of the trace of the same text.
        layers: float32 [head, token, dim], one a layer, read-only.
    """

    provenance: Mapping[str, Any]
    layers: tuple[Array, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(layer.nbytes for layer in self.layers)


class AttentionParts(NamedTuple):
    """What goes into the attention of each layer; see `Trace`."""

    queries: tuple[Array, ...]
    keys: tuple[Array, ...]
    values: tuple[Array, ...]
    scaling: tuple[float, ...]
    masks: tuple[Array | None, ...]


def attention_parts(trace: Trace) -> AttentionParts:
    """Queries, keys, values, scaling and masks of all layers.

    Raises:
        UnavailableError: the architecture hides its queries, keys and values.
    """
    parts = (trace.queries, trace.keys, trace.values, trace.scaling, trace.masks)
    if any(part is None for part in parts):
        raise UnavailableError(
            f"{trace.architecture} hides its queries, keys and values, so its attention cannot be followed "
            "step by step. Its attention weights are available."
        )
    return AttentionParts(*parts)  # type: ignore[arg-type]


def head_outputs(trace: Trace) -> HeadOutputs:
    """What every head returned for the text of a trace, in one more forward pass of the model itself.

    Raises:
        SelectionError: the model is not any more what it was when it made the trace.
        UnavailableError: the architecture hides its queries, keys and values, or no model made this trace.
        OutOfMemoryError: the machine is too small for this text.
    """
    queries = attention_parts(trace).queries
    checkpoint = trace.checkpoint
    about = checkpoint.description
    if trace.provenance.get("weights_sha256") != about.weights_sha256:
        raise SelectionError(_another(about.name))
    # In a context of its own, lest heads that are switched off around this call be missing from it.
    calls = Context().run(_calls, checkpoint, trace.encoding)
    if len(calls) != trace.layers:
        raise SelectionError(_another(about.name))
    for call, traced in zip(calls, queries, strict=True):
        seen = as_array(call.query[0])
        allowed = between_passes(about) * max(1.0, float(np.abs(traced).max()))
        if seen.shape != traced.shape or not float(np.abs(seen - traced).max()) <= allowed:
            raise SelectionError(_another(about.name))
    layers = (as_array(call.output[0]).swapaxes(0, 1) for call in calls)
    return HeadOutputs(trace.provenance, tuple(read_only(np.ascontiguousarray(layer)) for layer in layers))


def _calls(checkpoint: Checkpoint, encoding: Encoding) -> list[AttentionCall]:
    message = f"{len(encoding):,} tokens need more memory than this machine has free. Shorten the text."
    with memory_errors(message), recording() as calls:
        run_plainly(checkpoint, encoding)
    return calls


def _another(name: str) -> str:
    return (
        f"This trace was not made by {name} as it is opened here. Trace the text again with this checkpoint."
    )
