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
    values = found.total_variation
    title = "Change of each head's attention from A to B"
    return by_head(values, "total variation", title, _from_zero(values), "diff-heads")


def of_changed_vectors(found: ChangedVectors) -> Heatmap:
    """How far each token's vector turned, layer by layer."""
    drawing = Drawing(
        scale=_from_zero(found.moved),
        row_axis="word" if found.question.words else "token",
        column_axis="layer",
        value_name="1 − cosine",
        caption="How far each vector turned from A to B",
        row_positions=positions(found.units),
        file_name="diff-vectors",
    )
    return Heatmap(found.moved.T, labels(found.units), _layers(len(found.moved)), drawing)


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


def _from_zero(values: Array) -> Scale:
    """To the next round number: a model that was trained a little differs by little."""
    ends = Scale.from_zero(np.nan_to_num(values), 0.0)
    return Scale("sequential", 0, ends.high, "sqrt")


def _layers(count: int) -> list[str]:
    return [str(layer) for layer in range(count)]
