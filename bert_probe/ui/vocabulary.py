"""The Vocabulary page: a table of tokens with nearest neighbors, token types and scripts, and fertility."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from bert_probe.analyses.vocabulary.tokens import Fertility, FertilityChange, FertilityResult
from bert_probe.analyses.vocabulary.vocabulary import (
    ALL,
    Neighbors,
    NeighborsResult,
    Vocabulary,
    VocabularyResult,
    token_reference,
)
from bert_probe.errors import ProbeError, SelectionError, TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from bert_probe.runtime import shared_cache
from bert_probe.text.pieces import KINDS, MATCHES, WORD, VocabularyTokens, visible
from bert_probe.ui import blocks, figures, second_model, state, workbench
from bert_probe.ui.blocks import numbers
from bert_probe.ui.export import export
from bert_probe.ui.figures import ACCENT, GRAY, SECOND, as_text, named_rows

_PARTS = {"pieces": "Tokens", "kinds": "Types and scripts", "text": "Your text"}
_TOKEN = "near"
_MAX_ROWS = 40_000
"""Maximum number of rows in the token table. Sending a larger table to the browser would take seconds."""
_MAX_SCRIPTS = 16
"""Maximum number of scripts in the bar chart. The table contains all scripts."""
_BINS = 60
_MATCHES = dict(zip(MATCHES, ("Contains", "Starts with", "Equals", "Regular expression"), strict=True))
_MARKERS = {
    "##": "A token that continues a word starts with \\#\\#.",
    "Ġ": "Ġ is the space before a word; a token without Ġ continues a word, or starts a text.",
    "▁": "▁ is the space before a word; a token without ▁ continues a word. Text without spaces, such "
    "as Chinese text, consists only of tokens without ▁.",
}
"""Word boundary marker of a tokenizer → its explanation in Markdown."""


def render() -> None:
    """Draw the Vocabulary page."""
    blocks.heading(
        "Vocabulary",
        "Search the tokens of the model's vocabulary, compare their input embeddings, and see how the "
        "tokenizer splits your text.",
    )
    checkpoint = workbench.checkpoint()
    with st.spinner("Reading the vocabulary …", show_time=False):
        vocabulary = shared_cache.answers.of(Vocabulary().of, checkpoint)
    with st.container(horizontal=True, gap="large"):
        st.metric("Tokens", f"{len(vocabulary.pieces):,}", help="Rows of the word embedding matrix.")
        st.metric("Dimensions", f"{vocabulary.dimensions:,}", help="Dimensions of a token's input embedding.")
        st.metric(
            "Tokenizer type", vocabulary.pieces.marks.name, help="How tokens mark the boundaries of words."
        )
    part = state.segmented_control("vocabulary_part", "Section", _PARTS, "pieces")
    if part == "pieces":
        _tokens(checkpoint, vocabulary)
    elif part == "kinds":
        _types(vocabulary)
    else:
        _your_text(checkpoint)


# ---------------------------------------------------------------- tokens


def _tokens(checkpoint: Checkpoint, vocabulary: VocabularyResult) -> None:
    """Draw the table of tokens, and the nearest neighbors of the selected token."""
    with st.container(key="vocabulary_browser"):
        left, right = st.columns([3, 2], gap="large")
    with left:
        try:
            _table(_search(vocabulary))
        except SelectionError as error:
            with st.container(border=True, key="refusal"):
                st.text(str(error))
    with right:
        _neighbors(checkpoint, vocabulary)


def _search(vocabulary: VocabularyResult) -> VocabularyResult:
    """Draw filters for tokens and return the filtered vocabulary.

    Raises:
        SelectionError: the regular expression is invalid.
    """
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        with st.container(width=260):
            search = state.text_input("search", "Search", "Any part of a token")
        with st.container(width=190):
            match = state.selectbox("match", "Match", _MATCHES, MATCHES[0])
        with st.container(width=200):
            kinds = {ALL: "All types", **{kind: kind.capitalize() for kind in KINDS}}
            kind = state.selectbox("piece_kind", "Type", kinds, ALL)
        with st.container(width=200):
            scripts = {"": "All scripts", **{name: _script(name) for name in vocabulary.scripts}}
            script = state.selectbox("script", "Script", scripts, "")
        case = state.toggle("case", "Match case", False, "Distinguish upper and lower case.")
    return vocabulary.showing(search=search, match=match, case=case, kind=kind, script=script or None)


def _script(name: str) -> str:
    return {"none": "No letters", "several": "Several", "other": "Other"}.get(name, name.replace("_", " "))


def _table(result: VocabularyResult) -> None:
    """Draw the table of tokens. Selecting a row draws the nearest neighbors of its token.

    Raises:
        SelectionError: the regular expression takes too long.
    """
    marks = result.pieces.marks
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        st.markdown(
            f"**{len(result.found):,}** of {len(result.pieces):,} tokens"
            + (f", {result.share:.1%}" if len(result.found) < len(result.pieces) else "")
        )
        export(result, "vocabulary", label="Export tokens")
    first = _choose_first_row(result)
    ids = result.found[first : first + _MAX_ROWS]
    # The key depends on the rows, so that Streamlit resets the selection when the rows change.
    key = f"vocabulary_table {result.question!r} {first}"
    blocks.table(
        result.listed(ids),
        "Matching tokens with type, script and norm",
        max_height=560,
        key=key,
        on_select=partial(_select_token, key, result.pieces, ids),
        selection_mode="single-row",
        column_config={
            "id": st.column_config.NumberColumn("id", format="%d", help="Row of the word embedding matrix."),
            "token": st.column_config.TextColumn("token", help="Entry of the vocabulary."),
            "text": st.column_config.TextColumn("text", help="Decoded token."),
            "kind": st.column_config.TextColumn("type"),
            "length": st.column_config.NumberColumn(
                "length", help="Number of characters of the decoded token."
            ),
            "norm": st.column_config.NumberColumn(
                "norm", format="%.4f", help="Norm of the token's input embedding."
            ),
        },
    )
    marker = _MARKERS.get(marks.continuing or marks.space, "")
    blocks.caveat(f"{marker} Select a row to see its nearest neighbors.")


def _choose_first_row(result: VocabularyResult) -> int:
    """Return the index of the first row to show. If there are too many rows, draw a selector for a range."""
    count = len(result.found)
    if count <= _MAX_ROWS:
        return 0
    ends = {start: min(start + _MAX_ROWS, count) for start in range(0, count, _MAX_ROWS)}
    ranges = {str(start): f"Rows {start + 1:,} to {end:,}" for start, end in ends.items()}
    return int(state.selectbox("vocabulary_row", "Rows", ranges, "0"))


def _select_token(key: str, tokens: VocabularyTokens, ids: Sequence[int]) -> None:
    """Select the token of the selected table row, so that its nearest neighbors are drawn.

    Args:
        key: key of the table widget.
        ids: token ids of the table rows.
    """
    rows = st.session_state[key]["selection"]["rows"]
    if rows and rows[0] < len(ids):
        name = token_reference(tokens, ids[rows[0]])
        st.session_state[_TOKEN] = f"id:{name}" if isinstance(name, int) else name


def _neighbors(checkpoint: Checkpoint, vocabulary: VocabularyResult) -> None:
    """Draw the selected token, the norm of its embedding, and its nearest neighbors."""
    default = _default_token(checkpoint, vocabulary.pieces)
    token = state.text_input(_TOKEN, "Nearest neighbors of", default) or default
    try:
        result = shared_cache.answers.of(Neighbors(token).of, checkpoint, vocabulary)
    except ProbeError as error:
        with st.container(border=True, key="no_neighbors"):
            st.text(str(error))
        return
    tokens, id_ = result.pieces, result.one
    st.header(state.escape(result.name), anchor=False)
    st.markdown(
        f"id {id_:,} · {tokens.kinds[id_]} · {_script(tokens.scripts[id_])}  \n"
        f"The input embedding of this token has a norm of **{result.norm:.4f}**, larger than the norms of "
        f"{result.norm_rank:.0%} of all tokens."
    )
    key = f"neighbors_table {id_}"
    blocks.table(
        result.frame()[["token", "cosine", "kind", "norm"]],
        "Nearest neighbors by the cosine of their input embeddings, nearest first",
        max_height=300,
        key=key,
        on_select=partial(_select_token, key, tokens, result.ids.tolist()),
        selection_mode="single-row",
        column_config={
            "cosine": st.column_config.ProgressColumn("cosine", format="%.4f", min_value=0, max_value=1),
            "kind": st.column_config.TextColumn("type"),
            "norm": st.column_config.NumberColumn("norm", format="%.4f"),
        },
    )
    st.markdown(
        f"Baseline: two random tokens have a mean cosine of **{result.mean:.2f}**, and 5% of the pairs reach "
        f"**{result.percentile(0.95):.2f}** or more. Compare a value with these baselines."
    )
    blocks.chart(
        neighbor_histogram(result),
        "Histogram of the cosines of random pairs of tokens, with the neighbors marked",
    )
    blocks.caveat(
        "Input embeddings are rows of the word embedding matrix, before position and segment embeddings "
        "and LayerNorm, so the vectors do not depend on the text. The baseline has "
        f"{len(result.unrelated):,} random pairs with a fixed seed; the dotted line is its 95th "
        "percentile. Neighbors may share a spelling, a part of speech or a low frequency in the "
        "training data, as well as a meaning."
    )
    export(result, "neighbors", label="Export neighbors")


def _default_token(checkpoint: Checkpoint, tokens: VocabularyTokens) -> str:
    """Return the longest word of the text that is one token, or else the longest word in the vocabulary."""
    try:
        ids = checkpoint.encode(workbench.request().a, truncate=True).ids
    except TextError:
        ids = []
    words = [id_ for id_ in ids if tokens.kinds[id_] == WORD] or [
        id_ for id_, kind in enumerate(tokens.kinds) if kind == WORD
    ]
    longest = max(words, key=lambda id_: len(tokens.texts[id_]), default=0)
    name = token_reference(tokens, longest)
    return f"id:{name}" if isinstance(name, int) else name


def neighbor_histogram(result: NeighborsResult) -> Any:
    """Return a histogram of the cosines of random token pairs, with the nearest neighbors marked."""
    low = min(-0.1, float(result.unrelated[0]))
    counts, edges = np.histogram(result.unrelated, bins=_BINS, range=(low, 1.0))
    figure = go.Figure()
    figure.add_bar(
        x=(edges[:-1] + edges[1:]) / 2,
        y=counts / len(result.unrelated),
        width=edges[1] - edges[0],
        marker={"color": GRAY, "line": {"width": 0}},
        name="two random tokens",
        hovertemplate="cosine about %{x:.2f}: %{y:.1%} of the pairs<extra></extra>",
    )
    names = [as_text(name) for name in result.names()]
    figure.add_scatter(
        x=result.cosines,
        y=np.zeros(len(names)),
        mode="markers",
        marker={"symbol": "line-ns", "size": 16, "line": {"width": 2, "color": ACCENT}},
        customdata=names,
        name="neighbors",
        hovertemplate="%{customdata}: %{x:.4f}<extra></extra>",
    )
    percentile = result.percentile(0.95)
    figure.add_vline(x=percentile, line={"color": SECOND, "width": 1, "dash": "dot"}, opacity=0.9)
    figures.apply_layout(
        figure,
        190,
        legend="above",
        bargap=0,
        xaxis={"title": "cosine", "range": [low, 1.02], "zeroline": False},
        yaxis={"tickformat": ".0%", "rangemode": "tozero", "nticks": 4, "zeroline": False},
    )
    return figure


# ---------------------------------------------------------------- types and scripts


def _types(vocabulary: VocabularyResult) -> None:
    """Draw the number of tokens of each type and each script."""
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.header("Types", anchor=False)
        export(vocabulary.showing(show="kinds"), "vocabulary-kinds", label="Export types")
    counts = vocabulary.counts(vocabulary.pieces.kinds)
    left, right = st.columns([3, 2], gap="large")
    with left:
        blocks.chart(count_bars(counts, len(vocabulary.pieces)), "Number of tokens of each type")
    with right:
        st.markdown("  \n".join(f"**{kind}**: {KINDS[kind]}" for kind in counts))
    numbers(vocabulary.showing(show="kinds").frame(), "Types as a table")
    blocks.caveat(
        "Each token has one type, which is determined by its spelling in the vocabulary (docs/methods.md, "
        "Vocabulary)."
    )
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.header("Scripts", anchor=False)
        export(vocabulary.showing(show="scripts"), "vocabulary-scripts", label="Export scripts")
    scripts = vocabulary.counts(vocabulary.pieces.scripts)
    most_common = dict([*scripts.items()][:_MAX_SCRIPTS])
    blocks.chart(
        count_bars(
            {name.replace("_", " "): count for name, count in most_common.items()}, len(vocabulary.pieces)
        ),
        "Number of tokens in each script",
    )
    numbers(vocabulary.showing(show="scripts").frame(), "Scripts as a table")
    blocks.caveat(
        "The Unicode script of a token's letters. “None” contains special tokens, digits, punctuation and "
        "parts of characters. Languages with the same script share its tokens."
        + (
            f" The chart shows the {_MAX_SCRIPTS} most common of {len(scripts)} scripts."
            if len(scripts) > _MAX_SCRIPTS
            else ""
        )
    )


def count_bars(counts: Mapping[str, int], total: int) -> Any:
    """Return a horizontal bar chart of counts. Each bar is labeled with its count and share of `total`."""
    shares = [count / max(1, total) for count in counts.values()]
    figure = go.Figure(
        go.Bar(
            x=[*counts.values()],
            y=list(range(len(counts))),
            orientation="h",
            customdata=[as_text(name) for name in counts],
            marker={"color": ACCENT},
            text=[
                f"{count:,} · {_percent(share)}" for count, share in zip(counts.values(), shares, strict=True)
            ],
            textposition="outside",
            cliponaxis=False,
            hovertemplate="%{customdata}: %{x:,}<extra></extra>",
        )
    )
    figures.apply_layout(
        figure,
        24 + 30 * len(counts),
        right=104,
        bargap=0.35,
        xaxis={"visible": False, "rangemode": "tozero"},
        yaxis=named_rows([*counts]),
    )
    return figure


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 or share == 0 else "under 0.1%"


# ---------------------------------------------------------------- your text


def _your_text(checkpoint: Checkpoint) -> None:
    """Draw how the tokenizer of the model, and that of a second model if there is one, splits the text."""
    now = workbench.request()
    traces = workbench.trace_texts(checkpoint, now.texts, now.truncate)
    traced = workbench.TracedRequest(now, checkpoint, traces[0], traces[1] if len(traces) > 1 else None)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        trace = workbench.choose_trace(traced)
        second = second_model.choose(can_swap=False)
    blocks.truncation_notice(trace)
    if second is not None:
        b = second_model.open_second(second)
        if b is not None:
            _both_models(trace, b)
        return
    result = Fertility().of(trace)
    _metrics(result, "")
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.header("All words", anchor=False)
        export(result, "fertility")
    words = result.by_pieces
    blocks.table(
        pd.DataFrame(
            {
                "word": [visible(word.text) for word in words],
                "count": [len(word.pieces) for word in words],
                "tokens": [[visible(str(token)) for token in word.pieces] for word in words],
            }
        ),
        "Words of the text and their tokens, sorted by the number of tokens",
        column_config={"tokens": st.column_config.ListColumn("tokens", width="large")},
    )
    _caveat()


def _both_models(trace: Trace, b: Checkpoint) -> None:
    now = workbench.request()
    text = (trace.encoding.text, trace.encoding.pair)
    other = workbench.trace_texts(b, [text], now.truncate, key="unknown_to_b")[0]
    both = FertilityChange().of(trace, other)
    left, right = st.columns(2, gap="large")
    for column, letter, result, model in ((left, "A", both.a, trace.checkpoint), (right, "B", both.b, b)):
        with column:
            st.markdown(f"**{letter} · {state.escape(model.description.name)}**")
            _metrics(result, letter)
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.header("All words in both models", anchor=False)
        export(both, "diff-fertility")
    pairs = both.by_pieces
    blocks.table(
        pd.DataFrame(
            {
                "word": [visible(word.text) for word, _ in pairs],
                "count A": [len(word.pieces) for word, _ in pairs],
                "count B": [len(word.pieces) for _, word in pairs],
                "tokens of A": [[visible(str(token)) for token in word.pieces] for word, _ in pairs],
                "tokens of B": [[visible(str(token)) for token in word.pieces] for _, word in pairs],
            }
        ),
        "Words of the text and their tokens in both vocabularies",
        column_config={
            name: st.column_config.ListColumn(name, width="medium") for name in ("tokens of A", "tokens of B")
        },
    )
    _caveat()


def _metrics(result: FertilityResult, letter: str) -> None:
    with st.container(horizontal=True, gap="large", key=f"fertility_{letter}"):
        st.metric(
            "Tokens per word",
            f"{result.fertility:.2f}",
            help=f"{result.pieces:,} tokens, without special tokens, for {len(result.words):,} words.",
        )
        st.metric("Split words", f"{result.continued:.0%}", help="Words with at least two tokens.")
        st.metric(
            "Characters per token",
            f"{result.characters:.1f}",
            help="Mean number of characters per token, without spaces.",
        )
        st.metric(
            "Unknown",
            f"{result.unknown:,}",
            help="Number of unknown tokens, which stand for text that the vocabulary cannot represent.",
        )


def _caveat() -> None:
    blocks.caveat(
        "In this table, a word is a sequence of letters and digits or a single symbol, so that "
        "vocabularies can be compared. In text without spaces, a word can be very long. Tokens per word "
        "(fertility) and the share of split words follow Rust et al. 2021. More tokens mean longer "
        "inputs and less information per token."
    )
