"""Heatmaps of the differences between two models."""

from __future__ import annotations

import numpy as np

from bert_probe.analyses.comparison.head_change import HeadChangeResult
from bert_probe.analyses.comparison.head_matches import HeadMatchesResult
from bert_probe.analyses.comparison.layer_similarity import LayerSimilarityResult
from bert_probe.analyses.comparison.vector_change import VectorChangeResult
from bert_probe.model.trace import Array, Trace
from bert_probe.views.heatmaps import head_grid
from bert_probe.views.matrix import Heatmap, HeatmapSpec
from bert_probe.views.scale import SHARES, Scale
from bert_probe.views.text import labels, positions, shorten


def head_change_heatmap(result: HeadChangeResult) -> Heatmap:
    """Return how much the attention of each head differs between A and B."""
    values, scale, unit = _readable(result.total_variation)
    title = "Change of each head's attention from A to B"
    return head_grid(values, f"total variation{unit}", title, scale, "diff-heads")


def vector_change_heatmap(result: VectorChangeResult) -> Heatmap:
    """Return the cosine distance between the vectors of A and B, by token and layer."""
    values, scale, unit = _readable(result.moved)
    drawing = HeatmapSpec(
        scale=scale,
        row_axis="word" if result.question.words else "token",
        column_axis="layer",
        value_name=f"1 − cosine{unit}",
        caption="Change of each vector from A to B",
        row_positions=positions(result.units),
        file_name="diff-vectors",
    )
    return Heatmap(values.T, labels(result.units), _layers(len(result.moved)), drawing)


def layer_similarity_heatmap(result: LayerSimilarityResult) -> Heatmap:
    """Return the CKA similarity of each layer of A with each layer of B."""
    drawing = HeatmapSpec(
        scale=Scale("sequential", 0, 1),
        row_axis="layer of A",
        column_axis="layer of B",
        value_name="CKA",
        caption="Similarity of the layers of A and B",
        file_name="diff-alikeness",
    )
    rows, columns = result.cka.shape
    return Heatmap(result.cka, _layers(rows), _layers(columns), drawing)


def head_matches_heatmap(result: HeadMatchesResult) -> Heatmap:
    """Return the similarity of each head of A with each head of B."""
    drawing = HeatmapSpec(
        scale=Scale("sequential", 0, 1),
        row_axis="head of A",
        column_axis="head of B",
        value_name="similarity",
        caption="Similarity of the attention of the heads of A and B",
        file_name="diff-matches",
    )
    rows, columns = (
        [result.name(head, side) for head in range(result.matrix.shape[side])] for side in (0, 1)
    )
    return Heatmap(result.matrix, rows, columns, drawing)


def matched_head_heatmaps(
    result: HeadMatchesResult, a: Trace, b: Trace, row: int, column: int
) -> tuple[Heatmap, Heatmap]:
    """Return the attention of a head of A and of a head of B on the spans that both tokenizers share.

    Both heatmaps have the same scale.
    """
    spans, queries = result.spans.spans, result.spans.queries
    keys = [shorten(span.text) for span in spans]
    first, second = (
        Heatmap(
            values,
            [shorten(span.text) for span in queries],
            keys,
            HeatmapSpec(
                scale=SHARES,
                row_axis="query",
                column_axis="key",
                value_name="weight",
                caption=f"Head {result.name(head, side)} of {'AB'[side]}",
                row_positions=result.spans.rows,
                column_positions=range(len(spans)),
                file_name=f"head-{'ab'[side]}",
            ),
        )
        for side, (values, head) in enumerate(zip(result.maps(a, b, row, column), (row, column), strict=True))
    )
    return first, second


def _readable(values: Array) -> tuple[Array, Scale, str]:
    """Return values that are readable with two decimals, their scale, and the suffix of their unit.

    Small values, as after a short training, are multiplied by 100.
    """
    is_small = np.nan_to_num(values).max(initial=0.0) < 0.2
    scaled = 100 * values if is_small else values
    scale = Scale("sequential", 0, Scale.from_zero(np.nan_to_num(scaled), 0.0).high, "sqrt")
    return scaled, scale, ", hundredths" if is_small else ""


def _layers(count: int) -> list[str]:
    return [str(layer) for layer in range(count)]
