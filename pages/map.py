"""Map: where tokens lie at every layer, on one plane."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from bert_probe.analyses.vectors.token_map import CorpusTokenMap, TokenMap, TokenMapResult
from bert_probe.core import files
from bert_probe.core.inputs import SENTENCES_FILE
from bert_probe.errors import ProbeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.runtime import shared_cache
from bert_probe.server import callbacks, paths
from bert_probe.text.labeled_texts import LabeledTexts
from bert_probe.ui import blocks, jobs, map_texts, map_view, state, workbench
from bert_probe.ui.export import export
from bert_probe.views.layer_map import MEANING, MapSelection
from bert_probe.views.text import shown

LONGEST = 1_000
"""Characters of a text that are shown below the map."""

SOURCES = {"text": "Your text", "file": "A file"}
BASES = {"shared": "As they are", "centred": "Layers centred", "own": "A plane each"}


def options() -> tuple[str, dict[str, Any], DeltaGenerator]:
    """Where the texts are, what is asked about them, and a place beside that."""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        source = state.pick("map_from", "Where the texts are", SOURCES, "text")
        basis = state.pick("map_basis", "Layers", BASES, "shared")
        words = state.switch("map_words", "Words", False, "Merge pieces: a word is the mean of its vectors.")
        specials = state.switch(
            "map_specials", "Special tokens", False, "Lay out [CLS] and [SEP] too, often far from all others."
        )
        st.space("stretch")
        beside = st.container(width="content")
    return source, {"words": words, "specials": specials, "basis": basis}, beside


def of_text(asked: dict[str, Any]) -> TokenMapResult:
    """The map of the text of the workbench, or of both."""
    study = workbench.study()
    traces = [trace for trace in (study.a, study.b) if trace is not None]
    for trace in traces:
        blocks.truncation_notice(trace)
    return shared_cache.answers.of(TokenMap(**asked).of, *traces)


def of_file(
    asked: dict[str, Any], rows: tuple[str, ...] | LabeledTexts, checkpoint: Checkpoint, truncate: bool
) -> TokenMapResult | None:
    """The map of a file; None while there is none."""
    return jobs.answered(
        "layer map",
        CorpusTokenMap(**asked).of,
        checkpoint,
        rows,
        truncate,
        label="Map the texts",
        unit="texts",
        start=True,
    )


def take(text: tuple[str, str | None]) -> None:
    """Make a text of the file the one that all pages read."""
    first, second = text
    asked = replace(workbench.request(), a=first, b=second or "")
    workbench.ask(asked if second is None else replace(asked, relation="pair"))


def token(found: TokenMapResult, index: int, of_many: bool) -> None:
    """A token where it stands, and the ways from it to other pages."""
    mark = found.marks[index]
    text = found.texts[mark.text]
    part = f", {state.plain(found.part_names[mark.part])}" if found.part_names else ""
    where = f"text {mark.text + 1}{part}, position {mark.position}"
    st.markdown(f"**{state.plain(shown(mark.display))}** in {where}:")
    st.text(" ".join(filter(None, text))[:LONGEST])
    with st.container(horizontal=True):
        go = partial(st.button, on_click=take if of_many else None, args=(text,) if of_many else None)
        if go("Show the attention of this text"):
            with callbacks.to_the_end():
                st.switch_page(paths.page("attention"))
        if go("Show how alike its tokens are"):
            with callbacks.to_the_end():
                st.switch_page(paths.page("similarity"))


def rows(found: TokenMapResult, chosen: MapSelection, layer: int) -> None:
    """What is selected, or else everything, as numbers."""
    selected = chosen["selected"]
    what = "words" if found.question.words else "tokens"
    frame = found.some(selected or range(len(found.marks)), layer)
    st.dataframe(
        frame,
        hide_index=True,
        width="stretch",
        height=min(38 + 35 * len(frame), 320),
        column_config={name: st.column_config.NumberColumn(format="%.4f") for name in ("x", "y")},
        alt=f"Places of the {what} at layer {layer}",
    )
    if selected:
        st.caption(f"{len(selected):,} {what} selected, at layer {layer}.")
    else:
        st.caption(f"All {what} at layer {layer}. Draw a lasso, or press Enter in the search, to list some.")


def show(found: TokenMapResult, given: tuple[str, ...] | LabeledTexts | None, beside: DeltaGenerator) -> None:
    """The map, and what is below it; the menu of exports ``beside`` what is asked."""
    chosen, now = map_view.drawn(found)
    selected, of_many = chosen["selected"], given is not None
    more = []
    if of_many and not found.part_names:
        more.append((f"{SENTENCES_FILE}, which both below read", SENTENCES_FILE, partial(as_lines, found)))
    if selected:
        make = partial(as_csv, found, selected)
        more.append((f"The {len(selected):,} selected, CSV", "map-selected.csv", make))
    with beside:
        export(found, "map", more, data={"rows": given} if of_many else None)
    blocks.caveat(MEANING)
    if chosen["pinned"] is not None:
        token(found, chosen["pinned"], of_many)
    rows(found, chosen, now["layer"])


def as_lines(found: TokenMapResult, _csv_safe: bool) -> bytes:
    return "\n".join(text for text, _ in found.texts).encode()


def as_csv(found: TokenMapResult, selected: list[int], csv_safe: bool) -> bytes:
    return files.to_bytes(found.some(selected), "csv", csv_safe)


def main() -> None:
    """The page."""
    blocks.heading(
        "Map",
        "Every layer moves every token. Here all lie on one plane: go through the layers, or click a token "
        "for its way.",
    )
    checkpoint = workbench.checkpoint()
    source, asked, beside = options()
    try:
        given = map_texts.chosen() if source == "file" else None
        if source == "file" and given is None:
            st.info(
                "Choose a file: one text a line, or a table with a header, whose column label tells parts."
            )
            return
        truncate = workbench.request().truncate
        found = of_text(asked) if given is None else of_file(asked, given, checkpoint, truncate)
        if found is not None:
            show(found, given, beside)
    except ProbeError as error:
        blocks.refusal(error, "Change the file above." if source == "file" else "")


main()
