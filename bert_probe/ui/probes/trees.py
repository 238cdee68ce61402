"""The Syntax trees section of the Probes page: a structural probe for each layer, and a predicted tree."""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import plotly.graph_objects as go
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from bert_probe.analyses.probing.structural_probe import PredictedTree, StructuralProbe, StructuralProbeResult
from bert_probe.core import files as file_formats
from bert_probe.errors import ProbeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.labeled_texts import LabeledTexts
from bert_probe.text.words import truncate_text
from bert_probe.ui import blocks, figures, jobs, state, workbench
from bert_probe.ui.export import export
from bert_probe.ui.figures import ACCENT, GRAY
from bert_probe.ui.probes.inputs import ProbeFiles
from bert_probe.ui.probes.layers import add_curve, set_layout
from bert_probe.views.text import shorten

_MAX_WORDS = 60
"""Maximum number of words of a tree in the figure; longer sentences have only the table of edges."""
_MAX_CHARACTERS = 24
"""Maximum number of characters of a word in the figure."""
_LETTER_WIDTH, _GAP, _ARC_STEP = 8.5, 18, 26
"""Pixels: width of a letter, gap between words, and height of an arc between adjacent words."""


def part(files: ProbeFiles, checkpoint: Checkpoint, truncate: bool) -> None:
    """Draw the Syntax trees section."""
    data, held_out = files.data, files.held_out
    if (
        isinstance(data, LabeledTexts)
        or isinstance(held_out, LabeledTexts)
        or not any(sentence.heads for sentence in data)
    ):
        st.info("Trees need a treebank: upload CoNLL-U files, whose words have syntactic heads.")
        return
    result = jobs.answer(
        "probe trees",
        StructuralProbe().of,
        checkpoint,
        data,
        held_out,
        truncate,
        label="Probe for trees",
        activity="Training the structural probes",
        start=files.is_example,
        note="The model encodes all sentences, then a linear map is trained for each layer. This takes "
        "minutes for thousands of sentences. You can cancel at any time.",
    )
    if result is None:
        return
    bar = st.container(horizontal=True, vertical_alignment="center", gap="medium")
    _result(result, bar)
    tree = _tree_of_request(result, checkpoint, truncate)
    more = []
    if tree is not None:
        make = partial(file_formats.to_bytes, tree.table(), "csv")
        more.append(("The tree of your sentence, CSV", "tree.csv", make))
    with bar:
        st.space("stretch")
        export(result, "structural-probe", more, data={"data": data, "held_out": held_out})


def _result(result: StructuralProbeResult, bar: DeltaGenerator) -> None:
    best = result.layers.index(result.best)
    with bar:
        st.markdown(
            f"The probe of layer **{result.best}** finds **{result.uuas[best]:.1%}** of {result.edges:,} "
            f"held-out edges; the baseline, which connects adjacent words, finds {result.baseline:.1%}."
        )
    with st.container(key="judged trees"):
        left, right = st.columns([3, 2], gap="large")
    with left:
        st.markdown("**UUAS by layer**")
        blocks.chart(
            edge_curves(result),
            "UUAS (share of edges that are found) by layer, with the baseline of adjacent words",
        )
    with right:
        blocks.table(
            result.table(),
            "UUAS, baseline and rank correlation of distances of each layer",
            column_config={
                "uuas": st.column_config.NumberColumn("UUAS", format="%.4f"),
                "baseline": st.column_config.NumberColumn(format="%.4f"),
                "spearman": st.column_config.NumberColumn("Spearman", format="%.4f"),
            },
        )
    blocks.caveat(
        "For each layer, a linear map is trained so that the squared distances of the mapped word vectors "
        "approximate the distances of the words in the tree (Hewitt and Manning 2019). UUAS is the share of "
        "the treebank's edges in the minimum spanning tree of the predicted distances, without punctuation. "
        "Spearman is the rank correlation of predicted and true distances, for sentences of 5 to 50 words. A "
        "linear map shows what can be read from a layer, not what the model uses."
    )


def edge_curves(result: StructuralProbeResult) -> Any:
    """Return curves of the UUAS by layer and its baseline."""
    figure, layers = go.Figure(), list(result.layers)
    add_curve(figure, "probe", layers, result.uuas, {"color": ACCENT, "width": 3}, "%{y:.2%}")
    baseline = [result.baseline] * len(layers)
    add_curve(figure, "adjacent words", layers, baseline, {"color": GRAY, "dash": "dot"}, "%{y:.2%}")
    set_layout(figure, layers, "UUAS")
    lowest = min(result.baseline, *result.uuas)
    return figure.update_yaxes(tickformat=".0%", range=[max(0.0, lowest - 0.05), 1.01])


def _tree_of_request(
    result: StructuralProbeResult, checkpoint: Checkpoint, truncate: bool
) -> PredictedTree | None:
    """Draw the predicted tree of sentence A and return it, or None if there is none."""
    st.subheader("The tree of your sentence", anchor=False)
    try:
        trace = workbench.trace_texts(checkpoint, [(workbench.request().a, None)], truncate)[0]
        layer = state.segmented_control(
            "tree_layer",
            "Layer",
            {str(layer): str(layer) for layer in result.layers},
            str(result.best),
            "The layer of the probe; 0 is the output of the embeddings.",
        )
        tree = result.tree(trace, int(layer))
    except ProbeError as error:
        blocks.error_box(error)
        return None
    blocks.truncation_notice(trace)
    if not tree.edges:
        st.info("A tree needs at least two words. Write another sentence in the workbench.")
        return None
    if len(tree.words) <= _MAX_WORDS:
        with st.container(key="tree"):
            figure = arcs(tree)
            edges = (" – ".join(shorten(tree.words[word]) for word in edge) for edge in tree.edges)
            with st.container(width=int(figure.layout.width)):
                blocks.chart(figure, "Tree: " + ", ".join(edges))
    else:
        blocks.caveat(
            f"The sentence has {len(tree.words):,} words; a tree is drawn for at most {_MAX_WORDS}."
        )
    table = tree.table()
    blocks.table(
        table,
        "Edges of the tree: two words, their positions, and their squared distance",
        max_height=320,
        column_config={
            "other_place": "other position",
            "other_word": "other word",
            "distance": st.column_config.NumberColumn(format="%.4f"),
        },
    )
    blocks.caveat(
        "The tree is the minimum spanning tree of the squared distances under this layer's linear map; its "
        "edges have no direction. There is no reference tree for this sentence, and the model need not use "
        "any tree."
    )
    return tree


def arcs(tree: PredictedTree) -> Any:
    """Return a figure of the words in a row, with an arc for each edge."""
    names = [truncate_text(word, _MAX_CHARACTERS) for word in tree.words]
    widths = [_LETTER_WIDTH * len(name) + _GAP for name in names]
    centers = [end - width / 2 for end, width in zip(accumulate(widths), widths, strict=True)]
    angles = np.linspace(0, np.pi, 33)
    figure, top = go.Figure(), 0.0
    for left, right in tree.edges:
        middle, half = (centers[left] + centers[right]) / 2, (centers[right] - centers[left]) / 2
        height = _ARC_STEP * (right - left) ** 0.8
        top = max(top, height)
        edge = f"{figures.as_text(names[left])} – {figures.as_text(names[right])}"
        figure.add_scatter(
            x=middle - half * np.cos(angles),
            y=height * np.sin(angles),
            mode="lines",
            line={"color": ACCENT, "width": 2},
            hovertemplate=f"{edge}: {tree.distances[left, right]:.4f}<extra></extra>",
        )
    figure.add_scatter(
        x=centers,
        y=[0] * len(names),
        mode="text",
        text=[figures.as_text(name) for name in names],
        textposition="bottom center",
        hoverinfo="skip",
    )
    hidden = {"visible": False, "fixedrange": True}
    figures.apply_layout(
        figure,
        round(top) + 72,
        margin={"l": 8, "r": 8, "t": 32, "b": 8},
        width=max(320, round(sum(widths)) + 16),
        xaxis={**hidden, "range": [0, sum(widths)]},
        yaxis={**hidden, "range": [-30, top + 2]},
        dragmode=False,
    )
    return figure
