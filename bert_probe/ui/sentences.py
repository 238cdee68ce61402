"""The Sentences page: sentence embeddings, their cosine similarities, nearest pairs and a map."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from bert_probe.analyses.evaluation.vector_comparison import DimensionCurve, DimensionCurveResult
from bert_probe.analyses.retrieval import calibration as calibrations
from bert_probe.analyses.retrieval.calibration import (
    SimilarityCalibrationResult,
)
from bert_probe.analyses.vectors import layouts
from bert_probe.analyses.vectors.pooling import (
    NO_PROMPT,
    POOLINGS,
    available_poolings,
    offered_dimensions,
    prompt_names,
    resolve_pooling,
    sentence_model,
)
from bert_probe.analyses.vectors.sentences import SentenceMap, SentenceMapResult, Sentences, SentencesResult
from bert_probe.core.inputs import SENTENCES_FILE
from bert_probe.core.result import Result
from bert_probe.errors import ProbeError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.runtime.cache import cache_key
from bert_probe.text.sentence_files import sentence_name
from bert_probe.ui import blocks, figures, jobs, sentence_input, state, workbench
from bert_probe.ui.components import heatmap
from bert_probe.ui.export import export, table_bytes
from bert_probe.ui.figures import ACCENT, GRAY, SECOND, apply_layout
from bert_probe.views.heatmaps import sentences_heatmap
from bert_probe.views.text import describe_calibration, percentage

MAX_SENTENCES, MAX_PAIRS = 2_000, 1_000
"""Maximum numbers of sentences and of nearest pairs on the page. Larger tables would not be readable."""
_PARTS = {
    "heatmap": "Heatmap",
    "table": "Table",
    "nearest": "Nearest pairs",
    "map": "Map",
    "dimensions": "Dimensions",
}
_ORDERS = {"tree": "Clustered", "given": "Input order"}
_POOLINGS = {
    "model": "Model default",
    "last": "Last token",
    "mean": "Mean",
    "cls": "[CLS]",
    "pooler": "Pooler",
    "max": "Maximum",
}
_METHODS = {"pca": "PCA", "tsne": "t-SNE", "umap": "UMAP"}
_UNITS = {"pca": "", "tsne": "", "umap": "epochs"}
_UMAP_NOTE = (
    "UMAP takes a few seconds. The first run takes about half a minute longer, because UMAP compiles "
    "its code."
)
_CAVEATS = {
    "pca": "The axes are the first two principal components. Points that are far apart have different "
    "vectors; points that are close may still differ in a dimension that is not shown.",
    "tsne": "t-SNE preserves neighborhoods (van der Maaten and Hinton 2008). Distances between groups, their "
    "sizes and the axes have no meaning. The map is computed from normalized vectors with a fixed seed.",
    "umap": "UMAP preserves neighborhoods (McInnes, Healy and Melville 2018). Distances between groups, "
    "their sizes and the axes have no meaning. The map is computed from cosine distances with a fixed seed.",
}
_COLOR_OPTIONS = {"none": "One color", "cluster": "Clusters"}
_CLUSTER_SIZES = (2, 3, 5, 10, 20, 50)


def render() -> None:
    """Draw the Sentences page."""
    blocks.heading(
        "Sentences",
        f"Compare up to {MAX_SENTENCES:,} sentences by the similarity of their embeddings: as a "
        "matrix, as nearest pairs, or on a map.",
    )
    checkpoint = workbench.checkpoint()
    request = workbench.request()
    try:
        texts = sentence_input.choose_sentences(MAX_SENTENCES)
        question = _choose_question(checkpoint)
        if texts is None:
            st.info("Choose a file with one sentence per line, or a table with a header.")
        else:
            _comparison(question, checkpoint, texts, request.truncate)
    except ProbeError as error:
        blocks.error_box(error, "Change the sentences above, or choose the example.")


def _segmented_control(
    key: str, label: str, options: dict[str, str], default: str, help_text: str | None = None
) -> str:
    """Draw a segmented control and write its value to the URL, even if it is the default.

    The URL parameter is always written, because its default differs between pages.
    """
    value = state.segmented_control(key, label, options, default, help_text)
    state.remember(key, value)
    return value


def choose_prompt(
    checkpoint: Checkpoint,
    key: str,
    label: str,
    pooling: str = "model",
    defaults: Sequence[str] = (),
    names: Sequence[str] | None = None,
) -> str | None:
    """Draw a selector for a prompt, and return the name of the prompt.

    Nothing is drawn, and None is returned, if there are no prompts. None is also returned for the preselected
    prompt, unless the model has tasks.

    Args:
        pooling: the pooling of the sentence vectors. With "model", the checkpoint's default prompt is
            preselected if `defaults` is empty.
        defaults: names of preferred prompts. The first available one is preselected, or no prompt if none is
            available.
        names: names of the prompts to offer; None for all prompts of the checkpoint.
    """
    names = prompt_names(checkpoint) if names is None else names
    if not names:
        return None
    own = sentence_model(checkpoint).default_prompt if pooling == "model" and not defaults else None
    default = next((name for name in defaults if name in names), own or NO_PROMPT)
    model = checkpoint.sentence_model
    tasks = () if model is None else model.tasks
    no_prompt = "Default" if tasks else "No prompt"
    options = {name: state.escape(name, 100) for name in names} | {NO_PROMPT: no_prompt}
    help_text = "Text that is prepended to each input, as in the training of the checkpoint."
    if tasks:
        help_text += f" The tasks {state.escape(', '.join(tasks), 400)} also use task-specific modules."
    name = state.segmented_control(key, label, options, default, help_text)
    # In a model with a Router module, the prompt name also selects a task, so it must be passed explicitly.
    return None if name == default and not tasks else name


def choose_dimensions(checkpoint: Checkpoint, key: str) -> int | None:
    """Draw a selector for the number of dimensions; return None for the default of the checkpoint."""
    model = sentence_model(checkpoint)
    if model.is_sparse:
        return None  # the dimensions of sparse vectors are vocabulary words, so they cannot be truncated
    default = str(model.dimensions or model.size)
    sizes = offered_dimensions(model.size, model.dimensions, model.trained_dimensions)
    options = {str(size): f"{size:,}" for size in sizes}
    help_text = (
        "Vectors are truncated to their first dimensions. Models that were trained for truncation "
        "(Matryoshka) lose little accuracy."
    )
    name = state.segmented_control(key, "Dimensions", options, default, help_text)
    return None if name == default else int(name)


def reference_calibration(
    checkpoint: Checkpoint, scores: calibrations.ScoreResult
) -> SimilarityCalibrationResult | None:
    """Return the scores of random pairs of reference sentences, computed with the same settings as `scores`.

    A job encodes the reference sentences once for each model, pooling, prompts and number of dimensions.
    Return None until the job is done. If the scores are unavailable, draw the reason and return None.
    """
    try:
        question = calibrations.calibration_of(scores, checkpoint)
    except UnavailableError as error:
        blocks.caveat(str(error))
        return None
    try:
        return jobs.answer(
            "similarity calibration",
            question.of,
            checkpoint,
            calibrations.reference_sentences(),
            True,
            label="Compare with reference sentences",
            unit="sentences",
            activity="Encoding reference sentences",
            start=True,
        )
    except ProbeError as error:
        st.caption(f"The reference sentences cannot be compared: {state.escape(str(error), 400)}")
        return None


def show_calibration(checkpoint: Checkpoint, scores: calibrations.ScoreResult, score: float) -> None:
    """Show the percentile of a score among random pairs of reference sentences, with a histogram.

    If the scores of the reference sentences are not computed, draw a button that computes them.

    Args:
        checkpoint: the model.
        scores: result that contains the score; it determines the model settings for the reference sentences.
        score: the score.
    """
    result = reference_calibration(checkpoint, scores)
    if result is None:
        return
    name = result.recipe.score_name
    prompts = "" if result.recipe == result.pair_recipe else " with the prompts of these two texts"
    st.markdown(
        f"**{score:.4f}** is higher than the {name} of **{percentage(result.percentile(score))}** of random "
        f"pairs of {result.count} short English reference sentences{prompts}."
    )
    blocks.chart(
        figures.score_histogram(
            result.random, {"this pair": score}, name, "random pairs of reference sentences"
        ),
        f"Histogram of the {name} of random pairs of reference sentences, with this pair marked",
    )
    blocks.caveat(
        "The reference sentences are about six everyday topics. Other texts have different percentiles: "
        "for example, long documents on one subject are more similar to one another. For your own "
        "documents, see the Search page or the command bert-probe calibrate."
    )


def _choose_question(checkpoint: Checkpoint) -> Sentences:
    """Draw selectors for the pooling, the prompt and the number of dimensions."""
    pooling = _choose_pooling(checkpoint)
    prompt = choose_prompt(checkpoint, "prompt", "Prompt", pooling)
    if pooling != "model" or checkpoint.sentence_model is None:
        return Sentences(pooling, prompt=prompt)
    question = Sentences(pooling, prompt=prompt, dimensions=choose_dimensions(checkpoint, "dimensions"))
    config = resolve_pooling(checkpoint, pooling, question.prompt, question.dimensions)
    description = state.escape(str(config), 1000)
    st.markdown(f":gray[The model's own pooling, as in sentence-transformers: {description}.]")
    return question


def _choose_pooling(checkpoint: Checkpoint) -> str:
    """Draw a selector for the pooling of token vectors, with a description of the selected pooling."""
    available = available_poolings(checkpoint)
    pooling = _segmented_control(
        "pooling",
        "Pooling",
        {name: _POOLINGS[name] for name in available},
        available[0],
        "How token vectors are combined into one sentence vector.",
    )
    if pooling != "model" or checkpoint.sentence_model is None:
        st.markdown(f":gray[{POOLINGS[pooling]}]")
    if checkpoint.sentence_model_error is not None:
        st.caption(state.escape(str(checkpoint.sentence_model_error), 1000))
    return pooling


def _comparison(question: Sentences, checkpoint: Checkpoint, texts: tuple[str, ...], truncate: bool) -> None:
    sentence_input.check_count(texts, MAX_SENTENCES)
    result = _embed(question, checkpoint, texts, truncate)
    if result is None:
        return
    part = state.segmented_control("sentences_part", "Show", _PARTS, "heatmap")
    names = tuple(sentence_name(text) for text in texts)
    if part == "nearest":
        _nearest(result, checkpoint, names)
    elif part == "map":
        _map(result, checkpoint, truncate, names)
    elif part == "dimensions":
        _dimensions(result, checkpoint, truncate)
    else:
        _similarity(result, part, checkpoint, names)


def _embed(
    question: Sentences, checkpoint: Checkpoint, texts: tuple[str, ...], truncate: bool
) -> SentencesResult | None:
    """Compute the sentence embeddings in a job and return them, or None until the job is done."""
    result = jobs.answer(
        "sentence vectors",
        question.of,
        checkpoint,
        texts,
        truncate,
        label="Compute sentence vectors",
        unit="sentences",
        start=True,
    )
    if result is not None and result.cut:
        numbers = ", ".join(str(index + 1) for index in result.cut[:8])
        more = " …" if len(result.cut) > 8 else ""
        st.warning(
            f"{len(result.cut):,} sentences were truncated to the maximum length of this model or pooling: "
            f"{numbers}{more}.",
            icon=":material/content_cut:",
        )
    return result


def _exports(part: Result, name: str, result: SentencesResult) -> None:
    """Draw the Export menu of a section, with downloads of the sentences and their vectors.

    Args:
        part: result that the section shows.
        name: name of the exported files.
        result: sentences and their vectors.
    """
    vectors = result.showing(show="vectors")
    lines = "\n".join(result.sentences).encode()
    export(
        part,
        name,
        [
            (f"{SENTENCES_FILE}, input of the code below", SENTENCES_FILE, lambda _: lines),
            ("Vectors (CSV)", "sentence-vectors.csv", partial(table_bytes, vectors, "csv")),
        ],
    )


def _similarity(result: SentencesResult, part: str, checkpoint: Checkpoint, names: tuple[str, ...]) -> None:
    """Draw the similarity matrix as a heatmap or a table.

    Args:
        part: "table" for a table; otherwise, a heatmap is drawn.
        names: displayed name of each sentence.
    """
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        ordered = result.showing(order=_segmented_control("sentences_order", "Order", _ORDERS, "tree"))
        scores, labels = (
            ordered.scores,
            [f"{index + 1} {names[index]}" for index in ordered.order],
        )
        st.space("stretch")
        _exports(ordered, "sentences", result)
    if part == "table":
        blocks.table(
            pd.DataFrame(scores, index=pd.Index(labels, name="sentence"), columns=labels),
            f"{result.recipe.score_title} of each pair of sentences",
            max_height=640,
            show_index=True,
            column_config={name: st.column_config.NumberColumn(format="%.4f") for name in labels},
        )
        return
    cell = heatmap(sentences_heatmap(ordered, names), key="sentences_matrix")
    if cell is None:
        blocks.caveat("Click a cell to read its two sentences and to see whether their score is high.")
    else:
        for index in (ordered.order[cell.row], ordered.order[cell.column]):
            name = "" if names[index] == result.sentences[index] else f"{names[index]}  "
            st.text(f"{index + 1}  {name}{result.sentences[index]}")
        st.markdown(f"{result.recipe.score_title} **{scores[cell.row, cell.column]:.4f}**")
        show_calibration(checkpoint, result, float(scores[cell.row, cell.column]))


def _nearest(result: SentencesResult, checkpoint: Checkpoint, names: tuple[str, ...]) -> None:
    """Draw the pairs of sentences with the highest similarity."""
    question = Sentences.from_address(state.url_parameters(), checkpoint.description)
    pairs = result.showing(show="nearest", order=question.order, count=min(question.count, MAX_PAIRS))
    table = pairs.frame()
    for side in "ab":
        table[f"sentence_{side}"] = [names[number - 1] for number in table[side]]
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.header("Most similar pairs", anchor=False)
        _exports(pairs, "nearest-sentences", result)
    if question.count > MAX_PAIRS:
        st.caption(
            f"The page shows at most {MAX_PAIRS:,} pairs. Use Python or the command line for "
            f"{question.count:,} pairs."
        )
    calibration = reference_calibration(checkpoint, result)
    if calibration is not None:
        scores = table[pairs.recipe.similarity]
        table.insert(1, "percentile", [calibration.percentile(float(score)) for score in scores])
        st.markdown(describe_calibration(calibration.about()))
    blocks.table(
        table,
        f"Pairs of sentences by {pairs.recipe.score_name}, highest first",
        max_height=640,
        column_config={
            pairs.recipe.similarity: st.column_config.NumberColumn(
                pairs.recipe.score_name, format="%.4f", width="small"
            ),
            "percentile": st.column_config.NumberColumn(
                format="%.3f%%",
                width="small",
                help="Percentage of random pairs of 300 short English reference sentences with a lower "
                "score.",
            ),
            "a": st.column_config.NumberColumn("a", width="small"),
            "b": st.column_config.NumberColumn("b", width="small"),
        },
    )


def _compute_map(result: SentencesResult, checkpoint: Checkpoint, truncate: bool) -> SentenceMapResult | None:
    """Compute the map of the sentences in a job and return it, or None until the job is done."""
    methods = {method: _METHODS[method] for method in layouts.available_methods()}
    method = state.segmented_control("sentences_map", "Map", methods, "pca")
    settings = result.question
    question = SentenceMap(method, settings.pooling, settings.prompt, settings.dimensions)
    return jobs.run(
        f"sentence map {method}",
        cache_key(question, checkpoint, result.sentences, truncate),
        f"Compute {_METHODS[method]}",
        partial(question.of_vectors, result),
        unit=_UNITS[method],
        note=_UMAP_NOTE if method == "umap" else "",
        start=method != "umap",
    )


def _map(result: SentencesResult, checkpoint: Checkpoint, truncate: bool, names: tuple[str, ...]) -> None:
    """Draw the sentences as points on a two-dimensional map."""
    plane = _compute_map(result, checkpoint, truncate)
    if plane is None:
        return
    plane, groups = choose_colors(plane, result)
    if plane is None:
        return
    table, method = plane.frame().assign(sentence=list(names)), plane.question.method
    if groups is not None and plane.clusters is None:
        table.insert(3, "label", list(groups))
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.header(f"Sentences by {_METHODS[method]}", anchor=False)
        _exports(plane, "sentence-map", result)
    event = st.plotly_chart(
        figures.sentence_map(plane, names, groups),
        width="stretch",
        config=figures.MAP_CONFIG,
        key=f"sentences_map_{method}",
        on_select="rerun",
        selection_mode=("points", "box", "lasso"),
        alt=f"{len(result.sentences)} sentences as points on a plane",
    )
    blocks.caveat(_CAVEATS[method])
    if plane.clusters is not None:
        blocks.caveat(
            "HDBSCAN finds the clusters among the vectors with all their dimensions, so a cluster may look "
            "scattered on the map. The name of a cluster consists of words that are typical of the cluster."
        )
    selected = sorted({point for point in event.selection.point_indices if point < len(table)})
    blocks.table(
        table.iloc[selected] if selected else table,
        "Selected sentences, or all sentences if none is selected",
        max_height=300,
        column_config={"sentence": st.column_config.TextColumn("sentence", width="large")},
    )
    hint = "All sentences are listed. To filter them, click a point or use the lasso."
    st.caption(f"{len(selected):,} selected." if selected else hint)


def _dimensions(result: SentencesResult, checkpoint: Checkpoint, truncate: bool) -> None:
    """Draw the agreement between the scores of truncated vectors and of full vectors."""
    try:
        curve: DimensionCurveResult | None = jobs.answer(
            "dimension curve",
            DimensionCurve(result.question.pooling, result.question.prompt).of,
            checkpoint,
            result.sentences,
            truncate,
            label="Compare numbers of dimensions",
            unit="sentences",
            activity="Encoding sentences",
            start=True,
        )
    except UnavailableError as error:
        st.info(state.escape(str(error), 400))
        return
    if curve is None:
        return
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.header("Agreement with the full vectors", anchor=False)
        _exports(curve, "dimensions", result)
    st.markdown(curve.finding)
    blocks.chart(
        dimension_curve(curve),
        "Agreement with the full vectors, by number of dimensions: correlation of the scores, and share of "
        "sentences with the same nearest neighbor",
    )
    trained = ", ".join(f"{size:,}" for size in curve.trained)
    source = (
        f"The config.json of this model lists these numbers of dimensions: {trained}. " if trained else ""
    )
    blocks.caveat(
        f"{source}A correlation of 1 means that the scores of all pairs have the same order, and a share "
        "of 1 means that every sentence has the same nearest neighbor as with full vectors. The curve "
        "compares truncated vectors with full vectors, not with human judgments, and applies only to these "
        "sentences. For data with human judgments, see the Evaluate page. Models that were not trained for "
        "truncation (Matryoshka, Kusupati et al. 2022) typically lose more accuracy."
    )
    blocks.table(
        curve.frame(),
        "Agreement with the full vectors, by number of dimensions",
        column_config={
            "dimensions": st.column_config.NumberColumn("Dimensions", width="small"),
            "pearson": st.column_config.NumberColumn("Pearson", format="%.4f"),
            "spearman": st.column_config.NumberColumn("Spearman", format="%.4f"),
            "same_neighbor": st.column_config.NumberColumn("Same neighbor", format="percent"),
        },
    )


def choose_colors(
    plane: SentenceMapResult, result: SentencesResult
) -> tuple[SentenceMapResult | None, Sequence[str] | None]:
    """Draw the selectors for the colors of the map.

    Returns:
        The map, with clusters if they are selected, or None while a job finds the clusters.
        The group of each sentence (a label, or a cluster), or None if all points have one color.
    """
    labels = sentence_input.sentence_labels(result.sentences)
    options = _COLOR_OPTIONS | ({} if labels is None else {"label": "Labels"})
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        color = state.segmented_control(
            "sentences_color", "Color", options, "none" if labels is None else "label"
        )
        if color != "cluster":
            return plane, labels if color == "label" else None
        sizes = [size for size in _CLUSTER_SIZES if size <= max(2, len(result.sentences) // 3)]
        default = min(sizes, key=lambda size: abs(size - len(result.sentences) / 30))
        size = state.segmented_control(
            "sentences_cluster",
            "Smallest cluster",
            {str(size): str(size) for size in sizes},
            str(default),
            "Minimum number of sentences in a cluster.",
        )
    clustered = jobs.run(
        "sentence clusters",
        (plane, size),
        "Find clusters",
        lambda _: plane.with_clusters(result, int(size)),
        start=True,
    )
    if clustered is None or clustered.clusters is None:
        return None, None
    if clustered.clusters.max() < 0:
        st.info("HDBSCAN found no cluster of this size. Choose a smaller size.")
    names = [f"{number}: {' '.join(words[:3])}" for number, words in enumerate(clustered.cluster_words, 1)]
    return clustered, [names[index] if index >= 0 else "" for index in clustered.clusters]


def dimension_curve(result: DimensionCurveResult) -> Any:
    """Return a figure of the agreement between truncated and full vectors by number of dimensions."""
    figure = go.Figure()
    curves = (
        ("Spearman", result.spearman, ACCENT),
        ("Pearson", result.pearson, GRAY),
        ("same nearest neighbor", result.same_neighbor, SECOND),
    )
    for name, values, color in curves:
        figure.add_scatter(
            x=result.sizes,
            y=values,
            mode="lines+markers",
            line={"color": color, "width": 3 if color == ACCENT else 2},
            name=name,
            hovertemplate=f"{name} at %{{x:,}} dimensions: %{{y:.4f}}<extra></extra>",
        )
    low = min(0.5, float(np.nanmin([*(values for _, values, _ in curves)])))
    return apply_layout(
        figure,
        320,
        legend="above",
        xaxis={
            "title": "dimensions (logarithmic)",
            "type": "log",
            "tickvals": result.sizes,
            "ticktext": [f"{size:,}" for size in result.sizes],
        },
        yaxis={"title": "agreement", "range": [low - 0.03, 1.03]},
    )
