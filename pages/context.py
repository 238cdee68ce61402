"""Context: a word in several sentences, and how alike its vectors are at every layer."""

from __future__ import annotations

from functools import partial

import streamlit as st

from bert_probe.analyses.vectors.similarity_baseline import SimilarityBaseline, SimilarityBaselineResult
from bert_probe.analyses.vectors.word_in_context import WordInContext, WordInContextResult
from bert_probe.errors import ProbeError, TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from bert_probe.runtime import shared_cache
from bert_probe.text.words import Unit, word_lens, word_name
from bert_probe.ui import blocks, context_list, curves, figures, state, url_texts, workbench
from bert_probe.ui.components.matrix import heatmap
from bert_probe.ui.components.strip import strip
from bert_probe.ui.export import export, written
from bert_probe.views.heatmaps import of_context
from bert_probe.views.strip import StripToken
from bert_probe.views.text import shown

SCALES = {"raw": "Cosine", "corrected": "Corrected"}
MOST_CURVES = 28
FOUR_PLACES = st.column_config.NumberColumn(format="%.4f")


def read(checkpoint: Checkpoint, line: context_list.ContextRow) -> Trace | None:
    """The trace of a sentence; where it cannot be read, why, in its place."""
    try:
        return shared_cache.traces(checkpoint, [(line.text, None)], workbench.request().truncate)[0]
    except ProbeError as error:
        st.text(f"{line.text[:200]}\n{error}")
        return None


def choose_word(trace: Trace, line: context_list.ContextRow, number: int) -> Unit | None:
    """The word of a sentence, by clicking."""
    units = word_lens(trace).units
    now = context_list.chosen_unit(trace, line)
    if line.word and now is None:
        st.caption(f":orange[There is no word {state.plain(line.word)} here.]")
    pieces = [
        StripToken(shown(unit.display), i, 0, unit.special, False, detail(trace, unit))
        for i, unit in enumerate(units)
    ]
    selected = None if now is None else [unit.positions for unit in units].index(now.positions)
    chosen = strip(
        pieces, key=line.key, label=f"Word of sentence {number}", selectable="one", selected=selected
    )
    if chosen is None:
        return None
    context_list.choose(line, context_list.name_of(trace, chosen))
    return units[chosen]


def detail(trace: Trace, unit: Unit) -> str:
    if len(unit.positions) == 1:
        return "special token" if unit.special else ""
    pieces = " ".join(trace.tokens[position].display for position in unit.positions)
    return f"{len(unit.positions)} pieces: {pieces}; the mean of their vectors stands for the word"


def sentences(checkpoint: Checkpoint) -> list[tuple[Trace, Unit]]:
    """The sentences with their words to click on; those in which one is chosen."""
    found: list[tuple[Trace, Unit]] = []
    for place, line in enumerate(context_list.held(), start=1):
        number, words, remove = st.columns([1, 24, 3], vertical_alignment="center")
        with words:
            trace = read(checkpoint, line)
            unit = None if trace is None else choose_word(trace, line, place)
            if trace is not None:
                blocks.truncation_notice(trace)
        if trace is not None and unit is not None:
            found.append((trace, unit))
        number.markdown(f"**{len(found)}**" if unit is not None else "–")
        remove.button(
            "Remove",
            key=f"remove {line.key}",
            type="tertiary",
            help=f"Take sentence {place} away",
            on_click=context_list.remove,
            args=(line.key,),
        )
    return found


def more() -> None:
    """Where sentences are added. No form: that would lose what is typed when another page is opened."""
    st.text_area(
        "Add sentences, one a line",
        key=context_list.draft_key(),
        height=80,
        placeholder="Type a sentence, or paste several lines",
        persist_state="session",
    )
    with st.container(horizontal=True):
        st.button("Add", type="primary", on_click=context_list.add)
        st.button("Example", on_click=context_list.example)
        st.button("Clear all", on_click=context_list.clear)
    if len(context_list.held()) == context_list.MOST:
        st.caption(f"{context_list.MOST} sentences, as many as fit here. For more use Python.")


def chosen_pairs(found: WordInContextResult) -> list[int]:
    """Which pairs to draw: all, unless they are too many, or those with one occurrence."""
    options = [str(number) for number in range(1, len(found.units) + 1)]
    if len(found.pairs) <= MOST_CURVES:
        options.insert(0, "all")
    elif st.session_state.get("context_pairs") == "all":
        del st.session_state["context_pairs"]
    state.prepare("context_pairs", options, options[0])
    chosen = st.selectbox(
        "Curves",
        options,
        key="context_pairs",
        format_func=lambda option: "All pairs" if option == "all" else f"Pairs with {option}",
        persist_state="session",
    )
    return [i for i, pair in enumerate(found.pairs) if chosen == "all" or int(chosen) - 1 in pair]


def results(found: WordInContextResult) -> None:
    """Curves, matrix and table."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        with st.container(width=200):
            layer = state.layer(
                "vector_layer",
                0,
                found.layers,
                "0 is the output of the embeddings, before any attention. The matrix shows this layer.",
            )
        scale = state.pick("context_scale", "Scale", SCALES, "raw")
        with st.container(width=150):
            pairs = chosen_pairs(found)
        st.space("stretch")
        others = {"context-matrix": found.showing(layer=layer), "baseline": found.baseline}
        labels = ("Matrix, CSV", "Baseline, CSV")
        more_files = [
            (label, f"{name}.csv", partial(written, result, "csv"))
            for label, (name, result) in zip(labels, others.items(), strict=True)
        ]
        export(found, "context", more_files)
    st.plotly_chart(
        curves.context_curves(found, layer, pairs, scale == "corrected"),
        width="stretch",
        config=figures.CONFIG,
        alt="Cosine of each pair of words at every layer, over what unrelated and same words reach",
    )
    blocks.caveat(meaning(found.baseline))
    with st.container(key="judged"):
        left, right = st.columns([2, 3], gap="large")
    with left:
        heatmap(of_context(found, layer), key="context_matrix")
    with right:
        st.markdown("**All pairs at every layer**")
        frame = found.frame()
        st.dataframe(
            frame,
            hide_index=True,
            width="stretch",
            height=380,
            column_config=dict.fromkeys(frame.columns[3:], FOUR_PLACES),
            alt="Cosine of each pair of words at every layer, beside the baseline",
        )


def meaning(baseline: SimilarityBaselineResult) -> str:
    """What the bands are, and what a cosine does not say."""
    same = baseline.same_word
    of_same = (
        f", and {same.pairs:,} pairs of a word in two of them, mostly of words like “the”" if same else ""
    )
    return (
        f"Bands: {baseline.unrelated.pairs:,} pairs of different tokens of {baseline.sentences} unrelated "
        f"English sentences shipped with the package{of_same}. “Corrected” takes away, at each layer, what "
        "unrelated tokens reach on average (Ethayarajh 2019). A high cosine says that two vectors are alike, "
        "not why."
    )


def main() -> None:
    """The page."""
    blocks.heading(
        "Context",
        "The same word has another vector in another sentence. Click a word in each sentence, and see from "
        "which layer on they part, or meet.",
    )
    checkpoint = workbench.checkpoint()
    chosen = sentences(checkpoint)
    more()
    if len(chosen) < 2:
        try:
            url_texts.check(*([] if context_list.held() else ["context"]))
        except TextError as error:
            blocks.refusal(error, "Add the sentences again above, or choose the example.")
            return
        st.info("Two words are compared, or more: click one in at least two sentences.")
        return
    baseline = shared_cache.answers.of(SimilarityBaseline().of, checkpoint)
    asked = WordInContext([word_name(trace, unit) for trace, unit in chosen])
    found = shared_cache.answers.of(asked.of, [trace for trace, _ in chosen], baseline=baseline)
    results(found)


main()
