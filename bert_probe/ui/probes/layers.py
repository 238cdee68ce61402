"""What each layer knows: linear probes, by layer."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import streamlit as st

from bert_probe.analyses.probing.probe import Probe, ProbeResult
from bert_probe.analyses.vectors.pooling import offered
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.labeled_texts import LabeledTexts
from bert_probe.text.tagged_sentences import TaggedSentence
from bert_probe.ui import blocks, figures, jobs, state
from bert_probe.ui.export import export
from bert_probe.ui.figures import ACCENT, GRAY, SECOND
from bert_probe.ui.probes.inputs import ProbeFiles

_TAGS = "tags"
_POOLINGS = {"mean": "Mean of all tokens", "cls": "First token"}
_MOST_LABELS = 50
"""Values of a comment that is taken for a label; it has one for several sentences."""


def part(given: ProbeFiles, checkpoint: Checkpoint, truncate: bool) -> None:
    """Draw it."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="large"):
        label = None if isinstance(given.data, LabeledTexts) else _label(given.data)
        whole = label is not None or isinstance(given.data, LabeledTexts)
        asked = Probe(label, _pooling(checkpoint) if whole else None)
    found = jobs.answered(
        "probe layers",
        asked.of,
        checkpoint,
        given.data,
        given.held_out,
        truncate,
        label="Probe the layers",
        unit="steps",
        note="The model reads all sentences; then a probe, its control and its code are fitted for each "
        "layer. It takes minutes for thousands of sentences; you can cancel at any time.",
    )
    if found is not None:
        _shown(found, given)


def _label(data: tuple[TaggedSentence, ...]) -> str | None:
    """The tags of words, or a comment that every sentence has, and not each its own."""
    comments = [
        name
        for name in data[0].about
        if all(name in one.about for one in data)
        and 1 < len({one.about[name] for one in data}) <= min(_MOST_LABELS, len(data) - 1)
    ]
    if not comments:
        return None
    options = {_TAGS: "Tags of words", **{name: f"{name} of sentences" for name in comments}}
    chosen = state.pick("probe_label", "Labels", options, _TAGS)
    return None if chosen == _TAGS else chosen


def _pooling(checkpoint: Checkpoint) -> str | None:
    """What makes the vector of a sentence; None for what is usual."""
    options = {name: label for name, label in _POOLINGS.items() if name in offered(checkpoint)}
    chosen = state.pick("probe_pooling", "Vector of a text", options, "mean", "In every layer alike.")
    return None if chosen == "mean" else chosen


def _shown(found: ProbeResult, given: ProbeFiles) -> None:
    what = "words" if not found.of_sentences else "texts" if found.question.label is None else "sentences"
    best = int(found.accuracies.argmax())
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.markdown(
            f"Layer **{found.layers[best]}** tells **{found.accuracies[best]:.1%}** of {found.counts[1]:,} "
            f"held-out {what}; without the model {found.baseline:.1%} are told."
        )
        st.space("stretch")
        export(found, "probe", data={"data": given.data, "held_out": given.held_out})
    with st.container(key="judged"):
        left, right = st.columns([3, 2], gap="large")
    with left:
        st.markdown("**Accuracy by layer**")
        st.plotly_chart(
            accuracy_curves(found),
            width="stretch",
            config=figures.CONFIG,
            alt="Accuracy of the probe by layer with its interval, beside the baseline and the control task",
        )
    with right:
        st.markdown("**Online code, times shorter than a uniform one**")
        st.plotly_chart(
            compression_curve(found),
            width="stretch",
            config=figures.CONFIG,
            alt="By layer, how many times shorter the online code of the labels is than a uniform one",
        )
    frame = found.table()
    st.dataframe(
        frame,
        hide_index=True,
        width="stretch",
        column_config={
            **{
                name: st.column_config.NumberColumn(format="%.4f")
                for name in frame.columns
                if name not in ("layer", "codelength")
            },
            "codelength": st.column_config.NumberColumn("code length, bits", format="%.0f"),
        },
        alt="Accuracy, interval, baseline, control task and code length of each layer",
    )
    blocks.caveat(_meaning(found))


def _meaning(found: ProbeResult) -> str:
    by_form = (
        "The baseline is the most frequent label. In the control task each text has a random label (Hewitt "
        "and Liang 2019), which nothing can tell of a text that was not learned from: selectivity is here "
        "how much better than by chance the probe does, and not whether it learns texts by heart. "
        if found.of_sentences
        else "The baseline is the most frequent tag of each word form. In the control task each form has a "
        "random tag (Hewitt and Liang 2019); selectivity is how much better the probe does at its task. "
    )
    return (
        "A probe says what can be read off a layer by a linear map, not what the model uses. Layer 0 is the "
        f"output of the embeddings. {by_form}The band encloses {found.question.confidence:.0%} of the "
        "accuracies over held-out sentences drawn again (percentile bootstrap). The online code (Voita and "
        f"Titov 2020) tells {found.counts[0]:,} labels of {len(found.labels)} kinds block after block, each "
        "by a probe of those before it: the shorter, the easier the labels are to learn."
    )


def accuracy_curves(found: ProbeResult) -> Any:
    """Accuracy with its interval, baseline and control task."""
    figure, layers = go.Figure(), list(found.layers)
    figure.add_scatter(
        x=layers + layers[::-1],
        y=[*found.high, *found.low[::-1]],
        fill="toself",
        fillcolor="rgba(99,91,228,0.18)",
        mode="lines",
        line={"width": 0},
        hoverinfo="skip",
        name=f"{found.question.confidence:.0%} interval",
    )
    curves: list[tuple[str, Any, dict[str, Any]]] = [
        ("probe", found.accuracies, {"color": ACCENT, "width": 3}),
        ("baseline", [found.baseline] * len(layers), {"color": GRAY, "dash": "dot"}),
        ("control task", found.controls, {"color": SECOND, "dash": "dash"}),
    ]
    for name, values, line in curves:
        curve(figure, name, layers, values, line, "%{y:.2%}")
    least = min(found.baseline, *found.low, *found.controls)
    finish(figure, layers, "accuracy")
    figure.update_yaxes(tickformat=".0%", range=[max(0.0, least - 0.05), 1.01])
    return figure


def compression_curve(found: ProbeResult) -> Any:
    """How many times shorter the online code is."""
    figure, layers = go.Figure(), list(found.layers)
    curve(figure, "compression", layers, found.compressions, {"color": ACCENT, "width": 3}, "%{y:.2f} ×")
    finish(figure, layers, "compression")
    figure.update_yaxes(rangemode="tozero")
    return figure.update_layout(showlegend=False)


def curve(figure: Any, name: str, layers: list[int], values: Any, line: dict[str, Any], form: str) -> None:
    """Add a curve of a number by layer."""
    figure.add_scatter(
        x=layers,
        y=values,
        mode="lines+markers",
        line=line,
        name=name,
        hovertemplate=f"layer %{{x}}: {form}<extra>{name}</extra>",
    )


def finish(figure: Any, layers: list[int], title: str) -> None:
    """Axes of curves by layer."""
    figure.update_layout(
        height=340,
        margin={"l": 0, "r": 0, "t": 8, "b": 0},
        legend={"orientation": "h", "y": -0.26, "x": 0},
        xaxis={
            "title": "layer",
            "dtick": max(1, len(layers) // 12),
            "range": [layers[0] - 0.3, layers[-1] + 0.3],
            "zeroline": False,
        },
        yaxis={"title": title},
        hovermode="closest",
    )
