"""Which pictures a result has, and they as a web page of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from bert_probe.analyses.ablation import Ablation, EachAblation
from bert_probe.analyses.attention import AttentionMap
from bert_probe.analyses.context import WordsInContext
from bert_probe.analyses.evaluation import Evaluation
from bert_probe.analyses.find_heads import FoundHeads
from bert_probe.analyses.head_change import ChangedHeads
from bert_probe.analyses.head_matches import MatchedHeads
from bert_probe.analyses.heads import HeadProfiles
from bert_probe.analyses.judging import TAGS
from bert_probe.analyses.layer_alikeness import AlikeLayers
from bert_probe.analyses.layer_map import MappedLayers
from bert_probe.analyses.minimal_pair import MinimalPair, RowPair
from bert_probe.analyses.pair_jacobians import AlikeByInput
from bert_probe.analyses.patching import Patching
from bert_probe.analyses.positions import MATRICES, ModelPositions
from bert_probe.analyses.probes.relations import RelationHeads
from bert_probe.analyses.reach import TokenReach
from bert_probe.analyses.sentence_similarity import TwoTexts
from bert_probe.analyses.sentences import SentenceVectors
from bert_probe.analyses.similarity import TokenSimilarity
from bert_probe.analyses.steps import AttentionSteps
from bert_probe.analyses.vector_change import ChangedVectors
from bert_probe.analyses.vectors import TextVectors
from bert_probe.analyses.why import Explanation
from bert_probe.analyses.why_check import CheckedMethods
from bert_probe.analyses.why_heads import HeadEffects
from bert_probe.core.result import Result
from bert_probe.errors import UnavailableError
from bert_probe.text.labeled_texts import CLASSES
from bert_probe.views import answers, changes, heatmaps, layer_map, matrix, positions, probes, steps
from bert_probe.views.matrix import Heatmap
from bert_probe.views.page import CAVEAT, Page
from bert_probe.views.text import shown

_DRAWN: Final[dict[type[Result], Callable[[Any], list[Heatmap]]]] = {
    Ablation: lambda found: list(heatmaps.of_ablation(found).values()),
    AlikeLayers: lambda found: [changes.of_alike_layers(found)],
    AlikeByInput: lambda found: [answers.of_input_contributions(found)],
    AttentionMap: lambda found: [heatmaps.of_attention(found)],
    AttentionSteps: lambda found: list(steps.of_steps(found, steps.key_of(found)).values()),
    ChangedHeads: lambda found: [changes.of_changed_heads(found)],
    ChangedVectors: lambda found: [changes.of_changed_vectors(found)],
    CheckedMethods: lambda found: [answers.of_checked(found)],
    Evaluation: lambda found: [answers.of_confusion(found)],
    EachAblation: lambda found: [heatmaps.of_each_ablation(found)],
    Explanation: lambda found: [answers.of_explanations([found])],
    FoundHeads: lambda found: [heatmaps.of_found_heads(found)],
    HeadEffects: answers.of_head_effects,
    HeadProfiles: heatmaps.of_profiles,
    MatchedHeads: lambda found: [changes.of_matched_heads(found)],
    ModelPositions: positions.of_positions,
    MinimalPair: lambda found: [heatmaps.of_changes(found), heatmaps.of_moved(found)],
    Patching: lambda found: [answers.of_patching(found)],
    RelationHeads: lambda found: [probes.of_relations(found, direction) for direction in (0, 1)],
    RowPair: lambda found: list(heatmaps.of_row_pair(found)),
    SentenceVectors: lambda found: [heatmaps.of_sentences(found)],
    TextVectors: lambda found: [heatmaps.of_vectors(found)],
    TokenReach: lambda found: [heatmaps.of_reach(found)],
    TokenSimilarity: lambda found: [heatmaps.of_similarity(found)],
    TwoTexts: lambda found: [answers.of_contributions(found)],
    WordsInContext: lambda found: [heatmaps.of_context(found, found.shown_layer)],
}
"""What is drawn of each, from top to bottom."""

_OF_ATTENTION = (
    AttentionMap,
    TokenReach,
    MinimalPair,
    RowPair,
    FoundHeads,
    HeadProfiles,
    ChangedHeads,
    MatchedHeads,
)


def is_drawn(result: Result) -> bool:
    """Whether there is a picture of it."""
    if isinstance(result, Evaluation):
        return result.kind in (CLASSES, TAGS)
    if isinstance(result, ModelPositions):
        return result.question.show in MATRICES
    if isinstance(result, MappedLayers):
        return True
    return type(result) in _DRAWN and (not isinstance(result, TwoTexts) or result.adds_up)


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
    texts = [text for one in result.subject.texts for text in (one.get("text"), one.get("pair")) if text]
    said = [
        " → ".join(str(model.get("model", "given")) for model in result.subject.models),
        steps.title(result) if isinstance(result, AttentionSteps) else "",
        " + ".join(f"“{shown(str(text))}”" for text in texts),
    ]
    title = " · ".join(filter(None, said))
    if isinstance(result, MappedLayers):
        return layer_map.page(result, title)
    return matrix.page(
        heatmaps_of(result) if drawn is None else drawn,
        title,
        CAVEAT if isinstance(result, _OF_ATTENTION) else "",
    )
