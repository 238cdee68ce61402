"""Find a head: all heads ranked by how much they attend from one word to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import streamlit as st

from bert_probe.analyses.attention.attention import Attention
from bert_probe.analyses.attention.find_heads import FindHeads, HeadScore, WordPairs, word_of
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
from bert_probe.views.heatmaps import of_found_heads
from bert_probe.views.scale import SHARES
from bert_probe.views.strip import StripToken
from bert_probe.views.text import shown

MOST_PAIRS = 6
WORDS_DRAWN = 32
"""Of a longer text the rows' picture leaves out words that no row gives much to."""
SHOWN = 3
"""Heads whose rows are drawn."""

_PAIRS, _ACTIVE = "find_pairs", "find_active"


@dataclass(frozen=True)
class WordPair:
    """Two words that were picked, as indices into the text's words; the number stays when others go."""

    number: int
    query: int
    key: int


def part(trace: Trace) -> None:
    """Draw it."""
    units = word_lens(trace).units
    pairs = _picked(trace, units)
    asked = FindHeads([(units[pair.query].position, units[pair.key].position) for pair in pairs])
    found = shared_cache.answers.of(asked.of, trace)
    best = found.ranked
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.markdown(_sentence(best[0], found.words), width="content")
        st.space("stretch")
        export(found, "find")
    with st.container(key="judged"):
        picture, numbers = st.columns([1, 1], gap="large")
    with picture:
        name = "weight" if len(pairs) == 1 else "mean weight"
        chosen = shared.head_heatmap(of_found_heads(found), "find_heads")
        layer, head = chosen or (best[0].layer + 1, best[0].head + 1)
        profiles = shared_cache.answers.of(Heads(words=True).of, trace)
        shared.open_in_attention(layer, head, profiles.labels[layer - 1][head - 1])
    with numbers:
        shared.head_table(found.table(), {"weight": name}, "Heads by attention between the words")
    st.header("Where the best heads look from there", anchor=False)
    _rows(trace, best[:SHOWN], pairs, units)
    blocks.caveat(
        "Words are merged from their pieces. The rank is the key word's place in the query word's row, 1 for "
        "the largest. A large weight says that the head reads from there, not that what it reads matters."
    )


def _picked(trace: Trace, units: Sequence[Unit]) -> list[WordPair]:
    """The pairs, drawn so that the words of one of them can be clicked."""
    pairs = _held(trace, units)
    numbers = [pair.number for pair in pairs]
    if st.session_state.get(_ACTIVE) not in numbers:
        st.session_state[_ACTIVE] = numbers[0]
    active = numbers.index(st.session_state[_ACTIVE])
    above = st.container()
    pair = pairs[active]
    query = _word(units, pair, "query", "From this word (query)", pair.query)
    key = _word(units, pair, "key", "to this word (key)", pair.key)
    pairs[active] = replace(pair, query=query, key=key)
    if len(pairs) > 1:
        above.pills(
            "Pairs; heads are ranked by their mean",
            numbers,
            required=True,
            wrap=True,
            format_func=lambda number: _named_pair(units, pairs[numbers.index(number)]),
            key=_ACTIVE,
        )
    with st.container(horizontal=True, gap="small"):
        if len(pairs) < MOST_PAIRS:
            st.button("Add a pair", on_click=_add, args=(pairs, units))
        if len(pairs) > 1:
            st.button("Remove this pair", on_click=_remove, args=(pairs, active))
    _remember(pairs, units)
    return pairs


def _held(trace: Trace, units: Sequence[Unit]) -> list[WordPair]:
    """The pairs of this text: those of the session, else of the address, else the first guess."""
    text = (trace.encoding.text, trace.encoding.pair, len(trace.encoding))
    if st.session_state.get(_PAIRS, (None,))[0] != text:
        first = _PAIRS not in st.session_state
        pairs = _from_address(trace, units) if first else []
        st.session_state[_PAIRS] = (text, pairs or [_guess(units)])
    pairs = st.session_state[_PAIRS][1]
    assert isinstance(pairs, list)
    return pairs


def _guess(units: Sequence[Unit]) -> WordPair:
    words = [index for index, unit in enumerate(units) if unit.isalnum()] or [0]
    return WordPair(0, words[-1], words[max(0, len(words) - 3)])


def _from_address(trace: Trace, units: Sequence[Unit]) -> list[WordPair]:
    written = state.address().get(_PAIRS)
    if written is None:
        return []
    place = {unit.positions: index for index, unit in enumerate(units)}
    pairs = []
    for number, one in enumerate(written.split(",")[:MOST_PAIRS]):
        try:
            ((query, key),) = WordPairs().read(_PAIRS, one, trace)
            found = [place[word_of(trace, word).positions] for word in (query, key)]
            pairs.append(WordPair(number, *found))
        except SelectionError:
            st.caption(f":orange[There is no pair of words {state.plain(one)} here; left out.]")
    return pairs


def _remember(pairs: Sequence[WordPair], units: Sequence[Unit]) -> None:
    """By the positions of their first tokens, as tables give them."""
    written = ",".join(f"{units[pair.query].position}-{units[pair.key].position}" for pair in pairs)
    guess = _guess(units)
    plain = len(pairs) == 1 and (pairs[0].query, pairs[0].key) == (guess.query, guess.key)
    state.remember(_PAIRS, None if plain else written)


def _add(pairs: list[WordPair], units: Sequence[Unit]) -> None:
    number = max(pair.number for pair in pairs) + 1
    pairs.append(replace(_guess(units), number=number))
    st.session_state[_ACTIVE] = number


def _remove(pairs: list[WordPair], active: int) -> None:
    del pairs[active]
    st.session_state[_ACTIVE] = pairs[max(0, active - 1)].number


def _word(units: Sequence[Unit], pair: WordPair, side: str, label: str, selected: int) -> int:
    """One word of the text, by clicking."""
    st.markdown(f"**{label}**")
    pieces = [
        StripToken(shown(unit.display), index, unit.segment, unit.special, False, f"position {unit.position}")
        for index, unit in enumerate(units)
    ]
    key = f"find_{side}_{pair.number}_{len(units)}"
    first = f"{key} first"
    if key not in st.session_state:
        # While the strip is there it keeps its own choice; a new beginning would take back quick clicks.
        st.session_state[first] = selected
    first_chosen = st.session_state[first]
    chosen = strip(pieces, key=key, label=label, selectable="one", selected=first_chosen)
    return selected if chosen is None else chosen


def _sentence(best: HeadScore, chosen: Sequence[tuple[Unit, Unit]]) -> str:
    where = f"Layer {best.layer + 1}, head {best.head + 1} attends most: **{best.weight:.4f}**"
    if len(chosen) == 1:
        return f"{where}, which is number {best.rank:.0f} in that word's row."
    return f"{where} on average over {len(chosen)} pairs, at rank {best.rank:.1f} on average."


def _arrows(chosen: Sequence[tuple[Unit, Unit]]) -> str:
    return ", ".join(f"{query} → {key}" for query, key in chosen)


def _named_pair(units: Sequence[Unit], pair: WordPair) -> str:
    return state.plain(f"{units[pair.query]} → {units[pair.key]}")


def _rows(trace: Trace, best: Sequence[HeadScore], pairs: Sequence[WordPair], units: Sequence[Unit]) -> None:
    """What each query word attends to in each of the best heads, a row each."""
    queries = list(dict.fromkeys(pair.query for pair in pairs))
    rows: list[Array] = []
    names = []
    for found in best:
        weights = Attention(found.layer, found.head, words=True).of(trace).weights
        rows += [weights[query] for query in queries]
        names += [f"{found.layer + 1}.{found.head + 1} {shown(units[query].display)}" for query in queries]
    values = np.stack(rows)
    kept = figures.largest_columns(values, WORDS_DRAWN, {pair.key for pair in pairs})
    drawn = [units[index] for index in kept]
    matrix(
        values[:, kept],
        names,
        blocks.labels(drawn),
        key="find_rows",
        scale=SHARES,
        row_axis="head and query",
        column_axis="key",
        value_name="weight",
        caption="Attention rows of the best heads",
        column_positions=[unit.position for unit in drawn],
        file_name="best_heads",
    )
    if len(drawn) < len(units):
        blocks.caveat(
            f"The {len(drawn)} of {len(units)} words with the largest weights, in the order of the text."
        )
