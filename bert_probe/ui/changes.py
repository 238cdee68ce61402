"""The Changes page: heads, vectors, answers, parameters and layers of model A compared with model B.

A section that is unavailable for the two models shows the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import plotly.graph_objects as go
import streamlit as st

from bert_probe.analyses.comparison.answer_change import AnswerChange, AnswerChangeResult, common_tasks
from bert_probe.analyses.comparison.model_change import (
    HeadChange,
    HeadChangeResult,
    ParameterChange,
    ParameterChangeResult,
    VectorChange,
    VectorChangeResult,
)
from bert_probe.analyses.comparison.model_similarity import LayerSimilarity
from bert_probe.analyses.outputs.fill_mask import default_position, mask_position
from bert_probe.analyses.outputs.prediction import CERTAINTY
from bert_probe.analyses.vectors.similarity import SimilarityBaseline, SimilarityBaselineResult
from bert_probe.core.inputs import SENTENCES_FILE
from bert_probe.errors import ProbeError, SelectionError, UnavailableError
from bert_probe.model.checkpoint import (
    FILL_MASK,
    NEXT_SENTENCE_PREDICTION,
    QUESTION_ANSWERING,
    SENTENCE_SIMILARITY,
    TOKEN_CLASSIFICATION,
    Checkpoint,
)
from bert_probe.model.trace import Array, Trace
from bert_probe.runtime import shared_cache
from bert_probe.server import page_traces
from bert_probe.text.words import truncate_text
from bert_probe.ui import (
    blocks,
    figures,
    head_matches,
    head_measures,
    jobs,
    second_model,
    sentence_input,
    state,
    workbench,
)
from bert_probe.ui.blocks import TASK_LABELS
from bert_probe.ui.components import heatmap
from bert_probe.ui.export import export
from bert_probe.ui.figures import ACCENT, GRAY, SECOND, as_text, named_rows
from bert_probe.ui.parameters import changed_treemap
from bert_probe.views.heatmaps import head_change_heatmap, layer_similarity_heatmap, vector_change_heatmap
from bert_probe.views.palette import Scale
from bert_probe.views.text import shorten

T = TypeVar("T")

_PAIR_TASKS = (QUESTION_ANSWERING, NEXT_SENTENCE_PREDICTION, SENTENCE_SIMILARITY)
"""Tasks whose input consists of sentences A and B."""
_MAX_BARS = 16
"""Maximum number of answers in the bar chart."""
_MAX_RATIO = 4
"""The distances of unrelated tokens are drawn only if their minimum is at most this many times the largest
change."""


def render() -> None:
    """Draw the Changes page."""
    blocks.heading(
        "Changes",
        "Compare the attention heads, vectors, predictions and parameters of two models on the same "
        "text, for example before and after fine-tuning.",
    )
    state.follow_link()
    a = workbench.checkpoint()
    second = second_model.choose()
    if second is None:
        second_model.explain(a)
        return
    b = second_model.open_second(second)
    if b is None:
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        trace = _trace(a)
        text = (trace.encoding.text, trace.encoding.pair)
        other = workbench.trace_texts(b, [text], workbench.request().truncate, key="unknown_to_b")[0]
        difference = head_matches.token_difference(trace, other)
        words = difference is None and state.toggle(
            "words",
            "Whole words",
            False,
            "Merge subword tokens into words. Attention is summed over the tokens of a key and averaged "
            "over the tokens of a query; vectors are averaged.",
        )
    blocks.truncation_notice(trace)
    try:
        if difference is not None:
            head_matches.only_matches(difference, trace, other)
        else:
            _comparison(trace, other, words)
    except SelectionError as error:
        second_model.error_box(error, "These two models cannot be compared")


def _trace(a: Checkpoint) -> Trace:
    """Return model A's trace of the text on which the models are compared."""
    now = workbench.request()
    traces = workbench.trace_texts(a, now.texts, now.truncate)
    return workbench.choose_trace(
        workbench.TracedRequest(now, a, traces[0], traces[1] if len(traces) > 1 else None)
    )


def _comparison(a: Trace, b: Trace, words: bool) -> None:
    """Draw all sections of the comparison, first those about the text, then those about the models."""
    parameters = shared_cache.answers.of(ParameterChange().of, a.checkpoint, b.checkpoint)
    heads = _or_error(lambda: shared_cache.answers.of(HeadChange(words).of, a, b))
    vectors = _or_error(lambda: shared_cache.answers.of(VectorChange(words).of, a, b))
    with st.container(key="finding"):
        results = (heads, vectors, parameters)
        findings = [result.finding for result in results if not isinstance(result, UnavailableError)]
        st.markdown(state.escape(" ".join(findings), 1000))
    _heads(heads)
    _vectors(vectors, a.checkpoint)
    _answers(a, b.checkpoint)
    _parameters(parameters)
    _layers(a.checkpoint, b.checkpoint)
    head_matches.part(a, b, start=False)


def _or_error(ask: Callable[[], T]) -> T | UnavailableError:
    """Return the result of `ask`, or the error that explains why it is unavailable for models A and B."""
    try:
        return ask()
    except UnavailableError as error:
        return error


def _reason(error: ProbeError) -> None:
    st.info(state.escape(str(error), 600))


# ---------------------------------------------------------------- vectors as curves, answers as bars


def change_curves(result: VectorChangeResult, baseline: SimilarityBaselineResult) -> Any:
    """Return curves of the mean and the largest change of vectors by layer.

    The distance of unrelated tokens of A is included, unless it would flatten the other curves.
    """
    figure = go.Figure()
    distances = _unrelated_distances(baseline)
    if distances.min() <= _MAX_RATIO * result.largest.max():
        _add_curve(
            figure, "mean of unrelated tokens in A", distances, {"color": GRAY, "dash": "dot"}, "circle"
        )
    _add_curve(figure, "largest change", result.largest, {"color": SECOND, "width": 2}, "square")
    _add_curve(figure, "mean", result.mean, {"color": ACCENT, "width": 3}, "circle")
    figures.apply_layout(
        figure,
        300,
        legend="below",
        xaxis={"title": "layer", "dtick": max(1, len(result.moved) // 12), "zeroline": False},
        yaxis={"title": "1 − cosine", "rangemode": "tozero"},
    )
    return figure


def compare_with_unrelated(result: VectorChangeResult, baseline: SimilarityBaselineResult) -> str:
    """Return a sentence that compares the largest mean change with the distance of unrelated tokens."""
    distances = _unrelated_distances(baseline)
    layer = int(np.nan_to_num(result.mean).argmax())
    if not result.largest.any():
        return (
            "No vector changed. For comparison, the mean distance between two unrelated tokens in A at "
            f"the last layer is **{distances[-1]:.2f}**."
        )
    return (
        f"The mean change is largest at layer {layer}: **{result.mean[layer]:.3g}**. For comparison, the "
        f"mean distance between two unrelated tokens in A at this layer is **{distances[layer]:.2f}**."
    )


def _unrelated_distances(baseline: SimilarityBaselineResult) -> Array:
    """Return the mean distance (1 − cosine) of unrelated tokens for each layer."""
    distances: Array = 1 - np.array(baseline.unrelated.mean)
    return distances


def _add_curve(figure: Any, name: str, values: Array, line: dict[str, Any], symbol: str) -> None:
    figure.add_scatter(
        x=list(range(len(values))),
        y=values,
        mode="lines+markers",
        name=name,
        line=line,
        marker={"symbol": symbol, "size": 7},
        hovertemplate=f"layer %{{x}}: %{{y:.4f}}<extra>{name}</extra>",
    )


def answer_bars(result: AnswerChangeResult) -> Any:
    """Return a bar chart with a bar of model A and a bar of model B for each answer."""
    names = [shorten(name) for name in result.names[:_MAX_BARS]]
    figure = go.Figure()
    for side, values, colour in (("A", result.a, GRAY), ("B", result.b, ACCENT)):
        figure.add_bar(
            x=values[:_MAX_BARS],
            y=list(range(len(names))),
            orientation="h",
            name=side,
            customdata=[as_text(name) for name in names],
            marker={"color": colour},
            hovertemplate=f"%{{customdata}}: %{{x:.6f}}<extra>{side}</extra>",
        )
    figures.apply_layout(
        figure,
        96 + 40 * len(names),
        right=24,
        legend="above",
        barmode="group",
        bargap=0.3,
        xaxis={"title": result.kind, "range": _range(result)},
        yaxis=named_rows([truncate_text(name, 28) for name in names]),
    )
    return figure


def _range(result: AnswerChangeResult) -> Sequence[float] | None:
    """Return the axis range from 0 to the next round number; None (automatic) if values are negative."""
    both = np.nan_to_num(np.concatenate([result.a, result.b]))
    if result.kind != "probability" and both.min(initial=0.0) < 0:
        return None
    return [0, Scale.from_zero(both, 0.0).high]


# ---------------------------------------------------------------- sections


def _heads(result: HeadChangeResult | UnavailableError) -> None:
    """Draw the change of each head as a heatmap and as a table; a click on a cell selects a head."""
    corner = second_model.part_title("Which heads attend differently?")
    if isinstance(result, UnavailableError):
        _reason(result)
        return
    with corner:
        export(result, "diff-heads", label="Export heads")
    with st.container(key="judged_heads"):
        left, right = st.columns([1, 1], gap="large")
    with left:
        cell = heatmap(head_change_heatmap(result), key="changed_heads")
        layer, head = (cell.row, cell.column) if cell is not None else result.strongest
        second_model.head_buttons(layer + 1, head + 1)
    with right:
        blocks.table(
            result.frame(),
            "Heads by total variation, largest change first",
            max_height=380,
            column_config={
                "total_variation": st.column_config.NumberColumn("total variation", format="%.4f")
            },
        )
    blocks.caveat(
        "Total variation: the share of a token's attention that is on other keys in B than in A, "
        "averaged over all tokens. The total variation is 0 for equal rows and 1 for disjoint rows. A "
        "large change does not mean that the head matters for the output: attention is not an "
        "explanation by itself (Jain and Wallace 2019)."
    )


def _vectors(result: VectorChangeResult | UnavailableError, a: Checkpoint) -> None:
    """Draw how much the vectors of the tokens change from A to B, by layer."""
    corner = second_model.part_title("Which vectors changed direction?")
    if isinstance(result, UnavailableError):
        _reason(result)
        return
    with corner:
        export(result, "diff-vectors", label="Export vectors")
    with st.container(key="judged_vectors"):
        left, right = st.columns([1, 1], gap="large")
    with left:
        heatmap(vector_change_heatmap(result), key="changed_vectors")
    with right:
        baseline = shared_cache.answers.of(SimilarityBaseline().of, a)
        st.markdown(compare_with_unrelated(result, baseline))
        blocks.chart(
            change_curves(result, baseline),
            "1 − cosine by layer: mean and largest change of the tokens, and mean distance of unrelated "
            "tokens in A",
        )
    blocks.caveat(
        "A value of 0 means the same direction in both models. Layer 0 is the output of the embeddings. "
        "Compare a change with the distance between unrelated tokens, which is small in many models. If "
        "B was not fine-tuned from A, the dimensions of the two models have different meanings, and "
        "this cosine is meaningless. In that case, use the layer similarity below."
    )
    with st.expander("As a table"):
        units = blocks.unique_names(result.units)
        layers = result.frame().columns
        blocks.table(
            result.frame().set_axis(units, axis=0),
            "1 − cosine between the two vectors of each token, one column per layer",
            max_height=640,
            show_index=True,
            column_config={name: st.column_config.NumberColumn(format="%.4f") for name in layers},
        )


def _parameters(result: ParameterChangeResult) -> None:
    """Draw how much the parameters differ between A and B."""
    corner = second_model.part_title("Which parameters changed?")
    with corner:
        export(result, "diff-parameters", label="Export parameters")
    if result.compared:
        blocks.chart(
            changed_treemap(result, blocks.is_dark()),
            "Treemap of the parameters of A: areas show counts, colors show relative changes",
        )
    unmatched = (
        f"{len(result.others):,} tensors have no counterpart with the same name and shape. These tensors "
        "are gray in the chart and listed in the table."
    )
    blocks.caveat(
        "The color shows the relative change ‖B − A‖ ÷ ‖A‖ of each tensor, module and layer. The size "
        "of a change does not show how much it affects the output. These are the parameters of the "
        "encoder; changes of a task head appear in the predictions. " + (unmatched if result.others else "")
    )
    with st.expander("All tensors"):
        blocks.table(
            result.frame().sort_values("relative", ascending=False, kind="stable"),
            "All tensors with their relative change, largest first",
            column_config={
                "count": st.column_config.NumberColumn("count", format="localized"),
                "norm": st.column_config.NumberColumn("norm of A", format="%.4g"),
                "change": st.column_config.NumberColumn("norm of B − A", format="%.4g"),
                "relative": st.column_config.NumberColumn("relative change", format="percent"),
            },
        )


def _answers(a: Trace, b: Checkpoint) -> None:
    """Draw the predictions of both models side by side."""
    tasks = _or_error(lambda: common_tasks(a.checkpoint, b))
    if isinstance(tasks, UnavailableError):
        blocks.caveat(
            "The predictions are not compared, because the models have no task in common: A has "
            f"{_head_names(a.checkpoint)}, and B has {_head_names(b)}."
        )
        return
    corner = second_model.part_title("Which predictions differ?")
    labels = {task: TASK_LABELS[task] for task in tasks}
    task = state.segmented_control(
        "task", "Task", labels, tasks[0], "Tasks for which both models have a task head."
    )
    if task in _PAIR_TASKS and not workbench.request().b.strip():
        st.info("This task needs two texts. Write sentence B under Your text, and press Run.")
        return
    try:
        result = _answer(a, b, task)
    except ProbeError as error:
        _reason(error)
        return
    with corner:
        export(result, f"diff-{task}", label="Export answers")
    st.markdown(state.escape(result.finding, 400))
    left, right = st.columns([1, 1], gap="large")
    with left:
        blocks.chart(answer_bars(result), "The predictions of A and B")
        if len(result.keys) > _MAX_BARS:
            st.caption(
                f"The first {_MAX_BARS} of {len(result.keys):,} predictions. The table lists all predictions."
            )
    with right:
        frame = result.frame()
        blocks.table(
            frame,
            "Predictions with the values of A and B and their difference",
            column_config={
                name: st.column_config.NumberColumn(name, format="%.4f") for name in ("a", "b", "difference")
            },
        )
    blocks.caveat(
        f"The top predictions of each model, with their probabilities in both models. {CERTAINTY}"
        if result.kind == "probability"
        else "Each model outputs one number."
    )


def _head_names(checkpoint: Checkpoint) -> str:
    """Return a phrase that names the task heads of a model."""
    names = " and ".join(TASK_LABELS[task].lower() for task in checkpoint.tasks)
    return f"a task head for {names}" if names else "no trained task head"


def _answer(a: Trace, b: Checkpoint, task: str) -> AnswerChangeResult:
    """Return the predictions of both models for the inputs of a task: the text, or sentences A and B."""
    now = workbench.request()
    text: shared_cache.Text = (a.encoding.text, a.encoding.pair)
    if task in _PAIR_TASKS:
        text = (now.a, now.b)
    elif task == TOKEN_CLASSIFICATION:
        text = (a.encoding.text, None)
    truncate = now.truncate or task == QUESTION_ANSWERING
    (trace_a,), (trace_b,) = (page_traces.traces(model, [text], truncate) for model in (a.checkpoint, b))
    mask = None
    if task == FILL_MASK:
        default = default_position(trace_a)
        st.markdown("Click a word to mask it, or type the mask token in your text")
        first = state.token_position("mask", trace_a.tokens, default)
        key = f"masks_{len(trace_a.tokens)}"
        clicked = blocks.token_strip(trace_a, key, "Words that can be masked", first)
        position = first if clicked is None else clicked
        state.remember("mask", None if position == default else str(position))
        mask = mask_position(trace_a, position)
    result: AnswerChangeResult = shared_cache.checked_answer(AnswerChange(task, mask=mask), trace_a, trace_b)
    return result


def _layers(a: Checkpoint, b: Checkpoint) -> None:
    """Draw the similarity of each layer of A with each layer of B over many sentences."""
    corner = second_model.part_title("How similar are the layers?")
    source = state.segmented_control("sentences_source", "Sentences", head_measures.SOURCES, "sample")
    truncate = workbench.request().truncate
    try:
        sentences = head_measures.choose_sentences(source)
        if not sentences:
            return
        sentence_input.check_count(sentences, head_measures.MAX_SENTENCES)
        result = jobs.answer(
            "layer similarity",
            LayerSimilarity().of,
            a,
            b,
            sentences,
            truncate,
            label="Compare all layers",
            activity="Comparing the layers",
            note="Both models read every sentence. You can cancel at any time.",
        )
    except ProbeError as error:
        head_measures.error_box(error)
        return
    if result is None:
        return
    with corner:
        lines = ("The sentences", SENTENCES_FILE, lambda _: "\n".join(sentences).encode())
        export(result, "diff-layers", [lines], label="Export layers", data={"sentences": sentences})
    st.markdown(state.escape(result.finding, 400))
    heatmap(layer_similarity_heatmap(result), key="layer_similarity")
    blocks.caveat(
        f"Linear CKA over {result.examples:,} tokens (Kornblith et al. 2019) is 1 if the similarities "
        "between tokens have the same structure in both layers. CKA does not depend on the meaning of "
        "individual dimensions, so models of any size can be compared. CKA is dominated by the few "
        "directions with the largest variance, and is too high for small numbers of tokens. Compare its "
        "values with each other rather than with 1."
    )
