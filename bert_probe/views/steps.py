"""One attention weight step by step, as heatmaps: vectors as strips of colour, and what all keys get."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bert_probe.analyses.attention.steps import AttentionStepsResult
from bert_probe.model.trace import Array
from bert_probe.views.matrix import Heatmap, HeatmapSpec
from bert_probe.views.scale import SHARES, Scale
from bert_probe.views.text import labels, positions, shown

PARTS = 10
"""Keys that stand for themselves in the sum; all others are one row."""


def key_of(steps: AttentionStepsResult) -> int:
    """The key whose weight is worked out: the one asked for, else the one of the largest weight."""
    return steps.strongest if steps.question.key is None else int(steps.question.key)


def title(steps: AttentionStepsResult) -> str:
    """Whose steps they are."""
    layer, head = steps.question.layer + 1, steps.question.head + 1
    query, key = (f"{shown(steps.tokens[one].display)} ({one})" for one in (steps.query, key_of(steps)))
    return f"Layer {layer}, head {head}: {query} looks at {key}"


def of_steps(steps: AttentionStepsResult, key: int) -> dict[str, Heatmap]:
    """From the query and one key to what the head gives, a picture a step."""
    scores = Scale.around_zero(steps.scaled, steps.allowed_scores)
    kept, summands = steps.summands(PARTS)
    names = [f"{shown(steps.tokens[position].display)} ({position})" for position in kept]
    names += [f"{len(steps.tokens) - len(kept)} others"] if len(summands) > len(kept) else []

    def vectors(values: Sequence[Array], rows: list[str], scale: Scale, name: str, caption: str) -> Heatmap:
        return strips(values, rows, scale, f"steps-{name}", caption, "vector")

    def keys(rows: dict[str, Array], scale: Scale, name: str, caption: str, value: str = "value") -> Heatmap:
        # What is infinite has no colour, and is hatched.
        finite = [np.where(np.isfinite(row), row, np.nan) for row in rows.values()]
        drawing = HeatmapSpec(
            scale=scale,
            row_axis="step",
            column_axis="key",
            value_name=value,
            caption=caption,
            column_positions=positions(steps.tokens),
            square=False,
            file_name=f"steps-{name}",
        )
        return Heatmap(np.stack(finite), list(rows), labels(steps.tokens), drawing)

    qk = Scale.around_zero(steps.q, steps.keys)
    both = "The query and the key, a colour for each number"
    summed = [*summands, steps.output]
    weights, product = {"weight": steps.weights}, steps.products[key]
    value = [steps.values[key], steps.weighted_values[key]]
    checked = "The head's output, computed in two ways"
    return {
        "qk": vectors([steps.q, steps.keys[key]], ["q, the query", "k, the key"], qk, "qk", both),
        "products": vectors(
            [product],
            ["q × k"],
            Scale.around_zero(steps.products),
            "products",
            "The products of query and key",
        ),
        "scaled": keys(
            {"q · k × scaling": steps.scaled}, scores, "scaled", "The scaled products of all keys"
        ),
        "scores": keys(
            {"mask": steps.mask, "score": steps.scores},
            scores,
            "scores",
            "What is added, and the scores of all keys",
        ),
        "weights": keys(weights, SHARES, "weights", "The attention weights of all keys", "attention weight"),
        "value": vectors(
            value,
            ["v, the value", "weight × v"],
            Scale.around_zero(steps.values),
            "value",
            "The value, and what is left of it",
        ),
        "sum": vectors(
            summed,
            [*names, "= output"],
            Scale.around_zero(summands, steps.output),
            "sum",
            "The weighted values, and their sum",
        ),
        "check": vectors(
            [steps.model_output, steps.output],
            ["the model", "step by step"],
            Scale.around_zero(steps.model_output),
            "check",
            checked,
        ),
    }


def strips(
    values: Array | Sequence[Array],
    rows: Sequence[str],
    scale: Scale,
    file_name: str,
    caption: str,
    row_axis: str = "step",
) -> Heatmap:
    """Vectors, a row each and a cell for each dimension; `values` are [vector, dimension]."""
    drawing = HeatmapSpec(
        scale=scale,
        row_axis=row_axis,
        column_axis="dimension",
        value_name="value",
        caption=caption,
        square=False,
        file_name=file_name,
    )
    whole = np.stack(list(values))
    return Heatmap(whole, list(rows), [str(dimension) for dimension in range(whole.shape[1])], drawing)
