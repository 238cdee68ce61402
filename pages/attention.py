"""Attention: who looks at whom, in any layer and head."""

from functools import partial

import pandas as pd
import streamlit as st

import bert_probe
from bert_probe import files
from bert_probe.tables import attention_map_table
from bert_probe.trace import Trace
from bert_probe.ui import bertviz_frames, blocks, head_page, state, store, workbench
from bert_probe.ui.components import head_view
from bert_probe.ui.components.head_view import Picture
from bert_probe.ui.components.matrix import Scale, matrix

VIEWS = {
    "heads": "Head view",
    "heatmap": "Heatmap",
    "table": "Table",
    "head-view": "BertViz head view",
    "model-view": "BertViz model view",
}


def controls(trace: Trace) -> tuple[int, int | str]:
    """Layer and head, counted from 1; the head may be "mean"."""
    left, right = st.columns([1, 3], gap="medium")
    with left:
        layer = state.layer(
            "layer",
            1,
            trace.layers,
            "The text passes through the layers one after the other; the last one is nearest to the output.",
        )
    with right:
        return layer, state.head("head", trace.heads)


def heatmap(shown: bert_probe.AttentionMap, title: str, root: bool) -> None:
    """The matrix as a picture."""
    matrix(
        shown.weights,
        blocks.labels(shown.queries),
        blocks.labels(shown.keys),
        key="attention_matrix",
        scale=Scale("sequential", 0, 1, "sqrt" if root else "linear"),
        row_axis="query",
        column_axis="key",
        value_name="attention weight",
        caption=title,
        row_positions=blocks.positions(shown.queries),
        column_positions=blocks.positions(shown.keys),
        file_name="attention",
    )


def table(shown: bert_probe.AttentionMap) -> None:
    """The matrix as numbers, with what each row adds up to."""
    frame = pd.DataFrame(
        shown.weights,
        index=pd.Index(blocks.named(shown.queries), name="query ↓ · key →"),
        columns=blocks.named(shown.keys),
    )
    frame.insert(0, "row sum", shown.row_sums)
    st.dataframe(
        frame,
        width="stretch",
        height=min(38 + 35 * len(frame), 640),
        column_config={name: st.column_config.NumberColumn(format="%.4f") for name in frame},
        alt="Attention weights, a row for each query token",
    )


def bertviz(trace: Trace, layer: int, head: int | str, view: str) -> None:
    """BertViz's own drawing of the same weights, in a frame of its own."""
    try:
        if view == "head-view":
            heads = None if head == "mean" else [int(head) - 1]
            frame = bertviz_frames.head_view(trace, layer - 1, heads, blocks.dark())
        else:
            frame = bertviz_frames.model_view(trace, blocks.dark())
    except bert_probe.TooLongError as error:
        with st.container(border=True):
            st.header("Too long for BertViz", anchor=False)
            st.text(str(error))
        return
    if view == "head-view" and head == "mean":
        st.caption("BertViz draws single heads, not their mean: all heads of the layer are switched on.")
    st.iframe(frame.url, height=frame.height, alt=frame.title)
    blocks.caveat(frame.caption)


blocks.heading(
    "Attention",
    "Every layer lets each token look at all tokens, in several ways at once: its heads. A row of the "
    "picture is one token (the query), and shows how it spreads a weight of 1 over all of them (the keys).",
)
study = workbench.study()
with st.container(horizontal=True, gap="medium"):
    view = state.pick("show", "View", VIEWS, "heads")
    trace = workbench.chosen_text(study)
blocks.truncation_notice(trace)
layer, head = (1, "mean") if view in ("heads", "model-view") else controls(trace)

if view == "heads":
    words = state.switch("words", "Whole words", False, "x")
    labels = store.profiles(trace).labels if len(trace.tokens) <= 1024 else ()
    picture = Picture(trace, words=words, labels=labels, caption=head_page.caption(trace))

    def menu(shown):
        blocks.exports(
            pd.DataFrame({"a": [1]}),
            "x",
            "p",
            "c",
            [
                (
                    "Interactive page, HTML",
                    "head-view.html",
                    partial(head_view.page, picture, shown, picture.caption),
                )
            ],
        )

    head_page.draw(picture, menu)
elif view in ("head-view", "model-view"):
    bertviz(trace, layer, head, view)
else:
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        specials = state.switch(
            "specials",
            "Special tokens",
            True,
            "[CLS] and [SEP] often draw most of the attention. Without them the rest is easier to see.",
        )
        renormalise = state.switch(
            "renormalise",
            "Rows sum to 1 again",
            False,
            "Divides each row by what is left of it once special tokens are hidden. Turn those off first.",
            disabled=specials,
        )
        words = state.switch(
            "words",
            "Whole words",
            False,
            "Merges the pieces of a word: attention summed over a key's pieces, averaged over a query's. "
            "Rows still sum to 1.",
        )
        root = view == "heatmap" and state.switch(
            "root",
            "Root colours",
            True,
            "Colour runs from 0 to 1 either way. With root colours small weights can be seen; without, "
            "colour is proportional to the weight.",
        )
        index = head if head == "mean" else int(head) - 1
        shown = bert_probe.attention_map(
            trace,
            layer - 1,
            index,
            specials=specials,
            renormalise=renormalise and not specials,
            words=words,
        )
        what = "mean over the heads" if head == "mean" else f"head {head}"
        title = f"Attention in layer {layer}, {what}"
        call = f"bert_probe.attention_table(trace, layer={layer - 1}, head={index!r}"
        call += "" if specials else f", specials=False, renormalise={shown.renormalised}"
        call += ", words=True" if words else ""
        st.space("stretch")
        blocks.exports(
            attention_map_table(shown, trace),
            f"attention-layer{layer}-head{head}",
            blocks.python_code(study.request, blocks.trace_code(study.request, trace), call + ")"),
            blocks.command_line(
                study.request,
                "attention",
                *("--layer", str(layer), "--head", str(head)),
                *(["--words"] if words else []),
                trace=trace,
                note="" if specials else "The command line keeps special tokens:",
            ),
            [("All layers and heads, long CSV", "attention-all.zip", partial(files.attention_zip, trace))],
        )
    if view == "heatmap":
        heatmap(shown, title, root)
    else:
        table(shown)
    sums = shown.row_sums
    if specials:
        said = "Each row sums to 1; columns need not."
    elif shown.renormalised:
        said = "Special tokens are hidden and each row was divided by the rest, so rows sum to 1 again."
    else:
        said = (
            f"Special tokens are hidden: rows now sum to between {sums.min():.2f} and {sums.max():.2f}, "
            "and the rest went to the special tokens."
        )
    # The picture bears its title itself.
    named = "" if view == "heatmap" else f"{title}. "
    blocks.caveat(
        f"{named}{said} Attention says where a head reads from, not what the model's output depends on: it "
        "is not an explanation by itself (Jain and Wallace 2019)."
    )
