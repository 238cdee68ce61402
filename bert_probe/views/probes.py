"""The heatmap of how well heads find syntactic relations."""

from __future__ import annotations

from bert_probe.analyses.probing.relations import DIRECTIONS, RelationsResult
from bert_probe.views.matrix import Heatmap, HeatmapSpec
from bert_probe.views.scale import Scale
from bert_probe.views.text import shorten


def relations_heatmap(result: RelationsResult, direction: int = 0) -> Heatmap:
    """Return the accuracy of each head for each relation in the test file."""
    _, _, layers, heads = result.accuracies.shape
    return Heatmap(
        result.in_direction(direction),
        [f"{shorten(name)} ({count:,})" for name, count in zip(result.relations, result.counts, strict=True)],
        [f"{layer}.{head}" for layer in range(1, layers + 1) for head in range(1, heads + 1)],
        HeatmapSpec(
            scale=Scale("sequential", 0, 1),
            row_axis="relation",
            column_axis="head",
            value_name="accuracy",
            caption=f"Accuracy of the most attended other word, from {DIRECTIONS[direction]}",
            square=False,
            file_name="relations",
        ),
    )
