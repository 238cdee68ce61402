"""Compare: two sentences that differ in a word or more, and what that changes in the part they share."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import streamlit as st

from bert_probe.analyses.comparison.minimal_pair import (
    MinimalPair,
    MinimalPairResult,
    MinimalPairRow,
    MinimalPairRowResult,
)
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Trace
from bert_probe.runtime import shared_cache
from bert_probe.text.alignment import Alignment
from bert_probe.ui import blocks, patching, state, workbench
from bert_probe.ui.components.matrix import heatmap
from bert_probe.ui.components.strip import strip
from bert_probe.ui.examples import EXAMPLES
from bert_probe.ui.export import export, zipped
from bert_probe.views.heatmaps import of_changes, of_moved, of_row_pair
from bert_probe.views.measures import CHANGES
from bert_probe.views.strip import Mark, StripToken
from bert_probe.views.text import shown
from bert_probe.views.view import digest


def no_second_sentence() -> None:
    """What to do when there is nothing to compare with."""
    with st.container(border=True, key="no_second"):
        st.header("A second sentence is needed", anchor=False)
        st.markdown(
            "Write it as sentence B, under your text: the same as A, but for a word or two. Then press Run. "
            "Or begin with a pair in which one word decides what “it” is."
        )
        example = EXAMPLES[0]
        asked = replace(workbench.request(), a=example.a, b=example.b, relation=example.relation)
        st.button("Open the example", type="primary", on_click=workbench.ask, args=(asked,))


def read_together() -> None:
    """What to do when B is a segment of A's input."""
    with st.container(border=True, key="read_together"):
        st.header("The two sentences are read together", anchor=False)
        st.markdown(
            "Sentence B is the second segment of A's input, so each is part of the other's surroundings. "
            "To compare them, each has to be read by itself: choose “Separate text” under sentence B."
        )
        asked = replace(workbench.request(), relation="compare")
        st.button("Read them separately", type="primary", on_click=workbench.ask, args=(asked,))


def pieces(side: Alignment, segment: int, chosen: int | None = None) -> list[StripToken]:
    """One of the two texts as pills, with what has no counterpart in the other marked."""
    there, other = dict(side.pairs), "BA"[segment]
    made = []
    for index, unit in enumerate(side.units_a):
        before = side.units_a[index - 1] if index else None
        joined = isinstance(unit, Token) and isinstance(before, Token) and unit.continues(before)
        mark: Mark = "changed"
        place = f"not in {other}"
        if index in there:
            mark = "partner" if index == chosen else ""
            place = f"in {other} at {side.units_b[there[index]].position}"
        detail = f"position {unit.position} · {place}"
        made.append(
            StripToken(shown(unit.display), unit.position, segment, unit.special, joined, detail, mark)
        )
    return made


def only_here(side: Alignment) -> str:
    """The first of the units without a counterpart, by name."""
    names = [state.plain(shown(side.units_a[index].display)) for index in side.changed_a]
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "") or "none"


def choose(pair: MinimalPairResult, text: str) -> int:
    """Draw both texts; return the place of the word that is chosen in A, at first the one that moved most.

    Args:
        text: names the two texts; a choice stays where their tokens are merged into words.
    """
    side, kind = pair.alignment, "words" if pair.question.words else "tokens"
    positions = [unit.position for unit in side.units_a]
    st.markdown(f"**Sentence A** · click one of the {kind}")
    position = strip(
        pieces(side, 0),
        key="compare_a",
        label="Sentence A",
        selectable="one",
        selected=positions[side.pairs[pair.most_moved][0]],
        text=text,
    )
    chosen = side.pairs[pair.most_moved][0] if position is None else positions.index(position)
    place = side.places_a.index(chosen) if chosen in side.places_a else pair.most_moved
    st.markdown("**Sentence B**")
    strip(pieces(side.mirrored, 1, side.pairs[place][1]), key="compare_b", label="Sentence B")
    blocks.caveat(
        f"Only in A: {only_here(side)}. Only in B: {only_here(side.mirrored)}. All other {kind} are aligned "
        "and compared."
    )
    if chosen in side.changed_a:
        name = state.plain(shown(side.units_a[chosen].display))
        st.markdown(
            f"“{name}” has no counterpart in sentence B to be compared "
            "with. What follows is about the one that moved most."
        )
    return place


def said(pair: MinimalPairResult, place: int) -> None:
    """The finding, and a way to the head that it names."""
    with st.container(key="finding"):
        st.markdown(state.plain(pair.finding(place), 1000))
    if pair.same_input:
        return
    layer, head = pair.strongest_shift(place)
    st.button(f"Show head {layer + 1}.{head + 1} below", on_click=show, args=(layer + 1, head + 1))


def show(layer: int, head: int) -> None:
    """Choose a head, from 1, for the rows."""
    st.session_state["layer"], st.session_state["head"] = layer, head


def heads(pair: MinimalPairResult) -> None:
    """How much every head changed, as a picture that chooses a head, and ranked."""
    measure = pair.question.by
    with st.container(key="judged_heads"):
        left, right = st.columns([1, 1], gap="large")
    with left:
        cell = heatmap(of_changes(pair), key="compare_heads")
        # A new click is a choice; an old one is not to undo what was chosen elsewhere since.
        if cell is not None and cell != st.session_state.get("compare_clicked"):
            show(cell.row + 1, cell.column + 1)
        st.session_state["compare_clicked"] = cell
    with right:
        st.dataframe(
            pair.frame(),
            hide_index=True,
            width="stretch",
            height=380,
            column_config={
                name: st.column_config.NumberColumn(one.name, format="%.4f") for name, one in CHANGES.items()
            },
            alt=f"Heads by {CHANGES[measure].name.lower()}, most changed first",
        )
    blocks.caveat(
        f"{CHANGES[measure].meaning} Special tokens count like all others; what falls on tokens without a "
        "counterpart is one entry, the rest. A head that changed much need not matter for the output: "
        "attention is not an explanation by itself (Jain and Wallace 2019)."
    )


def rows(row: MinimalPairRowResult) -> None:
    """Where the chosen word looks in A and in B, and the difference."""
    both, difference = of_row_pair(row)
    heatmap(both, key="compare_rows")
    heatmap(difference, key="compare_difference")
    blocks.caveat(
        "Keys are those of both sentences; “rest” is all attention on keys without a counterpart. Each row "
        "sums to 1, each difference to 0. This is where a head reads from, not what the model makes of it."
    )
    with st.expander("The same as a table"):
        st.dataframe(
            row.frame(),
            hide_index=True,
            width="stretch",
            column_config={
                name: st.column_config.NumberColumn(format="%.4f") for name in ("a", "b", "difference")
            },
            alt="Attention of the chosen word in both sentences",
        )


def moved(pair: MinimalPairResult) -> None:
    """How far each aligned token's vector moved, layer by layer."""
    units, layers = pair.alignment.aligned, [str(layer) for layer in range(len(pair.moved))]
    with st.container(key="judged_vectors"):
        left, right = st.columns([1, 1], gap="large")
    with left:
        heatmap(of_moved(pair), key="compare_moved")
    with right:
        frame = pair.showing(show="moved").frame().set_axis(blocks.named(units), axis=0)
        st.dataframe(
            frame,
            width="stretch",
            height=min(38 + 35 * len(frame), 640),
            column_config={layer: st.column_config.NumberColumn(format="%.4f") for layer in layers},
            alt="1 − cosine of each aligned vector, a column for each layer",
        )
    blocks.caveat(
        "0: the same direction in both sentences. Layer 0 is the output of the embeddings, before any "
        "attention: what moved there has another position, or other pieces. "
        + ("A word's vector is the mean of its pieces' vectors. " if pair.question.words else "")
        + "Vectors of different layers do not spread alike, so compare tokens within a layer rather than "
        "layers with each other (Ethayarajh 2019)."
    )


def more(pair: MinimalPairResult, row: MinimalPairRowResult) -> list[tuple[str, str, Any]]:
    """The two other tables as files."""
    moved = pair.showing(show="moved")
    return [
        ("Moved vectors, CSV + provenance", "moved.zip", partial(zipped, moved, "moved")),
        ("Rows of the word, CSV + provenance", "rows.zip", partial(zipped, row, "rows")),
    ]


def compared(pair: MinimalPairResult, a: Trace, b: Trace, corner: Any) -> None:
    """All of the comparison; its files go into the corner."""
    place = choose(pair, f"{digest(a.tokens)} {digest(b.tokens)}")
    said(pair, place)
    st.header("Which heads changed?", anchor=False)
    heads(pair)
    st.header("Where does the chosen word look?", anchor=False)
    left, right = st.columns([1, 3], gap="medium")
    with left:
        layer = state.layer("layer", 1, a.layers, "The last layer is nearest to the output.")
    with right:
        head = state.head("head", a.heads)
    token = pair.alignment.aligned[place].position
    asked = MinimalPairRow(token, layer - 1, "mean" if head == "mean" else int(head) - 1, pair.question.words)
    row = asked.of(a, b)
    rows(row)
    st.header("Which vectors moved?", anchor=False)
    moved(pair)
    if not pair.same_input:
        patching.part(a, b)
    with corner:
        export(pair, "compare", more(pair, row))


def main() -> None:
    """The page."""
    blocks.heading(
        "Compare",
        "Two sentences that differ in a word or two: what does that change in the part they share? Words are "
        "aligned, then heads and vectors of the aligned ones are compared.",
    )
    study = workbench.study()
    if study.a.encoding.pair is not None:
        read_together()
        return
    if study.b is None:
        no_second_sentence()
        return
    for trace in (study.a, study.b):
        blocks.truncation_notice(trace)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        measure = state.pick(
            "change", "Measure", {name: one.name for name, one in CHANGES.items()}, "total_variation"
        )
        words = state.switch(
            "words",
            "Whole words",
            False,
            "Merges the pieces of a word: attention summed over a key's pieces, averaged over a query's; "
            "vectors by their mean.",
        )
        st.space("stretch")
        corner = st.container(width="content")
    pair = shared_cache.answers.of(MinimalPair(words).of, study.a, study.b)
    compared(pair.showing(by=measure), study.a, study.b, corner)


main()
