"""Parameters: every number the model learned, by place."""

import streamlit as st

import bert_probe
from bert_probe.analyses.parameters import module_tree
from bert_probe.web import blocks, figures, workbench

blocks.heading(
    "Parameters",
    "The numbers that the model learned. They are the same for every text; what changes from text to text is "
    "computed with them.",
)
checkpoint = workbench.checkpoint()
request = workbench.request()
about = checkpoint.description
found = bert_probe.list_parameters(checkpoint.model)
tied = sum(row.tied_to is not None for row in found.rows)

with st.container(horizontal=True, gap="large"):
    st.metric("Parameters", f"{found.total:,}", help="Numbers in the weights, shared ones counted once.")
    st.metric("Tensors", f"{len(found.rows):,}", help="Named arrays that hold them.")
    st.metric("Memory", f"{found.bytes / 1e6:,.1f} MB", help=f"At {about.dtype} precision, weights alone.")
    st.metric(
        "Layers × heads",
        f"{about.layers} × {about.heads}",
        help="Layers one after the other, each with so many heads side by side.",
    )
    st.metric("Vocabulary", f"{about.vocabulary_size:,}", help="Pieces the model knows.")
if tied:
    st.caption(f"{tied} tensors are shared with another one and counted there.")

st.plotly_chart(
    figures.parameter_treemap(found, blocks.dark()),
    width="stretch",
    config=figures.CONFIG,
    alt="Area by number of parameters: embeddings, each layer with its parts, pooler",
)
blocks.caveat(
    "Area is the number of parameters, which says nothing about importance. In each layer: feed-forward, "
    "attention (queries, keys and values) and, palest, attention output. Click a block to look inside, its "
    "title to come back."
)

table = bert_probe.parameters_table(checkpoint)
with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
    st.header("Every tensor", anchor=False)
    blocks.exports(
        table,
        "parameters",
        blocks.python_code(request, "bert_probe.parameters_table(checkpoint)"),
        blocks.command_line(
            request, "parameters", note="The command line gives name, group, shape, count, dtype and bytes:"
        ),
    )
st.dataframe(
    table.drop(columns="tied_to") if not tied else table,
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
    st.dataframe(figures.subtotals_frame(found.by_group(), found.total), hide_index=True, width="stretch")
with right:
    st.header("By kind of module", anchor=False)
    st.dataframe(figures.subtotals_frame(found.by_kind(), found.total), hide_index=True, width="stretch")
with st.expander("Module tree"):
    st.code(
        "\n".join(
            f"{'  ' * depth}{name + ': ' if name else ''}{kind}" + (f"  ({count:,})" if count else "")
            for depth, name, kind, count in module_tree(checkpoint.model)
        ),
        language=None,
    )
st.caption(f"{about.architecture} · SHA-256 of the weights {about.weights_sha256}")
