"""Heatmaps of position embeddings."""

from __future__ import annotations

from bert_probe.analyses.weights.positions import COSINES as BY_COSINE
from bert_probe.analyses.weights.positions import RELATIVE, TABLE, PositionsResult, format_distances
from bert_probe.model.trace import Array
from bert_probe.views.heatmaps import cosine_heatmap
from bert_probe.views.matrix import Heatmap
from bert_probe.views.scale import Scale
from bert_probe.views.steps import strips


def position_heatmaps(result: PositionsResult) -> list[Heatmap]:
    """Return the heatmaps of the position embeddings and of sinusoids to compare with.

    The list is empty if the view of the question is a line chart.
    """
    if result.question.show == BY_COSINE:
        return [
            _cosines(result.cosines, "Cosine of every two learned positions", "positions-learned"),
            _cosines(result.sinusoid_cosines, "Cosine of every two sinusoids", "positions-sinusoids"),
        ]
    if result.question.show == TABLE:
        learned = result.position_table.vectors
        return [
            _table(learned, "Learned position embeddings", "positions-learned-table"),
            _table(result.sinusoids, "Sinusoids of the same size", "positions-sinusoids-table"),
        ]
    if result.question.show == RELATIVE and result.relative is not None:
        caption, names = "Cosine of the vectors of every two distances", format_distances(result.relative)
        values = result.relative_cosines
        return [cosine_heatmap(values, names, "distance", caption, "positions-relative", show_all=True)]
    return []


def _cosines(values: Array, caption: str, name: str) -> Heatmap:
    return cosine_heatmap(values, _row_numbers(values), "position", caption, name, show_all=True)


def _table(vectors: Array, caption: str, name: str) -> Heatmap:
    heatmap = strips(vectors, _row_numbers(vectors), Scale.around_zero(vectors), name, caption, "position")
    return heatmap._replace(drawing={**heatmap.drawing, "whole": True})


def _row_numbers(rows: Array) -> list[str]:
    return [*map(str, range(len(rows)))]
