"""The Compare page: how attention and vectors change between two sentences that differ in a few words."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import streamlit as st

from bert_probe.analyses.attribution.activation_patching import ActivationPatching, ActivationPatchingResult
from bert_probe.analyses.comparison.minimal_pair import (
    MinimalPair,
    MinimalPairResult,
    MinimalPairRow,
    MinimalPairRowResult,
)
from bert_probe.errors import ProbeError
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Trace
from bert_probe.runtime import shared_cache
from bert_probe.text.alignment import Alignment
from bert_probe.ui import blocks, jobs, state, workbench
from bert_probe.ui.components import heatmap, strip
from bert_probe.ui.export import ExtraDownload, export, table_zip
from bert_probe.ui.sentence_input import EXAMPLES
from bert_probe.ui.sentences import choose_dimensions, choose_prompt
from bert_probe.views.heatmaps import (
    minimal_pair_heads_heatmap,
    minimal_pair_row_heatmaps,
    minimal_pair_vectors_heatmap,
    patched_name,
    patching_heatmap,
)
from bert_probe.views.measures import CHANGES
from bert_probe.views.selection import digest
from bert_probe.views.text import Mark, StripToken, describe_place, ruler_number, shorten

MAX_TOKENS_AT_ONCE = 32
"""Maximum number of tokens for which patching starts without a click. It then takes less than a second."""
_PATCHES = {"tokens": "A token's vector", "heads": "Output of an attention head"}


def render() -> None:
    """Draw the Compare page."""
    blocks.heading(
        "Compare",
        "Compare two sentences that differ in a few words, and see which attention heads and which "
        "vectors of the shared words change.",
    )
    traced = workbench.trace_request()
    if traced.a.encoding.pair is not None:
        _explain_pair()
        return
    if traced.b is None:
        _explain_second_sentence()
        return
    for trace in (traced.a, traced.b):
        blocks.truncation_notice(trace)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        measure = state.segmented_control(
            "change", "Measure", {name: change.name for name, change in CHANGES.items()}, "total_variation"
        )
        words = state.toggle(
            "words",
            "Whole words",
            False,
            "Merge subword tokens into words. Attention is summed over the tokens of a key and averaged "
            "over the tokens of a query; vectors are averaged.",
        )
        st.space("stretch")
        corner = st.container(width="content")
    pair = shared_cache.answers.of(MinimalPair(words).of, traced.a, traced.b)
    _comparison(pair.showing(by=measure), traced.a, traced.b, corner)


def _comparison(pair: MinimalPairResult, a: Trace, b: Trace, corner: Any) -> None:
    """Draw the comparison, with the export menu in `corner`."""
    index = _choose_word(pair, f"{digest(a.tokens)} {digest(b.tokens)}")
    _finding(pair, index)
    st.header("Which heads changed?", anchor=False)
    _heads(pair)
    st.header("Attention of the selected word", anchor=False)
    left, right = st.columns([1, 3], gap="medium")
    with left:
        layer = state.select_layer("layer", 1, a.layers, "The last layer is closest to the output.")
    with right:
        head = state.select_head("head", a.heads)
    token = pair.alignment.aligned[index].position
    question = MinimalPairRow(
        token, layer - 1, "mean" if head == "mean" else int(head) - 1, pair.question.words
    )
    row = question.of(a, b)
    _row(row)
    st.header("Which vectors changed?", anchor=False)
    _vectors(pair)
    if not pair.same_input:
        _patching(a, b)
    vectors = pair.showing(show="moved")
    more: list[ExtraDownload] = [
        ("Vector changes (CSV + provenance)", "moved.zip", partial(table_zip, vectors, "moved")),
        ("Attention of the word (CSV + provenance)", "rows.zip", partial(table_zip, row, "rows")),
    ]
    with corner:
        export(pair, "compare", more)


def _explain_second_sentence() -> None:
    with st.container(border=True, key="no_second"):
        st.header("This page needs a second sentence", anchor=False)
        st.markdown(
            "Under “Your text”, enter a sentence B that differs from sentence A in one or two words, and "
            "click “Run”. Or open an example in which one word determines what “it” refers to."
        )
        example = EXAMPLES[0]
        request = replace(workbench.request(), a=example.a, b=example.b, relation=example.relation)
        st.button("Open the example", type="primary", on_click=workbench.submit, args=(request,))


def _explain_pair() -> None:
    with st.container(border=True, key="read_together"):
        st.header("The two sentences are encoded as a pair", anchor=False)
        st.markdown(
            "Sentence B is the second segment of A's input, so each sentence is part of the context of "
            "the other. To compare the sentences, choose “Separate text” under sentence B."
        )
        request = replace(workbench.request(), relation="compare")
        st.button("Use separate texts", type="primary", on_click=workbench.submit, args=(request,))


def _strip_tokens(side: Alignment, segment: int, selected: int | None = None) -> list[StripToken]:
    """Return the tokens of text A of an alignment; tokens without a counterpart in text B are marked.

    Args:
        side: the alignment, in which the text to draw is A.
        segment: 0 to draw sentence A, 1 to draw sentence B.
        selected: index of the token to mark as the partner of the selected token.
    """
    counterparts, other = dict(side.pairs), "BA"[segment]
    tokens = []
    for index, unit in enumerate(side.units_a):
        before = side.units_a[index - 1] if index else None
        joined = isinstance(unit, Token) and isinstance(before, Token) and unit.continues(before)
        mark: Mark = "changed"
        place = f"not in {other}"
        if index in counterparts:
            mark = "partner" if index == selected else ""
            place = f"in {other} at {describe_place(side.units_b[counterparts[index]])}"
        detail = f"{describe_place(unit)} · {place}"
        text, number = shorten(unit.display), ruler_number(unit)
        tokens.append(StripToken(text, unit.position, segment, unit.special, joined, detail, mark, number))
    return tokens


def _unaligned(side: Alignment) -> str:
    """Return the tokens or words of A without a counterpart in B, as text; a long list is truncated."""
    names = [state.escape(shorten(side.units_a[index].display)) for index in side.changed_a]
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "") or "none"


def _choose_word(pair: MinimalPairResult, text: str) -> int:
    """Draw texts A and B; return the index of the selected aligned word, by default the most changed word.

    Args:
        pair: the comparison of the two texts.
        text: key that identifies the two texts, so that the selection is kept when tokens are merged into
            words.
    """
    side, unit = pair.alignment, "words" if pair.question.words else "tokens"
    positions = [unit.position for unit in side.units_a]
    most_changed = side.pairs[pair.most_moved][0]
    st.markdown(f"**Sentence A** · select one of the {unit}")
    position = strip(
        _strip_tokens(side, 0),
        key="compare_a",
        label="Sentence A",
        selectable="one",
        selected=positions[most_changed],
        text=text,
    )
    selected = most_changed if position is None else positions.index(position)
    index = side.indices_a.index(selected) if selected in side.indices_a else pair.most_moved
    st.markdown("**Sentence B**")
    strip(_strip_tokens(side.mirrored, 1, side.pairs[index][1]), key="compare_b", label="Sentence B")
    blocks.caveat(
        f"Only in A: {_unaligned(side)}. Only in B: {_unaligned(side.mirrored)}. All other {unit} are "
        "aligned and compared."
    )
    if selected in side.changed_a:
        name = state.escape(shorten(side.units_a[selected].display))
        st.markdown(
            f"“{name}” has no counterpart in sentence B. The results are for the word whose vector "
            "changed most."
        )
    return index


def _finding(pair: MinimalPairResult, index: int) -> None:
    """Draw the summary and a button that selects the head named in the summary."""
    with st.container(key="finding"):
        st.markdown(state.escape(pair.finding(index), 1000))
    if pair.same_input:
        return
    layer, head = pair.strongest_shift(index)
    st.button(f"Show head {layer + 1}.{head + 1} below", on_click=_select_head, args=(layer + 1, head + 1))


def _select_head(layer: int, head: int) -> None:
    """Select the head whose attention is drawn; layer and head count from 1."""
    st.session_state["layer"], st.session_state["head"] = layer, head


def _heads(pair: MinimalPairResult) -> None:
    """Draw the change of each head as a heatmap and as a table; a click on a cell selects a head."""
    measure = pair.question.by
    with st.container(key="judged_heads"):
        left, right = st.columns([1, 1], gap="large")
    with left:
        cell = heatmap(minimal_pair_heads_heatmap(pair), key="compare_heads")
        # Only a new click selects a head; an earlier click must not undo a later selection elsewhere.
        if cell is not None and cell != st.session_state.get("compare_clicked"):
            _select_head(cell.row + 1, cell.column + 1)
        st.session_state["compare_clicked"] = cell
    with right:
        blocks.table(
            pair.frame(),
            f"Heads by {CHANGES[measure].name.lower()}, largest change first",
            max_height=380,
            column_config={
                name: st.column_config.NumberColumn(change.name, format="%.4f")
                for name, change in CHANGES.items()
            },
        )
    blocks.caveat(
        f"{CHANGES[measure].meaning} Special tokens count like all other tokens; attention on tokens without "
        "a counterpart is summed in one entry, “rest”. A large change does not mean that the head matters "
        "for the output: attention is not an explanation by itself (Jain and Wallace 2019)."
    )


def _row(row: MinimalPairRowResult) -> None:
    """Draw the attention of the selected word in text A and in text B, and the difference of the two."""
    both, difference = minimal_pair_row_heatmaps(row)
    heatmap(both, key="compare_rows")
    heatmap(difference, key="compare_difference")
    blocks.caveat(
        "The keys are the tokens that A and B share; “rest” is the sum over all other keys. Each row "
        "sums to 1, and the difference sums to 0. A weight shows from which token a head reads, not how "
        "the model uses this information."
    )
    with st.expander("As a table"):
        blocks.table(
            row.frame(),
            "Attention of the selected word in both sentences",
            column_config={
                name: st.column_config.NumberColumn(format="%.4f") for name in ("a", "b", "difference")
            },
        )


def _vectors(pair: MinimalPairResult) -> None:
    """Draw the change of each aligned token's vector, layer by layer."""
    units, layers = pair.alignment.aligned, [str(layer) for layer in range(len(pair.moved))]
    with st.container(key="judged_vectors"):
        left, right = st.columns([1, 1], gap="large")
    with left:
        heatmap(minimal_pair_vectors_heatmap(pair), key="compare_moved")
    with right:
        frame = pair.showing(show="moved").frame().set_axis(blocks.unique_names(units), axis=0)
        blocks.table(
            frame,
            "1 − cosine between the two vectors of each aligned token, one column per layer",
            max_height=640,
            show_index=True,
            column_config={layer: st.column_config.NumberColumn(format="%.4f") for layer in layers},
        )
    blocks.caveat(
        "A value of 0 means the same direction in both sentences. Layer 0 is the output of the "
        "embeddings, before any attention. A change at layer 0 means that the position or the subword "
        "tokens of the word differ. "
        + ("A word's vector is the mean of its tokens' vectors. " if pair.question.words else "")
        + "The spread of vectors differs between layers, so compare tokens within one layer, not "
        "values from different layers (Ethayarajh 2019)."
    )


# ---------------------------------------------------------------- activation patching


def _patching(a: Trace, b: Trace) -> None:
    """Draw activation patching, in which single activations of B's forward pass are replaced with A's."""
    st.header("Activation patching", anchor=False)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        patch = state.segmented_control("patch", "Activation to copy from A to B", _PATCHES, "tokens")
        prompt = dimensions = None
        if a.checkpoint.sentence_model is not None and not a.checkpoint.outputs:
            prompt = choose_prompt(a.checkpoint, "prompt", "Prompt of both")
            dimensions = choose_dimensions(a.checkpoint, "vector_dimensions")
        st.space("stretch")
        corner = st.container(width="content")
    try:
        result = jobs.answer(
            "activation patching",
            ActivationPatching(patch, prompt=prompt, dimensions=dimensions).of,
            a,
            b,
            label="Run activation patching",
            unit="patches",
            activity="Patching activations",
            note="This analysis runs one forward pass per patch, in batches. You can cancel at any time.",
            start=max(len(a.tokens), len(b.tokens)) <= MAX_TOKENS_AT_ONCE,
        )
    except ProbeError as error:
        st.info(state.escape(str(error), 400))
        return
    if result is None:
        return
    with corner:
        export(result, f"patching-{patch}", label="Export patching")
    st.markdown(_patching_summary(result))
    heatmap(patching_heatmap(result), key="patching_picture")
    blocks.caveat(
        "A value of 0 means that the patch does not change the output for B, 1 that the patch restores "
        "the output for A, and a negative value that the patch moves the output further away from the "
        "output for A. The output is the value of A's most probable prediction or, without a task head, "
        "the cosine with A's sentence vector. Unlike an attention weight, this value is a causal "
        "effect, measured by running the model with one activation replaced (Vig et al. 2020, Meng et "
        "al. 2022). Activations interact, so shares need not sum to 100%, and effects hold for this "
        "pair of sentences only."
    )


def _patching_summary(result: ActivationPatchingResult) -> str:
    """Return a summary: the values without a patch, and the patch with the largest effect.

    If tokens are patched, the summary also states the effect of patching all tokens of a layer together.
    """
    answer = (
        f"The {state.escape(result.number)} is {result.goal:.4f} for A and {result.nothing:.4f} for B"
        if result.number
        else f"The cosine similarity of the two sentence vectors is {result.nothing:.4f}"
    )
    sentences = [f"{answer}.", _best_patch(result)]
    if result.question.component == "tokens":
        together = result.recovered_together
        shares = dict.fromkeys(f"{share:.0%}" for share in (together.min(), together.max()))
        sentences.append(
            f"Patching all tokens of a layer together recovers {' to '.join(shares)} of the difference."
        )
        sentences.append(
            "Every token has a counterpart in the other sentence, so this share must be 100%."
            if result.whole
            else "Tokens of B without a counterpart in A keep the activations of B."
        )
    return " ".join(sentences)


def _best_patch(result: ActivationPatchingResult) -> str:
    """Return a sentence about the patch with the largest effect.

    If the texts differ in one token only, patching this token after layer 0 recovers 100% by construction,
    unless the embeddings mix neighboring tokens, as in MobileBERT. The sentence then names the last layer
    after which patching it recovers more than half of the difference.
    """
    layer, index = np.unravel_index(int(result.recovered.argmax()), result.recovered.shape)
    part = f"layer {layer + 1}, head {index + 1}"
    if result.question.component == "tokens":
        differing = [
            place
            for place, (a, b) in enumerate(zip(result.tokens_a, result.tokens_b, strict=True))
            if a.id != b.id
        ]
        if result.whole and len(differing) == 1 and f"{result.recovered[0, differing[0]]:.1%}" == "100.0%":
            name, shares = _patch_name(result, differing[0]), result.recovered[:, differing[0]]
            last = int(np.flatnonzero(shares > 0.5)[-1])
            return (
                f"The sentences differ only in {name}, so patching this token after layer 0 recovers "
                f"100% by construction. Layer {last} is the last layer after which patching this token "
                f"alone recovers more than half of the difference (**{shares[last]:.0%}**)."
            )
        part = f"{_patch_name(result, int(index))} after layer {layer}"
    return (
        f"Patching {part} alone recovers **{result.recovered[layer, index]:.0%}** of the difference, more "
        "than any other patch."
    )


def _patch_name(result: ActivationPatchingResult, place: int) -> str:
    return f"“{state.escape(patched_name(result, place))}”"
