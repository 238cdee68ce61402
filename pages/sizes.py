"""Sizes: how large models are, side by side, without their weights."""

import streamlit as st

from bert_probe.analyses.weights.model_sizes import MEMORY, ModelSizes
from bert_probe.runtime import shared_cache
from bert_probe.ui import blocks, figures, sizes, state, workbench
from bert_probe.ui.export import export

FIRST = ("name", "layers", "heads", "hidden_size", "parameters")
"""Of the columns, what is read first; then the memory, and all others."""


def main() -> None:
    """The page."""
    blocks.heading(
        "Sizes",
        "How large are models, and what are their parameters for? A config tells it without any weights, so "
        "a model can be judged before it is downloaded.",
    )
    models = sizes.chosen(workbench.checkpoint())
    if not models:
        st.info("Choose a model above, or type the path of a config.json.")
        return
    found = shared_cache.answers.of(ModelSizes().of, *models)
    with st.container(key="finding"):
        st.markdown(state.plain(found.finding, 1000))
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        shown = state.pick("bars", "Bars", {"numbers": "Numbers", "shares": "Shares of each"}, "numbers")
        export(found, "sizes")
    st.plotly_chart(
        sizes.bars(found, shown == "shares"),
        width="stretch",
        config=figures.CONFIG,
        alt="A bar for each model: its parameters by part",
    )
    blocks.caveat(
        "The encoder with its pooler, without an output head; a tensor used in two places counts once. In "
        "each layer: attention (queries, keys and values), attention output and feed-forward, with biases "
        "and norms. The number of parameters does not say how good a model is."
    )
    st.header("Side by side", anchor=False)
    counts = {name: st.column_config.NumberColumn(format="localized") for name in found.frame().columns}
    memory = {
        f"bytes_{dtype}": st.column_config.NumberColumn(
            "float16, bfloat16" if dtype == "float16" else dtype, format="bytes"
        )
        for dtype in MEMORY
    }
    st.dataframe(
        found.table(),
        hide_index=True,
        width="stretch",
        column_order=list(dict.fromkeys([*FIRST, *memory, *counts])),
        column_config={
            **counts,
            "name": st.column_config.TextColumn("name", pinned=True),
            "family": st.column_config.TextColumn("family"),
            "hidden_size": st.column_config.NumberColumn("dimensions", format="localized"),
            "vocabulary_size": st.column_config.NumberColumn("vocabulary", format="localized"),
            **memory,
        },
        alt="A row for each model: layers, heads, dimensions, parameters by part, memory of the weights",
    )
    blocks.caveat(
        "Memory of the weights alone; to run a model takes more, and to train it several times as much. "
        f"Where sizes are from: {sizes.sources(found)}."
    )


main()
