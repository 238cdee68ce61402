"""The Nearest contexts section of the Corpus page: similar contexts of a word as a concordance and a map."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from bert_probe.core import files
from bert_probe.core.provenance import model_name
from bert_probe.corpus.contexts import (
    ContextClusters,
    NearestContexts,
    NearestContextsResult,
    around,
    unrelated_cosines,
)
from bert_probe.corpus.inputs import VECTORS
from bert_probe.corpus.schema import ROWS
from bert_probe.corpus.store import Store, sentences
from bert_probe.errors import CheckpointError, SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from bert_probe.runtime import shared_cache
from bert_probe.server import page_traces
from bert_probe.text.words import Unit, find_word, word_lens, word_name
from bert_probe.ui import blocks, corpus_rows, figures, jobs, state, url_texts, workbench
from bert_probe.ui.components import strip
from bert_probe.ui.export import export
from bert_probe.ui.figures import as_text
from bert_probe.views.palette import HEADS
from bert_probe.views.text import StripToken, shorten, strip_digest

_COUNTS: Final = {"20": "20", "50": "50", "200": "200"}
_GROUPINGS: Final = {"group": "Clusters", "before": "The previous word", "after": "The next word"}

TEXT, _WORD, _DRAFT = "near_text", "near_word", "near_draft"
_REQUESTS: Final = "near requests"
"""Session key of the number of searches, except those started by a click on a word."""
_COLOURS: Final = tuple(HEADS[index] for index in (0, 1, 6, 4, 2, 10))
"""Colors that are easy to distinguish from each other and from gray."""
_GRAY: Final = "#8A8797"

_CONTEXT: Final = 70
"""Maximum number of characters shown on each side of a word."""
_NEIGHBOR_RANGE: Final = 200
"""Maximum distance in characters at which the words adjacent to a word are searched; limited for speed."""
MAX_NAMES: Final = 6
"""Maximum number of groups with their own color; the remaining groups are merged into `OTHER`."""
OTHER: Final = "others"
NOTHING: Final = "nothing"
_WORD_PATTERN: Final = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


@dataclass(frozen=True)
class ContextLine:
    """A word in its context.

    Attributes:
        left, word, right: the word and the text around it, truncated to `_CONTEXT` characters per side.
        before, after: the adjacent words in lower case, or `NOTHING`.
    """

    left: str
    word: str
    right: str
    before: str
    after: str


def part(corpus: Store) -> None:
    """Draw the "Nearest contexts" section of the Corpus page."""
    if not corpus.has(VECTORS):
        st.info("This store does not contain vectors. Build the store with --keep profiles,vectors.")
        return
    checkpoint = _checkpoint(corpus)
    text = _choose_text(corpus)
    if not text.strip():
        st.info("Write a sentence, and click a word to search for similar contexts.")
        return
    trace = page_traces.traces(checkpoint, [(text, None)], workbench.request().truncate)[0]
    blocks.truncation_notice(trace)
    unit = _choose_word(trace)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        layer = _choose_layer(corpus)
        count = state.segmented_control(
            "near_top", "Contexts", _COUNTS, "50", "Number of contexts, at most one per row."
        )
        grouping = state.segmented_control(
            "near_by",
            "Color by",
            _GROUPINGS,
            "group",
            "Color the contexts by the cluster of their vectors, or by an adjacent word.",
        )
        corner = st.container(width="content")
    question = NearestContexts(word_name(trace, unit), layer, int(count), others=True)
    result = jobs.answer(
        "nearest contexts", question.of, corpus, trace, label="Find contexts", unit="vectors", start=True
    )
    if result is None:
        return
    if not result.contexts:
        st.info("This store contains no other row to compare with this text.")
        return
    clusters = shared_cache.answers.of(
        around, corpus, layer, tuple((context.row, context.position) for context in result.contexts)
    )
    with corner:
        make = partial(_as_csv, result, clusters)
        export(result, "corpus-near", [("Map and clusters (CSV)", "corpus-near-map.csv", make)])
    _results(corpus, result, clusters, grouping, layer)


# ---------------------------------------------------------------- input


def search_for(text: str, word: str | None = None) -> None:
    """Submit a text and a word in it, to search for similar contexts of this word.

    If `word` is None, the search uses the longest word of the text.
    """
    url_texts.remember(TEXT, text)
    state.remember(_WORD, word)
    st.session_state[_DRAFT] = text
    st.session_state[_REQUESTS] = st.session_state.get(_REQUESTS, 0) + 1


def _checkpoint(corpus: Store) -> Checkpoint:
    """Return a loaded model that the store could be built with; otherwise, open the model that it names."""
    model, now = corpus.manifest["model"], workbench.request()
    weights = model["weights_sha256"]
    for checkpoint in (
        shared_cache.cached_checkpoint(now.model, now.revision, now.dtype),
        shared_cache.find_by_weights(weights),
    ):
        if checkpoint is not None:
            with suppress(CheckpointError):
                corpus.check(checkpoint)
                return checkpoint
    name, revision = model_name(model) or "", model.get("revision") or ""
    if corpus.named_model is None:
        name = revision = ""
    origin = "This store was built with this model."
    opened = workbench.open_model(name, revision, model.get("dtype", "float32"), "opening corpus", origin)
    corpus.check(opened)
    return opened


def _choose_text(corpus: Store) -> str:
    """Draw the text field and return the submitted text, by default the first row of the store."""
    if url_texts.recall(TEXT) is None:
        url_texts.check(TEXT)
        first = corpus.table(ROWS).head(1, columns=["text"])["text"].to_pylist()
        search_for(first[0] if first else "")
    text = url_texts.recall(TEXT) or ""
    if _DRAFT not in st.session_state:
        st.session_state[_DRAFT] = text
    field, button = st.columns([8, 1], vertical_alignment="bottom")
    field.text_input(
        "Text with the search word",
        key=_DRAFT,
        on_change=_use_draft,
        placeholder="The bank raised its rates",
        persist_state="session",
    )
    button.button("Search", type="primary", on_click=_use_draft)
    return text


def _use_draft() -> None:
    draft = st.session_state.get(_DRAFT)
    if draft is not None and draft != url_texts.recall(TEXT):  # None after a change of the page
        search_for(draft)


def _choose_word(trace: Trace) -> Unit:
    """Draw the words of the text and return the selected word, by default the longest."""
    units = word_lens(trace).units
    current = _word_of_url(trace)
    if current is None:
        words = [unit for unit in units if not unit.special] or list(units)
        current = max(words, key=len)
    tokens = [
        StripToken(shorten(unit.display), i, 0, unit.special, False, "") for i, unit in enumerate(units)
    ]
    selected = [unit.positions for unit in units].index(current.positions)
    # A selected word stays selected until another text or word is requested.
    text = f"{st.session_state.get(_REQUESTS, 0)} {strip_digest(tokens)}"
    st.caption("Click a word to search for similar contexts.")
    index = strip(
        tokens, key="near_strip", label="Search word", selectable="one", selected=selected, text=text
    )
    if index is None or index == selected or units[index].special:
        return current
    state.remember(_WORD, word_name(trace, units[index]))
    return units[index]


def _word_of_url(trace: Trace) -> Unit | None:
    name = state.url_parameters().get(_WORD)
    if name is None:
        return None
    try:
        return find_word(trace, name)
    except SelectionError:
        st.caption(
            f":orange[The word {state.escape(name)} is missing from this text, or occurs more than once.]"
        )
        state.remember(_WORD, None)
        return None


def _choose_layer(corpus: Store) -> int:
    options = {str(layer): f"Layer {layer}" if layer else "Embeddings" for layer in corpus.layers}
    with st.container(width=170):
        return int(state.selectbox("near_layer", "Layer", options, str(corpus.layers[-1]), show_label=True))


# ---------------------------------------------------------------- results


def _results(
    corpus: Store, result: NearestContextsResult, clusters: ContextClusters, grouping: str, layer: int
) -> None:
    """Draw the contexts as a table and on a map, with the selected context in detail."""
    lines = [context_line(context.at.text, context.at.start, context.at.end) for context in result.contexts]
    names, note = _group_names(lines, clusters, grouping)
    colours = _colours(names)
    event: Any = blocks.table(
        _table(result, lines, names, colours),
        "The nearest contexts of the word, with their cosines",
        max_height=460,
        key=f"corpus_near_table {result.question!r} {result.inputs.texts}",
        on_select="rerun",
        selection_mode="single-row",
        column_config={
            "cosine": st.column_config.NumberColumn(format="%.4f", width=80),
            "left": st.column_config.TextColumn("", width=295, alignment="right"),
            "word": st.column_config.TextColumn("word", width=120, alignment="center"),
            "right": st.column_config.TextColumn("", width=295),
            "around": st.column_config.TextColumn(_GROUPINGS[grouping].lower(), width=130),
            "row": st.column_config.NumberColumn(format="%d", width=70),
        },
    )
    blocks.caveat(_baseline(corpus, layer))
    selected_rows = blocks.selected_rows(event, lines)
    index = selected_rows[0] if selected_rows else 0
    with st.container(key="judged_contexts"):
        left, right = st.columns([3, 2], gap="large")
    chart: Any = left.plotly_chart(
        context_map(clusters, lines, names, colours, index),
        width="stretch",
        config=figures.CONFIG,
        key=f"corpus_near_map {result.question!r} {grouping} {hash(result.inputs.texts[0]['text'])}",
        on_select="rerun",
        selection_mode="points",
        alt="Map of the contexts by the first two principal components of their vectors",
    )
    explained = clusters.explained[0] + clusters.explained[1]
    left.caption(
        f"{note} The map shows the first two principal components of the {len(lines):,} normalized "
        f"vectors. These components explain {explained:.0%} of the variance. Points that are close may "
        "still differ in other directions."
    )
    points = chart.selection.points if chart else []
    if points and not selected_rows:
        index = min(int(points[0]["customdata"][0]), len(lines) - 1)
    with right:
        _detail(corpus, result, index)


def _group_names(
    lines: Sequence[ContextLine], clusters: ContextClusters, grouping: str
) -> tuple[list[str], str]:
    """Return the name of each context's group, and a note that explains the groups."""
    if grouping == "group":
        names = [f"cluster {cluster + 1}" for cluster in clusters.groups]
        if clusters.silhouette != clusters.silhouette:
            return names, "There are too few different contexts to form clusters."
        return names, (
            "K-means clusters of the normalized vectors. The number of clusters maximizes the "
            f"silhouette score, here {clusters.silhouette:.2f} (1: well separated, 0: not separated). "
            "K-means always returns clusters; do not interpret the clusters if the score is below 0.2."
        )
    names = merge_rare([getattr(line, grouping) for line in lines])
    return names, f"{_GROUPINGS[grouping]}, in lower case. Rare words are merged into the group “{OTHER}”."


def _colours(names: Sequence[str]) -> dict[str, str]:
    """Return a color for each group name, assigned in order of frequency."""
    order = sorted(set(names) - {OTHER}, key=lambda name: (-names.count(name), name))
    return {name: _COLOURS[index % len(_COLOURS)] for index, name in enumerate(order)} | {OTHER: _GRAY}


def _table(
    result: NearestContextsResult,
    lines: Sequence[ContextLine],
    names: Sequence[str],
    colours: Mapping[str, str],
) -> Any:
    frame = pd.DataFrame(
        {
            "cosine": [context.cosine for context in result.contexts],
            "left": [line.left for line in lines],
            "word": [line.word for line in lines],
            "right": [line.right for line in lines],
            "around": names,
            "row": [context.row for context in result.contexts],
        }
    )
    backgrounds = [f"background-color: {colours[name]}33" for name in names]
    return frame.style.apply(lambda _column: backgrounds, subset=["word", "around"])


def _baseline(corpus: Store, layer: int) -> str:
    baseline = shared_cache.answers.of(unrelated_cosines, corpus, layer)
    if baseline is None:
        return "This store has too few words for a baseline, so compare these cosines only with one another."
    return (
        "Baseline: two random words of different rows of this store have a mean cosine of "
        f"{baseline.mean:.2f} at this layer, and 5% of the pairs reach {baseline.high:.2f} or more "
        f"({baseline.pairs:,} pairs). A high cosine shows that two vectors are similar, not why."
    )


def _detail(corpus: Store, result: NearestContextsResult, index: int) -> None:
    context = result.contexts[index]
    (row,) = sentences(corpus, [context.row])
    (text,) = result.inputs.texts
    pair = {
        "context": f"{text['text']}\n{context.at.text}",
        "context_words": f"{result.question.word}\n{context.at.word}",
    }
    corpus_rows.detail(
        corpus,
        row,
        {"context": pair},
        f"**{state.escape(shorten(context.at.word))}** cosine **{context.cosine:.4f}**",
    )
    st.button("Search from this context", on_click=search_for, args=(context.at.text, context.at.word))


def _as_csv(result: NearestContextsResult, clusters: ContextClusters, csv_safe: bool) -> bytes:
    x, y = clusters.points[:, 0], clusters.points[:, 1]
    frame = result.frame().assign(x=x, y=y, group=clusters.groups + 1)
    return files.to_bytes(frame, "csv", csv_safe)


def context_map(
    clusters: ContextClusters,
    lines: Sequence[ContextLine],
    names: Sequence[str],
    colours: Mapping[str, str],
    selected: int,
) -> Any:
    """Return a scatter plot of contexts, colored by group, with the text on hover.

    Args:
        clusters: the contexts with their coordinates on the map.
        lines: the text of each context.
        names: name of each context's group.
        colours: color of each group, by name.
        selected: index of the highlighted context.
    """
    figure = go.Figure()
    for name in sorted(set(names), key=lambda name: (-names.count(name), name)):
        members = [index for index, group in enumerate(names) if group == name]
        figure.add_scatter(
            x=clusters.points[members, 0],
            y=clusters.points[members, 1],
            mode="markers",
            name=as_text(name),
            customdata=[
                (index, as_text(f"{lines[index].left[-40:]} [{lines[index].word}] {lines[index].right[:40]}"))
                for index in members
            ],
            hovertemplate="%{customdata[1]}<extra></extra>",
            marker={
                "color": colours[name],
                "size": [16 if index == selected else 10 for index in members],
                "line": {"width": 1, "color": "rgba(128,128,128,0.5)"},
            },
            unselected={"marker": {"opacity": 0.6}},
        )
    axes = [
        {"title": f"component {number}, {share:.0%} of the variance", "zeroline": False}
        for number, share in enumerate(clusters.explained, 1)
    ]
    figures.apply_layout(
        figure, 420, legend="above", xaxis=axes[0], yaxis={**axes[1], "scaleanchor": "x"}, dragmode="pan"
    )
    return figure


def context_line(text: str, start: int, end: int) -> ContextLine:
    """Return the word between characters ``start`` and ``end`` of a text, with its context."""
    left, right = text[:start], text[end:]
    before = _WORD_PATTERN.findall(left[-_NEIGHBOR_RANGE:])
    after = _WORD_PATTERN.search(right[:_NEIGHBOR_RANGE])
    return ContextLine(
        shorten(("…" if len(left) > _CONTEXT else "") + left[-_CONTEXT:].lstrip()),
        shorten(text[start:end]),
        shorten(right[:_CONTEXT].rstrip() + ("…" if len(right) > _CONTEXT else "")),
        before[-1].casefold() if before else NOTHING,
        after[0].casefold() if after else NOTHING,
    )


def merge_rare(names: Sequence[str]) -> list[str]:
    """Replace all names but the most frequent with `OTHER`."""
    frequent = {name for name, _ in Counter(names).most_common(MAX_NAMES)}
    return [name if name in frequent else OTHER for name in names]
