"""Heads against a treebank as a heatmap."""

from __future__ import annotations

from bert_probe.analyses.probing.relations import DIRECTIONS, RelationsResult
from bert_probe.views.matrix import Heatmap, HeatmapSpec
from bert_probe.views.scale import Scale
from bert_probe.views.text import shown


def of_relations(found: RelationsResult, direction: int = 0) -> Heatmap:
    """How often each head is right about each relation, in the file that is reported."""
    _, _, layers, heads = found.accuracies.shape
    return Heatmap(
        found.in_direction(direction),
        [f"{shown(name)} ({count:,})" for name, count in zip(found.relations, found.counts, strict=True)],
        [f"{layer}.{head}" for layer in range(1, layers + 1) for head in range(1, heads + 1)],
        HeatmapSpec(
            scale=Scale("sequential", 0, 1),
            row_axis="relation",
            column_axis="head",
            value_name="accuracy",
            caption=f"How often a head's strongest other word is right, from {DIRECTIONS[direction]}",
            square=False,
            file_name="relations",
        ),
    )
