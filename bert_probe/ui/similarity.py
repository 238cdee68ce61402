"""The Similarity page: cosine similarity of each pair of tokens at a selected layer."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from bert_probe.analyses.vectors.pooling import available_poolings
from bert_probe.analyses.vectors.sentences import Sentences, SentencesResult
from bert_probe.analyses.vectors.similarity import (
    Similarity,
    SimilarityBaseline,
    SimilarityBaselineResult,
    SimilarityResult,
)
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from bert_probe.runtime import shared_cache
from bert_probe.ui import blocks, figures, state, workbench
from bert_probe.ui.components import heatmap
from bert_probe.ui.export import export
from bert_probe.ui.sentences import show_calibration
from bert_probe.views.heatmaps import similarity_heatmap
from bert_probe.views.matrix import Cell, HeatmapSpec
from bert_probe.views.text import place_name, shorten


def render() -> None:
    """Draw the Similarity page."""
    blocks.heading(
        "Similarity",
        "Measure how similar two tokens are to the model. The cosine of their vectors is 1 for the same "
        "direction, 0 for a right angle and −1 for opposite directions. The baseline shows which values "
        "are high.",
    )
    traced = workbench.trace_request()
    for trace in filter(None, (traced.a, traced.b)):
        blocks.truncation_notice(trace)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        with st.container(width=240):
            layer = state.select_layer(
                "vector_layer",
                0,
                traced.a.layers,
                "Layer 0 is the output of the embeddings, before any attention.",
            )
        views = {"heatmap": "Heatmap", "table": "Table"}
        view = state.segmented_control("similarity_show", "View", views, "heatmap")
        specials = state.toggle("similarity_specials", "Special tokens", False, "Include [CLS] and [SEP].")
        question = Similarity(layer, specials)
        result = question.of(traced.a) if traced.b is None else question.of(traced.a, traced.b)
        st.space("stretch")
        export(result, f"similarity-layer{layer}")
    data = similarity_heatmap(result)
    with st.container(key="judged"):
        left, right = st.columns([3, 2], gap="large")
    with left:
        pinned = None
        if view == "table":
            _table(result, data.drawing)
        else:
            pinned = heatmap(data, key="similarity_matrix")
        if traced.b is None and traced.a.encoding.pair is None:
            blocks.caveat("The text is compared with itself. Write sentence B to compare two texts.")
    with right:
        _baseline(result, shared_cache.answers.of(SimilarityBaseline().of, traced.checkpoint), pinned)
    if traced.b is not None:
        _sentence_score(traced.checkpoint, traced.a, traced.b)


def _sentence_score(checkpoint: Checkpoint, a: Trace, b: Trace) -> None:
    """Draw the similarity score of the two texts, compared with the scores of reference sentences."""
    st.header("Similarity of the two texts", anchor=False)
    question = Sentences(available_poolings(checkpoint)[0])
    texts = (a.encoding.text, b.encoding.text)
    result: SentencesResult = shared_cache.answers.of(question.of, checkpoint, texts, True)
    score = float(result.scores[0, 1])
    st.metric(result.recipe.score_title, f"{score:.4f}")
    st.caption(
        f"Sentence vectors: {state.escape(str(result.recipe), 400)}. For other types of pooling, see the "
        "Sentences page."
    )
    show_calibration(checkpoint, result, score)


def _table(result: SimilarityResult, drawing: HeatmapSpec) -> None:
    title = drawing["caption"]
    st.caption(title)
    columns = blocks.unique_names(result.columns)
    axes = f"{drawing['row_axis']} ↓ · {drawing['column_axis']} →"
    rows = pd.Index(blocks.unique_names(result.rows), name=axes)
    frame = pd.DataFrame(result.cosines, index=rows, columns=columns)
    blocks.table(
        frame,
        title,
        max_height=640,
        show_index=True,
        column_config={name: st.column_config.NumberColumn(format="%.4f") for name in columns},
    )


def _baseline(result: SimilarityResult, baseline: SimilarityBaselineResult, cell: Cell | None) -> None:
    """Draw the cosine similarity of unrelated tokens and of the pinned token pair by layer."""
    layer, unrelated = result.question.layer, baseline.unrelated
    st.header("Baseline: unrelated tokens", anchor=False)
    st.markdown(
        f"At layer {layer}, two **unrelated** tokens of this model have a mean cosine of "
        f"**{unrelated.mean[layer]:.2f}**, and 5% of the pairs reach **{unrelated.p95[layer]:.2f}** or more. "
        "Compare a value with these baselines."
    )
    if any(token.residue is not None for token in result.rows):
        blocks.caveat("The reference sentences are English, so this baseline does not apply to sequences.")
    pair = None
    if cell is not None:
        first, second = result.rows[cell.row], result.columns[cell.column]
        names = [
            shorten(token.display) if token.residue is None else place_name(token)
            for token in (first, second)
        ]
        name = " – ".join(names)
        pair = figures.PairCurve(name, result.curve(cell.row, cell.column))
    blocks.chart(
        figures.layer_curves(baseline, layer, pair),
        "Cosine of unrelated tokens by layer: mean, and range of the middle 90%",
    )
    blocks.caveat(
        f"The baseline was measured on {unrelated.pairs:,} pairs of different tokens from "
        f"{baseline.sentences} unrelated English reference sentences. Contextual vectors share a common "
        "direction, so even the vectors of unrelated tokens are similar, often more so in upper layers "
        "(Ethayarajh 2019). "
        + ("" if cell else "Click a cell of the heatmap to see that pair at every layer.")
    )
