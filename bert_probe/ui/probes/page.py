"""The Probes page: its sections, and the Heads and relations section."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import streamlit as st

from bert_probe.analyses.probing.relations import (
    DIRECTIONS,
    RelationExample,
    Relations,
    RelationsResult,
    find_examples,
)
from bert_probe.errors import ProbeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.runtime import shared_cache
from bert_probe.server import callbacks, paths
from bert_probe.text.labeled_texts import LabeledTexts
from bert_probe.text.tagged_sentences import TaggedSentence, align_words
from bert_probe.text.words import word_lens
from bert_probe.ui import blocks, jobs, state, workbench
from bert_probe.ui.attention import selection_state
from bert_probe.ui.components.matrix import heatmap
from bert_probe.ui.export import export, table_bytes
from bert_probe.ui.probes import inputs, layers, trees
from bert_probe.ui.probes.inputs import ProbeFiles
from bert_probe.views.heatmaps import relations_heatmap

_PARTS = {"layers": "Layers", "structural_probe": "Syntax trees", "relations": "Heads and relations"}
_DIRECTIONS = {"0": "From dependent to head", "1": "From head to dependent"}
_EXAMPLE_LENGTH = 8
"""Preferred number of words of an example sentence."""


def render() -> None:
    """Draw the page."""
    blocks.heading(
        "Probes",
        "Upload tagged sentences, a treebank, or labeled texts. Which layers encode these labels, and which "
        "attention heads track these relations?",
    )
    checkpoint = workbench.checkpoint()
    request = workbench.request()
    part = state.segmented_control("probes_part", "Part", _PARTS, "layers")
    try:
        files = inputs.choose_files()
        if files is None:
            inputs.explain_formats()
        else:
            draw = {"layers": layers.part, "structural_probe": trees.part, "relations": _relations}[part]
            draw(files, checkpoint, request.truncate)
    except ProbeError as error:
        blocks.error_box(error, "Fix the file and upload it again. The other file is kept.")


def _relations(files: ProbeFiles, checkpoint: Checkpoint, truncate: bool) -> None:
    if files.held_out is None:
        st.info("Heads are selected on one treebank and evaluated on another. Upload the held-out file, too.")
        return
    data, held_out = files.data, files.held_out
    if isinstance(data, LabeledTexts) or isinstance(held_out, LabeledTexts):
        st.info("Relations need a treebank: upload CoNLL-U files, whose words have syntactic heads.")
        return
    result = jobs.answer(
        "relations",
        Relations().of,
        checkpoint,
        data,
        held_out,
        truncate,
        label="Evaluate the heads",
        unit="sentences",
        activity="Evaluating the heads",
        start=files.is_example,
        note="One forward pass per sentence, batched. You can cancel at any time.",
    )
    if result is not None:
        _relations_result(result, data, held_out, checkpoint, truncate)


def _relations_result(
    result: RelationsResult,
    data: tuple[TaggedSentence, ...],
    held_out: tuple[TaggedSentence, ...],
    checkpoint: Checkpoint,
    truncate: bool,
) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        direction = int(state.segmented_control("relations_direction", "Direction", _DIRECTIONS, "0"))
        st.space("stretch")
        all_heads = partial(table_bytes, result.showing(show="all"), "csv")
        more = [("All heads, CSV", "relations-all.csv", all_heads)]
        export(result, "relations", more, data={"chosen": data, "reported": held_out})
    cell = heatmap(relations_heatmap(result, direction), key="relations_heads")
    if cell is None:
        blocks.caveat("Click a cell, or press Enter on it, to see the head on a sentence of the file.")
    else:
        layer, head = divmod(cell.column, result.accuracies.shape[-1])
        accuracy = result.accuracies[cell.row, direction, layer, head]
        relation = result.relations[cell.row]
        example = _example(held_out, relation)
        sentence = held_out[example.sentence]
        word, word_head = sentence.words[example.dependent], sentence.words[example.head]
        st.markdown(
            f"**{state.escape(relation)}**, layer {layer + 1}, head {head + 1}: accuracy **{accuracy:.1%}**, "
            f"from {DIRECTIONS[direction]}. For example “{state.escape(word)}”, whose syntactic head is "
            f"“{state.escape(word_head)}”, in:"
        )
        st.text(sentence.text)
        query = example.dependent if direction == 0 else example.head
        arguments = (checkpoint, sentence, query, (layer, head), truncate)
        # A callback, because the workbench cannot be changed after it is drawn.
        if st.button("Show the head's attention on this sentence", on_click=_show_attention, args=arguments):
            with callbacks.uninterrupted():
                st.switch_page(paths.page_script("attention"))
    frame = result.table()
    blocks.table(
        frame,
        "Best head and its accuracy, and best fixed offset, for each relation",
        max_height=480,
        column_config={
            "accuracy": st.column_config.NumberColumn(format="%.4f"),
            "offset_accuracy": st.column_config.NumberColumn("offset accuracy", format="%.4f"),
        },
    )
    if result.left_out:
        names = state.escape(", ".join(result.left_out), 1000)
        blocks.caveat(f"Relations left out because they do not occur in the first file: {names}.")
    blocks.caveat(
        "A head predicts the word that gets the largest weight (Clark et al. 2019); subword tokens are "
        "merged into words. Head, direction and offset (in words from the dependent) are selected on the "
        "first file; the accuracies are measured on the second. The model need not use a head that tracks a "
        "relation. If a fixed offset is as accurate, the head may only track that offset."
    )


def _example(sentences: tuple[TaggedSentence, ...], relation: str) -> RelationExample:
    """Return an occurrence of a relation in a sentence of about `_EXAMPLE_LENGTH` words."""
    return min(
        find_examples(sentences, relation),
        key=lambda example: abs(len(sentences[example.sentence].words) - _EXAMPLE_LENGTH),
    )


def _show_attention(
    checkpoint: Checkpoint, sentence: TaggedSentence, word: int, head: tuple[int, int], truncate: bool
) -> None:
    """Submit a sentence to the workbench, and select the attention of one of its words in a head."""
    workbench.submit(replace(workbench.request(), a=sentence.text, b=""))
    trace = shared_cache.traces(checkpoint, [(sentence.text, None)], truncate)[0]
    words = align_words(sentence, trace.encoding)
    first = words.lens.units[words.units[word]].position
    query = [first in unit.positions for unit in word_lens(trace).units].index(True)
    selection_state.show_head(head[0] + 1, (head[1],), query)
