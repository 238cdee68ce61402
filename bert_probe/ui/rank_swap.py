"""The section of the Search page with the words that swap two documents."""

from __future__ import annotations

import streamlit as st

from bert_probe.analyses.retrieval.rank_swap import RankSwap, RankSwapResult, SwapSteps
from bert_probe.analyses.retrieval.search import IndexedDocuments
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.ui import blocks, jobs, state
from bert_probe.ui.export import export
from bert_probe.views.text import shorten


def show_swap(checkpoint: Checkpoint, index: IndexedDocuments, question: RankSwap, truncate: bool) -> None:
    """Draw a button that finds the words that swap two documents, and the result."""
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.subheader("Which words would change the order?", anchor=False)
        menu = st.container(width="content")
    result: RankSwapResult | None = jobs.answer(
        "rank swap",
        question.of,
        checkpoint,
        index,
        truncate,
        label="Find words that change the order",
        unit="texts",
        note="Words are removed from the first document, and words of the second one are added to the query. "
        "Each changed text is scored again.",
        activity="Scoring",
    )
    if result is None:
        return
    with menu:
        export(result, "search-swap", label="Export the steps", caption="Each step with its scores and text.")
    a, b = (f"document {state.escape(result.documents[position].id)}" for position in result.pair)
    for name, steps in result.changes.items():
        _show_steps(name, steps, a, b, result.question.max_words)
    blocks.caveat(
        "Each step takes the word that lowers the margin most. If a single word is enough, the search "
        "finds this "
        "word. A set of several words is not always the smallest."
    )


def _show_steps(name: str, steps: SwapSteps, a: str, b: str, limit: int) -> None:
    """Draw the outcome of removing or adding words, and the table of steps."""
    words = ", ".join(f"**{state.escape(shorten(word))}**" for word in steps.words)
    first, second = (f"{score:.4f}" for score in steps.verified)
    if name == "remove":
        success = f"Without {words}, {b} ranks above {a}: {second} against {first}."
        action = f"whose removal from {a} puts {b} above it"
    else:
        success = f"With {words} added to the query, {b} ranks above {a}: {second} against {first}."
        action = f"of {b} whose addition to the query puts it above {a}"
    counted = "one word" if limit == 1 else f"at most {limit} words"
    failure = f"No set of {counted} was found {action}."
    remark = ""
    if steps.is_smallest:
        remark = " This is the smallest set." if len(steps.words) == 1 else " No single word is enough."
    elif not steps.is_complete:
        remark = f" {steps.candidates:,} of {steps.count:,} words were tested."
    st.markdown((success if steps.is_swapped else failure) + remark)
    if not steps.words:
        return
    table = steps.frame().drop(columns="text")
    table["word"] = ["(unchanged)", *map(shorten, steps.words)]
    numbers = {"score_a": a, "score_b": b, "margin": "margin"}
    blocks.table(
        table.drop(columns="step"),
        "Scores after each removed word" if name == "remove" else "Scores after each added word",
        column_config={
            key: st.column_config.NumberColumn(label, format="%.4f") for key, label in numbers.items()
        },
    )
    with st.expander("The changed document" if name == "remove" else "The changed query"):
        st.text(steps.texts[-1])
