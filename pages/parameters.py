"""Parameters: every number the model learned, by place."""

import streamlit as st

from bert_probe.analyses.weights.parameters import Parameters
from bert_probe.model.module_tree import module_tree
from bert_probe.ui import blocks, figures, trainable_parameters, workbench
from bert_probe.ui.export import export
from bert_probe.ui.parameters import subtotals, treemap, updated_treemap

blocks.heading(
    "Parameters",
    "The numbers that the model learned. They are the same for every text; what changes from text to text is "
    "computed with them.",
)
checkpoint = workbench.checkpoint()
about = checkpoint.description
result = Parameters().of(checkpoint)
found = result.inventory

with st.container(horizontal=True, gap="large"):
    st.metric("Parameters", f"{found.total:,}", help="Numbers in the weights, shared ones counted once.")
    st.metric("Tensors", f"{len(found.rows):,}", help="Named arrays that hold them.")
    st.metric("Memory", f"{found.megabytes:,.1f} MB", help=f"At {about.dtype} precision, weights alone.")
    st.metric(
        "Layers × heads",
        f"{about.layers} × {about.heads}",
        help="Layers one after the other, each with so many heads side by side.",
    )
    st.metric("Vocabulary", f"{about.vocabulary_size:,}", help="Pieces the model knows.")
if found.tied:
    st.caption(f"{found.tied} tensors are shared with another one and counted there.")

marked = trainable_parameters.part(checkpoint)
st.plotly_chart(
    treemap(found, blocks.dark()) if marked is None else updated_treemap(marked, blocks.dark()),
    width="stretch",
    config=figures.CONFIG,
    alt="Area by number of parameters: embeddings, each layer with its parts, pooler"
    + ("" if marked is None else "; what training updates is coloured"),
)
if marked is not None:
    blocks.caveat(
        f"Coloured: the {marked.count():,} numbers that training updates. Hatched: a part of the block is, "
        "as with LoRA, whose narrow matrices lie beside the model's own. Without a colour: stays as it is. "
        "More numbers take more memory and time, and do not always learn more."
    )
blocks.caveat(
    "Area is the number of parameters, which says nothing about importance. In each layer: feed-forward, "
    "attention (queries, keys and values) and, palest, attention output. Click a block to look inside, its "
    "title to come back."
)

table = result.table()
with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
    st.header("Every tensor", anchor=False)
    export(result, "parameters")
st.dataframe(
    table if found.tied else table.drop(columns="tied_to"),
    hide_index=True,
    width="stretch",
    height=480,
    column_config={
        "count": st.column_config.NumberColumn("count", format="localized"),
        "bytes": st.column_config.NumberColumn("bytes", format="localized"),
        "share": st.column_config.ProgressColumn("share", format="percent", min_value=0, max_value=1),
        "name": st.column_config.TextColumn("name", help="As in the file, where layers count from 0."),
        "kind": st.column_config.TextColumn("kind", help="The kind of module that uses it."),
    },
    alt="All parameters with group, shape and count",
)
left, right = st.columns(2, gap="large")
with left:
    st.header("By group", anchor=False)
    st.dataframe(subtotals(found.by_group(), found.total), hide_index=True, width="stretch")
with right:
    st.header("By kind of module", anchor=False)
    st.dataframe(subtotals(found.by_kind(), found.total), hide_index=True, width="stretch")
with st.expander("Module tree"):
    st.code(
        "\n".join(
            f"{'  ' * depth}{name + ': ' if name else ''}{kind}" + (f"  ({count:,})" if count else "")
            for depth, name, kind, count in module_tree(checkpoint.model)
        ),
        language=None,
    )
st.caption(f"{about.architecture} · SHA-256 of the weights {about.weights_sha256}")
