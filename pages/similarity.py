"""Similarity: cosine of every token with every token, at any layer."""

import pandas as pd
import streamlit as st

import bert_probe
from bert_probe.web import blocks, curves, figures, state, store, workbench
from bert_probe.web.components.matrix import Cell, Scale, matrix


def compared(study: workbench.Study, specials: bool) -> tuple[bert_probe.Similarity, str, str]:
    """What is compared, and the names of rows and columns."""
    if study.b is not None:
        return bert_probe.compare(study.a, study.b, specials=specials), "A", "B"
    if study.a.encoding.pair is not None:
        return bert_probe.compare_segments(study.a, specials=specials), "segment A", "segment B"
    return bert_probe.compare(study.a, study.a, specials=specials), "token", "token"


def code(study: workbench.Study, layer: int, specials: bool) -> tuple[str, str]:
    """Python and command line that make the same table."""
    kept = ", specials=True" if specials else ""
    if study.a.encoding.pair is not None:
        lines = [
            blocks.trace_code(study.request, study.a),
            f"result = bert_probe.compare_segments(trace{kept})",
        ]
        command = "# The command line compares separate texts; for a pair use Python."
    else:
        other = study.b or study.a
        texts = (study.a.encoding.text, other.encoding.text)
        cut = ", truncate=True" if study.request.truncate else ""
        lines = [f"result = bert_probe.token_similarity(checkpoint, {texts[0]!r}, {texts[1]!r}{kept}{cut})"]
        note = "The command line leaves special tokens out:" if specials else ""
        command = blocks.command_line(
            study.request, "similarity", "--layer", str(layer), texts=texts, note=note
        )
    lines.append(f"bert_probe.similarity_table(result, layer={layer})")
    return blocks.python_code(study.request, *lines), command


def table(result: bert_probe.Similarity, layer: int, corner: str, title: str) -> None:
    """The cosines as numbers."""
    st.caption(title)
    frame = pd.DataFrame(
        result.cosine(layer),
        index=pd.Index(blocks.named(result.rows), name=corner),
        columns=blocks.named(result.columns),
    )
    st.dataframe(
        frame,
        width="stretch",
        height=min(38 + 35 * len(frame), 640),
        column_config={name: st.column_config.NumberColumn(format="%.4f") for name in frame},
        alt=title,
    )


def judgement(result: bert_probe.Similarity, cell: Cell | None, layer: int) -> None:
    """The cosine that unrelated tokens reach, and the chosen pair beside it, layer by layer."""
    baseline = store.measured_baseline(study.checkpoint)
    st.header("Is that high?", anchor=False)
    st.markdown(
        f"At layer {layer}, two **unrelated** tokens of this model have a cosine of "
        f"**{baseline.mean[layer]:.2f}** on average, and one pair in twenty reaches "
        f"**{baseline.p95[layer]:.2f}** or more. Judge a value by its distance from these."
    )
    pair = None
    if cell is not None:
        row, column = result.rows[cell.row], result.columns[cell.column]
        curve = [float(result.cosine(index)[cell.row, cell.column]) for index in range(len(baseline.mean))]
        pair = curves.PairCurve(f"{row.display} – {column.display}", curve)
    st.plotly_chart(
        curves.layer_curves(baseline, layer, pair),
        width="stretch",
        config=figures.CONFIG,
        alt="Cosine of unrelated tokens by layer: mean and the middle 90 percent",
    )
    blocks.caveat(
        f"Measured on {baseline.pairs:,} pairs of different tokens from {baseline.sentences} unrelated "
        "English sentences shipped with the package. Contextual vectors share a common direction, so even "
        "unrelated ones are similar, often more so in upper layers (Ethayarajh 2019). "
        + ("" if cell else "Click a cell of the heatmap to see that pair at every layer.")
    )


blocks.heading(
    "Similarity",
    "Inside the model a token is a vector, a list of numbers that depends on the whole sentence. The "
    "cosine compares two of them: 1 for the same direction, 0 for none in common, −1 for opposite ones.",
)
study = workbench.study()
for trace in filter(None, (study.a, study.b)):
    blocks.truncation_notice(trace)
with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
    with st.container(width=240):
        layer = state.layer(
            "vector_layer",
            0,
            study.a.layers,
            "0 is the output of the embeddings, before any attention; the last layer is next to the output.",
        )
    view = state.pick("similarity_show", "View", {"heatmap": "Heatmap", "table": "Table"}, "heatmap")
    specials = state.switch(
        "similarity_specials", "Special tokens", False, "Compare [CLS] and [SEP] as well."
    )
    result, row_name, column_name = compared(study, specials)
    python, command = code(study, layer, specials)
    st.space("stretch")
    blocks.exports(bert_probe.similarity_table(result, layer), f"similarity-layer{layer}", python, command)
where = "the output of the embeddings" if layer == 0 else f"layer {layer}"
with st.container(key="judged"):
    picture, judged = st.columns([3, 2], gap="large")
with picture:
    title = f"Cosine similarity of token vectors after {where}"
    pinned = None
    if view == "table":
        table(result, layer, f"{row_name} ↓ · {column_name} →", title)
    else:
        pinned = matrix(
            result.cosine(layer),
            blocks.labels(result.rows),
            blocks.labels(result.columns),
            key="similarity_matrix",
            scale=Scale("diverging", -1, 1),
            row_axis=row_name,
            column_axis=column_name,
            value_name="cosine",
            caption=title,
            row_positions=blocks.positions(result.rows),
            column_positions=blocks.positions(result.columns),
            file_name="similarity",
        )
    if study.b is None and study.a.encoding.pair is None:
        blocks.caveat("One text compared with itself. Write sentence B to compare two.")
with judged:
    judgement(result, pinned, layer)
