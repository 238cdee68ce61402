"""What each layer knows of syntactic trees: the structural probe by layer, and its tree of a sentence."""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import plotly.graph_objects as go
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from bert_probe.analyses.probing.structural_probe import PredictedTree, StructuralProbe, StructuralProbeResult
from bert_probe.core import files
from bert_probe.errors import ProbeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.labeled_texts import LabeledTexts
from bert_probe.text.truncation import truncate_text
from bert_probe.ui import blocks, figures, jobs, state, workbench
from bert_probe.ui.export import More, export
from bert_probe.ui.figures import ACCENT, GRAY
from bert_probe.ui.probes.inputs import ProbeFiles
from bert_probe.ui.probes.layers import curve, finish
from bert_probe.views.text import shown

_MOST_DRAWN = 60
"""Words of a picture; a longer sentence's edges are a table alone."""
_LONGEST = 24
"""Characters of a word in the picture."""
_LETTER, _GAP, _STEP = 8.5, 18, 26
"""Pixels: of a letter, between words, and from an arc to that over two words."""


def part(given: ProbeFiles, checkpoint: Checkpoint, truncate: bool) -> None:
    """Draw it."""
    data, held_out = given.data, given.held_out
    if (
        isinstance(data, LabeledTexts)
        or isinstance(held_out, LabeledTexts)
        or not any(one.heads for one in data)
    ):
        st.info("Trees are learned from a treebank: upload CoNLL-U, whose words have heads.")
        return
    found = jobs.answered(
        "probe trees",
        StructuralProbe().of,
        checkpoint,
        data,
        held_out,
        truncate,
        label="Probe for trees",
        unit="steps",
        note="The model reads all sentences; then a map is learned for each layer. It takes minutes for "
        "thousands of sentences; you can cancel at any time.",
    )
    if found is None:
        return
    head = st.container(horizontal=True, vertical_alignment="center", gap="medium")
    _shown(found, head)
    tree = _of_sentence(found, checkpoint, truncate)
    with head:
        st.space("stretch")
        more = [] if tree is None else [_download(tree)]
        export(found, "trees", more, data={"data": data, "held_out": held_out})


def _download(tree: PredictedTree) -> More:
    return "The tree of your sentence, CSV", "tree.csv", partial(files.to_bytes, tree.table(), "csv")


def _shown(found: StructuralProbeResult, head: DeltaGenerator) -> None:
    best = found.layers.index(found.best)
    with head:
        st.markdown(
            f"Layer **{found.best}** finds **{found.uuas[best]:.1%}** of {found.edges:,} held-out edges; "
            f"joining each word with the next finds {found.baseline:.1%}."
        )
    with st.container(key="judged trees"):
        left, right = st.columns([3, 2], gap="large")
    with left:
        st.markdown("**Edges found by layer (UUAS)**")
        st.plotly_chart(
            edge_curves(found),
            width="stretch",
            config=figures.CONFIG,
            alt="By layer, the share of edges that are found, beside joining each word with the next",
        )
    with right:
        st.dataframe(
            found.table(),
            hide_index=True,
            width="stretch",
            column_config={
                "uuas": st.column_config.NumberColumn("UUAS", format="%.4f"),
                "baseline": st.column_config.NumberColumn(format="%.4f"),
                "spearman": st.column_config.NumberColumn("Spearman", format="%.4f"),
            },
            placeholder="–",
            alt="UUAS, baseline and rank correlation of distances of each layer",
        )
    blocks.caveat(
        "For each layer a linear map is learned under which words are as far apart as in the tree, in "
        "squared distance (Hewitt and Manning 2019). UUAS is the share of the treebank's edges in the tree "
        "of least predicted distances, punctuation left out; Spearman the rank correlation of predicted and "
        "true distances, sentences of 5 to 50 words. What a linear map can read off is not what the model "
        "uses."
    )


def edge_curves(found: StructuralProbeResult) -> Any:
    """UUAS and its baseline."""
    figure, layers = go.Figure(), list(found.layers)
    curve(figure, "probe", layers, found.uuas, {"color": ACCENT, "width": 3}, "%{y:.2%}")
    baseline = [found.baseline] * len(layers)
    curve(figure, "next word", layers, baseline, {"color": GRAY, "dash": "dot"}, "%{y:.2%}")
    finish(figure, layers, "UUAS")
    least = min(found.baseline, *found.uuas)
    return figure.update_yaxes(tickformat=".0%", range=[max(0.0, least - 0.05), 1.01])


def _of_sentence(
    found: StructuralProbeResult, checkpoint: Checkpoint, truncate: bool
) -> PredictedTree | None:
    """Draw the tree of sentence A; None where there is none."""
    st.subheader("The tree in your sentence", anchor=False)
    try:
        trace = workbench.traced(checkpoint, [(workbench.request().a, None)], truncate)[0]
        layer = state.pick(
            "tree_layer",
            "Layer",
            {str(layer): str(layer) for layer in found.layers},
            str(found.best),
            "Whose map; 0 is the output of the embeddings.",
        )
        tree = found.tree(trace, int(layer))
    except ProbeError as error:
        blocks.refusal(error)
        return None
    blocks.truncation_notice(trace)
    if not tree.edges:
        st.info("A tree joins two words or more. Write another sentence in the workbench.")
        return None
    if len(tree.words) <= _MOST_DRAWN:
        with st.container(key="tree"):
            figure = arcs(tree)
            with st.container(width=int(figure.layout.width)):
                st.plotly_chart(figure, width="stretch", config=figures.CONFIG, alt=_told(tree))
    else:
        blocks.caveat(f"It has {len(tree.words):,} words; a picture is drawn of at most {_MOST_DRAWN}.")
    table = tree.table()
    st.dataframe(
        table,
        hide_index=True,
        width="stretch",
        height=min(38 + 35 * len(table), 320),
        column_config={
            "other_place": "other place",
            "other_word": "other word",
            "distance": st.column_config.NumberColumn(format="%.4f"),
        },
        alt="Edges of the tree: two words, their places, and the squared distance that the map gives them",
    )
    blocks.caveat(
        "The tree of least squared distances, as the map of this layer has them; edges have no direction. "
        "Nobody says here which tree is right, and the model need not use any."
    )
    return tree


def _told(tree: PredictedTree) -> str:
    """What the picture shows, for those who cannot see it."""
    return "Tree: " + ", ".join(" – ".join(shown(tree.words[word]) for word in edge) for edge in tree.edges)


def arcs(tree: PredictedTree) -> Any:
    """Words in a row, and an arc over those that are joined; as wide as the words need."""
    names = [truncate_text(word, _LONGEST) for word in tree.words]
    widths = [_LETTER * len(name) + _GAP for name in names]
    centres = [end - width / 2 for end, width in zip(accumulate(widths), widths, strict=True)]
    turn = np.linspace(0, np.pi, 33)
    figure, top = go.Figure(), 0.0
    for one, other in tree.edges:
        middle, half = (centres[one] + centres[other]) / 2, (centres[other] - centres[one]) / 2
        high = _STEP * (other - one) ** 0.8
        top = max(top, high)
        joined = f"{figures.as_text(names[one])} – {figures.as_text(names[other])}"
        figure.add_scatter(
            x=middle - half * np.cos(turn),
            y=high * np.sin(turn),
            mode="lines",
            line={"color": ACCENT, "width": 2},
            hovertemplate=f"{joined}: {tree.distances[one, other]:.4f}<extra></extra>",
        )
    figure.add_scatter(
        x=centres,
        y=[0] * len(names),
        mode="text",
        text=[figures.as_text(name) for name in names],
        textposition="bottom center",
        hoverinfo="skip",
    )
    hidden = {"visible": False, "fixedrange": True}
    figure.update_layout(
        width=max(320, round(sum(widths)) + 16),
        height=round(top) + 72,
        margin={"l": 8, "r": 8, "t": 32, "b": 8},
        xaxis={**hidden, "range": [0, sum(widths)]},
        yaxis={**hidden, "range": [-30, top + 2]},
        dragmode=False,
        showlegend=False,
    )
    return figure
