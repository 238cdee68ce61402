"""The heatmaps and the web page of any result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from bert_probe.analyses.attention.attention import AttentionResult
from bert_probe.analyses.attention.find_heads import FindHeadsResult
from bert_probe.analyses.attention.heads import HeadsResult
from bert_probe.analyses.attention.steps import AttentionStepsResult
from bert_probe.analyses.attention.token_rollout import TokenRolloutResult
from bert_probe.analyses.attribution.activation_patching import ActivationPatchingResult
from bert_probe.analyses.attribution.attribution import AttributionResult
from bert_probe.analyses.attribution.faithfulness import AttributionFaithfulnessResult
from bert_probe.analyses.attribution.head_ablation import HeadAblationResult, HeadAblationSweepResult
from bert_probe.analyses.attribution.head_attribution import HeadAttributionResult
from bert_probe.analyses.attribution.similarity_attribution import SimilarityAttributionResult
from bert_probe.analyses.comparison.head_change import HeadChangeResult
from bert_probe.analyses.comparison.head_matches import HeadMatchesResult
from bert_probe.analyses.comparison.layer_similarity import LayerSimilarityResult
from bert_probe.analyses.comparison.minimal_pair import MinimalPairResult, MinimalPairRowResult
from bert_probe.analyses.comparison.vector_change import VectorChangeResult
from bert_probe.analyses.outputs.evaluate import EvaluateResult
from bert_probe.analyses.outputs.head_predictions import TAGS
from bert_probe.analyses.outputs.sentence_similarity import SentenceSimilarityResult
from bert_probe.analyses.probing.relations import RelationsResult
from bert_probe.analyses.vectors.hidden_states import HiddenStatesResult
from bert_probe.analyses.vectors.sentences import SentencesResult
from bert_probe.analyses.vectors.similarity import SimilarityResult
from bert_probe.analyses.vectors.token_map import TokenMapResult
from bert_probe.analyses.vectors.word_in_context import WordInContextResult
from bert_probe.analyses.weights.positions import MATRICES, PositionsResult
from bert_probe.core.result import Result
from bert_probe.errors import UnavailableError
from bert_probe.text.labeled_texts import CLASSES
from bert_probe.views import answers, changes, heatmaps, layer_map, matrix, positions, probes, steps
from bert_probe.views.matrix import Heatmap
from bert_probe.views.page import CAVEAT, Page
from bert_probe.views.text import shown

_HEATMAPS: Final[dict[type[Result], Callable[[Any], list[Heatmap]]]] = {
    HeadAblationResult: lambda result: list(heatmaps.of_ablation(result).values()),
    LayerSimilarityResult: lambda result: [changes.of_alike_layers(result)],
    SimilarityAttributionResult: lambda result: [answers.of_input_contributions(result)],
    AttentionResult: lambda result: [heatmaps.of_attention(result)],
    AttentionStepsResult: lambda result: list(steps.of_steps(result, steps.key_of(result)).values()),
    HeadChangeResult: lambda result: [changes.of_changed_heads(result)],
    VectorChangeResult: lambda result: [changes.of_changed_vectors(result)],
    AttributionFaithfulnessResult: lambda result: [answers.of_checked(result)],
    EvaluateResult: lambda result: [answers.of_confusion(result)],
    HeadAblationSweepResult: lambda result: [heatmaps.of_each_ablation(result)],
    AttributionResult: lambda result: [answers.of_explanations([result])],
    FindHeadsResult: lambda result: [heatmaps.of_found_heads(result)],
    HeadAttributionResult: answers.of_head_effects,
    HeadsResult: heatmaps.of_profiles,
    HeadMatchesResult: lambda result: [changes.of_matched_heads(result)],
    PositionsResult: positions.of_positions,
    MinimalPairResult: lambda result: [heatmaps.of_changes(result), heatmaps.of_moved(result)],
    ActivationPatchingResult: lambda result: [answers.of_patching(result)],
    RelationsResult: lambda result: [probes.of_relations(result, direction) for direction in (0, 1)],
    MinimalPairRowResult: lambda result: list(heatmaps.of_row_pair(result)),
    SentencesResult: lambda result: [heatmaps.of_sentences(result)],
    HiddenStatesResult: lambda result: [heatmaps.of_vectors(result)],
    TokenRolloutResult: lambda result: [heatmaps.of_reach(result)],
    SimilarityResult: lambda result: [heatmaps.of_similarity(result)],
    SentenceSimilarityResult: lambda result: [answers.of_contributions(result)],
    WordInContextResult: lambda result: [heatmaps.of_context(result, result.shown_layer)],
}
"""Type of result -> function that returns its heatmaps, from top to bottom."""

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


def page(result: Result, drawn: Sequence[Heatmap] | None = None) -> Page:
    """Return a self-contained web page with the heatmaps, or the map, of a result.

    Args:
        result: The result.
        drawn: The output of `heatmaps_of`, if it was computed already.

    Raises:
        UnavailableError: The result has no visualization.
    """
    texts = [text for entry in result.inputs.texts for text in (entry.get("text"), entry.get("pair")) if text]
    title_parts = [
        " → ".join(str(model.get("model", "given")) for model in result.inputs.models),
        steps.title(result) if isinstance(result, AttentionStepsResult) else "",
        " + ".join(f"“{shown(str(text))}”" for text in texts),
    ]
    title = " · ".join(filter(None, title_parts))
    if isinstance(result, TokenMapResult):
        return layer_map.page(result, title)
    return matrix.page(
        heatmaps_of(result) if drawn is None else drawn,
        title,
        CAVEAT if isinstance(result, _ATTENTION_RESULTS) else "",
    )
