"""What answers depend on, and how right they are, as heatmaps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bert_probe.analyses.attribution.activation_patching import ActivationPatchingResult
from bert_probe.analyses.attribution.attribution import AttributionResult
from bert_probe.analyses.attribution.faithfulness import AttributionFaithfulnessResult
from bert_probe.analyses.attribution.head_attribution import HeadAttributionResult
from bert_probe.analyses.attribution.methods import methods
from bert_probe.analyses.attribution.similarity_attribution import SimilarityAttributionResult
from bert_probe.analyses.outputs.evaluate import EvaluateResult
from bert_probe.analyses.outputs.sentence_similarity import SentenceSimilarityResult
from bert_probe.text.labeled_texts import CLASSES
from bert_probe.views.heatmaps import between, by_head
from bert_probe.views.matrix import Heatmap, HeatmapSpec
from bert_probe.views.scale import Scale
from bert_probe.views.text import labels, positions, shown


def of_patching(found: ActivationPatchingResult) -> Heatmap:
    """How much of A comes back: by token and layer, or by head."""
    scale = Scale("diverging", -1, 1, "sqrt")
    if found.question.what == "heads":
        title = "How much of A comes back by what each head returns"
        return by_head(found.recovered, "recovered", title, scale, "patching-heads")
    drawing = HeatmapSpec(
        scale=scale,
        row_axis="token",
        column_axis="layer",
        value_name="recovered",
        caption="How much of A comes back by each token's vector after each layer",
        row_positions=positions(found.tokens_a),
        file_name="patching-tokens",
    )
    names = [patched_name(found, place) for place in range(len(found.tokens_a))]
    return Heatmap(found.recovered.T, names, [str(layer) for layer in range(len(found.recovered))], drawing)


def patched_name(found: ActivationPatchingResult, place: int) -> str:
    """The token that is put in, and what it takes the place of where that is another one."""
    one, other = (shown(side[place].display) for side in (found.tokens_a, found.tokens_b))
    return one if one == other else f"{one} for {other}"


def of_contributions(found: SentenceSimilarityResult) -> Heatmap:
    """What each pair of tokens adds to a cosine."""
    return between(
        found.hundredths,
        found.a.tokens,
        found.b.tokens,
        ("A", "B"),
        Scale.around_zero(found.hundredths),
        "hundredths",
        "What each pair of tokens adds to the cosine, in hundredths",
        "contributions",
    )


def of_input_contributions(found: SimilarityAttributionResult) -> Heatmap:
    """What each pair of input tokens adds to a cosine."""
    return between(
        found.hundredths,
        found.tokens_a,
        found.tokens_b,
        ("A", "B"),
        Scale.around_zero(found.hundredths),
        "hundredths",
        "What each pair of input tokens adds to the cosine, in hundredths",
        "contributions-input",
    )


def of_explanations(found: Sequence[AttributionResult]) -> Heatmap:
    """A row a method, a column a word: shares, so that all are on one scale."""
    own = [index for index, unit in enumerate(found[0].units) if not unit.special]
    units = [found[0].units[index] for index in own]
    values = np.array([one.shares[own] for one in found])
    drawing = HeatmapSpec(
        scale=Scale("diverging", -1, 1, "sqrt"),
        row_axis="method",
        column_axis="word" if found[0].question.words else "token",
        value_name="share",
        caption=f"What the {shown(found[0].number)} depends on",
        square=False,
        column_positions=positions(units),
        file_name="why",
    )
    return Heatmap(values, [methods()[one.question.method].label for one in found], labels(units), drawing)


def of_checked(found: AttributionFaithfulnessResult) -> Heatmap:
    """All methods."""
    return of_explanations(list(found.explanations.values()))


def of_head_effects(found: HeadAttributionResult) -> list[Heatmap]:
    """The change without each head, and the importance of each by its gradient."""
    end = Scale.from_zero(np.abs(found.changes), 0.0).high
    number = shown(found.number)
    # A cell has room for two decimals, and a cosine changes little.
    factor, unit = (100, ", hundredths") if end < 0.5 else (1, "")
    changes = by_head(
        factor * found.changes,
        f"change{unit}",
        f"How the {number} changes without each head",
        Scale("diverging", -factor * end, factor * end),
        "why-heads",
    )
    importance = by_head(
        factor * found.importance,
        f"|output · gradient|{unit}",
        f"Importance of each head for the {number} by its gradient",
        Scale.from_zero(factor * found.importance, 0.0),
        "why-heads-gradient",
    )
    return [changes, importance]


def of_confusion(found: EvaluateResult) -> Heatmap:
    """How many of each class were answered as each."""
    names = [shown(label) for label in found.labels]
    return Heatmap(
        found.confusion,
        names,
        names,
        HeatmapSpec(
            scale=Scale.from_zero(found.confusion, 0.0),
            row_axis="right",
            column_axis="answered",
            value_name="texts" if found.kind == CLASSES else "words",
            caption="How many of each class were answered as each",
            decimals=0,
            file_name="confusion",
        ),
    )
