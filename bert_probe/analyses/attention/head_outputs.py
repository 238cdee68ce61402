"""Outputs of the model's own attention heads for a text, recorded in a second forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import Context
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bert_probe.errors import SelectionError, UnavailableError, memory_errors
from bert_probe.model.capture import AttentionCall, recording
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.checks import pass_tolerance
from bert_probe.model.encoding import Encoding
from bert_probe.model.forward import as_array, run_for_hooks
from bert_probe.model.trace import Array, Trace, read_only


@dataclass(frozen=True, eq=False)
class HeadOutputs:
    """Outputs of the model's own attention heads for one text, before the output projection.

    Attributes:
        provenance: provenance of the trace of the text.
        layers: read-only float32 [head, token, dim] for each layer.
    """

    provenance: Mapping[str, Any]
    layers: tuple[Array, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(layer.nbytes for layer in self.layers)


class AttentionParts(NamedTuple):
    """Operands of the attention of each layer; see `Trace`."""

    queries: tuple[Array, ...]
    keys: tuple[Array, ...]
    values: tuple[Array, ...]
    scaling: tuple[float, ...]
    masks: tuple[Array | None, ...]


def attention_parts(trace: Trace) -> AttentionParts:
    """Return queries, keys, values, scaling and masks of all layers.

    Raises:
        UnavailableError: the architecture does not expose its queries, keys and values.
    """
    parts = (trace.queries, trace.keys, trace.values, trace.scaling, trace.masks)
    if any(part is None for part in parts):
        raise UnavailableError(
            f"{trace.architecture} does not expose its queries, keys and values, so the steps of its "
            "attention cannot be shown. Its attention weights are available."
        )
    return AttentionParts(*parts)  # type: ignore[arg-type]


def head_outputs(trace: Trace) -> HeadOutputs:
    """Return the outputs of all heads for the text of a trace, from another forward pass.

    Raises:
        SelectionError: the model has changed since it made the trace.
        UnavailableError: the architecture does not expose its queries, keys and values, or the trace has no
            model.
        OutOfMemoryError: the text needs more memory than is free.
    """
    queries = attention_parts(trace).queries
    checkpoint = trace.checkpoint
    description = checkpoint.description
    if trace.provenance.get("weights_sha256") != description.weights_sha256:
        raise SelectionError(_changed_model(description.name))
    # A new context, so that an ablation around this call does not apply to it.
    calls = Context().run(_record_calls, checkpoint, trace.encoding)
    if len(calls) != trace.layers:
        raise SelectionError(_changed_model(description.name))
    for call, traced in zip(calls, queries, strict=True):
        query = as_array(call.query[0])
        tolerance = pass_tolerance(description) * max(1.0, float(np.abs(traced).max()))
        if query.shape != traced.shape or not float(np.abs(query - traced).max()) <= tolerance:
            raise SelectionError(_changed_model(description.name))
    layers = (as_array(call.output[0]).swapaxes(0, 1) for call in calls)
    return HeadOutputs(trace.provenance, tuple(read_only(np.ascontiguousarray(layer)) for layer in layers))


def _record_calls(checkpoint: Checkpoint, encoding: Encoding) -> list[AttentionCall]:
    message = f"{len(encoding):,} tokens need more memory than is free. Shorten the text."
    with memory_errors(message), recording() as calls:
        run_for_hooks(checkpoint, encoding)
    return calls


def _changed_model(name: str) -> str:
    return (
        f"This trace was not made by the current weights of {name}. "
        "Trace the text again with this checkpoint."
    )
