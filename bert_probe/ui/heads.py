"""The Heads page: profiles of all heads, a search for heads that connect two words, and ablation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import streamlit as st

from bert_probe.analyses.attention.attention import Attention
from bert_probe.analyses.attention.find_heads import FindHeads, HeadScore, WordPairs, select_word
from bert_probe.analyses.attention.heads import Heads, Labels
from bert_probe.analyses.attribution.head_ablation import (
    SIMILARITIES,
    Head,
    HeadAblation,
    HeadAblationResult,
    HeadAblationSweep,
    HeadAblationSweepResult,
    model_with_heads,
)
from bert_probe.errors import SelectionError
from bert_probe.model.trace import Array, Trace
from bert_probe.runtime import shared_cache
from bert_probe.text.words import Unit, word_lens
from bert_probe.ui import blocks, figures, head_measures, jobs, state, workbench
from bert_probe.ui.components import heatmap, matrix, strip
from bert_probe.ui.export import export, table_zip
from bert_probe.views import heatmaps
from bert_probe.views.heatmaps import find_heads_heatmap, head_grid
from bert_probe.views.measures import LABELLING, MEASURES
from bert_probe.views.palette import SHARES, Scale
from bert_probe.views.text import StripToken, describe_place, ruler_number, shorten

_PARTS = {
    "profiles": "Profiles",
    "find": "Find a head",
    "ablation": "Ablation",
    "many": "Many sentences",
}


def render() -> None:
    """Draw the Heads page."""
    blocks.heading(
        "Heads",
        "Compare all attention heads: what each head attends to, which head attends from one word to "
        "another, and how the vectors change when heads are ablated.",
    )
    bar = st.container(horizontal=True, gap="medium")
    with bar:
        part = state.segmented_control("heads_part", "Section", _PARTS, "profiles")
    if part == "many":
        head_measures.many_texts_part(workbench.request(), workbench.checkpoint())
        return
    traced = workbench.trace_request()
    with bar:
        trace = workbench.choose_trace(traced)
    blocks.truncation_notice(trace)
    {"profiles": profiles, "find": render_find, "ablation": render_ablation}[part](trace)


def profiles(trace: Trace) -> None:
    """Draw the values of a measure for all heads as a heatmap and as a table."""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        measure, description = head_measures.choose_measure()
        words = state.toggle("words", "Whole words", False, head_measures.WORDS_HELP)
        result = shared_cache.answers.of(Heads(words).of, trace)
        st.space("stretch")
        export(result, "heads")
    st.markdown(f":gray[{state.escape(description.meaning)}]")
    with st.container(key="judged"):
        picture, numbers = st.columns([1, 1], gap="large")
    with picture:
        values = result.values[measure]
        heatmap = head_grid(
            values, description.name, description.title, Scale.from_zero(values), "head_profiles"
        )
        head = head_measures.head_heatmap(heatmap, "head_profiles")
        if head is None:
            blocks.caveat(head_measures.PIN_HINT)
        else:
            head_measures.open_in_attention(*head, result.labels[head[0] - 1][head[1] - 1])
    with numbers:
        first = ["layer", "head", measure, "label"]
        further = [name for name in MEASURES if name != measure]
        head_measures.head_table(
            result.table()[[*first, *further]].sort_values(measure, ascending=False),
            {name: column.name for name, column in MEASURES.items()},
            f"Heads by {description.name}",
        )
    blocks.caveat(
        "The values are means over all queries of this text (following Clark et al. 2019). "
        + LABELLING
        + " A label describes where a head attends on this text, not the function of the head. "
        + trace.note
    )


MAX_PAIRS = 6
MAX_WORDS = 32
"""Maximum number of words in the heatmap of attention rows. Words with smaller weights are omitted."""
MAX_HEADS = 3
"""Number of best heads for which attention rows are drawn."""

_PAIRS, _ACTIVE = "find_pairs", "find_active"


@dataclass(frozen=True)
class WordPair:
    """A pair of a query word and a key word, as indices into the words of the text.

    Attributes:
        number: identifier of the pair; it does not change when other pairs are removed.
    """

    number: int
    query: int
    key: int


def render_find(trace: Trace) -> None:
    """Draw the "Find a head" section of the Heads page."""
    units = word_lens(trace).units
    pairs = _choose_pairs(trace, units)
    question = FindHeads([(units[pair.query].position, units[pair.key].position) for pair in pairs])
    result = shared_cache.answers.of(question.of, trace)
    best = result.ranked
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.markdown(_summary(best[0], len(result.words)), width="content")
        st.space("stretch")
        export(result, "find")
    with st.container(key="judged"):
        picture, numbers = st.columns([1, 1], gap="large")
    with picture:
        head = head_measures.head_heatmap(find_heads_heatmap(result), "find_heads")
        layer, head_number = head or (best[0].layer + 1, best[0].head + 1)
        profiles = shared_cache.answers.of(Heads(words=True).of, trace)
        label = profiles.labels[layer - 1][head_number - 1]
        head_measures.open_in_attention(layer, head_number, label, "On the whole text,")
    with numbers:
        name = "weight" if len(pairs) == 1 else "mean weight"
        head_measures.head_table(
            result.table(), {"weight": name}, "Heads ranked by attention between the words"
        )
    st.header("Attention rows of the best heads", anchor=False)
    _rows(trace, best[:MAX_HEADS], pairs, units)
    blocks.caveat(
        "Subword tokens are merged into words. For each head, the words are ranked by their weight in "
        "the row of the query word. The table shows the rank of the key word; rank 1 is the largest "
        "weight. A large weight means that the head reads from the key word, not that the output "
        "depends on the key word."
    )


def _choose_pairs(trace: Trace, units: Sequence[Unit]) -> list[WordPair]:
    """Draw buttons to select, add and remove word pairs, and two token strips to edit the active pair."""
    pairs = _session_pairs(trace, units)
    numbers = [pair.number for pair in pairs]
    if st.session_state.get(_ACTIVE) not in numbers:
        st.session_state[_ACTIVE] = numbers[0]
    active = numbers.index(st.session_state[_ACTIVE])
    above = st.container()
    pair = pairs[active]
    query = _choose_word(units, pair, "query", "From this word (query)", pair.query)
    key = _choose_word(units, pair, "key", "To this word (key)", pair.key)
    pairs[active] = replace(pair, query=query, key=key)
    if len(pairs) > 1:
        names = [state.escape(f"{units[pair.query]} → {units[pair.key]}") for pair in pairs]
        above.pills(
            "Word pairs (heads are ranked by the mean weight)",
            numbers,
            required=True,
            wrap=True,
            format_func=lambda number: names[numbers.index(number)],
            key=_ACTIVE,
        )
    with st.container(horizontal=True, gap="small"):
        if len(pairs) < MAX_PAIRS:
            st.button("Add a pair", on_click=_add, args=(pairs, units))
        if len(pairs) > 1:
            # The key identifies the pair: the second click of a double click must not remove another pair.
            st.button(
                "Remove this pair",
                key=f"remove pair {pair.number}",
                on_click=_remove,
                args=(pairs, pair.number),
            )
    _remember(pairs, units)
    return pairs


def _session_pairs(trace: Trace, units: Sequence[Unit]) -> list[WordPair]:
    """Return the word pairs of the text from the session or the URL, or a default pair."""
    # Two models may split a text into the same number of tokens, but into different words.
    text = (trace.encoding.text, trace.encoding.pair, tuple(unit.positions for unit in units))
    if st.session_state.get(_PAIRS, (None,))[0] != text:
        is_first_text = _PAIRS not in st.session_state
        pairs = _pairs_from_url(trace, units) if is_first_text else []
        st.session_state[_PAIRS] = (text, pairs or [_default_pair(units)])
    pairs = st.session_state[_PAIRS][1]
    assert isinstance(pairs, list)
    return pairs


def _default_pair(units: Sequence[Unit]) -> WordPair:
    words = [index for index, unit in enumerate(units) if unit.isalnum()] or [0]
    return WordPair(0, words[-1], words[max(0, len(words) - 3)])


def _pairs_from_url(trace: Trace, units: Sequence[Unit]) -> list[WordPair]:
    parameter = state.url_parameters().get(_PAIRS)
    if parameter is None:
        return []
    index_of = {unit.positions: index for index, unit in enumerate(units)}
    pairs = []
    for number, text in enumerate(parameter.split(",")[:MAX_PAIRS]):
        try:
            ((query, key),) = WordPairs().read(_PAIRS, text, trace)
            indices = [index_of[select_word(trace, word).positions] for word in (query, key)]
            pairs.append(WordPair(number, *indices))
        except SelectionError:
            st.caption(f":orange[This text has no word pair {state.escape(text)}, so the pair is ignored.]")
    return pairs


def _remember(pairs: Sequence[WordPair], units: Sequence[Unit]) -> None:
    """Write the word pairs to the URL. A word is identified by the position of its first token."""
    text = ",".join(f"{units[pair.query].position}-{units[pair.key].position}" for pair in pairs)
    default = _default_pair(units)
    is_default = len(pairs) == 1 and (pairs[0].query, pairs[0].key) == (default.query, default.key)
    state.remember(_PAIRS, None if is_default else text)


def _add(pairs: list[WordPair], units: Sequence[Unit]) -> None:
    if len(pairs) >= MAX_PAIRS:
        return
    number = max(pair.number for pair in pairs) + 1
    pairs.append(replace(_default_pair(units), number=number))
    st.session_state[_ACTIVE] = number


def _remove(pairs: list[WordPair], number: int) -> None:
    """Remove the pair with this number, unless it has been removed or is the only one."""
    index = next((index for index, pair in enumerate(pairs) if pair.number == number), None)
    if index is not None and len(pairs) > 1:
        del pairs[index]
        st.session_state[_ACTIVE] = pairs[max(0, index - 1)].number


def _choose_word(units: Sequence[Unit], pair: WordPair, side: str, label: str, selected: int) -> int:
    """Draw a token strip with the words of the text and return the index of the selected word."""
    st.markdown(f"**{label}**")
    tokens = [
        StripToken(
            shorten(unit.display),
            index,
            unit.segment,
            unit.special,
            False,
            describe_place(unit),
            number=ruler_number(unit),
        )
        for index, unit in enumerate(units)
    ]
    key = f"find_{side}_{pair.number}_{len(units)}"
    first_key = f"{key} first"
    if key not in st.session_state:
        # Pass the strip the same initial selection in every run, because a change would undo quick clicks.
        st.session_state[first_key] = selected
    index = strip(tokens, key=key, label=label, selectable="one", selected=st.session_state[first_key])
    return selected if index is None else index


def _summary(best: HeadScore, pairs: int) -> str:
    head = f"Layer {best.layer + 1}, head {best.head + 1} has the largest weight: **{best.weight:.4f}**"
    if pairs == 1:
        return f"{head}. The key word has rank {best.rank:.0f} in the row of the query word."
    return f"{head}, averaged over {pairs} pairs; the mean rank is {best.rank:.1f}."


def _rows(trace: Trace, best: Sequence[HeadScore], pairs: Sequence[WordPair], units: Sequence[Unit]) -> None:
    """Draw a heatmap with one row of attention weights for each of the best heads and each query word."""
    queries = list(dict.fromkeys(pair.query for pair in pairs))
    rows: list[Array] = []
    names = []
    for score in best:
        weights = Attention(score.layer, score.head, words=True).of(trace).weights
        rows += [weights[query] for query in queries]
        names += [f"{score.layer + 1}.{score.head + 1} {shorten(units[query].display)}" for query in queries]
    values = np.stack(rows)
    columns = figures.largest_columns(values, MAX_WORDS, {pair.key for pair in pairs})
    keys = [units[index] for index in columns]
    matrix(
        values[:, columns],
        names,
        blocks.labels(keys),
        key="find_rows",
        scale=SHARES,
        row_axis="head and query",
        column_axis="key",
        value_name="weight",
        caption="Attention rows of the best heads",
        column_positions=[unit.position for unit in keys],
        file_name="best_heads",
    )
    if len(keys) < len(units):
        blocks.caveat(
            f"The heatmap shows the {len(keys)} of {len(units)} words with the largest weights, in the "
            "order of the text."
        )


SIDE_BY_SIDE = 32
"""Maximum number of tokens for which the three similarity heatmaps are drawn side by side."""
_CAVEAT = (
    "The change is 1 − the cosine between the last-layer vectors with and without the heads. A small "
    "change may mean that other heads compensate, not that these heads have no effect (Michel et al. "
    "2019)."
)


def render_ablation(trace: Trace) -> None:
    """Draw the ablation section of the Heads page."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        mode = state.segmented_control(
            "ablation", "Heads to ablate", {"set": "Selected heads", "each": "Each head in turn"}, "set"
        )
        replacement = state.segmented_control(
            "replacement",
            "Replacement for a head's output",
            {"zero": "Zero", "mean": "Its mean"},
            "zero",
            "Zero removes the head's output. The mean keeps only the component that is the same for all "
            "tokens.",
        )
    (_each if mode == "each" else _set)(trace, replacement)


def _set(trace: Trace, replacement: str) -> None:
    """Draw how ablating a set of heads changes token vectors, [CLS], the pooler and token similarity."""
    heads = _select_heads(trace)
    if not heads:
        blocks.caveat("Select at least one head above. A layer number alone selects all heads of the layer.")
        return
    result = shared_cache.answers.of(HeadAblation(heads, replacement, show="tokens").of, trace)
    with st.container(horizontal=True, vertical_alignment="center", gap="large"):
        _metric("Mean change of tokens", result.mean_token_change)
        _metric("[CLS], the first token", result.cls_change)
        _metric("Pooler", result.pooler_change, "This checkpoint does not have a pooler.")
        st.space("stretch")
        _set_exports(result)
    _token_changes(result)
    st.header("Similarity of the tokens", anchor=False)
    _similarity(result)
    blocks.caveat(
        "Cosine similarity of each pair of last-layer token vectors, without special tokens. Differences "
        f"above 0 mean that tokens are more similar after the ablation. {_CAVEAT}"
    )


def _select_heads(trace: Trace) -> tuple[Head, ...]:
    """Draw a multiselect with one option per head and per layer, and return the selected heads."""
    labels = shared_cache.answers.of(Heads().of, trace).labels
    options: dict[str, str] = {}
    heads_by_name: dict[str, list[Head]] = {}
    for layer, row in enumerate(labels):
        heads_by_name[f"{layer + 1}"] = [(layer, head) for head in range(len(row))]
        options[f"{layer + 1}"] = f"layer {layer + 1}, all heads"
        for head, label in enumerate(row):
            name = f"{layer + 1}.{head + 1}"
            heads_by_name[name] = [(layer, head)]
            options[name] = f"{name} {label}".strip()
    default = next(
        (name for name, heads in heads_by_name.items() if _have_specific_labels(labels, heads)), "1.1"
    )
    names = state.multiselect(
        "off",
        "Heads to ablate together",
        options,
        [default],
        "Layer and head, for example 3.7",
        "Layer and head, counted from 1, with the head's label on this text. A layer number alone "
        "selects all of its heads.",
    )
    return tuple(dict.fromkeys(head for name in names for head in heads_by_name[name]))


def _have_specific_labels(labels: Labels, heads: list[Head]) -> bool:
    return all(labels[layer][head] not in ("", "broad") for layer, head in heads)


def _metric(label: str, value: float | None, missing: str | None = None) -> None:
    st.metric(
        label,
        None if value is None else f"{value:.4f}",
        help=missing if value is None else None,
        width="content",
    )


def _token_changes(result: HeadAblationResult) -> None:
    names = blocks.labels(result.tokens)
    with st.container(key="judged"):
        picture, numbers = st.columns([2, 1], gap="large")
    with picture:
        st.caption(
            "1 − cosine between each token's last-layer vectors with and without the heads; 0 means no change"
        )
        blocks.chart(
            figures.token_bars(names, result.token_change, "1 − cosine"),
            "Change of each token's last-layer vector",
        )
    with numbers:
        table = result.table().assign(token=names).sort_values("change", ascending=False)
        head_measures.head_table(table, {"change": "1 − cosine"}, "Tokens sorted by change", height=360)


def _similarity(result: HeadAblationResult) -> None:
    """Draw the token similarity heatmaps side by side, or one at a time if the text is long."""
    pictures = heatmaps.ablation_heatmaps(result)
    if len(pictures["before"].rows) > SIDE_BY_SIDE:
        options = {name: picture.drawing["caption"] for name, picture in pictures.items()}
        view = state.segmented_control("ablation_similarity", "Similarity", options, "difference")
        pictures = {view: pictures[view]}
    with st.container(key="judged_similarity"):
        columns = st.columns(len(pictures), gap="medium")
    for column, (name, picture) in zip(columns, pictures.items(), strict=True):
        with column:
            heatmap(picture, key=f"ablation_{name}")


def _set_exports(result: HeadAblationResult) -> None:
    names = {which: f"similarity-{which}" for which in SIMILARITIES}
    more = [
        (f"Similarity, {which}", f"{name}.zip", partial(table_zip, result.showing(show=which), name))
        for which, name in names.items()
    ]
    export(result, "ablation-tokens", more)


def _each(trace: Trace, replacement: str) -> None:
    """Draw a ranking of all heads by the change of the token vectors when each head is ablated alone."""
    model_with_heads(trace)  # raises an error before the user can start a long job
    runs = f"This analysis runs {trace.layers * trace.heads:,} batched forward passes on this text."
    result = jobs.answer(
        "head ablation sweep",
        HeadAblationSweep(replacement).of,
        trace,
        label="Ablate each head in turn",
        unit="heads",
        activity="Ablating heads",
        note=f"{runs} You can cancel at any time.",
    )
    if result is not None:
        _ranking(trace, result)


def _ranking(trace: Trace, result: HeadAblationSweepResult) -> None:
    table = result.table()
    first = (int(table["layer"].iloc[0]), int(table["head"].iloc[0]))
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.markdown(
            f"Ablating layer {first[0]}, head {first[1]} changes the token vectors most: "
            f"**{table['mean_token_change'].iloc[0]:.4f}** on average.",
            width="content",
        )
        st.space("stretch")
        export(result, "ablation")
    with st.container(key="judged"):
        picture, numbers = st.columns([1, 1], gap="large")
    with picture:
        head = head_measures.head_heatmap(heatmaps.ablation_sweep_heatmap(result), "each_head_off")
        layer, head_number = head or first
        labels = shared_cache.answers.of(Heads().of, trace).labels
        head_measures.open_in_attention(layer, head_number, labels[layer - 1][head_number - 1])
    with numbers:
        head_measures.head_table(
            table,
            {"mean_token_change": "tokens, mean", "cls_change": "[CLS]"},
            "Change for each ablated head",
        )
    blocks.caveat(_CAVEAT)
