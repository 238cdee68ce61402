"""Select box, heatmap and table of head measures, and the "Many sentences" section of the Heads page."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from bert_probe.analyses.attention.head_means import HeadMeans, HeadMeansResult
from bert_probe.analyses.vectors.similarity import baseline_sentences
from bert_probe.core.inputs import SENTENCES_FILE
from bert_probe.errors import ProbeError, TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.server import callbacks, paths
from bert_probe.text.sentence_files import sentences_in_text
from bert_probe.ui import blocks, jobs, selection_state, sentence_input, state
from bert_probe.ui.components import heatmap
from bert_probe.ui.export import export
from bert_probe.ui.workbench import Request
from bert_probe.views.heatmaps import head_grid
from bert_probe.views.matrix import Heatmap
from bert_probe.views.measures import LABELLING, MEASURES, HeadMeasure
from bert_probe.views.palette import Scale

ATTENTION = paths.page_script("attention")
PIN_HINT = "Pin a cell to select its head."
WORDS_HELP = "Merge subword tokens into words before measuring."


def choose_measure() -> tuple[str, HeadMeasure]:
    """Draw a select box for the measure; return its name and description."""
    with st.container(width=340):
        name = state.selectbox(
            "measure",
            "Measure",
            {name: f"{measure.group}: {measure.name}" for name, measure in MEASURES.items()},
            "previous",
        )
    return name, MEASURES[name]


def head_heatmap(data: Heatmap, key: str) -> tuple[int, int] | None:
    """Draw a heatmap by layer and head; return the layer and head of the pinned cell, from 1, or None."""
    cell = heatmap(data, key=key)
    return None if cell is None else (cell.row + 1, cell.column + 1)


def head_table(table: pd.DataFrame, numbers: dict[str, str], alt: str, height: int = 430) -> None:
    """Draw a sortable table of heads.

    Args:
        table: the table, with one row per head.
        numbers: headings of the columns that are formatted with four decimals, by column.
        alt: description of the table for screen readers.
        height: maximum height in pixels.
    """
    config: dict[str, Any] = {
        column: st.column_config.NumberColumn(heading, format="%.4f") for column, heading in numbers.items()
    }
    config |= {
        "label": st.column_config.TextColumn(width=130),
        "rank_in_row": st.column_config.NumberColumn("rank in row"),
    }
    blocks.table(table, alt, max_height=height, column_config=config)


def open_in_attention(layer: int, head: int, label: str | None = None, scope: str = "") -> None:
    """Draw the label of a head, and a button that shows the head on the Attention page.

    Args:
        layer, head: numbers of the layer and head, from 1.
        label: one-word label of the head; "" if it has none, None to draw only the button.
        scope: text in front of the label, such as "On the whole text,"; "" for none.
    """
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        if label is not None:
            name = f"{scope} layer {layer}, head {head}" if scope else f"Layer {layer}, head {head}"
            st.markdown(f"{name}: **{label or 'no label'}**", width="content")
        if st.button(
            "Show the head's attention" if label is not None else f"Show layer {layer}, head {head}"
        ):
            with callbacks.uninterrupted():
                selection_state.show_head(layer, (head - 1,))
                st.switch_page(ATTENTION)


MAX_SENTENCES = 10_000
"""Maximum number of sentences, because the measures of all sentences are stored in memory."""

SOURCES = {"sample": "Reference sentences", "paste": "Paste", "file": "Upload a file"}


def many_texts_part(request: Request, checkpoint: Checkpoint) -> None:
    """Draw the "Many sentences" section of the Heads page."""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        source = state.segmented_control("sentences_source", "Sentences", SOURCES, "sample")
        words = state.toggle("words", "Whole words", False, WORDS_HELP)
    try:
        sentences = choose_sentences(source)
        if not sentences:
            return
        sentence_input.check_count(sentences, MAX_SENTENCES)
        means = jobs.answer(
            "many sentences",
            HeadMeans(words).of,
            checkpoint,
            sentences,
            request.truncate,
            label=f"Profile {len(sentences):,} {'sentence' if len(sentences) == 1 else 'sentences'}",
            unit="sentences",
            note="This analysis runs one forward pass per sentence, in batches. You can cancel at any time.",
        )
    except ProbeError as error:
        error_box(error)
        return
    if means is not None:
        _result(means, sentences)


def choose_sentences(source: str) -> tuple[str, ...]:
    """Draw the input for a source of sentences and return its sentences, or () if there are none yet."""
    if source == "sample":
        blocks.caveat("40 short English sentences on unrelated topics, included in the package.")
        with st.expander("Show sentences"):
            st.text("\n".join(baseline_sentences()))
        return baseline_sentences()
    if source == "paste":
        placeholder = "The first sentence\nThe second sentence"
        return sentences_in_text(
            sentence_input.paste_text("many_pasted", "Sentences (one per line), or FASTA", placeholder),
            MAX_SENTENCES + 1,
        )
    sentences = sentence_input.upload_sentences(
        "many", "A UTF-8 text file with one sentence per line, or a FASTA file", MAX_SENTENCES
    )
    if not sentences:
        blocks.caveat(f"Empty lines are skipped. At most {MAX_SENTENCES:,} sentences.")
    return sentences


def error_box(error: ProbeError) -> None:
    """Draw an error about the input sentences."""
    with st.container(border=True, key="refusal"):
        is_unreadable = isinstance(error, TextError)
        title = "These sentences cannot be read" if is_unreadable else "This result cannot be shown"
        st.header(title, anchor=False)
        st.text(str(error))
        st.caption("Empty lines are skipped. The lines that you entered are kept.")


def _result(means: HeadMeansResult, sentences: tuple[str, ...]) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        measure, description = choose_measure()
        st.space("stretch")
        lines = ("The sentences", SENTENCES_FILE, lambda _: "\n".join(sentences).encode())
        export(means, "heads-many", [lines], data={"sentences": sentences})
    st.markdown(f":gray[{state.escape(description.meaning)}]")
    if means.tokens_dropped:
        st.warning(f"Long sentences were truncated. Tokens removed in total: {means.tokens_dropped:,}.")
    with st.container(key="judged"):
        picture, numbers = st.columns([1, 1], gap="large")
    with picture:
        values = means.mean[measure]
        title = f"{description.title}: mean over {means.sentences:,} sentences"
        heatmap = head_grid(values, description.name, title, Scale.from_zero(values), "profile_means")
        head = head_heatmap(heatmap, "profile_means")
        if head is None:
            blocks.caveat(PIN_HINT)
        else:
            open_in_attention(*head, means.labels[head[0] - 1][head[1] - 1])
    with numbers:
        columns = [measure, f"{measure}_low", f"{measure}_high"]
        head_table(
            means.table()[["layer", "head", *columns, "label"]].sort_values(measure, ascending=False),
            dict(zip(columns, ("mean", "low", "high"), strict=True)),
            f"Heads by mean {description.name}",
        )
    question = means.question
    blocks.caveat(
        f"Means over {means.sentences:,} sentences with equal weight. The columns low and high are the "
        f"bounds of the {question.confidence:.0%} confidence interval from {question.resamples:,} "
        "bootstrap samples of the sentences (percentile bootstrap, Efron and Tibshirani 1993). The "
        "interval shows how much the mean depends on the choice of sentences, not how the mean changes "
        f"for other types of text. {LABELLING}"
    )
