"""All pieces of a vocabulary to look through, and beside them the neighbours of one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import streamlit as st

from bert_probe.analyses.vocabulary.neighbors import Neighbors, NeighborsResult, named
from bert_probe.analyses.vocabulary.vocabulary import ALL, VocabularyResult
from bert_probe.errors import ProbeError, TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.runtime import shared_cache
from bert_probe.text.matching import MATCHES
from bert_probe.text.pieces import KINDS, WORD, VocabularyTokens
from bert_probe.ui import blocks, figures, state, workbench
from bert_probe.ui.export import export
from bert_probe.ui.vocabulary.figures import beside_random

_NEAR = "near"
_ROWS = 40_000
"""Of the table at once: a larger one takes seconds to send, at every click."""
_MATCHES = dict(zip(MATCHES, ("Contains", "Begins with", "Exactly", "Regular expression"), strict=True))
_MARKS = {
    "##": "A piece that goes on with a word has \\#\\# before it.",
    "Ġ": "Ġ stands for the space before a word; a piece without it goes on with a word, or begins a text.",
    "▁": "▁ stands for the space before a word; a piece without it goes on with a word. Text without spaces, "
    "such as Chinese, is made of these alone.",
}
"""What a reader should know of each way to write where words begin."""


def searched(whole: VocabularyResult) -> VocabularyResult:
    """Draw what narrows the vocabulary down; what is left comes back.

    Raises:
        SelectionError: an expression that cannot be read.
    """
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        with st.container(width=260):
            search = state.words("search", "Search", "Any part of a piece")
        with st.container(width=190):
            match = state.choose("match", "How", _MATCHES, MATCHES[0])
        with st.container(width=200):
            kinds = {ALL: "All kinds", **{kind: kind.capitalize() for kind in KINDS}}
            kind = state.choose("piece_kind", "Kind", kinds, ALL)
        with st.container(width=200):
            scripts = {"": "All scripts", **{name: _script(name) for name in whole.scripts}}
            script = state.choose("script", "Script", scripts, "")
        case = state.switch("case", "Match case", False, "Capitals differ from small letters.")
    return whole.showing(search=search, match=match, case=case, kind=kind, script=script or None)


def _script(name: str) -> str:
    return {"none": "No letters", "several": "Several", "other": "Other"}.get(name, name.replace("_", " "))


def table(found: VocabularyResult) -> None:
    """The pieces, of which one can be chosen.

    Raises:
        SelectionError: an expression that takes too long.
    """
    marks = found.pieces.marks
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        st.markdown(
            f"**{len(found.found):,}** of {len(found.pieces):,} pieces"
            + (f", {found.share:.1%}" if len(found.found) < len(found.pieces) else "")
        )
        export(found, "vocabulary", label="Export pieces")
    first = _first_row(found)
    ids = found.found[first : first + _ROWS]
    key = f"vocabulary_table {found.question!r} {first}"  # of other rows, no row is chosen
    st.dataframe(
        found.listed(ids),
        hide_index=True,
        width="stretch",
        height=560,
        key=key,
        on_select=partial(_choose, key, found.pieces, ids),
        selection_mode="single-row",
        column_config={
            "id": st.column_config.NumberColumn("id", format="%d", help="Its row in the table of words."),
            "token": st.column_config.TextColumn("token", help="As the vocabulary has it."),
            "text": st.column_config.TextColumn("text", help="As a person reads it."),
            "length": st.column_config.NumberColumn("length", help="Characters of the text."),
            "norm": st.column_config.NumberColumn("norm", format="%.4f", help="Length of its input vector."),
        },
        alt="All pieces that were found, with kind, script and norm",
    )
    blocks.caveat(f"{_MARKS.get(marks.continuing or marks.space, '')} Choose a row to see its neighbours.")


def _first_row(found: VocabularyResult) -> int:
    """The row that the table begins with, from 0; more rows than a browser likes are shown in parts."""
    count = len(found.found)
    if count <= _ROWS:
        return 0
    ends = {start: min(start + _ROWS, count) for start in range(0, count, _ROWS)}
    parts = {str(start): f"Rows {start + 1:,} to {end:,}" for start, end in ends.items()}
    return int(state.choose("vocabulary_row", "Rows", parts, "0"))


def _choose(key: str, pieces: VocabularyTokens, shown: Sequence[int]) -> None:
    """Take the piece of the row that was chosen in a table."""
    rows = st.session_state[key]["selection"]["rows"]
    if rows and rows[0] < len(shown):
        name = named(pieces, shown[rows[0]])
        st.session_state[_NEAR] = f"id:{name}" if isinstance(name, int) else name


def neighbours(checkpoint: Checkpoint, whole: VocabularyResult) -> None:
    """A piece, the length of its vector, and the pieces nearest to it."""
    usual = _usual(checkpoint, whole.pieces)
    near = state.words(_NEAR, "Neighbours of", usual) or usual
    try:
        found = shared_cache.answers.of(Neighbors(near).of, checkpoint, whole)
    except ProbeError as error:
        with st.container(border=True, key="no_neighbours"):
            st.text(str(error))
        return
    _about(found)
    key = f"neighbours_table {found.one}"
    st.dataframe(
        found.frame()[["token", "cosine", "kind", "norm"]],
        hide_index=True,
        width="stretch",
        height=300,
        key=key,
        on_select=partial(_choose, key, found.pieces, found.ids.tolist()),
        selection_mode="single-row",
        column_config={
            "cosine": st.column_config.ProgressColumn("cosine", format="%.4f", min_value=0, max_value=1),
            "norm": st.column_config.NumberColumn("norm", format="%.4f"),
        },
        alt="The nearest pieces by the cosine of their input vectors, nearest first",
    )
    st.markdown(
        f"Two pieces drawn at random have a cosine of **{found.mean:.2f}** on average, and one pair in "
        f"twenty reaches **{found.percentile(0.95):.2f}** or more. Judge a value by its distance from these."
    )
    st.plotly_chart(
        beside_random(found),
        width="stretch",
        config=figures.CONFIG,
        alt="Cosines of random pairs of pieces as a histogram, with the neighbours marked",
    )
    blocks.caveat(
        "Input vectors are rows of the table of words, before position, segment and LayerNorm, so a piece "
        f"has one whatever the text. {len(found.unrelated):,} pairs were drawn, always the same; dotted: "
        "the highest twentieth begins. Near vectors may share a spelling, a word class or how seldom they "
        "were trained, as well as a meaning."
    )
    export(found, "neighbours", label="Export neighbours")


def _about(found: NeighborsResult) -> None:
    pieces, one = found.pieces, found.one
    st.header(state.plain(found.name), anchor=False)
    st.markdown(
        f"id {one:,} · {pieces.kinds[one]} · {_script(pieces.scripts[one])}  \n"
        f"Its input vector has a length of **{found.norm:.4f}**: {found.norm_rank:.0%} of all pieces have a "
        f"shorter one."
    )


def _usual(checkpoint: Checkpoint, pieces: VocabularyTokens) -> str:
    """The longest word of the text that is a single piece; else the first word of the vocabulary."""
    try:
        ids = checkpoint.encode(workbench.request().a, truncate=True).ids
    except TextError:
        ids = []
    words = [one for one in ids if pieces.kinds[one] == WORD] or [
        one for one, kind in enumerate(pieces.kinds) if kind == WORD
    ]
    longest = max(words, key=lambda one: len(pieces.texts[one]), default=0)
    name = named(pieces, longest)
    return f"id:{name}" if isinstance(name, int) else name
