"""Vocabulary: the pieces that the model knows, their neighbours, and how they cut a text up."""

from __future__ import annotations

import streamlit as st

from bert_probe.analyses.vocabulary.vocabulary import Vocabulary, VocabularyResult
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.runtime import shared_cache
from bert_probe.ui import blocks, state, workbench
from bert_probe.ui.vocabulary import browse, parts

PARTS = {"pieces": "Pieces", "kinds": "Kinds and scripts", "text": "Your text"}


def pieces(checkpoint: Checkpoint, whole: VocabularyResult) -> None:
    """All pieces, and the neighbours of one."""
    with st.container(key="vocabulary_browser"):
        left, right = st.columns([3, 2], gap="large")
    with left:
        try:
            found = browse.searched(whole)
            browse.table(found)
        except SelectionError as error:
            with st.container(border=True, key="refusal"):
                st.text(str(error))
    with right:
        browse.neighbours(checkpoint, whole)


def main() -> None:
    """The page."""
    blocks.heading(
        "Vocabulary",
        "A model knows a fixed list of pieces, and every text is made of these. Each has a vector of its "
        "own, with which everything begins.",
    )
    checkpoint = workbench.checkpoint()
    with st.spinner("Reading the vocabulary …", show_time=False):
        whole = shared_cache.answers.of(Vocabulary().of, checkpoint)
    with st.container(horizontal=True, gap="large"):
        st.metric("Pieces", f"{len(whole.pieces):,}", help="Rows of the model's table of words.")
        st.metric("Dimensions", f"{whole.dimensions:,}", help="Numbers of each piece's input vector.")
        st.metric("Written as", whole.pieces.marks.name, help="How pieces tell where words begin.")
    part = state.pick("vocabulary_part", "Part", PARTS, "pieces")
    if part == "pieces":
        pieces(checkpoint, whole)
    elif part == "kinds":
        parts.kinds(whole)
    else:
        parts.of_text(checkpoint)


main()
