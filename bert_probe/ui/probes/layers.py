"""The Layers section of the Probes page: a linear probe for each layer."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import streamlit as st

from bert_probe.analyses.probing.probe import Probe, ProbeResult
from bert_probe.analyses.vectors.pooling import available_poolings
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.labeled_texts import LabeledTexts
from bert_probe.text.tagged_sentences import TaggedSentence
from bert_probe.ui import blocks, figures, jobs, state
from bert_probe.ui.export import export
from bert_probe.ui.figures import ACCENT, GRAY, SECOND
from bert_probe.ui.probes.inputs import ProbeFiles

_TAGS = "tags"
_POOLINGS = {"mean": "Mean of all tokens", "cls": "First token"}
_MAX_LABELS = 50
"""Maximum number of distinct values of a comment that can be used as a label."""


def part(files: ProbeFiles, checkpoint: Checkpoint, truncate: bool) -> None:
    """Draw the Layers section."""
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
        note="The model encodes all sentences; then a probe, a control task and an online code are fitted "
        "for each layer. This takes minutes for thousands of sentences. You can cancel at any time.",
    )
    if result is not None:
        _result(result, files)


def _choose_label(data: tuple[TaggedSentence, ...]) -> str | None:
    """Draw a selector for the labels: the tags of words, or a comment of the sentences."""
    comments = [
        name
        for name in data[0].metadata
        if all(name in sentence.metadata for sentence in data)
        and 1 < len({sentence.metadata[name] for sentence in data}) <= min(_MAX_LABELS, len(data) - 1)
    ]
    if not comments:
        return None
    options = {_TAGS: "Tags of words", **{name: f"{name} of sentences" for name in comments}}
    label = state.segmented_control("probe_label", "Labels", options, _TAGS)
    return None if label == _TAGS else label


def _choose_pooling(checkpoint: Checkpoint) -> str | None:
    """Draw a selector for the pooling; return None for the default."""
    options = {name: label for name, label in _POOLINGS.items() if name in available_poolings(checkpoint)}
    pooling = state.segmented_control(
        "probe_pooling", "Pooling", options, "mean", "How token vectors are combined into one text vector."
    )
    return None if pooling == "mean" else pooling


def _result(result: ProbeResult, files: ProbeFiles) -> None:
    unit = "words" if not result.of_sentences else "texts" if result.question.label is None else "sentences"
    best = int(result.accuracies.argmax())
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.markdown(
            f"The probe of layer **{result.layers[best]}** has the highest accuracy, "
            f"**{result.accuracies[best]:.1%}** of {result.counts[1]:,} held-out {unit}; the baseline, which "
            f"does not use the model, reaches {result.baseline:.1%}."
        )
        st.space("stretch")
        export(result, "probe", data={"data": files.data, "held_out": files.held_out})
    with st.container(key="judged"):
        left, right = st.columns([3, 2], gap="large")
    with left:
        st.markdown("**Accuracy by layer**")
        blocks.chart(
            accuracy_curves(result),
            "Accuracy of the probe by layer with its confidence interval, the baseline and the control task",
        )
    with right:
        st.markdown("**MDL (online code): compression**")
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
        "The baseline is the most frequent label. In the control task each text has a random label (Hewitt "
        "and Liang 2019), which cannot be predicted for held-out texts, so selectivity is the accuracy above "
        "chance here. "
        if result.of_sentences
        else "The baseline is the most frequent tag of each word form. In the control task each word form "
        "has a random tag (Hewitt and Liang 2019); selectivity is the accuracy minus that of the control "
        "task. "
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
    """Return curves of the accuracy by layer with its confidence interval, baseline and control task."""
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
    """Return a curve of the compression of the online code by layer."""
    figure, layers = go.Figure(), list(result.layers)
    line = {"color": ACCENT, "width": 3}
    add_curve(figure, "compression", layers, result.compressions, line, "%{y:.2f} ×")
    set_layout(figure, layers, "compression")
    # The legend of its one curve makes the plot as high as that of the accuracy next to it.
    return figure.update_yaxes(rangemode="tozero")


def add_curve(
    figure: Any, name: str, layers: list[int], values: Any, line: dict[str, Any], form: str
) -> None:
    """Add a curve with one point per layer."""
    figure.add_scatter(
        x=layers,
        y=values,
        mode="lines+markers",
        line=line,
        name=name,
        hovertemplate=f"layer %{{x}}: {form}<extra>{name}</extra>",
    )


def set_layout(figure: Any, layers: list[int], title: str) -> None:
    """Set the axes of curves by layer."""
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
