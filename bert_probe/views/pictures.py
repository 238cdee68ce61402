"""Heatmaps and web pages for results of all types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from bert_probe.analyses.attention.attention import AttentionResult, TokenRolloutResult
from bert_probe.analyses.attention.find_heads import FindHeadsResult
from bert_probe.analyses.attention.heads import HeadsResult
from bert_probe.analyses.attention.steps import AttentionStepsResult
from bert_probe.analyses.attribution.activation_patching import ActivationPatchingResult
from bert_probe.analyses.attribution.attribution import AttributionResult, SimilarityAttributionResult
from bert_probe.analyses.attribution.faithfulness import AttributionFaithfulnessResult
from bert_probe.analyses.attribution.head_ablation import HeadAblationResult, HeadAblationSweepResult
from bert_probe.analyses.attribution.head_attribution import HeadAttributionResult
from bert_probe.analyses.comparison.head_matches import HeadMatchesResult
from bert_probe.analyses.comparison.layer_similarity import LayerSimilarityResult
from bert_probe.analyses.comparison.minimal_pair import MinimalPairResult, MinimalPairRowResult
from bert_probe.analyses.comparison.model_change import HeadChangeResult, VectorChangeResult
from bert_probe.analyses.outputs.evaluate import EvaluateResult
from bert_probe.analyses.outputs.head_predictions import TAGS
from bert_probe.analyses.outputs.sentence_similarity import SentenceSimilarityResult
from bert_probe.analyses.probing.relations import RelationsResult
from bert_probe.analyses.vectors.embedding import HiddenStatesResult
from bert_probe.analyses.vectors.sentences import SentencesResult
from bert_probe.analyses.vectors.similarity import SimilarityResult
from bert_probe.analyses.vectors.token_map import TokenMapResult
from bert_probe.analyses.vectors.word_in_context import WordInContextResult
from bert_probe.analyses.weights.positions import MATRICES, PositionsResult
from bert_probe.core.result import Result
from bert_probe.errors import UnavailableError
from bert_probe.text.labeled_texts import CLASSES
from bert_probe.views import heatmaps, layer_map, matrix, steps
from bert_probe.views.matrix import Heatmap
from bert_probe.views.page import CAVEAT, Page
from bert_probe.views.text import shorten

_HEATMAPS: Final[dict[type[Result], Callable[[Any], list[Heatmap]]]] = {
    HeadAblationResult: lambda result: list(heatmaps.ablation_heatmaps(result).values()),
    LayerSimilarityResult: lambda result: [heatmaps.layer_similarity_heatmap(result)],
    SimilarityAttributionResult: lambda result: [heatmaps.similarity_attribution_heatmap(result)],
    AttentionResult: lambda result: [heatmaps.attention_heatmap(result)],
    AttentionStepsResult: lambda result: list(
        steps.step_heatmaps(result, steps.key_position(result)).values()
    ),
    HeadChangeResult: lambda result: [heatmaps.head_change_heatmap(result)],
    VectorChangeResult: lambda result: [heatmaps.vector_change_heatmap(result)],
    AttributionFaithfulnessResult: lambda result: [
        heatmaps.attribution_heatmap([*result.explanations.values()])
    ],
    EvaluateResult: lambda result: [heatmaps.confusion_heatmap(result)],
    HeadAblationSweepResult: lambda result: [heatmaps.ablation_sweep_heatmap(result)],
    AttributionResult: lambda result: [heatmaps.attribution_heatmap([result])],
    FindHeadsResult: lambda result: [heatmaps.find_heads_heatmap(result)],
    HeadAttributionResult: heatmaps.head_attribution_heatmaps,
    HeadsResult: heatmaps.head_measure_heatmaps,
    HeadMatchesResult: lambda result: [heatmaps.head_matches_heatmap(result)],
    PositionsResult: heatmaps.position_heatmaps,
    MinimalPairResult: lambda result: [
        heatmaps.minimal_pair_heads_heatmap(result),
        heatmaps.minimal_pair_vectors_heatmap(result),
    ],
    ActivationPatchingResult: lambda result: [heatmaps.patching_heatmap(result)],
    RelationsResult: lambda result: [heatmaps.relations_heatmap(result, direction) for direction in (0, 1)],
    MinimalPairRowResult: lambda result: list(heatmaps.minimal_pair_row_heatmaps(result)),
    SentencesResult: lambda result: [heatmaps.sentences_heatmap(result)],
    HiddenStatesResult: lambda result: [heatmaps.hidden_states_heatmap(result)],
    TokenRolloutResult: lambda result: [heatmaps.token_rollout_heatmap(result)],
    SimilarityResult: lambda result: [heatmaps.similarity_heatmap(result)],
    SentenceSimilarityResult: lambda result: [heatmaps.sentence_similarity_heatmap(result)],
    WordInContextResult: lambda result: [heatmaps.word_in_context_heatmap(result, result.shown_layer)],
}
"""Type of result → function that returns the heatmaps of a result, from top to bottom."""

_ATTENTION_RESULTS = (
    AttentionResult,
    TokenRolloutResult,
    MinimalPairResult,
    MinimalPairRowResult,
    FindHeadsResult,
    HeadsResult,
    HeadChangeResult,
    HeadMatchesResult,
)


def is_drawn(result: Result) -> bool:
    """Return whether a result can be visualized."""
    if isinstance(result, EvaluateResult):
        return result.kind in (CLASSES, TAGS)
    if isinstance(result, PositionsResult):
        return result.question.show in MATRICES
    if isinstance(result, TokenMapResult):
        return True
    return type(result) in _HEATMAPS and (not isinstance(result, SentenceSimilarityResult) or result.adds_up)


def heatmaps_of(result: Result) -> list[Heatmap]:
    """Return the heatmaps of a result, from top to bottom.

    Raises:
        UnavailableError: The result has no heatmap.
    """
    if not is_drawn(result) or type(result) not in _HEATMAPS:
        raise UnavailableError(
            f"{type(result.question).__name__} has no visualization. Use result.table(), or write the table "
            "to a file with result.save()."
        )
    return _HEATMAPS[type(result)](result)


def page(result: Result, computed_heatmaps: Sequence[Heatmap] | None = None) -> Page:
    """Return a self-contained web page with the heatmaps or the token map of a result.

    Args:
        result: A result that can be visualized.
        computed_heatmaps: The output of `heatmaps_of`, if it is already available.

    Raises:
        UnavailableError: The result has no visualization.
    """
    texts = [text for entry in result.inputs.texts for text in (entry.get("text"), entry.get("pair")) if text]
    title_parts = [
        " → ".join(str(model.get("model", "given")) for model in result.inputs.models),
        steps.title(result) if isinstance(result, AttentionStepsResult) else "",
        " + ".join(f"“{shorten(str(text))}”" for text in texts),
    ]
    title = " · ".join(filter(None, title_parts))
    if isinstance(result, TokenMapResult):
        return layer_map.page(result, title)
    return matrix.page(
        heatmaps_of(result) if computed_heatmaps is None else computed_heatmaps,
        title,
        CAVEAT if isinstance(result, _ATTENTION_RESULTS) else "",
    )
