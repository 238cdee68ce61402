"""Which pictures a result has, and they as a web page of their own."""

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

_DRAWN: Final[dict[type[Result], Callable[[Any], list[Heatmap]]]] = {
    HeadAblationResult: lambda found: list(heatmaps.of_ablation(found).values()),
    LayerSimilarityResult: lambda found: [changes.of_alike_layers(found)],
    SimilarityAttributionResult: lambda found: [answers.of_input_contributions(found)],
    AttentionResult: lambda found: [heatmaps.of_attention(found)],
    AttentionStepsResult: lambda found: list(steps.of_steps(found, steps.key_of(found)).values()),
    HeadChangeResult: lambda found: [changes.of_changed_heads(found)],
    VectorChangeResult: lambda found: [changes.of_changed_vectors(found)],
    AttributionFaithfulnessResult: lambda found: [answers.of_checked(found)],
    EvaluateResult: lambda found: [answers.of_confusion(found)],
    HeadAblationSweepResult: lambda found: [heatmaps.of_each_ablation(found)],
    AttributionResult: lambda found: [answers.of_explanations([found])],
    FindHeadsResult: lambda found: [heatmaps.of_found_heads(found)],
    HeadAttributionResult: answers.of_head_effects,
    HeadsResult: heatmaps.of_profiles,
    HeadMatchesResult: lambda found: [changes.of_matched_heads(found)],
    PositionsResult: positions.of_positions,
    MinimalPairResult: lambda found: [heatmaps.of_changes(found), heatmaps.of_moved(found)],
    ActivationPatchingResult: lambda found: [answers.of_patching(found)],
    RelationsResult: lambda found: [probes.of_relations(found, direction) for direction in (0, 1)],
    MinimalPairRowResult: lambda found: list(heatmaps.of_row_pair(found)),
    SentencesResult: lambda found: [heatmaps.of_sentences(found)],
    HiddenStatesResult: lambda found: [heatmaps.of_vectors(found)],
    TokenRolloutResult: lambda found: [heatmaps.of_reach(found)],
    SimilarityResult: lambda found: [heatmaps.of_similarity(found)],
    SentenceSimilarityResult: lambda found: [answers.of_contributions(found)],
    WordInContextResult: lambda found: [heatmaps.of_context(found, found.shown_layer)],
}
"""What is drawn of each, from top to bottom."""

_OF_ATTENTION = (
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
    """Whether there is a picture of it."""
    if isinstance(result, EvaluateResult):
        return result.kind in (CLASSES, TAGS)
    if isinstance(result, PositionsResult):
        return result.question.show in MATRICES
    if isinstance(result, TokenMapResult):
        return True
    return type(result) in _DRAWN and (not isinstance(result, SentenceSimilarityResult) or result.adds_up)


def heatmaps_of(result: Result) -> list[Heatmap]:
    """What is drawn of a result, from top to bottom.

    Raises:
        UnavailableError: there is no picture of it.
    """
    if not is_drawn(result) or type(result) not in _DRAWN:
        raise UnavailableError(
            f"{type(result.question).__name__} has no picture. Its table is result.table(), and result.save "
            "writes it to a file."
        )
    return _DRAWN[type(result)](result)


def page(result: Result, drawn: Sequence[Heatmap] | None = None) -> Page:
    """The pictures of a result as a web page that opens from a disk without a network.

    Args:
        drawn: what `heatmaps_of` gave, where it is at hand.

    Raises:
        UnavailableError: there are none.
    """
    texts = [text for one in result.inputs.texts for text in (one.get("text"), one.get("pair")) if text]
    said = [
        " → ".join(str(model.get("model", "given")) for model in result.inputs.models),
        steps.title(result) if isinstance(result, AttentionStepsResult) else "",
        " + ".join(f"“{shown(str(text))}”" for text in texts),
    ]
    title = " · ".join(filter(None, said))
    if isinstance(result, TokenMapResult):
        return layer_map.page(result, title)
    return matrix.page(
        heatmaps_of(result) if drawn is None else drawn,
        title,
        CAVEAT if isinstance(result, _OF_ATTENTION) else "",
    )
