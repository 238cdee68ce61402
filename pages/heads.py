"""Heads: which of them are worth a look on this text, and what happens without them."""

from pathlib import Path

import streamlit as st

import bert_probe
from bert_probe import Trace, Unit
from bert_probe.trace import Array
from bert_probe.ui import blocks, figures, state, workbench
from bert_probe.ui.components.matrix import matrix
from bert_probe.ui.components.strip import Piece, strip

ATTENTION = Path(__file__).with_name("attention.py")

PARTS = {"profiles": "Profiles", "find": "Find a head", "ablation": "Switch heads off"}
MEASURES = {
    "previous": "Previous",
    "next": "Next",
    "self": "Self",
    "first": "First token",
    "separator": "Separator",
    "punctuation": "Punctuation",
    "same_word": "Same word",
    "same_token": "Repeated token",
    "other_segment": "Other segment",
    "entropy_bits": "Entropy",
    "relative_entropy": "Relative entropy",
    "mean_distance": "Distance",
    "difference_from_mean": "Unlike its layer",
}
MEANINGS = {
    "previous": "Share of attention on the token before.",
    "next": "Share of attention on the token after.",
    "self": "Share of attention that a token keeps for itself.",
    "first": "Share of attention on the first token, [CLS] or <s>: often where a head looks when it has "
    "nothing to do.",
    "separator": "Share of attention on [SEP], or the model's own separator: often a place to rest, too.",
    "punctuation": "Share of attention on punctuation marks.",
    "same_word": "Share of attention on the other pieces of the same word.",
    "same_token": "Share of attention on the same token at another place.",
    "other_segment": "Share of attention on the other sentence of a pair.",
    "entropy_bits": "How spread out a row is, in bits: 0 for a single key, log₂ of the number of keys for "
    "all alike.",
    "relative_entropy": "Entropy divided by that of a uniform row: 0 for a single key, 1 for all alike.",
    "mean_distance": "How many tokens away a head looks on average.",
    "difference_from_mean": "How much a head's rows differ from the mean over its layer: total variation, "
    "0 to 1.",
}


def head_matrix(
    values: Array, key: str, name: str, caption: str, at_least: float = 1.0
) -> tuple[int, int] | None:
    """Layers × heads as a picture; the head that was clicked, from 1."""
    layers, heads = values.shape
    cell = matrix(
        values,
        [str(layer + 1) for layer in range(layers)],
        [str(head + 1) for head in range(heads)],
        key=key,
        scale=figures.from_zero_scale(values, at_least),
        row_axis="layer",
        column_axis="head",
        value_name=name,
        caption=caption,
        file_name=key,
    )
    return None if cell is None else (cell.row + 1, cell.column + 1)


def open_in_attention(layer: int, head: int) -> None:
    """A button that shows a head on the attention page."""
    if st.button(f"Show layer {layer}, head {head}", type="primary"):
        st.session_state["layer"], st.session_state["head"] = layer, head
        st.switch_page(ATTENTION)


def profiles_part(study: workbench.Study, trace: Trace) -> None:
    """A measure of every head as a picture, and all of them as a table."""
    words = state.switch("words", "Whole words", False, "Merge pieces into words before measuring.")
    profiles = bert_probe.head_profiles(trace, words)
    measure = state.pick("measure", "Measure", MEASURES, "previous")
    st.markdown(f":gray[{MEANINGS[measure]}]")
    table = bert_probe.heads_table(profiles, trace)
    left, right = st.columns([1, 1], gap="large")
    with left:
        chosen = head_matrix(
            profiles.values[measure], "head_profiles", MEASURES[measure].lower(), MEANINGS[measure]
        )
        if chosen is None:
            blocks.caveat("Click a cell to choose a head.")
        else:
            label = profiles.labels[chosen[0] - 1][chosen[1] - 1]
            st.markdown(f"Layer {chosen[0]}, head {chosen[1]}: **{label or 'nothing stands out'}**")
            open_in_attention(*chosen)
    with right:
        st.dataframe(
            table[["layer", "head", measure, "label"]].sort_values(measure, ascending=False),
            hide_index=True,
            width="stretch",
            height=420,
            column_config={measure: st.column_config.NumberColumn(MEASURES[measure], format="%.4f")},
            alt=f"Heads by {MEASURES[measure].lower()}",
        )
        code = f"bert_probe.heads_table(bert_probe.head_profiles(trace, words={words}), trace)"
        blocks.exports(
            table,
            "heads",
            blocks.python_code(study.request, blocks.trace_code(study.request, trace), code),
            blocks.command_line(study.request, "heads", *(["--words"] if words else []), trace=trace),
        )
    blocks.caveat(
        "Averages over all queries of this text (after Clark et al. 2019). A label is given where a share is "
        "at least one half, or, for “broad”, the relative entropy at least 0.85. It describes where a head "
        "looks on this text, not what the head is for."
    )


def choose_word(units: tuple[Unit, ...], key: str, label: str, first: int) -> Unit:
    """One word of the text, by clicking."""
    st.markdown(f"**{label}**")
    pieces = [Piece(unit.display, i, unit.segment, unit.special, False, "") for i, unit in enumerate(units)]
    chosen = strip(pieces, key=key, label=label, selectable="one", selected=first)
    return units[first if chosen is None else chosen]


def find_part(study: workbench.Study, trace: Trace) -> None:
    """Heads ranked by how much they attend from one chosen word to another."""
    units = bert_probe.word_lens(trace).units
    words = [index for index, unit in enumerate(units) if unit.isalnum()] or [0]
    first, second = words[-1], words[max(0, len(words) - 3)]
    query = choose_word(units, f"find_query_{len(units)}", "From this word (query)", first)
    key = choose_word(units, f"find_key_{len(units)}", "to this word (key)", second)
    found = bert_probe.find_heads(trace, [(query, key)])
    best = found[0]
    st.markdown(
        f"Layer {best.layer + 1}, head {best.head + 1} attends most: **{best.weight:.4f}**, "
        f"which is number {best.rank:.0f} in that word's row."
    )
    open_in_attention(best.layer + 1, best.head + 1)
    table = bert_probe.found_table(found, trace, [(query, key)])
    st.dataframe(
        table,
        hide_index=True,
        width="stretch",
        height=380,
        column_config={"weight": st.column_config.NumberColumn(format="%.4f")},
        alt="Heads by attention between the two words",
    )
    code = [
        f"query = bert_probe.find_word(trace, {named(units, query)!r})",
        f"key = bert_probe.find_word(trace, {named(units, key)!r})",
        "found = bert_probe.find_heads(trace, [(query, key)])",
        "bert_probe.found_table(found, trace, [(query, key)])",
    ]
    blocks.exports(
        table,
        "find",
        blocks.python_code(study.request, blocks.trace_code(study.request, trace), *code),
        blocks.command_line(
            study.request, "find", "--query", named(units, query), "--key", named(units, key), trace=trace
        ),
    )


def named(units: tuple[Unit, ...], unit: Unit) -> str:
    """A word as the command line names it: with its number if it occurs more than once."""
    same = [other.positions for other in units if str(other) == str(unit)]
    return str(unit) if len(same) == 1 else f"{unit}:{same.index(unit.positions) + 1}"


def ablation_part(study: workbench.Study, trace: Trace) -> None:
    """The effect of switching off each head in turn."""
    replacement = state.pick(
        "replacement",
        "A head's output becomes",
        {"zero": "Zero", "mean": "Its mean"},
        "zero",
        "Zero takes away all that a head says; its mean over the tokens leaves what it says to every token.",
    )
    key = ("ablation", trace.encoding.text, trace.encoding.pair, replacement, study.checkpoint.description)
    if st.session_state.get("ablation_key") != key:
        if not st.button("Switch off each head in turn", type="primary"):
            st.caption(f"{trace.layers * trace.heads} runs of the model, batched.")
            return
        st.session_state["ablation"] = run_each(study, trace, replacement)
        st.session_state["ablation_key"] = key
    results: list[bert_probe.Ablation] = st.session_state["ablation"]
    values = figures.grid([one.mean_token_change for one in results], trace.layers)
    chosen = head_matrix(values, "ablation", "change", "Mean change of the tokens' last-layer vectors", 0.0)
    if chosen is not None:
        open_in_attention(*chosen)
    table = bert_probe.ablation_table(results, study.checkpoint, trace.encoding, replacement)
    st.dataframe(
        table.sort_values("mean_token_change", ascending=False),
        hide_index=True,
        width="stretch",
        height=380,
        column_config={
            name: st.column_config.NumberColumn(format="%.4f") for name in ("cls_change", "mean_token_change")
        },
        alt="Change for each head switched off",
    )
    code = [
        "each = bert_probe.each_head(checkpoint)",
        f"results = list(bert_probe.ablate(checkpoint, trace.encoding, each, {replacement!r}))",
        f"bert_probe.ablation_table(results, checkpoint, trace.encoding, {replacement!r})",
    ]
    blocks.exports(
        table,
        "ablation",
        blocks.python_code(study.request, blocks.trace_code(study.request, trace), *code),
        blocks.command_line(study.request, "ablate", "--each", "--replacement", replacement, trace=trace),
    )
    blocks.caveat(
        "Change is 1 − cosine between a token's last-layer vector with and without the head. A small change "
        "says that the other heads make up for it on this text, not that the head does nothing (Michel et "
        "al. 2019)."
    )


def run_each(study: workbench.Study, trace: Trace, replacement: str) -> list[bert_probe.Ablation]:
    """All ablations, with progress; Streamlit's stop button cancels between batches."""
    sets = bert_probe.each_head(study.checkpoint)
    bar = st.progress(0.0, "Switching heads off …")
    results = []
    for done, one in enumerate(bert_probe.ablate(study.checkpoint, trace.encoding, sets, replacement), 1):
        results.append(one)
        bar.progress(done / len(sets), f"{done} of {len(sets)} heads")
    bar.empty()
    return results


blocks.heading(
    "Heads",
    "Which heads are worth a look on this text? Each is measured by where its attention goes.",
)
study = workbench.study()
with st.container(horizontal=True, gap="medium"):
    part = state.pick("heads_part", "Part", PARTS, "profiles")
    trace = workbench.chosen_text(study)
blocks.truncation_notice(trace)
if part == "profiles":
    profiles_part(study, trace)
elif part == "find":
    find_part(study, trace)
else:
    ablation_part(study, trace)
