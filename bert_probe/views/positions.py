"""What a model has for positions, as heatmaps."""

from __future__ import annotations

from bert_probe.analyses.weights.positions import COSINES as BY_COSINE
from bert_probe.analyses.weights.positions import RELATIVE, TABLE, PositionsResult, spans
from bert_probe.model.trace import Array
from bert_probe.views.heatmaps import cosines
from bert_probe.views.matrix import Heatmap
from bert_probe.views.scale import Scale
from bert_probe.views.steps import strips


def of_positions(found: PositionsResult) -> list[Heatmap]:
    """What is drawn of what is shown: learned beside the sinusoids; nothing of what is a curve."""
    if found.question.show == BY_COSINE:
        return [
            _cosines(found.cosines, "Cosine of every two learned positions", "positions-learned"),
            _cosines(found.sinusoid_cosines, "Cosine of every two sinusoids", "positions-sinusoids"),
        ]
    if found.question.show == TABLE:
        learned = found.table_of_positions.vectors
        return [
            _table(learned, "Learned vectors of the positions", "positions-learned-table"),
            _table(found.sinusoids, "Sinusoids of the same size", "positions-sinusoids-table"),
        ]
    if found.question.show == RELATIVE and found.relative is not None:
        caption, names = "Cosine of every two distances' vectors", spans(found.relative)
        values = found.relative_cosines
        return [cosines(values, names, "distance", caption, "positions-relative", whole=True)]
    return []


def _cosines(values: Array, caption: str, name: str) -> Heatmap:
    return cosines(values, _numbered(values), "position", caption, name, whole=True)


def _table(vectors: Array, caption: str, name: str) -> Heatmap:
    drawn = strips(vectors, _numbered(vectors), Scale.around_zero(vectors), name, caption, "position")
    return drawn._replace(drawing={**drawn.drawing, "whole": True})


def _numbered(rows: Array) -> list[str]:
    return [*map(str, range(len(rows)))]
