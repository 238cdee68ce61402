"""What changed between two models, as heatmaps."""

from __future__ import annotations

import numpy as np

from bert_probe.analyses.head_change import ChangedHeads
from bert_probe.analyses.layer_alikeness import AlikeLayers
from bert_probe.analyses.vector_change import ChangedVectors
from bert_probe.model.trace import Array
from bert_probe.views.heatmaps import by_head
from bert_probe.views.matrix import Drawing, Heatmap
from bert_probe.views.scale import Scale
from bert_probe.views.text import labels, positions


def of_changed_heads(found: ChangedHeads) -> Heatmap:
    """How much each head changed from A to B."""
    values, scale, unit = _readable(found.total_variation)
    title = "Change of each head's attention from A to B"
    return by_head(values, f"total variation{unit}", title, scale, "diff-heads")


def of_changed_vectors(found: ChangedVectors) -> Heatmap:
    """How far each token's vector turned, layer by layer."""
    values, scale, unit = _readable(found.moved)
    drawing = Drawing(
        scale=scale,
        row_axis="word" if found.question.words else "token",
        column_axis="layer",
        value_name=f"1 − cosine{unit}",
        caption="How far each vector turned from A to B",
        row_positions=positions(found.units),
        file_name="diff-vectors",
    )
    return Heatmap(values.T, labels(found.units), _layers(len(found.moved)), drawing)


def of_alike_layers(found: AlikeLayers) -> Heatmap:
    """Every layer of A against every layer of B."""
    drawing = Drawing(
        scale=Scale("sequential", 0, 1),
        row_axis="layer of A",
        column_axis="layer of B",
        value_name="CKA",
        caption="How alike the layers of A and B are",
        file_name="diff-alikeness",
    )
    rows, columns = found.cka.shape
    return Heatmap(found.cka, _layers(rows), _layers(columns), drawing)


def _readable(values: Array) -> tuple[Array, Scale, str]:
    """Numbers, a scale from 0 to the next round one, and what they are called.

    A model that was trained a little differs by little, and a cell has room for two decimals.
    """
    small = np.nan_to_num(values).max(initial=0.0) < 0.2
    shown = 100 * values if small else values
    scale = Scale("sequential", 0, Scale.from_zero(np.nan_to_num(shown), 0.0).high, "sqrt")
    return shown, scale, ", hundredths" if small else ""


def _layers(count: int) -> list[str]:
    return [str(layer) for layer in range(count)]
