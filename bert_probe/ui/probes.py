"""The Probes page: probes of each layer, structural probes, and heads that track syntactic relations."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import plotly.graph_objects as go
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from bert_probe.analyses.probing.probe import Probe, ProbeResult
from bert_probe.analyses.probing.relations import (
    DIRECTIONS,
    RelationExample,
    Relations,
    RelationsResult,
    find_examples,
)
from bert_probe.analyses.probing.structural_probe import PredictedTree, StructuralProbe, StructuralProbeResult
from bert_probe.analyses.vectors.pooling import available_poolings
from bert_probe.core import files as file_formats
from bert_probe.errors import ProbeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.server import callbacks, page_traces, paths
from bert_probe.text.labeled_texts import LabeledTexts
from bert_probe.text.tagged_sentences import TaggedSentence, align_words
from bert_probe.text.words import truncate_text, word_lens
from bert_probe.ui import blocks, figures, jobs, labeled_inputs, selection_state, state, workbench
from bert_probe.ui.components import heatmap
from bert_probe.ui.export import export, table_bytes
from bert_probe.ui.figures import ACCENT, GRAY, SECOND
from bert_probe.ui.labeled_inputs import ProbeFiles
from bert_probe.views.heatmaps import relations_heatmap
from bert_probe.views.text import shorten

_PARTS = {"layers": "Layers", "structural_probe": "Syntax trees", "relations": "Heads and relations"}
_DIRECTIONS = {"0": "From dependent to head", "1": "From head to dependent"}
_EXAMPLE_LENGTH = 8
"""Preferred number of words of the example sentence for a relation."""


def render() -> None:
    """Draw the Probes page."""
    blocks.heading(
        "Probes",
        "A probe is a small classifier that predicts labels from the vectors of one layer. Upload labeled "
        "texts or a treebank to see which layers encode the labels, and which attention heads follow "
        "syntax.",
    )
    checkpoint = workbench.checkpoint()
    request = workbench.request()
    part = state.segmented_control("probes_part", "Section", _PARTS, "layers")
    try:
        files = labeled_inputs.choose_probe_files()
        if files is None:
            labeled_inputs.explain_formats()
        else:
            draw = {"layers": render_layers, "structural_probe": render_trees, "relations": _relations}[part]
            draw(files, checkpoint, request.truncate)
    except ProbeError as error:
        blocks.error_box(error, "Fix the file, and upload the file again. Your other uploaded file is kept.")


def _relations(files: ProbeFiles, checkpoint: Checkpoint, truncate: bool) -> None:
    if files.held_out is None:
        st.info(
            "Heads are selected on one treebank and evaluated on another. Upload the held-out file as well."
        )
        return
    data, held_out = files.data, files.held_out
    if isinstance(data, LabeledTexts) or isinstance(held_out, LabeledTexts):
        st.info("Relations need a treebank: upload CoNLL-U files, whose words have syntactic heads.")
        return
    result = jobs.answer(
        "relations",
        Relations().of,
        checkpoint,
        data,
        held_out,
        truncate,
        label="Evaluate the heads",
        unit="sentences",
        activity="Evaluating the heads",
        start=files.is_example,
        note="This analysis runs one forward pass per sentence, in batches. You can cancel at any time.",
    )
    if result is not None:
        _relations_result(result, data, held_out, checkpoint, truncate)


def _relations_result(
    result: RelationsResult,
    data: tuple[TaggedSentence, ...],
    held_out: tuple[TaggedSentence, ...],
    checkpoint: Checkpoint,
    truncate: bool,
) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        direction = int(state.segmented_control("relations_direction", "Direction", _DIRECTIONS, "0"))
        st.space("stretch")
        all_heads = partial(table_bytes, result.showing(show="all"), "csv")
        more = [("All heads (CSV)", "relations-all.csv", all_heads)]
        export(result, "relations", more, data={"chosen": data, "reported": held_out})
    cell = heatmap(relations_heatmap(result, direction), key="relations_heads")
    if cell is None:
        blocks.caveat("Pin a cell to see the attention of its head on a sentence of the file.")
    else:
        layer, head = divmod(cell.column, result.accuracies.shape[-1])
        accuracy = result.accuracies[cell.row, direction, layer, head]
        relation = result.relations[cell.row]
        example = _example(held_out, relation)
        sentence = held_out[example.sentence]
        word, word_head = sentence.words[example.dependent], sentence.words[example.head]
        st.markdown(
            f"**{state.escape(relation)}**, layer {layer + 1}, head {head + 1}: accuracy "
            f"**{accuracy:.1%}**, from {DIRECTIONS[direction]}. For example, the syntactic head of "
            f"“{state.escape(word)}” is “{state.escape(word_head)}” in this sentence:"
        )
        st.text(sentence.text)
        query = example.dependent if direction == 0 else example.head
        arguments = (checkpoint, sentence, query, (layer, head), truncate)
        # Use a callback, because the workbench cannot be changed after it is drawn.
        if st.button("Show the head's attention on this sentence", on_click=_show_attention, args=arguments):
            with callbacks.uninterrupted():
                st.switch_page(paths.page_script("attention"))
    frame = result.table()
    blocks.table(
        frame,
        "For each relation: the best head, the accuracy of this head, and the best fixed offset",
        max_height=480,
        column_config={
            "accuracy": st.column_config.NumberColumn(format="%.4f"),
            "offset_accuracy": st.column_config.NumberColumn("offset accuracy", format="%.4f"),
        },
    )
    if result.left_out:
        names = state.escape(", ".join(result.left_out), 1000)
        blocks.caveat(f"These relations are omitted, because they do not occur in the first file: {names}.")
    blocks.caveat(
        "A head predicts the word that gets the largest weight (Clark et al. 2019); subword tokens are "
        "merged into words. Head, direction and offset (in words from the dependent) are selected on "
        "the first file; the accuracies are measured on the second. The model does not necessarily use "
        "a head that tracks a relation. If a fixed offset is as accurate, the head may only track that "
        "offset."
    )


def _example(sentences: tuple[TaggedSentence, ...], relation: str) -> RelationExample:
    """Return the occurrence of a relation in the sentence whose length is closest to `_EXAMPLE_LENGTH`."""
    return min(
        find_examples(sentences, relation),
        key=lambda example: abs(len(sentences[example.sentence].words) - _EXAMPLE_LENGTH),
    )


def _show_attention(
    checkpoint: Checkpoint, sentence: TaggedSentence, word: int, head: tuple[int, int], truncate: bool
) -> None:
    """Submit a sentence to the workbench, and select a head and a query word on the Attention page."""
    workbench.submit(replace(workbench.request(), a=sentence.text, b=""))
    trace = page_traces.traces(checkpoint, [(sentence.text, None)], truncate)[0]
    words = align_words(sentence, trace.encoding)
    first = words.lens.units[words.units[word]].position
    query = [first in unit.positions for unit in word_lens(trace).units].index(True)
    selection_state.show_head(head[0] + 1, (head[1],), query)


_TAGS = " "  # The names of comments do not start with a space.
_POOLINGS = {"mean": "Mean of all tokens", "cls": "First token"}
_MAX_LABELS = 50
"""A sentence comment, such as "genre", is offered as a label if it has at most this many values."""


def render_layers(files: ProbeFiles, checkpoint: Checkpoint, truncate: bool) -> None:
    """Draw the Layers section of the Probes page."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="large"):
        label = None if isinstance(files.data, LabeledTexts) else _choose_label(files.data)
        is_of_texts = label is not None or isinstance(files.data, LabeledTexts)
        question = Probe(label, _choose_pooling(checkpoint) if is_of_texts else None)
    result = jobs.answer(
        "probe layers",
        question.of,
        checkpoint,
        files.data,
        files.held_out,
        truncate,
        label="Probe the layers",
        activity="Probing the layers",
        start=files.is_example,
        note="The model encodes all sentences. Then a probe, a control task and an online code are fitted "
        "for each layer. This takes minutes for thousands of sentences. You can cancel at any time.",
    )
    if result is not None:
        _result(result, files)


def _choose_label(data: tuple[TaggedSentence, ...]) -> str | None:
    """Draw a selector for the labels to predict.

    Return the name of a sentence comment, such as "genre", or None for the tags of the words.
    """
    comments = [
        name
        for name in data[0].metadata
        if all(name in sentence.metadata for sentence in data)
        and 1 < len({sentence.metadata[name] for sentence in data}) <= min(_MAX_LABELS, len(data) - 1)
    ]
    if not comments:
        return None
    options = {
        _TAGS: "Tags of the words",
        **{name: f"{state.escape(name)} of the sentence" for name in comments},
    }
    label = state.segmented_control("probe_label", "Labels", options, _TAGS)
    return None if label == _TAGS else label


def _choose_pooling(checkpoint: Checkpoint) -> str | None:
    """Draw a selector for the pooling of token vectors; return None for the default pooling."""
    options = {name: label for name, label in _POOLINGS.items() if name in available_poolings(checkpoint)}
    pooling = state.segmented_control(
        "probe_pooling", "Pooling", options, "mean", "How token vectors are combined into one text vector."
    )
    return None if pooling == "mean" else pooling


def _result(result: ProbeResult, files: ProbeFiles) -> None:
    unit = "words" if not result.of_sentences else "texts" if result.question.label is None else "sentences"
    highest = result.accuracies.max()
    best = [
        str(layer) for layer, share in zip(result.layers, result.accuracies, strict=True) if share == highest
    ]
    subject = (
        f"The probe of layer **{best[0]}** has"
        if len(best) == 1
        else f"The probes of layers **{', '.join(best[:-1])} and {best[-1]}** have"
    )
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.markdown(
            f"{subject} the highest accuracy, **{highest:.1%}** of {result.counts[1]:,} held-out {unit}; the "
            f"baseline, which does not use the model, reaches {result.baseline:.1%}."
        )
        st.space("stretch")
        export(result, "probe", data={"data": files.data, "held_out": files.held_out})
    with st.container(key="judged"):
        left, right = st.columns([3, 2], gap="large")
    with left:
        st.markdown("**Accuracy by layer**")
        blocks.chart(
            accuracy_curves(result),
            "Accuracy of the probe by layer, with its confidence interval, the baseline and the control task",
        )
    with right:
        st.markdown("**Minimum description length (MDL, online code): compression**")
        blocks.chart(
            compression_curve(result),
            "Compression of the labels by the online code, relative to a uniform code, by layer",
        )
    frame = result.table()
    blocks.table(
        frame,
        "Accuracy, confidence interval, baseline, control task and code length of each layer",
        column_config={
            **{
                name: st.column_config.NumberColumn(format="%.4f")
                for name in frame.columns
                if name not in ("layer", "codelength")
            },
            "codelength": st.column_config.NumberColumn("code length, bits", format="%.0f"),
        },
    )
    blocks.caveat(_caveat(result))


def _caveat(result: ProbeResult) -> str:
    controls = (
        "The baseline is the most frequent label. In the control task, each text has a random label "
        "(Hewitt and Liang 2019), which cannot be predicted for held-out texts. Selectivity, the accuracy "
        "minus the accuracy of the control task, is therefore the accuracy above chance. "
        if result.of_sentences
        else "The baseline is the most frequent tag of each word form. In the control task, each word "
        "form has a random tag (Hewitt and Liang 2019); selectivity is the accuracy minus the "
        "accuracy of the control task. "
    )
    return (
        "A probe shows what a linear map can read from a layer, not what the model uses. Layer 0 is the "
        f"output of the embeddings. {controls}The band is the {result.question.confidence:.0%} confidence "
        "interval over held-out sentences (percentile bootstrap). The online code (Voita and Titov 2020) "
        f"transmits {result.counts[0]:,} labels, {len(result.labels)} of them distinct, block by block, each "
        "encoded by a probe trained on the blocks before it. Compression is relative to a uniform code; "
        "higher values mean that the labels are easier to learn."
    )


def accuracy_curves(result: ProbeResult) -> Any:
    """Return a figure of the accuracy by layer with its confidence interval, baseline and control task."""
    figure, layers = go.Figure(), list(result.layers)
    figure.add_scatter(
        x=layers + layers[::-1],
        y=[*result.high, *result.low[::-1]],
        fill="toself",
        fillcolor="rgba(99,91,228,0.18)",
        mode="lines",
        line={"width": 0},
        hoverinfo="skip",
        name=f"{result.question.confidence:.0%} interval",
    )
    curves: list[tuple[str, Any, dict[str, Any]]] = [
        ("probe", result.accuracies, {"color": ACCENT, "width": 3}),
        ("baseline", [result.baseline] * len(layers), {"color": GRAY, "dash": "dot"}),
        ("control task", result.controls, {"color": SECOND, "dash": "dash"}),
    ]
    for name, values, line in curves:
        add_curve(figure, name, layers, values, line, "%{y:.2%}")
    lowest = min(result.baseline, *result.low, *result.controls)
    set_layout(figure, layers, "accuracy")
    figure.update_yaxes(tickformat=".0%", range=[max(0.0, lowest - 0.05), 1.01])
    return figure


def compression_curve(result: ProbeResult) -> Any:
    """Return a figure of the compression that the probe's online code (MDL) achieves at each layer."""
    figure, layers = go.Figure(), list(result.layers)
    line = {"color": ACCENT, "width": 3}
    add_curve(figure, "compression", layers, result.compressions, line, "%{y:.2f} ×")
    set_layout(figure, layers, "compression")
    # Keep the legend of the only curve, so that this plot is as high as the accuracy plot next to it.
    return figure.update_yaxes(rangemode="tozero")


def add_curve(
    figure: Any, name: str, layers: list[int], values: Any, line: dict[str, Any], form: str
) -> None:
    """Add a curve with one point per layer to a figure.

    Args:
        name: label of the curve in the legend.
        layers: layers on the x axis.
        values: y value of each layer.
        line: Plotly line style.
        form: format of a value in the tooltip, such as "%{y:.2f}".
    """
    figure.add_scatter(
        x=layers,
        y=values,
        mode="lines+markers",
        line=line,
        name=name,
        hovertemplate=f"layer %{{x}}: {form}<extra>{name}</extra>",
    )


def set_layout(figure: Any, layers: list[int], title: str) -> None:
    """Set the axes of a figure whose curves have one point per layer."""
    figures.apply_layout(
        figure,
        340,
        legend="below",
        xaxis={
            "title": "layer",
            "dtick": max(1, len(layers) // 12),
            "range": [layers[0] - 0.3, layers[-1] + 0.3],
            "zeroline": False,
        },
        yaxis={"title": title},
    )


_MAX_WORDS = 60
"""Maximum number of words of a sentence whose tree is drawn. Longer sentences have only a table of edges."""
_MAX_CHARACTERS = 24
"""Maximum length of a word in the figure of a tree, in characters. Longer words are truncated."""
_LETTER_WIDTH, _GAP, _ARC_STEP = 8.5, 18, 26
"""Width of a character, gap between words, and height of an arc between adjacent words, in pixels."""


def render_trees(files: ProbeFiles, checkpoint: Checkpoint, truncate: bool) -> None:
    """Draw the "Syntax trees" section of the Probes page."""
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
        note="The model encodes all sentences. Then a linear map is trained for each layer. This takes "
        "minutes for thousands of sentences. You can cancel at any time.",
    )
    if result is None:
        return
    bar = st.container(horizontal=True, vertical_alignment="center", gap="medium")
    _tree_result(result, bar)
    tree = _tree_of_request(result, checkpoint, truncate)
    more = []
    if tree is not None:
        make = partial(file_formats.to_bytes, tree.table(), "csv")
        more.append(("The tree of your sentence (CSV)", "tree.csv", make))
    with bar:
        st.space("stretch")
        export(result, "structural-probe", more, data={"data": data, "held_out": held_out})


def _tree_result(result: StructuralProbeResult, bar: DeltaGenerator) -> None:
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
            "UUAS (share of tree edges that are found) by layer, with the baseline of adjacent words",
        )
    with right:
        blocks.table(
            result.table(),
            "UUAS, baseline, and rank correlation of the distances, for each layer",
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
    """Return a figure of the structural probe's accuracy (UUAS) by layer, with its baseline."""
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
    """Draw the predicted syntax tree of sentence A and return it, or None if the sentence has no tree."""
    st.subheader("The tree of your sentence", anchor=False)
    try:
        trace = workbench.trace_texts(checkpoint, [(workbench.request().a, None)], truncate)[0]
        layer = state.segmented_control(
            "tree_layer",
            "Layer",
            {str(layer): str(layer) for layer in result.layers},
            str(result.best),
            "Layer of the probe. Layer 0 is the output of the embeddings.",
        )
        tree = result.tree(trace, int(layer))
    except ProbeError as error:
        blocks.error_box(error)
        return None
    blocks.truncation_notice(trace)
    if not tree.edges:
        st.info("A tree needs at least two words. Write another sentence under Your text.")
        return None
    if len(tree.words) <= _MAX_WORDS:
        with st.container(key="tree"):
            figure = arcs(tree)
            edges = (" – ".join(shorten(tree.words[word]) for word in edge) for edge in tree.edges)
            with st.container(width=int(figure.layout.width)):
                blocks.chart(figure, "Tree: " + ", ".join(edges))
    else:
        blocks.caveat(
            f"The sentence has {len(tree.words):,} words. A tree is drawn only for sentences of at most "
            f"{_MAX_WORDS} words."
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
        "The tree is the minimum spanning tree of the squared distances under this layer's linear map; "
        "its edges have no direction. There is no reference tree for this sentence, and the model does "
        "not necessarily use a tree."
    )
    return tree


def arcs(tree: PredictedTree) -> Any:
    """Return a figure of a tree: the words in one row, with an arc for each edge."""
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
