"""Kinds and scripts of a vocabulary, and how it cuts the reader's text up, beside another one's."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from bert_probe.analyses.comparison.fertility_change import FertilityChange
from bert_probe.analyses.vocabulary.fertility import Fertility, FertilityResult
from bert_probe.analyses.vocabulary.vocabulary import VocabularyResult
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from bert_probe.text.pieces import KINDS, visible
from bert_probe.ui import blocks, figures, state, workbench
from bert_probe.ui.changes import second
from bert_probe.ui.export import export
from bert_probe.ui.vectors import numbers
from bert_probe.ui.vocabulary.figures import counted_bars

_MOST_SCRIPTS = 16
"""Bars of scripts; the table has all."""


def kinds(whole: VocabularyResult) -> None:
    """How many pieces there are of each kind, and in each script."""
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.header("Kinds", anchor=False)
        export(whole.showing(show="kinds"), "vocabulary-kinds", label="Export kinds")
    counts = whole.counts(whole.pieces.kinds)
    left, right = st.columns([3, 2], gap="large")
    with left:
        st.plotly_chart(
            counted_bars(counts, len(whole.pieces)),
            width="stretch",
            config=figures.CONFIG,
            alt="Number of pieces of each kind",
        )
    with right:
        st.markdown("  \n".join(f"**{kind}**: {KINDS[kind]}" for kind in counts))
    numbers(whole.showing(show="kinds").frame(), "Kinds as a table")
    blocks.caveat(
        "Each piece is of one kind, told by how the vocabulary writes it (docs/methods.md, Vocabulary)."
    )
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.header("Scripts", anchor=False)
        export(whole.showing(show="scripts"), "vocabulary-scripts", label="Export scripts")
    scripts = whole.counts(whole.pieces.scripts)
    drawn = dict([*scripts.items()][:_MOST_SCRIPTS])
    st.plotly_chart(
        counted_bars({name.replace("_", " "): count for name, count in drawn.items()}, len(whole.pieces)),
        width="stretch",
        config=figures.CONFIG,
        alt="Number of pieces in each script",
    )
    numbers(whole.showing(show="scripts").frame(), "Scripts as a table")
    blocks.caveat(
        "The script of a piece's letters, by Unicode. None: special tokens, digits, signs and parts of "
        "characters. Pieces of a script are shared by all languages written in it."
        + (f" The {_MOST_SCRIPTS} commonest of {len(scripts)}." if len(scripts) > _MOST_SCRIPTS else "")
    )


def of_text(checkpoint: Checkpoint) -> None:
    """How the text is cut up, also by a second model."""
    now = workbench.request()
    texts = workbench.traced(checkpoint, now.texts, now.truncate)
    study = workbench.TracedRequest(now, checkpoint, texts[0], texts[1] if len(texts) > 1 else None)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        trace = workbench.chosen_text(study)
        named = second.field(exchange_too=False)
    blocks.truncation_notice(trace)
    found = Fertility().of(trace)
    if named is not None:
        b = second.opened(named)
        if b is not None:
            _both(trace, b)
        return
    _metrics(found, "")
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.header("Every word", anchor=False)
        export(found, "fragmentation")
    st.dataframe(
        pd.DataFrame(
            {
                "word": [visible(word.text) for word in found.by_pieces],
                "pieces": [len(word.pieces) for word in found.by_pieces],
                "cut into": [[visible(str(piece)) for piece in word.pieces] for word in found.by_pieces],
            }
        ),
        hide_index=True,
        width="stretch",
        column_config={"cut into": st.column_config.ListColumn("cut into", width="large")},
        alt="Words of the text and their pieces, those of the most pieces first",
    )
    _what_a_word_is()


def _both(trace: Trace, b: Checkpoint) -> None:
    now = workbench.request()
    other = workbench.traced(b, [(trace.encoding.text, trace.encoding.pair)], now.truncate)[0]
    both = FertilityChange().of(trace, other)
    left, right = st.columns(2, gap="large")
    for column, letter, found, model in ((left, "A", both.a, trace.checkpoint), (right, "B", both.b, b)):
        with column:
            st.markdown(f"**{letter} · {state.plain(model.description.name)}**")
            _metrics(found, letter)
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.header("Every word in both", anchor=False)
        export(both, "diff-fragmentation")
    pairs = both.by_pieces
    st.dataframe(
        pd.DataFrame(
            {
                "word": [visible(one.text) for one, _ in pairs],
                "pieces A": [len(one.pieces) for one, _ in pairs],
                "pieces B": [len(two.pieces) for _, two in pairs],
                "A cuts into": [[visible(str(piece)) for piece in one.pieces] for one, _ in pairs],
                "B cuts into": [[visible(str(piece)) for piece in two.pieces] for _, two in pairs],
            }
        ),
        hide_index=True,
        width="stretch",
        column_config={
            name: st.column_config.ListColumn(name, width="medium") for name in ("A cuts into", "B cuts into")
        },
        alt="Words of the text and their pieces in both vocabularies",
    )
    _what_a_word_is()


def _metrics(found: FertilityResult, letter: str) -> None:
    with st.container(horizontal=True, gap="large", key=f"fragmentation_{letter}"):
        st.metric(
            "Pieces a word",
            f"{found.fertility:.2f}",
            help=f"{found.pieces:,} pieces, special tokens left out, for {len(found.words):,} words.",
        )
        st.metric("Words cut", f"{found.continued:.0%}", help="Words of two pieces or more.")
        st.metric("Characters a piece", f"{found.characters:.1f}", help="Spaces not counted.")
        st.metric(
            "Unknown", f"{found.unknown:,}", help="Pieces that stand for what the vocabulary does not hold."
        )


def _what_a_word_is() -> None:
    blocks.caveat(
        "A word is a run of letters and digits here, or a single sign, so that vocabularies can be compared; "
        "writing without spaces makes long words. Pieces a word (fertility) and the share of words cut are "
        "those of Rust et al. 2021. More pieces mean longer inputs, and pieces that say less by themselves."
    )
