"""Heads against a treebank: which of them find a relation, and such a head on a sentence of the file."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import streamlit as st

from bert_probe.analyses.probing.relations import (
    DIRECTIONS,
    RelationExample,
    Relations,
    RelationsResult,
    examples,
)
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.runtime import shared_cache
from bert_probe.server import callbacks, paths
from bert_probe.text.labeled_texts import LabeledTexts
from bert_probe.text.tag_alignment import placed
from bert_probe.text.tagged_sentences import TaggedSentence
from bert_probe.text.words import word_lens
from bert_probe.ui import blocks, jobs, state, workbench
from bert_probe.ui.attention import shown
from bert_probe.ui.components.matrix import heatmap
from bert_probe.ui.export import export, written
from bert_probe.ui.probes.inputs import ProbeFiles
from bert_probe.views.probes import of_relations

_EASY = 8
"""Words of a sentence that is easily looked at; the one nearest to that is taken."""
_DIRECTIONS = {"0": "From dependent to head", "1": "From head to dependent"}


def part(given: ProbeFiles, checkpoint: Checkpoint, truncate: bool) -> None:
    """Draw it."""
    if given.held_out is None:
        st.info("Heads are chosen on one treebank and reported on another: upload the second one, too.")
        return
    data, held_out = given.data, given.held_out
    if isinstance(data, LabeledTexts) or isinstance(held_out, LabeledTexts):
        st.info("Relations are those of a treebank: upload CoNLL-U, whose words have heads.")
        return
    found = jobs.answered(
        "relations",
        Relations().of,
        checkpoint,
        data,
        held_out,
        truncate,
        label="Look for relations",
        unit="sentences",
        note="One run of the model for each, batched. You can cancel at any time.",
    )
    if found is not None:
        _shown(found, data, held_out, checkpoint, truncate)


def _shown(
    found: RelationsResult,
    chosen: tuple[TaggedSentence, ...],
    sentences: tuple[TaggedSentence, ...],
    checkpoint: Checkpoint,
    truncate: bool,
) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        direction = int(state.pick("relations_direction", "Direction", _DIRECTIONS, "0"))
        st.space("stretch")
        every = partial(written, found.showing(show="all"), "csv")
        more = [("Every head, CSV", "relations-all.csv", every)]
        export(found, "relations", more, data={"chosen": chosen, "reported": sentences})
    cell = heatmap(of_relations(found, direction), key="relations_heads")
    if cell is None:
        blocks.caveat("Click a cell, or press Enter on it, to see the head on a sentence of the file.")
    else:
        layer, head = divmod(cell.column, found.accuracies.shape[-1])
        accuracy = found.accuracies[cell.row, direction, layer, head]
        relation = found.relations[cell.row]
        example = _example(sentences, relation)
        one = sentences[example.sentence]
        word, other = one.words[example.dependent], one.words[example.head]
        st.markdown(
            f"**{state.plain(relation)}**, layer {layer + 1}, head {head + 1}: right in **{accuracy:.1%}**, "
            f"from {DIRECTIONS[direction]}. For example “{state.plain(word)}”, whose syntactic head is "
            f"“{state.plain(other)}”, in:"
        )
        st.text(one.text)
        asking = example.dependent if direction == 0 else example.head
        looked_at = (checkpoint, one, asking, (layer, head), truncate)
        # A callback: what stands in the workbench cannot be changed once it is drawn.
        if st.button("Show its attention to this sentence", on_click=_look, args=looked_at):
            with callbacks.to_the_end():
                st.switch_page(paths.page("attention"))
    frame = found.table()
    st.dataframe(
        frame,
        hide_index=True,
        width="stretch",
        height=min(38 + 35 * len(frame), 480),
        column_config={
            "accuracy": st.column_config.NumberColumn(format="%.4f"),
            "offset_accuracy": st.column_config.NumberColumn("offset's accuracy", format="%.4f"),
        },
        alt="For each relation the best head, how often it is right, and the best fixed offset",
    )
    if found.left_out:
        blocks.caveat(f"Not in the first file, so left out: {state.plain(', '.join(found.left_out), 1000)}.")
    blocks.caveat(
        "Of a word's attention to the other words the strongest counts (Clark et al. 2019); pieces are "
        "merged into words. Head, direction and offset, in words from the dependent, are chosen on the "
        "first file; the accuracies are of the second. A head that finds a relation is not shown to be used "
        "for it, and where a fixed offset does as well it may know no more than that."
    )


def _example(sentences: tuple[TaggedSentence, ...], relation: str) -> RelationExample:
    """A relation in a sentence of a length that is easily looked at."""
    return min(
        examples(sentences, relation),
        key=lambda one: abs(len(sentences[one.sentence].words) - _EASY),
    )


def _look(
    checkpoint: Checkpoint, of: TaggedSentence, word: int, head: tuple[int, int], truncate: bool
) -> None:
    """Take this sentence for the text, and of attention show this head and the word that asks."""
    workbench.ask(replace(workbench.request(), a=of.text, b=""))
    trace = shared_cache.traces(checkpoint, [(of.text, None)], truncate)[0]
    words = placed(of, trace.encoding)
    first = words.lens.units[words.units[word]].position
    asking = [first in unit.positions for unit in word_lens(trace).units].index(True)
    shown.look_at(head[0] + 1, (head[1],), asking)
