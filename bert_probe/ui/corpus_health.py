"""The Health sections of the Corpus page: duplicates, outliers, hubs, clusters and geometry of vectors."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from bert_probe.analyses.vectors.pooling import available_poolings
from bert_probe.analyses.vectors.sentences import Sentences, SentencesResult
from bert_probe.analyses.vectors.similarity import baseline_sentences
from bert_probe.corpus.health import CorpusHealth, CorpusHealthResult
from bert_probe.corpus.inputs import SENTENCE_VECTORS
from bert_probe.corpus.store import Store
from bert_probe.corpus.vector_files import VectorSet, make_vector_set, store_vectors
from bert_probe.errors import TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.runtime import shared_cache
from bert_probe.text.datasets import everyday_topics, sample_pairs, sample_search
from bert_probe.text.documents import Document, DocumentList
from bert_probe.text.words import truncate_text
from bert_probe.ui import blocks, jobs, sentence_input, state, workbench
from bert_probe.ui.export import export
from bert_probe.ui.figures import ACCENT, GRAY, SECOND, apply_layout, mark_limit, named_rows, score_histogram

MAX_ROWS: Final = 20_000
"""Maximum number of vectors on the page. The command line has no such limit."""
_LISTED: Final = 500
"""Maximum number of rows of a table on the page. Exports have all rows."""
_MAX_CLUSTERS: Final = 16
"""Maximum number of clusters in the figure."""
_MAX_CHARACTERS: Final = 2_000
_FEW_ROWS: Final = 2_000
"""Number of rows below which the default minimum cluster size is 5 instead of 15."""
_SAMPLE_NAME: Final = "sample-sentences.parquet"
_REPEATED: Final = (
    "It drizzled on and off all afternoon",
    "I skipped lunch, and now I am starving.",
    "THE FERRY LEAVES THE ISLAND SHORTLY AFTER DAWN",
)
"""Near duplicates of other sample sentences, from which they differ only in punctuation or case."""
_SOURCES: Final = {"sample": "Sample sentences", "file": "Your file"}
_TABLES: Final = {
    "duplicates": "Duplicates",
    "outliers": "Outliers",
    "hubs": "Hubs",
    "clusters": "Clusters",
    "rows": "All rows",
}
_NONE: Final = {
    "duplicates": "The cosine of every pair of rows is below the duplicate threshold.",
    "outliers": "No row is unusually far from its nearest neighbors.",
    "hubs": "No row is a nearest neighbor of unusually many rows.",
    "clusters": "HDBSCAN found no cluster. Choose a smaller minimum cluster size.",
}
_CAVEATS: Final = {
    "duplicates": "Rows of a group are connected by pairs whose cosine is at least the duplicate threshold. "
    "Texts with a high cosine may still differ in a number or a negation, so read the texts before you "
    "delete one.",
    "outliers": "The column outlier_score is the modified z-score of the mean cosine distance to the nearest "
    "neighbors. An outlier is unusual for this corpus, not wrong.",
    "hubs": "The column occurrences is the number of rows that have this row among their nearest neighbors. "
    "A hub is returned by many searches, regardless of the query.",
    "clusters": "The column words lists words that occur more often in a cluster than in other texts "
    "(z-score of the log-odds ratio). Rows outside dense regions are in no cluster.",
    "rows": "A value of 0 in the column cluster means that the row is in no cluster.",
}
_CALIBRATED: Final = "calibrated"
_THRESHOLDS: Final = {_CALIBRATED: "Calibrated", "0.8": "0.80", "0.9": "0.90", "0.95": "0.95", "0.99": "0.99"}
_SIZES: Final = {str(size): f"{size}" for size in (5, 15, 50)}


def render_vectors(checkpoint: Checkpoint) -> None:
    """Draw the health report of vectors from an uploaded file, or of the sample sentences' vectors."""
    vectors: VectorSet | None
    model: Checkpoint | None = checkpoint
    if state.segmented_control("health_from", "Source of the vectors", _SOURCES, "sample") == "sample":
        vectors = _sample_vectors(checkpoint)
    else:
        vectors = _upload()
        is_own = vectors is not None and state.toggle(
            "health_model",
            f"Vectors of {state.escape(checkpoint.description.name, 100)}",
            False,
            "Calibrate the duplicate threshold with reference sentences that this model encodes, not with "
            "random pairs of the vectors.",
        )
        model = checkpoint if is_own else None
        if "health_file" not in st.session_state:
            st.info(
                "Choose a file of vectors from any model: Parquet with the columns vector, id and text, or "
                "NPZ with the arrays vectors, ids and texts. Only the vectors are required."
            )
    if vectors is not None:
        _health(vectors, model)


def render_store(store: Store) -> None:
    """Draw the health report of a store's sentence vectors or, without them, of its mean token vectors."""
    if not store.layers and not store.has(SENTENCE_VECTORS):
        st.info("This store has no vectors. Build the store with --keep profiles,sentence_vectors.")
        return
    _check_count(store.rows, f"corpus health {store.folder.name}")
    vectors = jobs.run(
        "store vectors",
        store.digest,
        "Read the vectors",
        partial(store_vectors, store),
        unit="B",
        activity="Reading",
        start=True,
        droppable=True,
    )
    if vectors is not None:
        if vectors.note:
            blocks.caveat(state.escape(vectors.note, 1000))
        _health(vectors, _model_of(store, vectors))


def _model_of(store: Store, vectors: VectorSet) -> Checkpoint | None:
    """Return the app's current model if it computed the vectors of a store; otherwise None."""
    now = workbench.request()
    if vectors.pooling is None or (now.model and store.named_model is None):
        return None
    if not now.model:
        checkpoint: Checkpoint | None = workbench.checkpoint()
    else:
        checkpoint = shared_cache.cached_checkpoint(now.model, now.revision, now.dtype)
    weights = store.manifest["model"]["weights_sha256"]
    return checkpoint if checkpoint is not None and checkpoint.description.weights_sha256 == weights else None


def sample_texts() -> tuple[str, ...]:
    """Return the sample sentences, some of which are repeated or have the same meaning."""
    pairs = [text for row in sample_pairs().rows for text in (str(row.text), str(row.pair))]
    topics = [str(row.text) for row in everyday_topics().rows]
    articles = map(str, sample_search()[0])
    return tuple(dict.fromkeys([*topics, *baseline_sentences(), *pairs, *articles, *_REPEATED]))


def _sample_vectors(checkpoint: Checkpoint) -> VectorSet | None:
    """Return the vectors of the sample sentences, or None while they are computed."""
    texts = sample_texts()
    result: SentencesResult | None = jobs.answer(
        "health of sample sentences",
        Sentences(available_poolings(checkpoint)[0]).of,
        checkpoint,
        texts,
        True,
        label="Compute sentence vectors",
        unit="sentences",
        start=True,
    )
    if result is None:
        return None
    blocks.caveat(
        f"{len(texts)} sentences that come with BERT Probe, some of them repeated, encoded with "
        f"{state.escape(checkpoint.description.name)}."
    )
    return make_vector_set(_SAMPLE_NAME, result.vectors, texts=texts, dropped=np.array(result.dropped))


def _upload() -> VectorSet | None:
    file = sentence_input.upload_file(
        "health",
        "A file of vectors (Parquet, NPZ, NPY or JSON Lines)",
        ["parquet", "npz", "npy", "jsonl"],
        "The vectors are used without changes, and no model is needed. The file has "
        f"{sentence_input.upload_note()}",
        lambda name, content: (name, content),
    )
    if file is None:
        return None
    name, content = file
    sentence_input.check_size(name, content)
    vectors = sentence_input.parse_vectors_in_job("health", name, content, 4 * sentence_input.max_bytes())
    if vectors is not None:
        _check_count(len(vectors), "corpus health FILE")
    return vectors


def _check_count(count: int, command: str) -> None:
    if count > MAX_ROWS:
        raise TextError(
            f"There are {count:,} vectors, but this page compares at most {MAX_ROWS:,}. Run bert-probe "
            f"{command}."
        )


def _health(vectors: VectorSet, model: Checkpoint | None) -> None:
    """Draw the options and the health report of a set of vectors: duplicates, outliers, hubs and clusters.

    Args:
        model: the model that computed the vectors; None if it is unknown.
    """
    with st.container(horizontal=True, vertical_alignment="bottom", gap="large"):
        threshold = state.segmented_control(
            "health_threshold",
            "Duplicate threshold",
            _THRESHOLDS,
            _CALIBRATED,
            "Minimum cosine of two near duplicates. The calibrated threshold is 1 − (1 − q) / 4, where q is "
            "the 99.9th percentile of the cosine of random pairs. The pairs are reference sentences if the "
            "model of the vectors is known, and rows otherwise.",
        )
        size = state.segmented_control(
            "health_cluster",
            "Smallest cluster",
            _SIZES,
            "5" if len(vectors.vectors) < _FEW_ROWS else "15",
            "Minimum number of rows in a cluster.",
        )
    cosine = None if threshold == _CALIBRATED else float(threshold)
    question = CorpusHealth(threshold=cosine, min_cluster=int(size))
    result: CorpusHealthResult | None = jobs.answer(
        "corpus health",
        question.of,
        vectors,
        model if cosine is None else None,
        label="Compare the vectors",
        unit="blocks",
        activity="Comparing",
        start=True,
    )
    if result is None:
        return
    with st.container(key="finding"):
        st.markdown(state.escape(result.finding, 1000))
    _figures(result)
    _listing(result)
    st.header("Measures", anchor=False)
    blocks.table(
        result.table(),
        "Measures of all rows",
        max_height=640,
        column_config={"value": st.column_config.NumberColumn(format="%.5g")},
    )
    blocks.caveat(
        "IsoScore is 1 if the variance is spread evenly over all dimensions, and 0 if it is concentrated "
        "in one dimension. The intrinsic dimension (TwoNN) is the number of dimensions in which neighbors "
        "vary."
    )
    export(
        result,
        "corpus-health",
        [
            (
                f"{vectors.name}, input of the code below",
                _parquet_name(vectors),
                lambda _: vectors.to_parquet(),
            )
        ],
        caption="The table above.",
    )


def _parquet_name(vectors: VectorSet) -> str:
    return f"{vectors.name.rsplit('.', 1)[0]}.parquet"


# ---------------------------------------------------------------- figures


def _figures(result: CorpusHealthResult) -> None:
    left, right = st.columns(2)
    with left:
        st.header("Nearest neighbors", anchor=False)
        blocks.chart(
            score_histogram(
                np.sort(result.nearest),
                {"duplicate threshold": result.threshold},
                "cosine with the nearest neighbor",
                "rows",
                "rows",
            ),
            "Histogram of the cosine between each row and its nearest neighbor, with the threshold for "
            "duplicates",
        )
    with right:
        st.header("Hubs", anchor=False)
        blocks.chart(
            occurrence_histogram(result),
            "Histogram of the number of rows that have a given row among their nearest neighbors",
        )
    left, right = st.columns(2)
    with left:
        st.header("Clusters", anchor=False)
        clusters = result.showing(show="clusters").frame()
        if len(clusters):
            blocks.chart(
                cluster_bars(result, clusters),
                "Number of rows in each cluster, with the characteristic words",
            )
            if len(clusters) > _MAX_CLUSTERS:
                blocks.caveat(f"The chart shows the {_MAX_CLUSTERS} largest of {len(clusters):,} clusters.")
        else:
            st.info(_NONE["clusters"])
    with right:
        st.header("Explained variance", anchor=False)
        blocks.chart(
            variance_curve(result.showing(show="spectrum").frame()),
            "Share of the variance in the first principal components",
        )
        measures = result.measures
        blocks.caveat(
            f"The IsoScore is {measures['iso_score']:.3f}, and the mean cosine of two rows is "
            f"{measures['mean_cosine']:.3f}. If the variance is spread evenly, the IsoScore is 1."
        )


def occurrence_histogram(result: CorpusHealthResult) -> Any:
    """Return a histogram of the k-occurrences, with the hubs in another color.

    The k-occurrence of a row is the number of rows that have this row among their k nearest neighbors.
    """
    counts = np.bincount(result.occurrences)
    values = np.flatnonzero(counts)
    is_hub = values > result.hub_threshold
    figure = go.Figure()
    for name, color, selected in (("rows", GRAY, ~is_hub), ("hubs", SECOND, is_hub)):
        figure.add_bar(
            x=values[selected],
            y=counts[values[selected]],
            width=max(1.0, values.max() / 80),
            marker={"color": color, "opacity": 0.7, "line": {"width": 0}},
            name=name,
            hovertemplate="%{y:,} rows are each among the nearest neighbors of %{x:,} rows<extra></extra>",
        )
    mark_limit(figure, result.hub_threshold, (0.5, counts.max()), f"hubs: more than {result.hub_threshold:,}")
    return apply_layout(
        figure,
        220,
        legend="above",
        bargap=0,
        barmode="overlay",
        xaxis={"title": f"occurrences among the {result.question.neighbors} nearest neighbors of other rows"},
        yaxis={"title": "rows (logarithmic)", "type": "log", "range": [-0.3, np.log10(1.3 * counts.max())]},
    )


def cluster_bars(result: CorpusHealthResult, clusters: pd.DataFrame) -> Any:
    """Return a bar chart of the number of rows in each of the largest clusters, and in no cluster."""
    largest = clusters.sort_values("rows", ascending=False, kind="stable").head(_MAX_CLUSTERS)
    names = [f"{cluster}" for cluster in largest["cluster"]]
    words = list(largest["words"]) if "words" in largest else [""] * len(names)
    labels = [
        truncate_text(f"{name}: {' '.join(text.split()[:3])}".rstrip(": "), 30)
        for name, text in zip(names, words, strict=True)
    ]
    counts = [*largest["rows"], int((result.labels < 0).sum())]
    figure = go.Figure(
        go.Bar(
            x=counts,
            y=list(range(len(counts))),
            orientation="h",
            marker={"color": [ACCENT] * len(names) + [GRAY]},
            text=[f"{count:,}" for count in counts],
            textposition="outside",
            cliponaxis=False,
            hovertemplate="%{x:,} rows<extra></extra>",
        )
    )
    return apply_layout(
        figure,
        60 + 24 * len(counts),
        right=40,
        bargap=0.25,
        xaxis={"title": "rows", "zeroline": False},
        yaxis=named_rows([*labels, "no cluster"]),
    )


def variance_curve(spectrum: pd.DataFrame) -> Any:
    """Return a chart of the cumulative explained variance by number of principal components.

    A dashed line shows the values of a variance that is equal in all directions.
    """
    count = len(spectrum)
    figure = go.Figure()
    figure.add_scatter(
        x=[0, count],
        y=[0, 1],
        mode="lines",
        line={"color": GRAY, "dash": "dash"},
        name="evenly spread",
        hoverinfo="skip",
    )
    figure.add_scatter(
        x=[0, *spectrum["component"]],
        y=[0, *spectrum["cumulative_share"]],
        mode="lines",
        line={"color": ACCENT},
        name="these vectors",
        hovertemplate="%{x:,} components: %{y:.1%}<extra></extra>",
    )
    return apply_layout(
        figure,
        260,
        legend="above",
        xaxis={"title": "principal components", "zeroline": False},
        yaxis={"title": "share of the variance", "range": [0, 1.02], "tickformat": ".0%"},
    )


# ---------------------------------------------------------------- tables


def _listing(result: CorpusHealthResult) -> None:
    """Draw a table of rows, and the text of the selected row with a button that finds similar texts."""
    st.header("Rows", anchor=False)
    show = state.segmented_control("health_show", "Table", _TABLES, "duplicates")
    listed = result.showing(show=show)
    frame = listed.frame()
    if not len(frame):
        st.info(_NONE[show])
        return
    blocks.caveat(_CAVEATS[show])
    numbers = {
        name: st.column_config.NumberColumn(format="%.4f") for name in ("nearest_cosine", "outlier_score")
    }
    text = st.column_config.TextColumn(width="large")
    event = blocks.table(
        frame.head(_LISTED),
        f"{_TABLES[show]} of the corpus",
        key=f"health_rows_{show}",
        column_config={**numbers, "text": text, "words": text},
        column_order=_column_order(frame),
        on_select="rerun",
        selection_mode="single-row",
    )
    if len(frame) > _LISTED:
        st.caption(
            f"The table shows the first {_LISTED:,} of {len(frame):,} rows. The export contains all rows."
        )
    selected = blocks.selected_rows(event, frame)
    if selected:
        _detail(result.vectors, str(frame.iloc[selected[0]].get("text", "")))
    elif result.vectors.texts is not None and show != "clusters":
        st.caption("Select a row to read its text and to search for similar texts.")
    export(listed, f"corpus-{show}", label="Export the rows", caption="All rows of this table.")


def _column_order(frame: pd.DataFrame) -> list[str]:
    """Return the names of the columns to show, with row and text first.

    The column id is hidden if it repeats the row numbers, and tokens_dropped if no text was truncated.
    """
    columns = [str(column) for column in frame if column not in ("row", "text")]
    if "id" in frame and (frame["id"] == frame["row"].astype(str)).all():
        columns.remove("id")
    if "tokens_dropped" in frame and not frame["tokens_dropped"].any():
        columns.remove("tokens_dropped")
    return [column for column in ("row", "text") if column in frame] + columns


def _detail(vectors: VectorSet, text: str) -> None:
    """Draw the text of a row, and a button that ranks all texts by their similarity to this text."""
    if vectors.texts is None or not text.strip():
        return
    with st.container(border=True, key="health_row"):
        st.text(text[:_MAX_CHARACTERS] + (" …" if len(text) > _MAX_CHARACTERS else ""))
        documents = DocumentList(
            Document(row, str(number)) for number, row in enumerate(vectors.texts, 1) if row.strip()
        )
        sentence_input.search_button(text, documents, "Search for this text")
        st.caption(
            "Search ranks all texts with "
            f"{state.escape(workbench.request().model or 'the built-in model')}, which may differ from "
            "the model that computed these vectors."
        )
