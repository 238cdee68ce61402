"""Sentences: which of many say alike things."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd
import streamlit as st

from bert_probe.analyses.vectors import layouts
from bert_probe.analyses.vectors.pooling import POOLINGS, offered, recipe
from bert_probe.analyses.vectors.sentence_map import SentenceMap, SentenceMapResult
from bert_probe.analyses.vectors.sentences import Sentences, SentencesResult
from bert_probe.core.inputs import SENTENCES_FILE
from bert_probe.core.result import Result
from bert_probe.errors import ProbeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.runtime.cache import key_of
from bert_probe.ui import blocks, figures, jobs, sentence_input, state, workbench
from bert_probe.ui.components.matrix import heatmap
from bert_probe.ui.export import export, written
from bert_probe.views.heatmaps import of_sentences

PARTS = {"heatmap": "Heatmap", "table": "Table", "nearest": "Nearest pairs", "map": "Map"}
ORDERS = {"tree": "Alike ones together", "given": "As given"}
NAMES = {"model": "The model's own", "mean": "Mean", "cls": "[CLS]", "pooler": "Pooler", "max": "Maximum"}
MAPS = {"pca": "PCA", "tsne": "t-SNE", "umap": "UMAP"}
UNITS = {"pca": "", "tsne": "", "umap": "rounds"}
COMPILING = "Takes some seconds; the first time half a minute more, in which its code is compiled."
MEANING = {
    "pca": "The two directions in which the vectors differ most, without the others. Points that are far "
    "apart are different; points that are close may still differ in a direction that is not shown.",
    "tsne": "Neighbours stay neighbours (van der Maaten and Hinton 2008). Distances between groups, their "
    "sizes and the axes mean nothing. Vectors of length 1, fixed seed.",
    "umap": "Neighbours stay neighbours (McInnes, Healy and Melville 2018). Distances between groups, their "
    "sizes and the axes mean nothing. Cosine distances, fixed seed.",
}
MOST = 2_000
"""Sentences that this page takes: as many as a matrix of all against all can be looked at."""


def pick(key: str, label: str, options: dict[str, str], default: str, about: str | None = None) -> str:
    """A choice that always stands in the address: what is usual on this page is not so elsewhere."""
    chosen = state.pick(key, label, options, default, about)
    state.remember(key, chosen)
    return chosen


def chosen_pooling(checkpoint: Checkpoint) -> str:
    """How a sentence's tokens become one vector, with a sentence that says so."""
    possible = offered(checkpoint)
    pooling = pick(
        "pooling",
        "Pooling",
        {name: NAMES[name] for name in possible},
        possible[0],
        "How the vectors of a sentence's tokens become one vector for the sentence.",
    )
    said = f" Here: {state.plain(str(recipe(checkpoint, pooling)), 1000)}." if pooling == "model" else ""
    st.markdown(f":gray[{POOLINGS[pooling]}{said}]")
    return pooling


def measured(
    asked: Sentences, checkpoint: Checkpoint, sentences: tuple[str, ...], truncate: bool
) -> SentencesResult | None:
    """The sentences' vectors; None while there are none."""
    found = jobs.answered(
        "sentence vectors",
        asked.of,
        checkpoint,
        sentences,
        truncate,
        label="Compute the vectors",
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


def exports(shown: Result, name: str, found: SentencesResult) -> None:
    """The export menu of a part; the sentences and their vectors are in each."""
    vectors = found.showing(show="vectors")
    export(
        shown,
        name,
        [
            (f"{SENTENCES_FILE}, which both below read", SENTENCES_FILE, lambda _: as_lines(found.sentences)),
            ("Vectors, CSV", "sentence-vectors.csv", partial(written, vectors, "csv")),
        ],
    )


def as_lines(sentences: Sequence[str]) -> bytes:
    return "\n".join(sentences).encode()


def similarity_part(found: SentencesResult, part: str) -> None:
    """All against all, as a picture or as numbers."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        shown = found.showing(order=pick("sentences_order", "Order", ORDERS, "tree"))
        cosines, labels = shown.cosines, [f"{index + 1} {found.sentences[index]}" for index in shown.order]
        st.space("stretch")
        exports(shown, "sentences", found)
    title = "Cosine of every two sentences"
    if part == "table":
        st.dataframe(
            pd.DataFrame(cosines, index=pd.Index(labels, name="sentence"), columns=labels),
            width="stretch",
            height=min(38 + 35 * len(labels), 640),
            column_config={name: st.column_config.NumberColumn(format="%.4f") for name in labels},
            alt=title,
        )
        return
    cell = heatmap(of_sentences(shown), key="sentences_matrix")
    if cell is None:
        blocks.caveat("Click a cell to read its two sentences in full.")
    else:
        for index in (shown.order[cell.row], shown.order[cell.column]):
            st.text(f"{index + 1}  {found.sentences[index]}")
        st.markdown(f"Cosine **{cosines[cell.row, cell.column]:.4f}**")


def nearest_part(found: SentencesResult, checkpoint: Checkpoint) -> None:
    """The pairs that are most alike."""
    asked = Sentences.from_address(state.address(), checkpoint.description)
    shown = found.showing(show="nearest", order=asked.order, count=asked.count)
    table = shown.frame()
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.header("Most alike first", anchor=False)
        exports(shown, "nearest-sentences", found)
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


def laid_out(found: SentencesResult, checkpoint: Checkpoint, truncate: bool) -> SentenceMapResult | None:
    """The map that was asked for; None while there is none."""
    possible = {method: MAPS[method] for method in layouts.installed()}
    method = state.pick("sentences_map", "Map", possible, "pca")
    asked = SentenceMap(method, found.question.pooling)
    return jobs.run(
        f"sentence map {method}",
        key_of(asked, checkpoint, found.sentences, truncate),
        f"Lay out with {MAPS[method]}",
        partial(asked.of_vectors, found),
        unit=UNITS[method],
        note=COMPILING if method == "umap" else "",
        start=method != "umap",
    )


def map_part(found: SentencesResult, checkpoint: Checkpoint, truncate: bool) -> None:
    """The sentences on a plane."""
    plane = laid_out(found, checkpoint, truncate)
    if plane is None:
        return
    table, method = plane.frame(), plane.question.method
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.header(f"Sentences by {MAPS[method]}", anchor=False)
        exports(plane, "sentence-map", found)
    event = st.plotly_chart(
        figures.sentence_map(plane),
        width="stretch",
        config=figures.MAP_CONFIG,
        key=f"sentences_map_{method}",
        on_select="rerun",
        selection_mode=("points", "box", "lasso"),
        alt=f"{len(found.sentences)} sentences as points of a plane",
    )
    blocks.caveat(MEANING[method])
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


def show(asked: Sentences, checkpoint: Checkpoint, sentences: tuple[str, ...], truncate: bool) -> None:
    """The sentences compared."""
    sentence_input.check_number(sentences, MOST)
    found = measured(asked, checkpoint, sentences, truncate)
    if found is None:
        return
    part = state.pick("sentences_part", "Show", PARTS, "heatmap")
    if part == "nearest":
        nearest_part(found, checkpoint)
    elif part == "map":
        map_part(found, checkpoint, truncate)
    else:
        similarity_part(found, part)


def main() -> None:
    """The page."""
    blocks.heading(
        "Sentences",
        "A sentence becomes one vector, made of its tokens' vectors. Compare up to 2,000 of them: which say "
        "alike things, and which stand alone.",
    )
    checkpoint = workbench.checkpoint()
    request = workbench.request()
    try:
        given = sentence_input.chosen()
        asked = Sentences(chosen_pooling(checkpoint))
        if given is None:
            st.info("Choose a file: one sentence a line, or a table with a header.")
        else:
            show(asked, checkpoint, given, request.truncate)
    except ProbeError as error:
        blocks.refusal(error, "Change the sentences above, or choose the example.")


main()
