"""The figure of each type of result, as heatmaps or as an HTML page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bert_probe.analyses.attention.attention import AttentionResult, TokenRolloutResult
from bert_probe.analyses.attention.contacts import ContactsResult
from bert_probe.analyses.attention.find_heads import FindHeadsResult
from bert_probe.analyses.attention.heads import Heads, HeadsResult
from bert_probe.analyses.attention.steps import AttentionStepsResult
from bert_probe.analyses.attribution.activation_patching import ActivationPatchingResult
from bert_probe.analyses.attribution.attribution import AttributionResult, SimilarityAttributionResult
from bert_probe.analyses.attribution.faithfulness import AttributionFaithfulnessResult
from bert_probe.analyses.attribution.head_ablation import HeadAblationResult, HeadAblationSweepResult
from bert_probe.analyses.attribution.head_attribution import HeadAttributionResult
from bert_probe.analyses.comparison.minimal_pair import MinimalPairResult, MinimalPairRowResult
from bert_probe.analyses.comparison.model_change import HeadChangeResult, VectorChangeResult
from bert_probe.analyses.comparison.model_similarity import HeadMatchesResult, LayerSimilarityResult
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
from bert_probe.model.trace import Trace
from bert_probe.text.labeled_texts import CLASSES
from bert_probe.views import contributions, head_view, heatmaps, layer_map, matrix, model_view, steps
from bert_probe.views.contributions import contacts_heatmap
from bert_probe.views.head_view import AnswerFn, HeadViewData, call_method, compute_labels
from bert_probe.views.matrix import Heatmap
from bert_probe.views.page import CAVEAT, Page
from bert_probe.views.selection import Selection
from bert_probe.views.text import shorten


@dataclass(frozen=True)
class Picture:
    """The functions that create the figure for one type of result."""

    heatmaps: Callable[[Any], list[Heatmap]] | None = None  # returns the heatmaps from top to bottom
    # returns the page of a figure without heatmaps, from a result and a title
    page: Callable[[Any, str], Page] | None = None
    has_picture: Callable[[Any], bool] = lambda _: True  # returns whether a result has a figure
    caveat: str = ""  # the note below the figure


PICTURES: Final[dict[type[Result], Picture]] = {
    HeadAblationResult: Picture(lambda result: list(heatmaps.ablation_heatmaps(result).values())),
    LayerSimilarityResult: Picture(lambda result: [heatmaps.layer_similarity_heatmap(result)]),
    SimilarityAttributionResult: Picture(
        lambda result: [contributions.similarity_attribution_heatmap(result)]
    ),
    AttentionResult: Picture(lambda result: [heatmaps.attention_heatmap(result)], caveat=CAVEAT),
    AttentionStepsResult: Picture(
        lambda result: list(steps.step_heatmaps(result, steps.key_position(result)).values())
    ),
    ContactsResult: Picture(lambda result: [contacts_heatmap(result)]),
    HeadChangeResult: Picture(lambda result: [heatmaps.head_change_heatmap(result)], caveat=CAVEAT),
    VectorChangeResult: Picture(lambda result: [heatmaps.vector_change_heatmap(result)]),
    AttributionFaithfulnessResult: Picture(
        lambda result: [heatmaps.attribution_heatmap([*result.explanations.values()])]
    ),
    EvaluateResult: Picture(
        lambda result: [heatmaps.confusion_heatmap(result)],
        has_picture=lambda result: result.kind in (CLASSES, TAGS),
    ),
    HeadAblationSweepResult: Picture(lambda result: [heatmaps.ablation_sweep_heatmap(result)]),
    AttributionResult: Picture(lambda result: [heatmaps.attribution_heatmap([result])]),
    FindHeadsResult: Picture(lambda result: [heatmaps.find_heads_heatmap(result)], caveat=CAVEAT),
    HeadAttributionResult: Picture(heatmaps.head_attribution_heatmaps),
    HeadsResult: Picture(heatmaps.head_measure_heatmaps, caveat=CAVEAT),
    HeadMatchesResult: Picture(lambda result: [heatmaps.head_matches_heatmap(result)], caveat=CAVEAT),
    PositionsResult: Picture(
        heatmaps.position_heatmaps, has_picture=lambda result: result.question.show in MATRICES
    ),
    MinimalPairResult: Picture(
        lambda result: [
            heatmaps.minimal_pair_heads_heatmap(result),
            heatmaps.minimal_pair_vectors_heatmap(result),
        ],
        caveat=CAVEAT,
    ),
    ActivationPatchingResult: Picture(lambda result: [heatmaps.patching_heatmap(result)]),
    RelationsResult: Picture(
        lambda result: [heatmaps.relations_heatmap(result, direction) for direction in (0, 1)]
    ),
    MinimalPairRowResult: Picture(
        lambda result: list(heatmaps.minimal_pair_row_heatmaps(result)), caveat=CAVEAT
    ),
    SentencesResult: Picture(lambda result: [heatmaps.sentences_heatmap(result)]),
    HiddenStatesResult: Picture(lambda result: [heatmaps.hidden_states_heatmap(result)]),
    TokenRolloutResult: Picture(lambda result: [heatmaps.token_rollout_heatmap(result)], caveat=CAVEAT),
    SimilarityResult: Picture(lambda result: [heatmaps.similarity_heatmap(result)]),
    SentenceSimilarityResult: Picture(
        lambda result: [contributions.sentence_similarity_heatmap(result)],
        has_picture=lambda result: not result.not_a_sum,
    ),
    WordInContextResult: Picture(
        lambda result: [heatmaps.word_in_context_heatmap(result, result.shown_layer)]
    ),
    TokenMapResult: Picture(page=layer_map.page),
}
"""Type of result → its figure in the app, notebooks and files. Other types of results have no figure."""


def is_drawn(result: Result) -> bool:
    """Return whether a result has a figure."""
    return type(result) in PICTURES and PICTURES[type(result)].has_picture(result)


def heatmaps_of(result: Result) -> list[Heatmap]:
    """Return the heatmaps of a result, from top to bottom.

    Raises:
        UnavailableError: The result has no heatmap.
    """
    heatmaps_fn = PICTURES[type(result)].heatmaps if is_drawn(result) else None
    if heatmaps_fn is None:
        raise UnavailableError(
            f"{type(result.question).__name__} has no visualization. Use result.table(), or write the table "
            "to a file with result.save()."
        )
    return heatmaps_fn(result)


ATTENTION_PICTURES: Final = {"lines": "Attention, token to token", "model": "Attention of all heads"}
"""Name of an attention view → its title. "lines" is the head view, "model" the model view."""


def attention_page(kind: str, trace: Trace, selection: Selection, ask: AnswerFn = call_method) -> Page:
    """Return a self-contained HTML page of an attention view.

    Args:
        kind: "lines" or "model"; see `ATTENTION_PICTURES`.
        trace: The text and its attention.
        selection: The initial selection. The model view uses only its `measure` and `words`.
        ask: Function that computes measures of heads and may cache them.

    Raises:
        SelectionError: The measure is defined per layer, but the model view or the selection needs heads.
        UnavailableError: The measure is not available for this model or its attention.
    """
    if kind == "model":
        profiles = ask(Heads(selection.words).of, trace)
        return model_view.page(trace, profiles, words=selection.words, measure=selection.measure)
    data = HeadViewData.of(trace, selection, compute_labels(trace, ask))
    return head_view.page(data, selection, ask)


def page(result: Result, computed_heatmaps: Sequence[Heatmap] | None = None) -> Page:
    """Return a self-contained HTML page with the heatmaps or the token map of a result.

    Args:
        result: A result with a figure; see `is_drawn`.
        computed_heatmaps: The output of `heatmaps_of`, if it has already been computed.

    Raises:
        UnavailableError: The result has no figure.
    """
    texts = [text for entry in result.inputs.texts for text in (entry.get("text"), entry.get("pair")) if text]
    title_parts = [
        " → ".join(str(model.get("model", "given")) for model in result.inputs.models),
        steps.title(result) if isinstance(result, AttentionStepsResult) else "",
        " + ".join(f"“{shorten(str(text))}”" for text in texts),
    ]
    title = " · ".join(filter(None, title_parts))
    picture = PICTURES.get(type(result), Picture())
    if picture.page is not None:
        return picture.page(result, title)
    drawn_heatmaps = heatmaps_of(result) if computed_heatmaps is None else computed_heatmaps
    return matrix.page(drawn_heatmaps, title, picture.caveat)
