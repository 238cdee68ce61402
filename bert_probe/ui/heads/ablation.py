"""Switch heads off: what a chosen set of them changes, and which single head changes most."""

from __future__ import annotations

from functools import partial

import streamlit as st

from bert_probe.analyses.attention.heads import Heads, Labels
from bert_probe.analyses.attribution.head_ablation import (
    SIMILARITIES,
    Head,
    HeadAblation,
    HeadAblationResult,
    HeadAblationSweep,
    HeadAblationSweepResult,
    model_with_heads,
)
from bert_probe.model.trace import Trace
from bert_probe.runtime import shared_cache
from bert_probe.ui import blocks, figures, jobs, state
from bert_probe.ui.components.matrix import heatmap
from bert_probe.ui.export import export, zipped
from bert_probe.ui.heads import shared
from bert_probe.views import heatmaps

SIDE_BY_SIDE = 32
"""Tokens up to which the three similarities stand beside each other."""
_REST = (
    "Change is 1 − cosine between a last-layer vector with and without. A small change says that the other "
    "heads make up for it on this text, not that nothing was switched off (Michel et al. 2019)."
)


def part(trace: Trace) -> None:
    """Draw it."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        which = state.pick(
            "ablation", "Which heads", {"set": "Chosen heads", "each": "Each head in turn"}, "set"
        )
        replacement = state.pick(
            "replacement",
            "A head's output becomes",
            {"zero": "Zero", "mean": "Its mean"},
            "zero",
            "Zero takes away all that a head says; its mean over the tokens leaves what it says to every "
            "token.",
        )
    (_each if which == "each" else _set)(trace, replacement)


def _set(trace: Trace, replacement: str) -> None:
    """A set of heads: what happens to every token, [CLS], the pooler, and how alike the tokens are."""
    heads = _chosen_heads(trace)
    if not heads:
        blocks.caveat("Choose one head or more above. A number without a point stands for a whole layer.")
        return
    result = shared_cache.answers.of(HeadAblation(heads, replacement).of, trace)
    with st.container(horizontal=True, vertical_alignment="center", gap="large"):
        _metric("Tokens, on average", result.mean_token_change)
        _metric("[CLS], the first token", result.cls_change)
        _metric("Pooler", result.pooler_change, "This checkpoint has no pooler.")
        st.space("stretch")
        _set_exports(result)
    _token_changes(result)
    st.header("How alike the tokens are", anchor=False)
    _similarity(result)
    blocks.caveat(
        "Cosine of every two tokens' last-layer vectors, special tokens left out. In the difference, above 0 "
        f"means more alike without the heads. {_REST}"
    )


def _chosen_heads(trace: Trace) -> tuple[Head, ...]:
    """Heads by name; a layer's number stands for all of its heads."""
    labels = shared_cache.answers.of(Heads().of, trace).labels
    options: dict[str, str] = {}
    meant: dict[str, list[Head]] = {}
    for layer, row in enumerate(labels):
        meant[f"{layer + 1}"] = [(layer, head) for head in range(len(row))]
        options[f"{layer + 1}"] = f"layer {layer + 1}, all heads"
        for head, label in enumerate(row):
            name = f"{layer + 1}.{head + 1}"
            meant[name] = [(layer, head)]
            options[name] = f"{name} {label}".strip()
    striking = next((name for name, heads in meant.items() if _stands_out(labels, heads)), "1.1")
    chosen = state.several(
        "off",
        "Heads to switch off together",
        options,
        [striking],
        "Layer and head, for example 3.7",
        "Layer and head, counted from 1, with what the head does on this text. A layer without a head stands "
        "for all of its heads.",
    )
    return tuple(dict.fromkeys(head for name in chosen for head in meant[name]))


def _stands_out(labels: Labels, heads: list[Head]) -> bool:
    return all(labels[layer][head] not in ("", "broad") for layer, head in heads)


def _metric(label: str, value: float | None, missing: str | None = None) -> None:
    st.metric(
        label,
        None if value is None else f"{value:.4f}",
        help=missing if value is None else None,
        width="content",
    )


def _token_changes(result: HeadAblationResult) -> None:
    names = blocks.labels(result.tokens)
    with st.container(key="judged"):
        picture, numbers = st.columns([2, 1], gap="large")
    with picture:
        st.caption("Change of each token's last-layer vector, 1 − cosine; 0 is unchanged, 1 a right angle")
        st.plotly_chart(
            figures.token_bars(names, result.token_change, "1 − cosine"),
            width="stretch",
            config=figures.CONFIG,
            alt="Change of each token's last-layer vector",
        )
    with numbers:
        shown = result.table().assign(token=names).sort_values("change", ascending=False)
        shared.head_table(shown, {"change": "1 − cosine"}, "Tokens by change", height=360)


def _similarity(result: HeadAblationResult) -> None:
    """Side by side; of long texts one at a time, as large as the page."""
    pictures = heatmaps.of_ablation(result)
    if len(pictures["before"].rows) > SIDE_BY_SIDE:
        options = {name: picture.drawing["caption"] for name, picture in pictures.items()}
        which = state.pick("ablation_similarity", "Similarity", options, "difference")
        pictures = {which: pictures[which]}
    with st.container(key="judged_similarity"):
        columns = st.columns(len(pictures), gap="medium")
    for column, (name, picture) in zip(columns, pictures.items(), strict=True):
        with column:
            heatmap(picture, key=f"ablation_{name}")


def _set_exports(result: HeadAblationResult) -> None:
    names = {which: f"similarity-{which}" for which in SIMILARITIES}
    more = [
        (f"Similarity, {which}", f"{name}.zip", partial(zipped, result.showing(show=which), name))
        for which, name in names.items()
    ]
    export(result, "ablation-tokens", more)


def _each(trace: Trace, replacement: str) -> None:
    """Every head by itself, ranked by its effect."""
    model_with_heads(trace)  # one whose heads cannot be reached is refused before anybody waits
    runs = f"{trace.layers * trace.heads:,} runs of the model on this text, batched."
    result = jobs.answered(
        "each head off",
        HeadAblationSweep(replacement).of,
        trace,
        label="Switch off each head in turn",
        unit="heads",
        note=f"{runs} You can cancel at any time.",
    )
    if result is not None:
        _ranking(trace, result)


def _ranking(trace: Trace, result: HeadAblationSweepResult) -> None:
    table = result.table()
    first = (int(table["layer"].iloc[0]), int(table["head"].iloc[0]))
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.markdown(
            f"Without layer {first[0]}, head {first[1]} the tokens change most: "
            f"**{table['mean_token_change'].iloc[0]:.4f}** on average.",
            width="content",
        )
        st.space("stretch")
        export(result, "ablation")
    with st.container(key="judged"):
        picture, numbers = st.columns([1, 1], gap="large")
    with picture:
        chosen = shared.head_heatmap(heatmaps.of_each_ablation(result), "each_head_off")
        layer, head = chosen or first
        labels = shared_cache.answers.of(Heads().of, trace).labels
        shared.open_in_attention(layer, head, labels[layer - 1][head - 1])
    with numbers:
        shared.head_table(
            table,
            {"mean_token_change": "tokens, mean", "cls_change": "[CLS]"},
            "Change for each head switched off",
        )
    blocks.caveat(_REST)
