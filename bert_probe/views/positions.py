"""What a model has for positions, as heatmaps."""

from __future__ import annotations

from collections.abc import Sequence

from bert_probe.analyses.positions import COSINES as BY_COSINE
from bert_probe.analyses.positions import RELATIVE, TABLE, ModelPositions, spans
from bert_probe.model.trace import Array
from bert_probe.views.heatmaps import COSINES
from bert_probe.views.matrix import Drawing, Heatmap
from bert_probe.views.scale import Scale
from bert_probe.views.steps import strips


def of_positions(found: ModelPositions) -> list[Heatmap]:
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
        return [_cosines(found.relative_cosines, caption, "positions-relative", names, "distance")]
    return []


def _cosines(
    values: Array, caption: str, file_name: str, names: Sequence[str] | None = None, axis: str = "position"
) -> Heatmap:
    drawing = Drawing(
        scale=COSINES,
        row_axis=axis,
        column_axis=axis,
        value_name="cosine",
        whole=True,
        caption=caption,
        file_name=file_name,
    )
    numbered = [*map(str, range(len(values)))] if names is None else names
    return Heatmap(values, numbered, numbered, drawing)


def _table(vectors: Array, caption: str, name: str) -> Heatmap:
    rows = [*map(str, range(len(vectors)))]
    drawn = strips(vectors, rows, Scale.around_zero(vectors), name, caption, "position")
    return drawn._replace(drawing={**drawn.drawing, "whole": True})
