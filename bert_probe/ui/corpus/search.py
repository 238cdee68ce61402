"""The contexts nearest to a word in a text: in line, on a map, and each with its row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import pandas as pd
import streamlit as st

from bert_probe.core import files
from bert_probe.core.inputs import model_name
from bert_probe.corpus.columns import sentences
from bert_probe.corpus.context_clusters import ContextClusters, around, unrelated
from bert_probe.corpus.ingest import VECTORS
from bert_probe.corpus.search.contexts import NearestContexts, NearestContextsResult
from bert_probe.corpus.store import Store
from bert_probe.corpus.tables import ROWS
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from bert_probe.runtime import shared_cache as shared
from bert_probe.text.words import Unit, find_word, word_lens, word_name
from bert_probe.ui import blocks, jobs, state, url_texts, workbench
from bert_probe.ui import figures as plotly
from bert_probe.ui.components.strip import strip
from bert_probe.ui.corpus import figures, rows
from bert_probe.ui.corpus.lines import OTHER, ContextLine, line, named
from bert_probe.ui.export import export
from bert_probe.views.palette import HEADS
from bert_probe.views.strip import StripToken, digest
from bert_probe.views.text import shown

TOPS: Final = {"20": "20", "50": "50", "200": "200"}
BY: Final = {"group": "Groups of vectors", "before": "The word before", "after": "The word after"}

TEXT, _WORD, _DRAFT = "near_text", "near_word", "near_draft"
_REQUESTS: Final = "near requests"
"""Session key of how often a text was asked for other than by a click on one of its words."""
_COLOURS: Final = tuple(HEADS[place] for place in (0, 1, 6, 4, 2, 10))
"""Far from each other and from gray, which is that of all others."""
_GRAY: Final = "#8A8797"


def look_for(text: str, word: str | None = None) -> None:
    """Ask for a text, and a word of it, from now on."""
    url_texts.remember(TEXT, text)
    state.remember(_WORD, word)
    st.session_state[_DRAFT] = text
    st.session_state[_REQUESTS] = st.session_state.get(_REQUESTS, 0) + 1


def part(corpus: Store) -> None:
    """Draw it."""
    if not corpus.has(VECTORS):
        st.info("This store holds no vectors. Run the corpus with --keep profiles,vectors.")
        return
    checkpoint = _checkpoint(corpus)
    text = _text(corpus)
    if not text.strip():
        st.info("Write a sentence, and click the word whose like you look for.")
        return
    trace = shared.traces(checkpoint, [(text, None)], workbench.request().truncate)[0]
    blocks.truncation_notice(trace)
    unit = _word(trace)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        layer = _layer(corpus)
        top = state.pick(
            "near_top", "How many", TOPS, "50", "Contexts, the nearest first; a row counts once."
        )
        by = state.pick(
            "near_by", "Colour by", BY, "group", "What surrounds the word, in vectors or in words."
        )
        place = st.container(width="content")
    asked = NearestContexts(word_name(trace, unit), layer, int(top), others=True)
    found = jobs.answered(
        "corpus near", asked.of, corpus, trace, label="Find the contexts", unit="vectors", start=True
    )
    if found is None:
        return
    if not found.contexts:
        st.info("This store has no other row with a word.")
        return
    placed = shared.answers.of(
        around, corpus, layer, tuple((context.row, context.position) for context in found.contexts)
    )
    with place:
        make = partial(_as_csv, found, placed)
        export(found, "corpus-near", [("Map and groups, CSV", "corpus-near-map.csv", make)])
    _show(corpus, found, placed, by, layer)


# ---------------------------------------------------------------- what is asked


def _checkpoint(corpus: Store) -> Checkpoint:
    """Return the store's model: one that is open already and has its weights, else the one that it names."""
    model, now = corpus.manifest["model"], workbench.request()
    for checkpoint in (shared.opened(now.model, now.revision), shared.with_weights(model["weights_sha256"])):
        if checkpoint is not None and checkpoint.description.weights_sha256 == model["weights_sha256"]:
            return checkpoint
    name, revision = model_name(model) or "", model.get("revision") or ""
    if corpus.unfamiliar_model is None:
        name = revision = ""
    about = "This store names it as the model that it was made with."
    opened = workbench.open_model(name, revision, "opening corpus", about)
    corpus.check(opened)
    return opened


def _text(corpus: Store) -> str:
    """What the reader wrote; at first a row of the store."""
    if url_texts.recall(TEXT) is None:
        url_texts.check(TEXT)
        first = corpus.table(ROWS).head(1, columns=["text"])["text"].to_pylist()
        look_for(first[0] if first else "")
    text = url_texts.recall(TEXT) or ""
    if _DRAFT not in st.session_state:
        st.session_state[_DRAFT] = text
    written, button = st.columns([8, 1], vertical_alignment="bottom")
    written.text_input(
        "A text with your word",
        key=_DRAFT,
        on_change=_take,
        placeholder="The bank raised its rates",
        persist_state="session",
    )
    button.button("Look", type="primary", on_click=_take)
    return text


def _take() -> None:
    draft = st.session_state[_DRAFT]
    if draft != url_texts.recall(TEXT):
        look_for(draft)


def _word(trace: Trace) -> Unit:
    """The word that is clicked; at first the longest."""
    units = word_lens(trace).units
    now = _asked_unit(trace)
    if now is None:
        ordinary = [unit for unit in units if not unit.special] or list(units)
        now = max(ordinary, key=len)
    pieces = [StripToken(shown(unit.display), i, 0, unit.special, False, "") for i, unit in enumerate(units)]
    selected = [unit.positions for unit in units].index(now.positions)
    # A click counts until another text or word is asked for.
    text = f"{st.session_state.get(_REQUESTS, 0)} {digest(pieces)}"
    chosen = strip(pieces, key="near_strip", label="The word", selectable="one", selected=selected, text=text)
    if chosen is None or chosen == selected or units[chosen].special:
        return now
    state.remember(_WORD, word_name(trace, units[chosen]))
    return units[chosen]


def _asked_unit(trace: Trace) -> Unit | None:
    asked = state.address().get(_WORD)
    if asked is None:
        return None
    try:
        return find_word(trace, asked)
    except SelectionError:
        st.caption(f":orange[There is no word {state.plain(asked)} here, or it stands there twice.]")
        state.remember(_WORD, None)
        return None


def _layer(corpus: Store) -> int:
    options = {str(layer): f"Layer {layer}" if layer else "Embeddings" for layer in corpus.layers}
    with st.container(width=170):
        return int(state.choose("near_layer", "Layer", options, str(corpus.layers[-1]), labelled=True))


# ---------------------------------------------------------------- what is found


def _show(corpus: Store, found: NearestContextsResult, placed: ContextClusters, by: str, layer: int) -> None:
    lines = [line(context.at.text, context.at.start, context.at.end) for context in found.contexts]
    names, said = _surroundings(lines, placed, by)
    colours = _colours(names)
    event: Any = st.dataframe(
        _table(found, lines, names, colours),
        hide_index=True,
        width="stretch",
        height=min(38 + 35 * len(lines), 460),
        key=f"corpus_near_table {found.question!r} {found.inputs.texts}",
        on_select="rerun",
        selection_mode="single-row",
        column_config={
            "cosine": st.column_config.NumberColumn(format="%.4f", width=80),
            "left": st.column_config.TextColumn("", width=295, alignment="right"),
            "word": st.column_config.TextColumn("word", width=120, alignment="center"),
            "right": st.column_config.TextColumn("", width=295),
            "around": st.column_config.TextColumn(BY[by].lower(), width=130),
            "row": st.column_config.NumberColumn(format="%d", width=70),
        },
        alt="The word in its nearest contexts, with the cosine of each",
    )
    blocks.caveat(_baseline(corpus, layer))
    at = event.selection.rows[0] if event.selection.rows and event.selection.rows[0] < len(lines) else 0
    with st.container(key="judged_contexts"):
        left, right = st.columns([3, 2], gap="large")
    chart: Any = left.plotly_chart(
        figures.contexts(placed, lines, names, colours, at),
        width="stretch",
        config=plotly.CONFIG,
        key=f"corpus_near_map {found.question!r} {by} {hash(found.inputs.texts[0]['text'])}",
        on_select="rerun",
        selection_mode="points",
        alt="The contexts on two principal components of their vectors",
    )
    both = placed.explained[0] + placed.explained[1]
    left.caption(
        f"{said} The directions of these {len(lines):,} vectors lie on their first two principal components, "
        f"which hold {both:.0%} of their variance; what is near here may be apart in another direction."
    )
    points = chart.selection.points if chart else []
    if points and not event.selection.rows:
        at = min(int(points[0]["customdata"][0]), len(lines) - 1)
    with right:
        _row(corpus, found, at)


def _surroundings(lines: Sequence[ContextLine], placed: ContextClusters, by: str) -> tuple[list[str], str]:
    """A name for what surrounds each, and what these names are."""
    if by == "group":
        names = [f"group {group + 1}" for group in placed.groups]
        if placed.silhouette != placed.silhouette:
            return names, "Too few different contexts to fall into groups."
        return names, (
            f"Groups by k-means of the vectors' directions, as many as are parted best: silhouette "
            f"{placed.silhouette:.2f}, where 1 is far apart and 0 is not parted at all. K-means makes groups "
            "whether there are any or not; below 0.2 take them for none."
        )
    names = named([getattr(line, by) for line in lines])
    return names, f"{BY[by]} as it is written, in small letters; seldom ones are called “{OTHER}”."


def _colours(names: Sequence[str]) -> dict[str, str]:
    """The most frequent first, so that these differ most."""
    order = sorted(set(names) - {OTHER}, key=lambda name: (-names.count(name), name))
    return {name: _COLOURS[place % len(_COLOURS)] for place, name in enumerate(order)} | {OTHER: _GRAY}


def _table(
    found: NearestContextsResult,
    lines: Sequence[ContextLine],
    names: Sequence[str],
    colours: Mapping[str, str],
) -> Any:
    frame = pd.DataFrame(
        {
            "cosine": [context.cosine for context in found.contexts],
            "left": [line.left for line in lines],
            "word": [line.word for line in lines],
            "right": [line.right for line in lines],
            "around": names,
            "row": [context.row for context in found.contexts],
        }
    )

    def tinted(_column: Any) -> list[str]:
        return [f"background-color: {colours[name]}33" for name in names]

    return frame.style.apply(tinted, subset=["word", "around"])


def _baseline(corpus: Store, layer: int) -> str:
    found = shared.answers.of(unrelated, corpus, layer)
    if found is None:
        return (
            "This store has too few words to draw pairs of at random; compare these cosines with each other."
        )
    return (
        f"Two words of different rows, drawn at random from this store, have a cosine of {found.mean:.2f} on "
        f"average at this layer, and one pair in twenty reaches {found.high:.2f} ({found.pairs:,} pairs). "
        "Judge a value by its distance from these; a high one says that two vectors are alike, not why."
    )


def _row(corpus: Store, found: NearestContextsResult, at: int) -> None:
    one = found.contexts[at]
    (sentence,) = sentences(corpus, [one.row])
    (asked,) = found.inputs.texts
    pair = {
        "context": f"{asked['text']}\n{one.at.text}",
        "context_words": f"{found.question.word}\n{one.at.word}",
    }
    rows.detail(
        corpus,
        sentence,
        {"context": pair},
        f"**{state.plain(shown(one.at.word))}** cosine **{one.cosine:.4f}**",
    )
    st.button("Look from this context", on_click=look_for, args=(one.at.text, one.at.word))


def _as_csv(found: NearestContextsResult, placed: ContextClusters, csv_safe: bool) -> bytes:
    frame = found.frame().assign(x=placed.points[:, 0], y=placed.points[:, 1], group=placed.groups + 1)
    return files.to_bytes(frame, "csv", csv_safe)
