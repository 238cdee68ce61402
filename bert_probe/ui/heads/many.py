"""Many sentences: the profiles' means over a text file, and how far they can be relied on."""

from __future__ import annotations

import streamlit as st

from bert_probe.analyses.attention.head_means import HeadMeans, HeadMeansResult
from bert_probe.analyses.vectors.similarity_baseline import baseline_sentences
from bert_probe.core.inputs import SENTENCES_FILE
from bert_probe.errors import ProbeError, TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.sentence_files import lines
from bert_probe.ui import blocks, jobs, sentence_input, state
from bert_probe.ui.export import export
from bert_probe.ui.heads import shared
from bert_probe.ui.workbench import Request
from bert_probe.views.heatmaps import by_head
from bert_probe.views.measures import LABELLING
from bert_probe.views.scale import Scale

MOST = 10_000
"""Sentences that this page takes; their measures are all held until the last is known."""

SOURCES = {"sample": "Example sentences", "paste": "Paste", "file": "Upload a file"}


def part(request: Request, checkpoint: Checkpoint) -> None:
    """Draw it."""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        source = state.pick("sentences", "Sentences", SOURCES, "sample")
        words = state.switch("words", "Whole words", False, "Merge pieces into words before measuring.")
    try:
        sentences = sentences_of_source(source)
        if not sentences:
            return
        sentence_input.check_number(sentences, MOST)
        means = jobs.answered(
            "many sentences",
            HeadMeans(words).of,
            checkpoint,
            sentences,
            request.truncate,
            label=f"Profile {len(sentences):,} {'sentence' if len(sentences) == 1 else 'sentences'}",
            unit="sentences",
            note="One run of the model for each, batched. You can cancel at any time.",
        )
    except ProbeError as error:
        refusal(error)
        return
    if means is not None:
        _result(means, sentences)


def sentences_of_source(source: str) -> tuple[str, ...]:
    """The sentences of a choice among `SOURCES`; empty while there are none."""
    if source == "sample":
        blocks.caveat("40 short English sentences on unrelated subjects, shipped with the package.")
        with st.expander("Read them"):
            st.text("\n".join(baseline_sentences()))
        return baseline_sentences()
    if source == "paste":
        example = "The first sentence\nThe second sentence"
        return tuple(lines(sentence_input.pasted("many_pasted", "Sentences, one a line", example)))
    found = sentence_input.uploaded("many", "A text file in UTF-8, one sentence a line")
    if not found:
        blocks.caveat(f"Blank lines do not count. At most {MOST:,} sentences.")
    return found


def refusal(error: ProbeError) -> None:
    """Why these sentences give nothing."""
    with st.container(border=True, key="refusal"):
        unread = isinstance(error, TextError)
        st.header("These sentences cannot be read" if unread else "This cannot be shown", anchor=False)
        st.text(str(error))
        st.caption("Blank lines do not count. What you gave is still there.")


def _result(means: HeadMeansResult, sentences: tuple[str, ...]) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        measure, about = shared.choose_measure()
        st.space("stretch")
        lines = ("The sentences", SENTENCES_FILE, lambda _: _as_lines(sentences))
        export(means, "heads-many", [lines], data={"sentences": sentences})
    st.markdown(f":gray[{state.plain(about.meaning)}]")
    if means.tokens_dropped:
        st.warning(f"{means.tokens_dropped:,} tokens of sentences that are too long were cut off.")
    with st.container(key="judged"):
        picture, numbers = st.columns([1, 1], gap="large")
    with picture:
        values = means.mean[measure]
        title = f"{about.title}: mean over {means.sentences:,} sentences"
        drawn = by_head(values, about.name, title, Scale.from_zero(values), "profile_means")
        chosen = shared.head_heatmap(drawn, "profile_means")
        if chosen is None:
            blocks.caveat("Click a cell, or press Enter on it, to choose a head.")
        else:
            shared.open_in_attention(*chosen, means.labels[chosen[0] - 1][chosen[1] - 1])
    with numbers:
        columns = [measure, f"{measure}_low", f"{measure}_high"]
        shared.head_table(
            means.table()[["layer", "head", *columns, "label"]].sort_values(measure, ascending=False),
            dict(zip(columns, ("mean", "low", "high"), strict=True)),
            f"Heads by mean {about.name}",
        )
    asked = means.question
    blocks.caveat(
        f"Means over {means.sentences:,} sentences, each counting the same. Low and high enclose "
        f"{asked.confidence:.0%} of {asked.resamples:,} means over sentences drawn again from these "
        "(percentile bootstrap, Efron and Tibshirani 1993): how far the mean depends on which sentences were "
        f"taken, not what another kind of text would give. {LABELLING}"
    )


def _as_lines(sentences: tuple[str, ...]) -> bytes:
    return "\n".join(sentences).encode()
