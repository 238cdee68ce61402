"""Heatmaps of attributions, activation patching, sentence similarity and evaluation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bert_probe.analyses.attribution.activation_patching import ActivationPatchingResult
from bert_probe.analyses.attribution.attribution import AttributionResult, SimilarityAttributionResult
from bert_probe.analyses.attribution.faithfulness import AttributionFaithfulnessResult
from bert_probe.analyses.attribution.head_attribution import HeadAttributionResult
from bert_probe.analyses.attribution.methods import methods
from bert_probe.analyses.outputs.evaluate import EvaluateResult
from bert_probe.analyses.outputs.sentence_similarity import SentenceSimilarityResult
from bert_probe.text.labeled_texts import CLASSES
from bert_probe.views.heatmaps import head_grid, token_pair_heatmap
from bert_probe.views.matrix import Heatmap, HeatmapSpec
from bert_probe.views.scale import Scale
from bert_probe.views.text import labels, positions, shorten


def patching_heatmap(result: ActivationPatchingResult) -> Heatmap:
    """Return a heatmap of the share of A's output that each patch recovers, by token and layer or by head."""
    scale = Scale("diverging", -1, 1, "sqrt")
    if result.question.component == "heads":
        title = "Share of A's output recovered by patching each head"
        return head_grid(result.recovered, "recovered", title, scale, "patching-heads")
    drawing = HeatmapSpec(
        scale=scale,
        row_axis="token",
        column_axis="layer",
        value_name="recovered",
        caption="Share of A's output recovered by patching each token's vector after each layer",
        row_positions=positions(result.tokens_a),
        file_name="patching-tokens",
    )
    names = [patched_name(result, position) for position in range(len(result.tokens_a))]
    return Heatmap(result.recovered.T, names, [str(layer) for layer in range(len(result.recovered))], drawing)


def patched_name(result: ActivationPatchingResult, place: int) -> str:
    """Return the label of A's token at a position, with B's token if different, as in "was for is"."""
    token_a, token_b = (shorten(tokens[place].display) for tokens in (result.tokens_a, result.tokens_b))
    return token_a if token_a == token_b else f"{token_a} for {token_b}"


def sentence_similarity_heatmap(result: SentenceSimilarityResult) -> Heatmap:
    """Return a heatmap of the contribution of each token pair to the cosine of two sentences."""
    return token_pair_heatmap(
        result.percent,
        result.a.tokens,
        result.b.tokens,
        ("A", "B"),
        Scale.around_zero(result.percent),
        "hundredths",
        "Contribution of each pair of tokens to the cosine, in hundredths",
        "contributions",
    )


def similarity_attribution_heatmap(result: SimilarityAttributionResult) -> Heatmap:
    """Return a heatmap of the contribution of each pair of input tokens to the cosine of two sentences."""
    return token_pair_heatmap(
        result.percent,
        result.tokens_a,
        result.tokens_b,
        ("A", "B"),
        Scale.around_zero(result.percent),
        "hundredths",
        "Contribution of each pair of input tokens to the cosine, in hundredths",
        "contributions-input",
    )


def attribution_heatmap(results: Sequence[AttributionResult]) -> Heatmap:
    """Return a heatmap of attributions as shares, one row per method and one column per word or token."""
    first = results[0]
    indices = [index for index, unit in enumerate(first.units) if not unit.special]
    units = [first.units[index] for index in indices]
    values = np.array([result.shares[indices] for result in results])
    drawing = HeatmapSpec(
        scale=Scale("diverging", -1, 1, "sqrt"),
        row_axis="method",
        column_axis="word" if first.question.words else "token",
        value_name="share",
        caption=f"Attribution of the {shorten(first.number)}",
        square=False,
        column_positions=positions(units),
        file_name="attribution",
    )
    names = [methods()[result.question.method].label for result in results]
    return Heatmap(values, names, labels(units), drawing)


def faithfulness_heatmap(result: AttributionFaithfulnessResult) -> Heatmap:
    """Return a heatmap of the attributions of all methods whose faithfulness was measured."""
    return attribution_heatmap(list(result.explanations.values()))


def head_attribution_heatmaps(result: HeadAttributionResult) -> list[Heatmap]:
    """Return two heatmaps by head: output change under ablation, and gradient-based importance."""
    end = Scale.from_zero(np.abs(result.changes), 0.0).high
    number = shorten(result.number)
    # Cells show only two decimals, so the small changes of a cosine are shown in hundredths.
    factor, unit = (100, ", hundredths") if end < 0.5 else (1, "")
    changes = head_grid(
        factor * result.changes,
        f"change{unit}",
        f"Change of the {number} when each head is ablated",
        Scale("diverging", -factor * end, factor * end),
        "head-attribution",
    )
    importance = head_grid(
        factor * result.importance,
        f"|output · gradient|{unit}",
        f"Gradient-based importance of each head for the {number}",
        Scale.from_zero(factor * result.importance, 0.0),
        "head-importance",
    )
    return [changes, importance]


def confusion_heatmap(result: EvaluateResult) -> Heatmap:
    """Return the confusion matrix of a text or token classifier as a heatmap."""
    names = [shorten(label) for label in result.labels]
    unit = "texts" if result.kind == CLASSES else "words"
    return Heatmap(
        result.confusion,
        names,
        names,
        HeatmapSpec(
            scale=Scale.from_zero(result.confusion, 0.0),
            row_axis="true label",
            column_axis="predicted label",
            value_name=unit,
            caption=f"{unit.capitalize()} by true and predicted label",
            decimals=0,
            file_name="confusion",
        ),
    )
