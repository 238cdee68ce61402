"""The Ablation section: the effect of ablating a set of heads together, or each head in turn."""

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
from bert_probe.ui.export import export, table_zip
from bert_probe.ui.heads import shared
from bert_probe.views import heatmaps

SIDE_BY_SIDE = 32
"""Maximum number of tokens for which the three similarity heatmaps are drawn side by side."""
_CAVEAT = (
    "Change is 1 − cosine between last-layer vectors with and without the heads. A small change may mean "
    "that other heads compensate, not that these heads have no effect (Michel et al. 2019)."
)


def part(trace: Trace) -> None:
    """Draw the ablation section."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        mode = state.segmented_control(
            "ablation", "Heads to ablate", {"set": "Selected heads", "each": "Each head in turn"}, "set"
        )
        replacement = state.segmented_control(
            "replacement",
            "Replace a head's output by",
            {"zero": "Zero", "mean": "Its mean"},
            "zero",
            "Zero removes the head's output. The mean keeps the component that is the same for all tokens.",
        )
    (_each if mode == "each" else _set)(trace, replacement)


def _set(trace: Trace, replacement: str) -> None:
    """Draw the effect of ablating a set of heads on tokens, [CLS], pooler and token similarity."""
    heads = _select_heads(trace)
    if not heads:
        blocks.caveat("Select at least one head above. A layer number alone selects all heads of the layer.")
        return
    result = shared_cache.answers.of(HeadAblation(heads, replacement, show="tokens").of, trace)
    with st.container(horizontal=True, vertical_alignment="center", gap="large"):
        _metric("Tokens, mean change", result.mean_token_change)
        _metric("[CLS], the first token", result.cls_change)
        _metric("Pooler", result.pooler_change, "This checkpoint does not have a pooler.")
        st.space("stretch")
        _set_exports(result)
    _token_changes(result)
    st.header("Similarity of the tokens", anchor=False)
    _similarity(result)
    blocks.caveat(
        "Cosine similarity of each pair of last-layer token vectors, without special tokens. Differences "
        f"above 0 mean that tokens are more similar after the ablation. {_CAVEAT}"
    )


def _select_heads(trace: Trace) -> tuple[Head, ...]:
    """Draw a multiselect for heads and return them; the number of a layer selects all of its heads."""
    labels = shared_cache.answers.of(Heads().of, trace).labels
    options: dict[str, str] = {}
    heads_by_name: dict[str, list[Head]] = {}
    for layer, row in enumerate(labels):
        heads_by_name[f"{layer + 1}"] = [(layer, head) for head in range(len(row))]
        options[f"{layer + 1}"] = f"layer {layer + 1}, all heads"
        for head, label in enumerate(row):
            name = f"{layer + 1}.{head + 1}"
            heads_by_name[name] = [(layer, head)]
            options[name] = f"{name} {label}".strip()
    default = next((name for name, heads in heads_by_name.items() if _stands_out(labels, heads)), "1.1")
    names = state.multiselect(
        "off",
        "Heads to ablate together",
        options,
        [default],
        "Layer and head, for example 3.7",
        "Layer and head, counted from 1, with the head's label on this text. A layer number alone "
        "selects all of its heads.",
    )
    return tuple(dict.fromkeys(head for name in names for head in heads_by_name[name]))


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
        st.caption(
            "1 − cosine of each token's last-layer vector with and without the heads; 0 means unchanged"
        )
        blocks.chart(
            figures.token_bars(names, result.token_change, "1 − cosine"),
            "Change of each token's last-layer vector",
        )
    with numbers:
        table = result.table().assign(token=names).sort_values("change", ascending=False)
        shared.head_table(table, {"change": "1 − cosine"}, "Tokens sorted by change", height=360)


def _similarity(result: HeadAblationResult) -> None:
    """Draw the similarity heatmaps side by side, or for a long text one at a time."""
    pictures = heatmaps.ablation_heatmaps(result)
    if len(pictures["before"].rows) > SIDE_BY_SIDE:
        options = {name: picture.drawing["caption"] for name, picture in pictures.items()}
        view = state.segmented_control("ablation_similarity", "Similarity", options, "difference")
        pictures = {view: pictures[view]}
    with st.container(key="judged_similarity"):
        columns = st.columns(len(pictures), gap="medium")
    for column, (name, picture) in zip(columns, pictures.items(), strict=True):
        with column:
            heatmap(picture, key=f"ablation_{name}")


def _set_exports(result: HeadAblationResult) -> None:
    names = {which: f"similarity-{which}" for which in SIMILARITIES}
    more = [
        (f"Similarity, {which}", f"{name}.zip", partial(table_zip, result.showing(show=which), name))
        for which, name in names.items()
    ]
    export(result, "ablation-tokens", more)


def _each(trace: Trace, replacement: str) -> None:
    """Draw the effect of ablating each head in turn, as a ranking."""
    model_with_heads(trace)  # raises errors before the user starts a long job
    runs = f"{trace.layers * trace.heads:,} batched forward passes on this text."
    result = jobs.answer(
        "head ablation sweep",
        HeadAblationSweep(replacement).of,
        trace,
        label="Ablate each head in turn",
        unit="heads",
        activity="Ablating heads",
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
        head = shared.head_heatmap(heatmaps.ablation_sweep_heatmap(result), "each_head_off")
        layer, head_number = head or first
        labels = shared_cache.answers.of(Heads().of, trace).labels
        shared.open_in_attention(layer, head_number, labels[layer - 1][head_number - 1])
    with numbers:
        shared.head_table(
            table,
            {"mean_token_change": "tokens, mean", "cls_change": "[CLS]"},
            "Change for each ablated head",
        )
    blocks.caveat(_CAVEAT)
