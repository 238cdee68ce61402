"""Attention weighted by what it carries: the norms of the value vectors behind the weights."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from bert_probe.analyses.attention.measures import AttentionMeasure
from bert_probe.errors import UnavailableError
from bert_probe.model.forward import as_array
from bert_probe.model.progress import Progress
from bert_probe.model.trace import Array, Trace, read_only, resolve

_known: WeakKeyDictionary[Trace, dict[int, Array]] = WeakKeyDictionary()
"""Lengths by layer, as long as the trace is there: few numbers, which are asked for head by head."""


def value_norms(trace: Trace, layer: int) -> Array:
    """Length of what each head would carry from each token, ‖v W_O‖, [head, token], in the trace's type.

    W_O is the head's part of the layer's output projection, without its bias; Kobayashi et al. 2020,
    section 2.2. Where the architecture has no such projection it is ‖v‖, see `projects`.

    Raises:
        SelectionError: no such layer.
        UnavailableError: the architecture hides its values, or the trace has no model, or its weights have
            changed since.
    """
    layer = resolve(layer, trace.layers, "layer")
    if trace.values is None:
        raise UnavailableError(
            f"{trace.architecture} hides its values, so attention cannot be weighted by them."
        )
    known = _known.setdefault(trace, {})
    if layer not in known:
        known[layer] = read_only(_lengths(trace, layer, trace.values[layer]))
    return known[layer]


def _lengths(trace: Trace, layer: int, values: Array) -> Array:
    """`value_norms` of values [head, token, dim]."""
    checkpoint = trace.checkpoint
    with checkpoint.running():
        projection = checkpoint.projections[layer]
        weight = None if projection is None else as_array(projection.weight.detach())
    if weight is None:
        lengths: Array = np.linalg.norm(values, axis=-1)
        return lengths
    heads, _, size = values.shape
    # [hidden, head × size] → one [size, hidden] for each head.
    parts = np.moveaxis(weight.reshape(len(weight), heads, size), 0, -1)
    carried: Array = np.linalg.norm(values @ parts, axis=-1)
    return carried


def projects(trace: Trace) -> bool:
    """Whether `value_norms` goes through the output projection in every layer."""
    projections = trace.checkpoint.projections
    return bool(projections) and None not in projections


def value_weighted(trace: Trace, layer: int, heads: slice) -> Array:
    """‖α v W_O‖, attention times the length of what it carries: [head, query, key], in the trace's type.

    Not a share: rows do not sum to 1. A large weight on a short vector, as often on [SEP], moves little.

    Raises:
        SelectionError, UnavailableError: as `value_norms`.
    """
    lengths = value_norms(trace, layer)  # refuses before any attention is computed
    weighted: Array = trace.attention_of(layer, heads) * lengths[heads, None]
    return weighted


def _mean(trace: Trace, layer: int, _residual: float, _report: Progress) -> Array:
    mean: Array = value_weighted(trace, layer, slice(None)).mean(axis=0)
    return mean


def _caveat(trace: Trace) -> str:
    if projects(trace):
        return ""
    return "This architecture's output projection is not known, so lengths are those of the values."


MEASURE = AttentionMeasure(
    name="value-norm",
    label="Value-weighted",
    title="Value-weighted attention",
    value="weight × length carried",
    total="length carried",
    meaning="The weight times the length of what the head carries from there (Kobayashi et al. 2020): "
    "a large weight on a short vector moves little. How much is carried, but not in which direction.",
    order=2,
    of_layer=_mean,
    of_heads=value_weighted,
    lengths=value_norms,
    shares=False,
    caveat=_caveat,
)
