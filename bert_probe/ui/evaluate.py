"""The Evaluate page: sentence vectors on scored pairs, judged queries or labeled texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from bert_probe.analyses.evaluation.label_evaluation import LabelEvaluation, LabelEvaluationResult
from bert_probe.analyses.evaluation.retrieval_evaluation import RetrievalEvaluation, RetrievalEvaluationResult
from bert_probe.analyses.evaluation.similarity_evaluation import (
    SimilarityEvaluation,
    SimilarityEvaluationResult,
)
from bert_probe.analyses.evaluation.vector_comparison import BINARY, FLOAT32, INT8, VectorComparison
from bert_probe.analyses.retrieval.search import BI_ENCODER, BM25_SCORER
from bert_probe.core.evaluation_inputs import JudgedQueries
from bert_probe.core.result import Result
from bert_probe.errors import ProbeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.server import paths
from bert_probe.text.datasets import everyday_topics, sample_pairs, sample_search
from bert_probe.text.labeled_texts import LabeledTexts
from bert_probe.text.words import truncate_text
from bert_probe.ui import blocks, jobs, labeled_inputs, second_model, sentence_input, state, workbench
from bert_probe.ui.export import export
from bert_probe.ui.figures import ACCENT, GRAY, SECOND, apply_layout, as_text
from bert_probe.views.palette import HEADS
from bert_probe.views.text import shorten

_PARTS = {"pairs": "Text pairs (STS)", "search": "Search", "labels": "Labeled texts"}
_PART_HELP = (
    "Text pairs: how well the similarities agree with judged scores. Search: whether relevant documents "
    "rank high. Labeled texts: how well the vectors separate the classes."
)
_ROWS = 200
"""Maximum number of rows of a table of pairs, queries or texts. Exports have all rows."""
_SAMPLE = "topics"
_SOURCES = {"sample": "Sample data", "file": "Your file"}
_MEASURES = {
    "cosine_spearman": "Spearman, cosine",
    "cosine_pearson": "Pearson, cosine",
    "model_spearman": "Spearman, model's similarity",
    "model_pearson": "Pearson, model's similarity",
    "ndcg@10": "nDCG@10",
    "mrr@10": "MRR@10",
    "map@1000": "MAP@1000",
    "macro_f1": "macro F1",
    "calibration_error": "expected calibration error",
    "v_measure": "V-measure",
}
_MAX_POINTS = 2_000
"""Maximum number of points of a scatter plot."""
_PRECISION_COLORS = {FLOAT32: ACCENT, INT8: SECOND, BINARY: GRAY}
_PRECISION_SYMBOLS = {FLOAT32: "circle", INT8: "square", BINARY: "diamond"}


def render() -> None:
    """Draw the Evaluate page."""
    blocks.heading(
        "Evaluate",
        "Measure a model's sentence vectors on your own judged data, with 95% intervals, and compare two "
        "models on the same data.",
    )
    checkpoint = workbench.checkpoint()
    part = state.segmented_control("evaluate_part", "Data", _PARTS, "pairs", _PART_HELP)
    with st.expander("Compare with a second model", expanded=bool(state.url_parameters().get("other"))):
        second = second_model.choose(can_swap=False)
    other = None if second is None else second_model.open_second(second)
    if second is not None and other is None:
        return
    try:
        {"pairs": _pairs, "search": _search, "labels": _labels}[part](checkpoint, other)
    except ProbeError as error:
        blocks.error_box(error, "Change the file or the options above.")


def _curve_toggle() -> bool:
    return state.toggle(
        "evaluate_curve",
        "Shorter vectors",
        False,
        "Also evaluate the vectors with fewer dimensions, with one byte per dimension (int8), and with "
        "one bit per dimension (binary).",
    )


def _answer(question: Any, label: str, *inputs: Any) -> Any:
    """Run a question as a job; return its result, or None until the job is done."""
    question.check_limits(*inputs)
    return jobs.answer(
        f"evaluate {question.analysis}",
        question.of,
        *inputs,
        label=label,
        unit="texts",
        activity="Evaluating",
        start=True,
    )


# ---------------------------------------------------------------- text pairs


def _pairs(checkpoint: Checkpoint, other: Checkpoint | None) -> None:
    pairs: LabeledTexts | None
    if state.segmented_control("evaluate_pairs_from", "Source of the pairs", _SOURCES, "sample") == "sample":
        pairs = sample_pairs()
        blocks.caveat(
            f"{len(pairs.rows)} pairs that were written for BERT Probe and scored from 0 to 5 by their "
            "author. For a comparison of models, use pairs that several people rated, such as STS-B."
        )
    else:
        pairs = labeled_inputs.choose_evaluation_file(
            "pairs",
            "A table with the columns text_a, text_b and score",
            ["csv", "tsv", "jsonl"],
            "The optional column group names the source of each pair.",
        )
    if pairs is None:
        st.info("Choose a table of text pairs with judged similarity scores, such as a split of STS-B.")
        return
    question = SimilarityEvaluation(curve=_curve_toggle())
    result: SimilarityEvaluationResult | None = _answer(
        question, "Evaluate the pairs", checkpoint, pairs, workbench.request().truncate, other
    )
    if result is None:
        return
    data = {"pairs": pairs}
    _headline(result)
    _summary(result, "sts", data)
    blocks.chart(
        score_scatter(result),
        "Scatter plot of the model's score against the judged score, with one point per pair",
    )
    table = "moved" if result.has_other else "pairs"
    st.header(
        "Largest differences between the models" if result.has_other else "Largest errors", anchor=False
    )
    blocks.caveat(
        "The column error is the percentile of a pair by the model's score minus its percentile by the "
        "judged score. Select a pair to see which tokens contribute to the score."
    )
    pair_table = result.showing(show=table)
    frame = pair_table.table()
    row = _selected(frame, "evaluate_pair_rows", "Pairs with their scores and errors")
    if row is not None:
        _links({"a": str(frame["text_a"][row]), "b": str(frame["text_b"][row])})
    export(pair_table, f"sts-{table}", label="Export the pairs", caption="All pairs.", data=data)
    _vectors_and_curve(result, "spearman", "Spearman's correlation", data)


# ---------------------------------------------------------------- search


def _search(checkpoint: Checkpoint, other: Checkpoint | None) -> None:
    files = JudgedQueries().files
    labels = {
        "documents": (
            "Documents, such as corpus.jsonl",
            ["jsonl", "csv", "tsv", "txt", "parquet", "gz", "zst"],
        ),
        "queries": ("Queries, such as queries.jsonl", ["jsonl", "csv", "tsv", "txt", "parquet", "gz", "zst"]),
        "judgments": ("Relevant documents, qrels.tsv", ["tsv", "txt", "gz", "zst"]),
    }
    data: dict[str, Any] = {}
    if state.segmented_control("evaluate_search_from", "Source of the data", _SOURCES, "sample") == "sample":
        data = dict(zip(labels, sample_search(), strict=True))
        blocks.caveat(
            f"{len(data['documents'])} articles of an invented help center and {len(data['queries'])} "
            "queries that were written for BERT Probe. With so few queries, the interval of a "
            "difference rarely excludes 0."
        )
    else:
        columns = st.columns(3)
        for column, (name, (label, types)) in zip(columns, labels.items(), strict=True):
            with column:
                data[name] = labeled_inputs.choose_evaluation_file(name, label, types, files[name].help)
    if any(rows is None for rows in data.values()):
        st.info("Choose documents, queries and judgments, in the layout of the BEIR benchmark or of TREC.")
        return
    for name in ("documents", "queries"):
        if data[name].skipped_sentence:
            note = state.escape(f"{name.title()}: {data[name].skipped_sentence}", 2000)
            st.warning(note, icon=":material/warning:")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="large"):
        against = state.toggle(
            "evaluate_bm25", "Compare with BM25", True, "BM25 ranks by words, without a model."
        )
        question = RetrievalEvaluation(
            (BI_ENCODER, BM25_SCORER) if against else (BI_ENCODER,), curve=_curve_toggle()
        )
    result: RetrievalEvaluationResult | None = _answer(
        question, "Evaluate the search", checkpoint, *data.values(), workbench.request().truncate, other
    )
    if result is None:
        return
    _headline(result)
    for note in result.notes:
        st.warning(note, icon=":material/warning:")
    _summary(result, "retrieval", data)
    st.header("Queries", anchor=False)
    blocks.caveat(
        "With two or more rankings, the queries are sorted by their difference in nDCG@10, largest first."
    )
    queries = result.showing(show="queries")
    frame = queries.table()
    row = _selected(frame, "evaluate_query_rows", "Queries with nDCG@10 of each scorer")
    if row is not None:
        sentence_input.search_button(str(frame["text"][row]), data["documents"])
    export(queries, "retrieval-queries", label="Export the queries", caption="All queries.", data=data)
    st.header("Relevant documents ranked low", anchor=False)
    blocks.caveat(
        "Rank 0 means that the document is not ranked. The column outranked_by is the highest-ranked "
        "irrelevant document."
    )
    failures = result.showing(show="failures")
    frame = failures.table()
    row = None
    if len(frame):
        row = _selected(frame, "evaluate_failure_rows", "Relevant documents that are not among the top 10")
    else:
        st.info("All relevant documents are among the top 10.")
    if row is not None:
        sentence_input.search_button(str(frame["text"][row]), data["documents"])
    export(failures, "retrieval-failures", label="Export the failures", caption="All failures.", data=data)
    _vectors_and_curve(result, "ndcg@10", "nDCG@10", data)


# ---------------------------------------------------------------- labeled texts


def _labels(checkpoint: Checkpoint, other: Checkpoint | None) -> None:
    sources = {_SAMPLE: "Sample sentences", "file": "Your file"}
    texts: LabeledTexts | None
    if state.segmented_control("evaluate_labels_from", "Source of the texts", sources, _SAMPLE) == _SAMPLE:
        texts = everyday_topics()
    else:
        texts = labeled_inputs.choose_evaluation_file(
            "texts",
            "A table with the columns text and label",
            ["csv", "tsv", "jsonl"],
            "Each text has one class.",
        )
    if texts is None:
        st.info("Choose a table of texts with one class each.")
        return
    result: LabelEvaluationResult | None = _answer(
        LabelEvaluation(curve=_curve_toggle()),
        "Evaluate the texts",
        checkpoint,
        texts,
        workbench.request().truncate,
        other,
    )
    if result is None:
        return
    data = {"texts": texts}
    _headline(result)
    _summary(result, "labels", data)
    left, right = st.columns(2)
    with left:
        st.header("Confusion matrix", anchor=False)
        confusion = result.showing(show="confusion").table()
        blocks.table(confusion, "Confusion matrix: rows are labels, columns are predictions")
    with right:
        st.header("Reliability", anchor=False)
        blocks.chart(
            reliability(result.showing(show="reliability").table()),
            "Accuracy by confidence; on the diagonal, accuracy and confidence are equal",
        )
    table = "moved" if result.has_other else "texts"
    title = "Largest differences between the models" if result.has_other else "Least probable labels"
    st.header(title, anchor=False)
    blocks.caveat(
        "The column probability is the held-out probability of the label, as predicted by logistic "
        "regression."
    )
    rows = result.showing(show=table)
    blocks.table(rows.table().head(_ROWS), "Texts with their label, prediction and probability")
    export(rows, f"labels-{table}", label="Export the texts", caption="All texts.", data=data)
    _vectors_and_curve(result, "accuracy", "Accuracy", data)


# ---------------------------------------------------------------- shared parts


def _headline(result: Any) -> None:
    with st.container(key="finding"):
        st.markdown(state.escape(result.finding, 1000))


def _summary(result: Result, name: str, data: Mapping[str, Any]) -> None:
    """Draw the table of measures with 95% intervals, and the export menu."""
    frame = result.table()
    counts = ("better", "equal", "worse")
    config = {
        name: st.column_config.NumberColumn(name.replace("_", " "), format="%d" if name in counts else "%.4f")
        for name in map(str, frame.select_dtypes("float"))
    }
    frame["measure"] = [_MEASURES.get(str(name), shorten(str(name))) for name in frame["measure"]]
    blocks.table(frame, "Measures with their 95% intervals", column_config=config)
    blocks.caveat(
        "The columns low and high are the bounds of the 95% interval over 2,000 bootstrap resamples of "
        "the examples."
    )
    if "difference" in frame:
        blocks.caveat(
            "If two rankings or models are equally good, the interval of their difference rarely excludes 0."
        )
    export(result, f"{name}-summary", caption="The table above.", data=data)


def _selected(frame: Any, key: str, alt: str) -> int | None:
    """Draw the first rows of a table; return the index of the selected row, or None."""
    shown = frame.head(_ROWS)
    event = blocks.table(shown, alt, key=key, on_select="rerun", selection_mode="single-row")
    return next(iter(blocks.selected_rows(event, shown)), None)


def _links(texts: Mapping[str, str]) -> None:
    """Draw links that open two texts on pages that explain their similarity."""
    now = workbench.request()
    model = {name: value for name in ("model", "revision") if (value := getattr(now, name))}
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption("The selected pair on other pages:", width="content")
        for page in ("answer", "similarity", "compare"):
            st.page_link(paths.page_script(page), label=page.title(), query_params={**texts, **model})


def _neighbor_maps(comparison: VectorComparison, text: int) -> None:
    """Draw a text and its neighbors on the maps of both models, next to each other."""
    if comparison.maps is None:
        return
    st.markdown(f"Neighbors of “{state.escape(truncate_text(comparison.texts[text], 200))}” in both models")
    for column, title, is_second in zip(
        st.columns(2), ("First model", "Second model"), (False, True), strict=True
    ):
        with column:
            st.subheader(title, anchor=False)
            blocks.chart(
                neighbor_map(comparison, text, is_second),
                f"{title}: map of the texts, with the nearest neighbors of the selected text by both models",
            )
    blocks.caveat(
        "Each map shows the first two principal components of the vectors of one model, so positions on "
        "different maps cannot be compared. Neighbors are computed from all dimensions and may look distant."
    )


def _vectors_and_curve(result: Any, measure: str, title: str, data: Mapping[str, Any]) -> None:
    """Draw the agreement of two models' vectors, and a measure by vector size, if they were computed."""
    if result.comparison is not None:
        st.header("Do both models find the same nearest neighbors?", anchor=False)
        vectors = result.showing(show="vectors")
        number = st.column_config.NumberColumn(format="%.4f")
        blocks.table(
            vectors.table(),
            "Overlap of nearest neighbors and CKA",
            column_config=dict.fromkeys(("value", "low", "high"), number),
        )
        export(vectors, "vector-agreement", label="Export the overlap and CKA", data=data)
        neighbors = result.showing(show="neighbors")
        shown = neighbors.table().head(_ROWS)
        event = blocks.table(
            shown,
            "Texts with the overlap of their nearest neighbors in both models, lowest overlap first",
            key="evaluate_neighbor_rows",
            column_config={"overlap": number},
            on_select="rerun",
            selection_mode="single-row",
        )
        blocks.caveat(
            "The column lost is the nearest text that only the first model has among its nearest "
            "neighbors, and the column gained is the nearest text that only the second model has. Select a "
            "text to see its neighbors on the maps."
        )
        row = next(iter(blocks.selected_rows(event, shown)), 0)
        _neighbor_maps(result.comparison, int(result.comparison.order[row]))
        export(neighbors, "changed-neighbors", label="Export the neighbors", data=data)
    if result.curve is not None:
        st.header("Shorter vectors", anchor=False)
        curve = result.showing(show="curve")
        blocks.chart(
            quality_curve(curve.table(), measure, title),
            f"{title} by vector size, with 95% intervals",
        )
        blocks.table(curve.table(), f"{title} of each vector format")
        export(curve, "vector-curve", label="Export the curve", data=data)


def score_scatter(result: SimilarityEvaluationResult) -> Any:
    """Return a scatter plot of the scores of one or two models against the judged scores."""
    rows = np.arange(len(result.labels))
    if len(rows) > _MAX_POINTS:
        rows = np.sort(np.random.default_rng(0).choice(len(rows), _MAX_POINTS, replace=False))
    figure = go.Figure()
    names = ("model", "other model") if result.has_other else (result.models[0].recipe.score_name,)
    lines = np.array([row.line for row in result.pairs.rows])
    for model, name, color, symbol in zip(
        result.models, names, (ACCENT, SECOND), ("circle", "diamond"), strict=False
    ):
        figure.add_scatter(
            x=result.labels[rows],
            y=model.values[1][rows],
            mode="markers",
            marker={"color": color, "symbol": symbol, "size": 5, "opacity": 0.5},
            name=name,
            customdata=lines[rows],
            hovertemplate="line %{customdata}: judged %{x:.2f}, score %{y:.4f}<extra></extra>",
        )
    return apply_layout(
        figure,
        340,
        legend="above" if result.has_other else None,
        xaxis={"title": "judged score", "zeroline": False},
        yaxis={"title": result.models[0].recipe.score_name, "zeroline": False},
    )


def quality_curve(curve: pd.DataFrame, measure: str, title: str) -> Any:
    """Return a chart of a measure with its interval by vector size, with one curve per precision."""
    figure = go.Figure()
    for precision, part in curve.groupby("precision", sort=False):
        figure.add_scatter(
            x=part["bytes_per_vector"],
            y=part[measure],
            error_y={
                "type": "data",
                "array": part["high"] - part[measure],
                "arrayminus": part[measure] - part["low"],
                "thickness": 1,
            },
            mode="lines+markers",
            line={"color": _PRECISION_COLORS[str(precision)]},
            marker={"symbol": _PRECISION_SYMBOLS[str(precision)], "size": 8},
            name=str(precision),
            customdata=part["dimensions"],
            hovertemplate="%{customdata:,} dimensions, %{x:,} bytes: %{y:.4f}",
        )
    sizes = sorted(set(curve["bytes_per_vector"]))
    return apply_layout(
        figure,
        320,
        legend="above",
        xaxis={
            "title": "bytes per vector (logarithmic)",
            "type": "log",
            "tickvals": sizes,
            "ticktext": [f"{size:,}" for size in sizes],
        },
        yaxis={"title": title},
    )


def neighbor_map(comparison: VectorComparison, text: int, is_second: bool) -> Any:
    """Return a scatter plot of a text, its nearest neighbors and other texts on the map of one model.

    The neighbors found by the first model, by the second model and by both models have different colors. At
    most `_MAX_POINTS` of the other texts are drawn.

    Args:
        comparison: the comparison of the two models' vectors.
        text: index of the text.
        is_second: whether to draw the map of the second model.
    """
    assert comparison.maps is not None
    layout = comparison.maps[is_second]
    first, second = comparison.first[text], comparison.second[text]
    others = np.setdiff1d(np.arange(len(layout.points)), [text, *first, *second])
    if len(others) > _MAX_POINTS:
        others = np.sort(np.random.default_rng(0).choice(others, _MAX_POINTS, replace=False))
    figure = go.Figure()
    for name, rows, color, symbol, size in (
        ("other texts", others, GRAY, "circle", 5),
        ("neighbor in both models", np.intersect1d(first, second), ACCENT, "circle", 9),
        ("only in the first model", np.setdiff1d(first, second), SECOND, "square", 9),
        ("only in the second model", np.setdiff1d(second, first), HEADS[1], "diamond", 10),
        ("selected text", np.array([text]), ACCENT, "star", 16),
    ):
        figure.add_scatter(
            x=layout.points[rows, 0],
            y=layout.points[rows, 1],
            mode="markers",
            marker={
                "color": color,
                "symbol": symbol,
                "size": size,
                "opacity": 0.35 if color == GRAY else 1,
            },
            name=name,
            customdata=[as_text(truncate_text(comparison.texts[row], 100)) for row in rows],
            hovertemplate="%{customdata}<extra></extra>",
        )
    shares = layout.explained or (0.0, 0.0)
    return apply_layout(
        figure,
        420,
        legend="below",
        xaxis={"title": f"first component, {shares[0]:.1%} of the variance", "zeroline": False},
        yaxis={
            "title": f"second component, {shares[1]:.1%} of the variance",
            "zeroline": False,
            "scaleanchor": "x",
        },
    )


def reliability(bins: pd.DataFrame) -> Any:
    """Return a reliability diagram: the accuracy of each bin by its mean confidence, with the diagonal."""
    filled = bins[bins["texts"] > 0]
    figure = go.Figure()
    figure.add_scatter(
        x=[0, 1], y=[0, 1], mode="lines", line={"color": GRAY, "dash": "dash"}, name="equal", hoverinfo="skip"
    )
    figure.add_scatter(
        x=filled["confidence"],
        y=filled["accuracy"],
        mode="lines+markers",
        line={"color": ACCENT},
        name="logistic regression",
        customdata=filled["texts"],
        hovertemplate="%{customdata:,} texts: confidence %{x:.2f}, accuracy %{y:.2f}<extra></extra>",
    )
    return apply_layout(
        figure,
        320,
        legend="above",
        xaxis={"title": "confidence", "range": [0, 1.02]},
        yaxis={"title": "accuracy", "range": [0, 1.02]},
    )
