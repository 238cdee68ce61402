"""The Find a head section: all heads ranked by their attention from one word to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import streamlit as st

from bert_probe.analyses.attention.attention import Attention
from bert_probe.analyses.attention.find_heads import FindHeads, HeadScore, WordPairs, select_word
from bert_probe.analyses.attention.heads import Heads
from bert_probe.errors import SelectionError
from bert_probe.model.trace import Array, Trace
from bert_probe.runtime import shared_cache
from bert_probe.text.words import Unit, word_lens
from bert_probe.ui import blocks, figures, state
from bert_probe.ui.components.matrix import matrix
from bert_probe.ui.components.strip import strip
from bert_probe.ui.export import export
from bert_probe.ui.heads import shared
from bert_probe.views.heatmaps import find_heads_heatmap
from bert_probe.views.scale import SHARES
from bert_probe.views.strip import StripToken
from bert_probe.views.text import shorten

MAX_PAIRS = 6
MAX_WORDS = 32
"""Maximum number of words in the heatmap of rows; in longer texts, words with small weights are omitted."""
MAX_HEADS = 3
"""Number of heads whose rows are drawn."""

_PAIRS, _ACTIVE = "find_pairs", "find_active"


@dataclass(frozen=True)
class WordPair:
    """A query word and a key word, as indices into the words of the text.

    Attributes:
        number: identifier, which does not change when other pairs are removed.
    """

    number: int
    query: int
    key: int


def part(trace: Trace) -> None:
    """Draw the Find a head section."""
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
        head = shared.head_heatmap(find_heads_heatmap(result), "find_heads")
        layer, head_number = head or (best[0].layer + 1, best[0].head + 1)
        profiles = shared_cache.answers.of(Heads(words=True).of, trace)
        shared.open_in_attention(layer, head_number, profiles.labels[layer - 1][head_number - 1])
    with numbers:
        name = "weight" if len(pairs) == 1 else "mean weight"
        shared.head_table(result.table(), {"weight": name}, "Heads ranked by attention between the words")
    st.header("Attention rows of the best heads", anchor=False)
    _rows(trace, best[:MAX_HEADS], pairs, units)
    blocks.caveat(
        "Subword tokens are merged into words. The rank of a head is the rank of the key word in the head's "
        "row of the query word; rank 1 is the largest weight. A large weight means that the head reads from "
        "the key word, not that the output depends on it."
    )


def _choose_pairs(trace: Trace, units: Sequence[Unit]) -> list[WordPair]:
    """Draw the word pairs, and for the active pair two token strips to select its words."""
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
        above.pills(
            "Word pairs (heads are ranked by the mean weight)",
            numbers,
            required=True,
            wrap=True,
            format_func=lambda number: _pair_name(units, pairs[numbers.index(number)]),
            key=_ACTIVE,
        )
    with st.container(horizontal=True, gap="small"):
        if len(pairs) < MAX_PAIRS:
            st.button("Add a pair", on_click=_add, args=(pairs, units))
        if len(pairs) > 1:
            st.button("Remove this pair", on_click=_remove, args=(pairs, active))
    _remember(pairs, units)
    return pairs


def _session_pairs(trace: Trace, units: Sequence[Unit]) -> list[WordPair]:
    """Return the word pairs of this text from the session or the URL, or a default pair."""
    text = (trace.encoding.text, trace.encoding.pair, len(trace.encoding))
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
    """Write the pairs to the URL, as positions of the words' first tokens."""
    text = ",".join(f"{units[pair.query].position}-{units[pair.key].position}" for pair in pairs)
    default = _default_pair(units)
    is_default = len(pairs) == 1 and (pairs[0].query, pairs[0].key) == (default.query, default.key)
    state.remember(_PAIRS, None if is_default else text)


def _add(pairs: list[WordPair], units: Sequence[Unit]) -> None:
    number = max(pair.number for pair in pairs) + 1
    pairs.append(replace(_default_pair(units), number=number))
    st.session_state[_ACTIVE] = number


def _remove(pairs: list[WordPair], active: int) -> None:
    del pairs[active]
    st.session_state[_ACTIVE] = pairs[max(0, active - 1)].number


def _choose_word(units: Sequence[Unit], pair: WordPair, side: str, label: str, selected: int) -> int:
    """Draw the words of the text and return the index of the selected word."""
    st.markdown(f"**{label}**")
    tokens = [
        StripToken(
            shorten(unit.display), index, unit.segment, unit.special, False, f"position {unit.position}"
        )
        for index, unit in enumerate(units)
    ]
    key = f"find_{side}_{pair.number}_{len(units)}"
    first_key = f"{key} first"
    if key not in st.session_state:
        # The strip keeps its own selection; a changed initial position would undo quick clicks.
        st.session_state[first_key] = selected
    index = strip(tokens, key=key, label=label, selectable="one", selected=st.session_state[first_key])
    return selected if index is None else index


def _summary(best: HeadScore, pairs: int) -> str:
    head = f"Layer {best.layer + 1}, head {best.head + 1} has the largest weight: **{best.weight:.4f}**"
    if pairs == 1:
        return f"{head}, rank {best.rank:.0f} in the query word's row."
    return f"{head}, the mean over {pairs} pairs; the mean rank is {best.rank:.1f}."


def _pair_name(units: Sequence[Unit], pair: WordPair) -> str:
    return state.escape(f"{units[pair.query]} → {units[pair.key]}")


def _rows(trace: Trace, best: Sequence[HeadScore], pairs: Sequence[WordPair], units: Sequence[Unit]) -> None:
    """Draw a heatmap with one row for each query word in each of the best heads."""
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
            f"The {len(keys)} of {len(units)} words with the largest weights, in the order of the text."
        )
