"""Colors of the map on the Sentences page: labels, or clusters, which a job finds."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from bert_probe.analyses.vectors.sentences import SentenceMapResult, SentencesResult
from bert_probe.ui import jobs, sentence_input, state

_COLORS = {"none": "One color", "cluster": "Clusters"}
_CLUSTER_SIZES = (2, 3, 5, 10, 20, 50)


def choose_colors(
    plane: SentenceMapResult, result: SentencesResult
) -> tuple[SentenceMapResult | None, Sequence[str] | None]:
    """Draw the selectors for the colors; return the map, with clusters if they are selected, and the group of
    each sentence. The map is None while the clusters are computed.
    """
    labels = sentence_input.sentence_labels(result.sentences)
    options = _COLORS | ({} if labels is None else {"label": "Labels"})
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
            "Smallest number of sentences in a cluster.",
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
        st.info("HDBSCAN found no cluster of this size. Choose a smaller one.")
    names = [f"{number}: {' '.join(words[:3])}" for number, words in enumerate(clustered.cluster_words, 1)]
    return clustered, [names[index] if index >= 0 else "" for index in clustered.clusters]
