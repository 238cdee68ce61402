"""Heatmaps of the computation of one attention weight, step by step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bert_probe.analyses.attention.steps import AttentionStepsResult
from bert_probe.model.trace import Array
from bert_probe.views.matrix import Heatmap, HeatmapSpec
from bert_probe.views.palette import SHARES, Scale
from bert_probe.views.text import labels, positions, shorten

MAX_SUMMANDS = 10
"""Maximum number of keys with their own row in the heatmap of the sum. All other keys share one row."""


def key_position(steps: AttentionStepsResult) -> int:
    """Return the position of the question's key. The default is the key with the largest weight."""
    return steps.strongest if steps.question.key is None else int(steps.question.key)


def title(steps: AttentionStepsResult) -> str:
    """Return the title of the heatmaps, which names the layer, head, query and key."""
    layer, head = steps.question.layer + 1, steps.question.head + 1
    query, key = (
        f"{shorten(steps.tokens[position].display)} ({position})"
        for position in (steps.query, key_position(steps))
    )
    return f"Layer {layer}, head {head}: {query} attends to {key}"


def step_titles(steps: AttentionStepsResult) -> dict[str, str]:
    """Return the numbered titles of the steps: name of the step → title."""
    names = {
        "qk": "Query and key",
        "products": "Dot product",
        "scaled": "Scale",
        **({} if steps.softcap is None else {"limited": "Limit"}),
        "scores": "Mask and bias" if steps.biased else "Mask",
        "weights": "Softmax",
        "value": "Weighted value",
        "sum": "Sum",
    }
    return {name: f"{number} · {words}" for number, (name, words) in enumerate(names.items(), start=1)}


def step_heatmaps(steps: AttentionStepsResult, key: int) -> dict[str, Heatmap]:
    """Return one heatmap for each step from the query and key vectors to the output of the head, by name.

    Args:
        steps: the steps of one head for one query.
        key: index of the key token whose products and value vector are drawn.
    """
    added, biases = ("bias", [steps.mask[~steps.masked]]) if steps.biased else ("mask", [])
    scores = Scale.around_zero(steps.scaled, steps.allowed_scores, *biases)
    summand_keys, summands = steps.summands(MAX_SUMMANDS)
    names = [f"{shorten(steps.tokens[position].display)} ({position})" for position in summand_keys]
    if len(summands) > len(summand_keys):
        names.append(f"{len(steps.tokens) - len(summand_keys)} other keys")

    def vectors(values: Sequence[Array], rows: list[str], scale: Scale, name: str, caption: str) -> Heatmap:
        return strips(values, rows, scale, f"steps-{name}", caption, "vector")

    def keys(rows: dict[str, Array], scale: Scale, name: str, caption: str, value: str = "value") -> Heatmap:
        # Replace infinite scores, which have no color, with NaN, which is drawn hatched.
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
    query_and_key = "The query vector and the key vector"
    terms = [*summands, steps.output]
    weights, product = {"weight": steps.weights}, steps.products[key]
    value = [steps.values[key], steps.weighted_values[key]]
    check = "The head's output: returned by the model, and computed step by step"
    limit = {}
    if steps.softcap is not None:
        rows = {"scaled": steps.scaled, "limited": steps.limited}
        limit["limited"] = keys(rows, scores, "limited", "The scaled products, before and after the softcap")
    return {
        **limit,
        "qk": vectors([steps.q, steps.keys[key]], ["q, the query", "k, the key"], qk, "qk", query_and_key),
        "products": vectors(
            [product],
            ["q × k"],
            Scale.around_zero(steps.products),
            "products",
            "The elementwise products of query and key",
        ),
        "scaled": keys(
            {"q · k × scaling": steps.scaled}, scores, "scaled", "The scaled dot products of all keys"
        ),
        "scores": keys(
            {added: steps.mask, "score": steps.scores},
            scores,
            "scores",
            f"The {added}, and the scores of all keys",
        ),
        "weights": keys(weights, SHARES, "weights", "The attention weights of all keys", "attention weight"),
        "value": vectors(
            value,
            ["v, the value", "weight × v"],
            Scale.around_zero(steps.values),
            "value",
            "The value vector, and the value times its weight",
        ),
        "sum": vectors(
            terms,
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
            check,
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
    """Return a heatmap of vectors, with one row per vector and one column per dimension.

    Args:
        values: Vectors of equal length.
        rows: Label of each vector.
        scale: Color scale.
        file_name: Name of saved files, without extension.
        caption: Title of the heatmap.
        row_axis: Title of the row axis.
    """
    drawing = HeatmapSpec(
        scale=scale,
        row_axis=row_axis,
        column_axis="dimension",
        value_name="value",
        caption=caption,
        square=False,
        file_name=file_name,
    )
    vectors = np.stack(list(values))
    return Heatmap(vectors, list(rows), [str(dimension) for dimension in range(vectors.shape[1])], drawing)
