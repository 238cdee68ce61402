"""Similarity: cosine of every token with every token, at any layer."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from bert_probe.analyses.vectors.similarity import Similarity, SimilarityResult
from bert_probe.analyses.vectors.similarity_baseline import SimilarityBaseline, SimilarityBaselineResult
from bert_probe.runtime import shared_cache
from bert_probe.ui import blocks, curves, figures, state, workbench
from bert_probe.ui.components.matrix import heatmap
from bert_probe.ui.export import export
from bert_probe.views.heatmaps import of_similarity
from bert_probe.views.matrix import Cell, HeatmapSpec
from bert_probe.views.text import shown


def compared(study: workbench.TracedRequest, asked: Similarity) -> SimilarityResult:
    """What is compared."""
    return asked.of(study.a) if study.b is None else asked.of(study.a, study.b)


def table(found: SimilarityResult, drawing: HeatmapSpec) -> None:
    """The cosines as numbers."""
    title = drawing["caption"]
    st.caption(title)
    columns = blocks.named(found.columns)
    rows = pd.Index(blocks.named(found.rows), name=f"{drawing['row_axis']} ↓ · {drawing['column_axis']} →")
    frame = pd.DataFrame(found.cosines, index=rows, columns=columns)
    st.dataframe(
        frame,
        width="stretch",
        height=min(38 + 35 * len(frame), 640),
        column_config={name: st.column_config.NumberColumn(format="%.4f") for name in columns},
        alt=title,
    )


def judgement(found: SimilarityResult, baseline: SimilarityBaselineResult, cell: Cell | None) -> None:
    """The cosine that unrelated tokens reach, and the chosen pair beside it, layer by layer."""
    layer, unrelated = found.question.layer, baseline.unrelated
    st.header("Is that high?", anchor=False)
    st.markdown(
        f"At layer {layer}, two **unrelated** tokens of this model have a cosine of "
        f"**{unrelated.mean[layer]:.2f}** on average, and one pair in twenty reaches "
        f"**{unrelated.p95[layer]:.2f}** or more. Judge a value by its distance from these."
    )
    pair = None
    if cell is not None:
        name = f"{shown(found.rows[cell.row].display)} – {shown(found.columns[cell.column].display)}"
        pair = curves.PairCurve(name, found.curve(cell.row, cell.column))
    st.plotly_chart(
        curves.layer_curves(baseline, layer, pair),
        width="stretch",
        config=figures.CONFIG,
        alt="Cosine of unrelated tokens by layer: mean and the middle 90 percent",
    )
    blocks.caveat(
        f"Measured on {unrelated.pairs:,} pairs of different tokens from {baseline.sentences} unrelated "
        "English sentences shipped with the package. Contextual vectors share a common direction, so even "
        "unrelated ones are similar, often more so in upper layers (Ethayarajh 2019). "
        + ("" if cell else "Click a cell of the heatmap to see that pair at every layer.")
    )


def main() -> None:
    """The page."""
    blocks.heading(
        "Similarity",
        "Inside the model a token is a vector, a list of numbers that depends on the whole sentence. The "
        "cosine compares two of them: 1 for the same direction, 0 for none in common, −1 for opposite ones.",
    )
    study = workbench.study()
    for trace in filter(None, (study.a, study.b)):
        blocks.truncation_notice(trace)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        with st.container(width=240):
            layer = state.layer(
                "vector_layer",
                0,
                study.a.layers,
                "0 is the output of the embeddings, before any attention; the last layer is next to the "
                "output.",
            )
        view = state.pick("similarity_show", "View", {"heatmap": "Heatmap", "table": "Table"}, "heatmap")
        specials = state.switch(
            "similarity_specials", "Special tokens", False, "Compare [CLS] and [SEP] as well."
        )
        found = compared(study, Similarity(layer, specials))
        st.space("stretch")
        export(found, f"similarity-layer{layer}")
    picture_of = of_similarity(found)
    with st.container(key="judged"):
        picture, judged = st.columns([3, 2], gap="large")
    with picture:
        pinned = None
        if view == "table":
            table(found, picture_of.drawing)
        else:
            pinned = heatmap(picture_of, key="similarity_matrix")
        if study.b is None and study.a.encoding.pair is None:
            blocks.caveat("One text compared with itself. Write sentence B to compare two.")
    with judged:
        judgement(found, shared_cache.answers.of(SimilarityBaseline().of, study.checkpoint), pinned)


main()
