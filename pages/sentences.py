"""Sentences: which of many say alike things."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial

import pandas as pd
import streamlit as st

import bert_probe
from bert_probe import Map, SentenceVectors
from bert_probe.analyses.pooling import POOLINGS, offered, recipe
from bert_probe.errors import ProbeError
from bert_probe.results import files
from bert_probe.web import blocks, figures, jobs, sentence_input, state, store, workbench
from bert_probe.web.components.matrix import Scale, matrix

PARTS = {"heatmap": "Heatmap", "table": "Table", "nearest": "Nearest pairs", "map": "Map"}
ORDERS = {"tree": "Alike ones together", "given": "As given"}
NAMES = {"model": "The model's own", "mean": "Mean", "cls": "[CLS]", "pooler": "Pooler", "max": "Maximum"}
MAPS = {"pca": "PCA", "umap": "UMAP"}
PAIRS = 50
FILE = "sentences.txt"
MOST = 2_000
"""Sentences that this page takes: as many as a matrix of all against all can be looked at."""


def chosen_pooling() -> str:
    """How a sentence's tokens become one vector, with a sentence that says so."""
    possible = offered(checkpoint)
    pooling = state.pick(
        "pooling",
        "Pooling",
        {name: NAMES[name] for name in possible},
        possible[0],
        "How the vectors of a sentence's tokens become one vector for the sentence.",
    )
    said = f" Here: {recipe(checkpoint, pooling)}." if pooling == "model" else ""
    st.markdown(f":gray[{POOLINGS[pooling]}{said}]")
    return pooling


def measured(sentences: tuple[str, ...], pooling: str, cause: Hashable) -> SentenceVectors | None:
    """The sentences' vectors; None while there are none."""
    found = jobs.run(
        "sentence vectors",
        cause,
        "Compute the vectors",
        partial(store.sentences, checkpoint, sentences, pooling, request.truncate),
        unit="sentences",
        start=True,
    )
    if found is not None and found.cut:
        numbers = ", ".join(str(index + 1) for index in found.cut[:8]) + (" …" if len(found.cut) > 8 else "")
        st.warning(
            f"{len(found.cut):,} sentences were cut, as this model or this pooling reads no more: {numbers}.",
            icon=":material/content_cut:",
        )
    return found


def python(found: SentenceVectors, *lines: str) -> str:
    """A script that makes the same vectors and ends in ``lines``."""
    cut = ", truncate=True" if request.truncate else ""
    return blocks.python_code(
        request,
        f"sentences = bert_probe.read_sentences({FILE!r})",
        f"found = bert_probe.sentence_vectors(checkpoint, sentences, {found.pooling!r}{cut})",
        *lines,
    )


def exports(found: SentenceVectors, frame: pd.DataFrame, name: str, note: str, *lines: str) -> None:
    """The export menu of a part; the sentences and their vectors are in each."""
    pooled = ("--pooling", found.pooling)
    command = blocks.command_line(request, "sentences", *pooled, texts=[FILE], note=note)
    more = [
        (f"{FILE}, which both below read", FILE, lambda: "\n".join(found.sentences).encode()),
        ("Vectors, CSV", "sentence-vectors.csv", lambda: vectors_csv(found)),
    ]
    blocks.exports(frame, name, python(found, *lines), command, more)


def vectors_csv(found: SentenceVectors) -> bytes:
    return files.to_bytes(bert_probe.sentence_vectors_table(found), "csv")


def labels(found: SentenceVectors, order: tuple[int, ...]) -> list[str]:
    return [f"{index + 1} {found.sentences[index]}" for index in order]


def similarity_part(found: SentenceVectors, part: str) -> None:
    """All against all, as a picture or as numbers."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        ordering = state.pick("sentences_order", "Order", ORDERS, "tree")
        order = found.order if ordering == "tree" else tuple(range(len(found.sentences)))
        frame = bert_probe.sentences_table(found, order)
        st.space("stretch")
        differs = "The command line keeps the order given:" if ordering == "tree" else ""
        exports(
            found,
            frame,
            "sentences",
            differs,
            f"bert_probe.sentences_table(found{', found.order' if ordering == 'tree' else ''})",
        )
    title = "Cosine of every two sentences"
    if part == "table":
        named = frame.set_axis(labels(found, order)).set_axis(labels(found, order), axis=1)
        st.dataframe(
            named.rename_axis("sentence"),
            width="stretch",
            height=min(38 + 35 * len(named), 640),
            column_config={name: st.column_config.NumberColumn(format="%.4f") for name in named},
            alt=title,
        )
        return
    cell = matrix(
        frame.to_numpy(),
        labels(found, order),
        labels(found, order),
        key="sentences_matrix",
        scale=Scale("diverging", -1, 1),
        row_axis="sentence",
        column_axis="sentence",
        value_name="cosine",
        caption=title,
        file_name="sentences",
    )
    if cell is None:
        blocks.caveat("Click a cell to read its two sentences in full.")
    else:
        for index in (order[cell.row], order[cell.column]):
            st.text(f"{index + 1}  {found.sentences[index]}")
        st.markdown(f"Cosine **{frame.iloc[cell.row, cell.column]:.4f}**")


def nearest_part(found: SentenceVectors) -> None:
    """The pairs that are most alike."""
    pairs = found.nearest(PAIRS)
    table = bert_probe.nearest_table(found, pairs)
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.header("Most alike first", anchor=False)
        line = f"bert_probe.nearest_table(found, found.nearest({PAIRS}))"
        exports(found, table, "nearest-sentences", "The command line gives the whole matrix:", line)
    st.dataframe(
        table,
        hide_index=True,
        width="stretch",
        height=min(38 + 35 * len(table), 640),
        column_config={
            "cosine": st.column_config.NumberColumn("cosine", format="%.4f", width="small"),
            "a": st.column_config.NumberColumn("a", width="small"),
            "b": st.column_config.NumberColumn("b", width="small"),
        },
        alt="Pairs of sentences by cosine, the largest first",
    )


def laid_out(found: SentenceVectors, cause: Hashable) -> Map | None:
    """The map that was asked for; None while there is none."""
    method = state.pick("sentences_map", "Map", MAPS, "pca")
    if method == "pca":
        return found.plane
    return jobs.run(
        "umap",
        cause,
        "Lay out with UMAP",
        partial(bert_probe.umap_map, found.vectors),
        unit="rounds",
        note="Takes some seconds; the first time half a minute more, in which its code is compiled.",
    )


def map_part(found: SentenceVectors, cause: Hashable) -> None:
    """The sentences on a plane."""
    plane = laid_out(found, cause)
    if plane is None:
        return
    table = bert_probe.map_table(found, plane)
    made = "found.plane" if plane.method == "pca" else "bert_probe.umap_map(found.vectors)"
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.header(f"Sentences by {MAPS[plane.method]}", anchor=False)
        line = f"bert_probe.map_table(found, {made})"
        exports(found, table, "sentence-map", "The command line gives the matrix of cosines:", line)
    event = st.plotly_chart(
        figures.sentence_map(plane, found.sentences),
        width="stretch",
        config=figures.MAP_CONFIG,
        key=f"sentences_map_{plane.method}",
        on_select="rerun",
        selection_mode=("points", "box", "lasso"),
        alt=f"{len(found.sentences)} sentences as points of a plane",
    )
    if plane.method == "pca":
        blocks.caveat(
            "The two directions in which the vectors differ most, without the others. Points that are far "
            "apart are different; points that are close may still differ in a direction that is not shown."
        )
    else:
        blocks.caveat(
            "Neighbours stay neighbours (McInnes, Healy and Melville 2018). Distances between groups, their "
            "sizes and the axes mean nothing. Cosine distances, fixed seed."
        )
    picked = [point for point in event.selection.point_indices if point < len(table)]
    st.dataframe(
        table.iloc[sorted(set(picked))] if picked else table,
        hide_index=True,
        width="stretch",
        height=300,
        column_config={"sentence": st.column_config.TextColumn("sentence", width="large")},
        alt="The sentences that are selected, or all",
    )
    all_of_them = "All sentences. Draw around points, or click one, to list those."
    st.caption(f"{len(set(picked)):,} selected." if picked else all_of_them)


def show(sentences: tuple[str, ...], pooling: str) -> None:
    """The sentences compared."""
    sentence_input.check_number(sentences, MOST)
    cause = (checkpoint.description, sentences, pooling, request.truncate)
    found = measured(sentences, pooling, cause)
    if found is None:
        return
    part = state.pick("sentences_part", "Show", PARTS, "heatmap")
    if part == "nearest":
        nearest_part(found)
    elif part == "map":
        map_part(found, cause)
    else:
        similarity_part(found, part)


blocks.heading(
    "Sentences",
    "A sentence becomes one vector, made of its tokens' vectors. Compare up to 2,000 of them: which say "
    "alike things, and which stand alone.",
)
checkpoint = workbench.checkpoint()
request = workbench.request()
try:
    given = sentence_input.chosen()
    pooling = chosen_pooling()
    if given is None:
        st.info("Choose a file: one sentence a line, or a table with a header.")
    else:
        show(given, pooling)
except ProbeError as error:
    blocks.refusal(error, "Change the sentences above, or choose the example.")
