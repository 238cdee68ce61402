"""The Context page: the similarity of a word's vectors in several sentences, at every layer.

The sentences and their selected words are stored in the session and in the URL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, zip_longest
from typing import cast

import streamlit as st

from bert_probe.analyses.vectors.similarity import SimilarityBaseline, SimilarityBaselineResult
from bert_probe.analyses.vectors.word_in_context import WordInContext, WordInContextResult
from bert_probe.errors import ProbeError, SelectionError, TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from bert_probe.runtime import shared_cache
from bert_probe.server import page_traces
from bert_probe.text.sentence_files import check_lines, lines
from bert_probe.text.words import Unit, find_word, word_lens, word_name
from bert_probe.ui import blocks, figures, state, url_texts, workbench
from bert_probe.ui.components import heatmap, strip
from bert_probe.ui.export import export, table_bytes
from bert_probe.ui.sentence_input import CONTEXT
from bert_probe.views.heatmaps import word_in_context_heatmap
from bert_probe.views.text import StripToken, shorten

MAX_SENTENCES = 50
"""Maximum number of sentences on the Context page."""
_MAX_CURVES = 28
_SCALES = {"raw": "Cosine", "corrected": "Corrected"}
_ROWS, _DRAFT = "context_lines", "context_draft"
_numbers = count()


@dataclass(frozen=True)
class ContextRow:
    """A sentence on the Context page and its selected word.

    Attributes:
        key: widget key, unique even for rows with the same text.
        word: selected word in the form that `find_word` accepts; "" if none is selected.
    """

    key: str
    text: str
    word: str = ""


def render() -> None:
    """Draw the Context page."""
    blocks.heading(
        "Context",
        "A word has a different vector in every sentence. Click a word in each sentence to see how similar "
        "the vectors are, layer by layer.",
    )
    checkpoint = workbench.checkpoint()
    words = _sentences(checkpoint)
    _add_sentences()
    if len(words) < 2:
        try:
            url_texts.check(*([] if current_rows() else ["context"]))
        except TextError as error:
            blocks.error_box(error, "Add your sentences again in the field above, or choose Example.")
            return
        st.info("Select a word in at least two sentences to compare them.")
        return
    baseline = shared_cache.answers.of(SimilarityBaseline().of, checkpoint)
    question = WordInContext([word_name(trace, unit) for trace, unit in words])
    _results(shared_cache.answers.of(question.of, [trace for trace, _ in words], baseline=baseline))


# ---------------------------------------------------------------- sentences


def current_rows() -> tuple[ContextRow, ...]:
    """Return the sentences of the session; if none are stored, load them from the URL or the example."""
    if _ROWS not in st.session_state:
        texts = lines(url_texts.recall("context") or "", MAX_SENTENCES)
        words = (url_texts.recall("context_words") or "").split("\n", MAX_SENTENCES)
        if url_texts.missing("context"):
            st.session_state[_ROWS] = ()
        elif texts:
            _store([_row(text, word) for text, word in zip_longest(texts, words[: len(texts)], fillvalue="")])
        else:
            use_example()
    return cast(tuple[ContextRow, ...], st.session_state[_ROWS])


def use_example() -> None:
    """Replace the sentences on the Context page with the example."""
    _store([_row(text, word) for text, word in CONTEXT])


def _clear() -> None:
    _store([])


def _add() -> None:
    """Add the lines of the draft as sentences; lines that exceed the maximum stay in the draft."""
    if _draft_problem():
        return
    texts = lines(st.session_state[_DRAFT])
    room = MAX_SENTENCES - len(current_rows())
    _store([*current_rows(), *(_row(text) for text in texts[:room])])
    st.session_state[_DRAFT] = "\n".join(texts[room:])


def _draft_problem() -> str:
    """Return why the draft cannot be added; "" if it can."""
    try:
        check_lines(st.session_state[_DRAFT])
    except TextError as error:
        return str(error)
    return ""


def _remove(key: str) -> None:
    _store([row for row in current_rows() if row.key != key])


def _select_word(selected: ContextRow, word: str) -> None:
    if word != selected.word:
        _store([replace(row, word=word) if row.key == selected.key else row for row in current_rows()])


def _selected_unit(trace: Trace, row: ContextRow) -> Unit | None:
    """Return a row's selected word, by default a word that is selected in another row; None if not found."""
    words = [row.word] if row.word else dict.fromkeys(row.word for row in current_rows() if row.word)
    for word in words:
        try:
            return find_word(trace, word)
        except SelectionError:
            continue
    return None


def _row(text: str, word: str = "") -> ContextRow:
    return ContextRow(f"context_word_{next(_numbers)}", text, word)


def _store(rows: Sequence[ContextRow]) -> None:
    st.session_state[_ROWS] = tuple(rows)
    texts = "\n".join(row.text for row in rows)
    words = "\n".join(row.word for row in rows)
    url_texts.remember("context", texts or None)
    url_texts.remember("context_words", words if texts else None)


def _trace(checkpoint: Checkpoint, row: ContextRow) -> Trace | None:
    """Return the trace of a sentence, or draw an error and return None."""
    try:
        return page_traces.traces(checkpoint, [(row.text, None)], workbench.request().truncate)[0]
    except ProbeError as error:
        st.text(f"{row.text[:200]}\n{error}")
        return None


def _choose_word(trace: Trace, row: ContextRow, number: int) -> Unit | None:
    """Draw the words of a sentence and return the selected one."""
    units = word_lens(trace).units
    current = _selected_unit(trace, row)
    if row.word and current is None:
        st.caption(f":orange[This sentence does not contain the word {state.escape(row.word)}.]")
    tokens = [
        StripToken(shorten(unit.display), i, 0, unit.special, False, _detail(trace, unit))
        for i, unit in enumerate(units)
    ]
    selected = None if current is None else [unit.positions for unit in units].index(current.positions)
    index = strip(
        tokens, key=row.key, label=f"Word of sentence {number}", selectable="one", selected=selected
    )
    if index is None:
        return None
    _select_word(row, word_name(trace, units[index]))
    return units[index]


def _detail(trace: Trace, unit: Unit) -> str:
    if len(unit.positions) == 1:
        return "special token" if unit.special else ""
    tokens = " ".join(trace.tokens[position].display for position in unit.positions)
    return (
        f"{len(unit.positions)} subword tokens: {tokens}; the word is represented by the mean of their "
        "vectors"
    )


def _sentences(checkpoint: Checkpoint) -> list[tuple[Trace, Unit]]:
    """Draw the sentences with clickable words; return the trace and the word of each selection."""
    selected: list[tuple[Trace, Unit]] = []
    for number, row in enumerate(current_rows(), start=1):
        label, words, remove = st.columns([1, 24, 3], vertical_alignment="center")
        with words:
            trace = _trace(checkpoint, row)
            unit = None if trace is None else _choose_word(trace, row, number)
            if trace is not None:
                blocks.truncation_notice(trace)
        if trace is not None and unit is not None:
            selected.append((trace, unit))
        label.markdown(f"**{len(selected)}**" if unit is not None else "–")
        remove.button(
            "Remove",
            key=f"remove {row.key}",
            type="tertiary",
            help=f"Remove sentence {number}",
            on_click=_remove,
            args=(row.key,),
        )
    return selected


def _add_sentences() -> None:
    """Draw a field for new sentences, outside of a form, so that its text survives page changes."""
    state.keep_draft(_DRAFT, "", "")
    st.text_area(
        "Add sentences, one per line",
        key=_DRAFT,
        height=80,
        placeholder="Type a sentence, or paste several lines",
        persist_state="session",
    )
    with st.container(horizontal=True):
        st.button("Add", type="primary", on_click=_add)
        st.button("Example", on_click=use_example)
        st.button("Clear all", on_click=_clear)
    if problem := _draft_problem():
        st.caption(f":orange[{problem}]")
    if len(current_rows()) == MAX_SENTENCES:
        st.caption(f"This page accepts at most {MAX_SENTENCES} sentences. For more sentences, use Python.")


# ---------------------------------------------------------------- results


def _choose_pairs(result: WordInContextResult) -> list[int]:
    """Draw a selector for the word pairs to plot as curves; return the indices of the selected pairs."""
    options = [str(number) for number in range(1, len(result.units) + 1)]
    if len(result.pairs) <= _MAX_CURVES:
        options.insert(0, "all")
    elif st.session_state.get("context_pairs") == "all":
        del st.session_state["context_pairs"]
    state.prepare("context_pairs", options, options[0])
    selected = st.selectbox(
        "Curves",
        options,
        key="context_pairs",
        format_func=lambda option: "All pairs" if option == "all" else f"Pairs with word {option}",
        persist_state="session",
    )
    return [i for i, pair in enumerate(result.pairs) if selected == "all" or int(selected) - 1 in pair]


def _results(result: WordInContextResult) -> None:
    """Draw the similarities as curves, as a heatmap and as a table."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        with st.container(width=200):
            layer = state.select_layer(
                "vector_layer",
                0,
                result.layers,
                "Layer of the heatmap. Layer 0 is the output of the embeddings, before any attention.",
            )
        scale = state.segmented_control("context_scale", "Scale", _SCALES, "raw")
        with st.container(width=150):
            pairs = _choose_pairs(result)
        st.space("stretch")
        matrix = result.showing(layer=layer)
        export(
            result,
            "context",
            [
                ("Similarity matrix (CSV)", "context-matrix.csv", partial(table_bytes, matrix, "csv")),
                ("Baseline (CSV)", "baseline.csv", partial(table_bytes, result.baseline, "csv")),
            ],
        )
    blocks.chart(
        figures.context_curves(result, layer, pairs, scale == "corrected"),
        "Cosine similarity of each pair of words by layer, with baselines for unrelated words and for "
        "two occurrences of the same word",
    )
    blocks.caveat(_caveat(result.baseline))
    with st.container(key="judged"):
        left, right = st.columns([2, 3], gap="large")
    with left:
        heatmap(word_in_context_heatmap(result, layer), key="context_matrix")
    with right:
        st.markdown("**All pairs by layer**")
        frame = result.frame()
        blocks.table(
            frame,
            "Cosine similarity of each pair of words by layer, with the baseline",
            max_height=380,
            column_config=dict.fromkeys(frame.columns[3:], st.column_config.NumberColumn(format="%.4f")),
        )


def _caveat(baseline: SimilarityBaselineResult) -> str:
    same = baseline.same_word
    same_pairs = (
        f", and {same.pairs:,} pairs of occurrences of the same word, mostly of words like “the”"
        if same
        else ""
    )
    return (
        f"The bands show {baseline.unrelated.pairs:,} pairs of different tokens from {baseline.sentences} "
        f"unrelated English reference sentences{same_pairs}. “Corrected” subtracts the mean cosine of "
        "unrelated tokens at each layer (Ethayarajh 2019). A high cosine shows that two vectors are "
        "similar, not why."
    )
