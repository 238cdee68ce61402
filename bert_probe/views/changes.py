"""What changed between two models, as heatmaps."""

from __future__ import annotations

import numpy as np

from bert_probe.analyses.comparison.head_change import HeadChangeResult
from bert_probe.analyses.comparison.head_matches import HeadMatchesResult
from bert_probe.analyses.comparison.layer_similarity import LayerSimilarityResult
from bert_probe.analyses.comparison.vector_change import VectorChangeResult
from bert_probe.model.trace import Array, Trace
from bert_probe.views.heatmaps import by_head
from bert_probe.views.matrix import Heatmap, HeatmapSpec
from bert_probe.views.scale import SHARES, Scale
from bert_probe.views.text import labels, positions, shown


def of_changed_heads(found: HeadChangeResult) -> Heatmap:
    """How much each head changed from A to B."""
    values, scale, unit = _readable(found.total_variation)
    title = "Change of each head's attention from A to B"
    return by_head(values, f"total variation{unit}", title, scale, "diff-heads")


def of_changed_vectors(found: VectorChangeResult) -> Heatmap:
    """How far each token's vector turned, layer by layer."""
    values, scale, unit = _readable(found.moved)
    drawing = HeatmapSpec(
        scale=scale,
        row_axis="word" if found.question.words else "token",
        column_axis="layer",
        value_name=f"1 − cosine{unit}",
        caption="How far each vector turned from A to B",
        row_positions=positions(found.units),
        file_name="diff-vectors",
    )
    return Heatmap(values.T, labels(found.units), _layers(len(found.moved)), drawing)


def of_alike_layers(found: LayerSimilarityResult) -> Heatmap:
    """Every layer of A against every layer of B."""
    drawing = HeatmapSpec(
        scale=Scale("sequential", 0, 1),
        row_axis="layer of A",
        column_axis="layer of B",
        value_name="CKA",
        caption="How alike the layers of A and B are",
        file_name="diff-alikeness",
    )
    rows, columns = found.cka.shape
    return Heatmap(found.cka, _layers(rows), _layers(columns), drawing)


def of_matched_heads(found: HeadMatchesResult) -> Heatmap:
    """Every head of A against every head of B."""
    drawing = HeatmapSpec(
        scale=Scale("sequential", 0, 1),
        row_axis="head of A",
        column_axis="head of B",
        value_name="similarity",
        caption="How alike the heads of A and B attend",
        file_name="diff-matches",
    )
    rows, columns = ([found.name(head, side) for head in range(found.matrix.shape[side])] for side in (0, 1))
    return Heatmap(found.matrix, rows, columns, drawing)


def of_matched_maps(
    found: HeadMatchesResult, a: Trace, b: Trace, row: int, column: int
) -> tuple[Heatmap, Heatmap]:
    """A head of A and a head of B on the spans that both cut the text into; one scale for both."""
    spans, queries = found.spans.spans, found.spans.queries
    keys = [shown(span.text) for span in spans]
    first, second = (
        Heatmap(
            values,
            [shown(span.text) for span in queries],
            keys,
            HeatmapSpec(
                scale=SHARES,
                row_axis="query",
                column_axis="key",
                value_name="weight",
                caption=f"Head {found.name(head, side)} of {'AB'[side]}",
                row_positions=found.spans.rows,
                column_positions=range(len(spans)),
                file_name=f"head-{'ab'[side]}",
            ),
        )
        for side, (values, head) in enumerate(zip(found.maps(a, b, row, column), (row, column), strict=True))
    )
    return first, second


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
