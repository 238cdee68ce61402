"""Value-weighted attention: attention times the norm of the transformed value vectors."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from bert_probe.analyses.attention.measures import AttentionMeasure
from bert_probe.errors import UnavailableError
from bert_probe.model.forward import as_array
from bert_probe.model.progress import Progress
from bert_probe.model.trace import Array, Trace, read_only, resolve_index

_cache: WeakKeyDictionary[Trace, dict[int, Array]] = WeakKeyDictionary()
"""Value norms of each trace by layer, cached because views request one head at a time."""


def value_norms(trace: Trace, layer: int) -> Array:
    """Return the norm of each head's transformed value vectors, ‖v W_O‖, shape [head, token].

    W_O is the head's slice of the layer's output projection, without its bias (Kobayashi et al. 2020,
    section 2.2). If the architecture does not expose W_O, the norms are ‖v‖; see `projects`. The norms have
    the dtype of the trace.

    Raises:
        SelectionError: the layer does not exist.
        UnavailableError: the architecture does not expose its values, the trace has no model, or the weights
            have changed since the trace was made.
    """
    layer = resolve_index(layer, trace.layers, "layer")
    if trace.values is None:
        raise UnavailableError(
            f"{trace.architecture} does not expose its value vectors, so attention cannot be weighted by "
            "the norms of the value vectors. Choose another measure."
        )
    norms = _cache.setdefault(trace, {})
    if layer not in norms:
        norms[layer] = read_only(_norms(trace, layer, trace.values[layer]))
    return norms[layer]


def _norms(trace: Trace, layer: int, values: Array) -> Array:
    checkpoint = trace.checkpoint
    with checkpoint.running():
        projection = checkpoint.projections[layer]
        weight = None if projection is None else as_array(projection.weight.detach())
    if weight is None:
        value_norms: Array = np.linalg.norm(values, axis=-1)
        return value_norms
    heads, _, size = values.shape
    # Split [hidden, head × size] into one [size, hidden] matrix for each head.
    parts = np.moveaxis(weight.reshape(len(weight), heads, size), 0, -1)
    norms: Array = np.linalg.norm(values @ parts, axis=-1)
    return norms


def projects(trace: Trace) -> bool:
    """Return whether `value_norms` includes the output projection in every layer."""
    projections = trace.checkpoint.projections
    return bool(projections) and None not in projections


def value_weighted(trace: Trace, layer: int, heads: slice) -> Array:
    """Return value-weighted attention, ‖α v W_O‖: attention times `value_norms`, shape [head, query, key].

    The values have the dtype of the trace. Rows do not sum to 1. A large weight on a short value vector,
    often that of [SEP], contributes little.

    Raises:
        SelectionError, UnavailableError: see `value_norms`.
    """
    # Compute the norms first, so that errors are raised before attention is computed.
    norms = value_norms(trace, layer)
    weighted: Array = trace.attention_of(layer, heads) * norms[heads, None]
    return weighted


def _mean(trace: Trace, layer: int, _residual: float, _report: Progress) -> Array:
    mean: Array = value_weighted(trace, layer, slice(None)).mean(axis=0)
    return mean


def _caveat(trace: Trace) -> str:
    if projects(trace):
        return ""
    return (
        "This architecture does not expose an output projection, so only the norms of the value vectors "
        "are used."
    )


MEASURE = AttentionMeasure(
    name="value-norm",
    label="Value-weighted",
    title="Value-weighted attention",
    value="weight × value norm",
    total="weighted norm",
    meaning="The attention weight times the norm of the transformed value vector (Kobayashi et al. 2020): "
    "a large weight on a short vector contributes little. Shows the length of the vector that a head reads "
    "from a token, but not its direction.",
    order=2,
    of_layer=_mean,
    of_heads=value_weighted,
    lengths=value_norms,
    shares=False,
    caveat=_caveat,
)
