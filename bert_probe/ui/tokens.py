"""The Tokens page: how the tokenizer splits a text, and how texts are padded in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import streamlit as st

from bert_probe.analyses.vectors.padding import COLUMNS, PaddingEffect, PaddingEffectResult
from bert_probe.analyses.vocabulary.tokens import Tokens
from bert_probe.errors import ProbeError, TextError
from bert_probe.model.trace import Trace
from bert_probe.runtime import shared_cache
from bert_probe.server import page_traces
from bert_probe.text.sentence_files import check_lines, lines
from bert_probe.ui import blocks, state, url_texts, workbench
from bert_probe.ui.export import export
from bert_probe.views.text import shorten


def render() -> None:
    """Draw the Tokens page."""
    blocks.heading(
        "Tokens",
        "The tokenizer splits a text into tokens from a fixed vocabulary. A word that is not in the "
        "vocabulary is split into several subword tokens.",
    )
    traced = workbench.trace_request()
    for letter, trace in (("A", traced.a), ("B", traced.b)):
        if trace is None:
            continue
        blocks.truncation_notice(trace)
        title = "Sentences A and B as one input" if trace.encoding.pair is not None else f"Sentence {letter}"
        with st.container(border=True):
            st.markdown(f"**{title if traced.b or trace.encoding.pair else 'Your text'}**")
            blocks.token_strip(trace, key=f"strip_{letter}", label=title)
    trace = workbench.choose_trace(traced)
    _counts(trace)
    _split_words(trace)
    _every_token(trace)
    _in_one_batch(traced)


def _counts(trace: Trace) -> None:
    result = Tokens().of(trace)
    with st.container(horizontal=True, gap="large"):
        st.metric(
            "Tokens", f"{len(trace.tokens):,}", help="Tokens that the model reads, including special tokens."
        )
        st.metric(
            "Words",
            f"{len(result.words):,}",
            help="Words and punctuation marks as the tokenizer separates them.",
        )
        st.metric(
            "Split words",
            f"{len(result.split_words):,}",
            help="Words that consist of several subword tokens.",
        )
        st.metric(
            "Special tokens",
            f"{result.specials:,}",
            help="Special tokens are added by the tokenizer: [CLS] at the start, and [SEP] after each "
            "text. Some models use <s> and </s>.",
        )
        if result.length_used is not None:
            st.metric(
                "Input length",
                f"{result.length_used:.0%}",
                help=f"{len(trace.tokens):,} of at most {trace.encoding.max_tokens:,} tokens.",
            )


def _split_words(trace: Trace) -> None:
    split_words = Tokens().of(trace).split_words
    if not split_words:
        st.caption("No word is split: every word is in the vocabulary.")
        return
    st.header("Split words", anchor=False)
    blocks.table(
        pd.DataFrame(
            {
                "word": [word.text for word in split_words],
                "tokens": [
                    [shorten(trace.tokens[i].display) for i in word.positions] for word in split_words
                ],
                "positions": [", ".join(map(str, word.positions)) for word in split_words],
            }
        ),
        "Split words and their subword tokens",
        column_config={"tokens": st.column_config.ListColumn("tokens", width="large")},
    )
    if any(str(trace.tokens[i]).startswith("##") for word in split_words for i in word.positions):
        st.caption(
            "WordPiece takes the longest token in the vocabulary that the word starts with, then the longest "
            "token that continues it, and so on. A token that continues a word starts with ##."
        )


def _every_token(trace: Trace) -> None:
    result = Tokens().of(trace)
    table = result.table()
    with st.container(horizontal=True, vertical_alignment="bottom", horizontal_alignment="distribute"):
        st.header("All tokens", anchor=False)
        export(result, "tokens")
    blocks.table(
        table,
        "All tokens with id, segment, word and position in the text",
        max_height=640,
        column_config={
            "position": st.column_config.NumberColumn(
                "position", help="Position in the model's input, from 0."
            ),
            "token": st.column_config.TextColumn(
                "token", help="Entry of the vocabulary. ## marks a token that continues a word."
            ),
            "id": st.column_config.NumberColumn(
                "id", help="Index of the token in the vocabulary.", format="%d"
            ),
            "segment": st.column_config.NumberColumn(
                "segment", help="0 for the first text, 1 for the second."
            ),
            "word": st.column_config.NumberColumn("word", help="Index of the word in its text, from 0."),
            "start": st.column_config.NumberColumn(
                "start", help="Position of the token's first character in the text, from 0."
            ),
            "end": st.column_config.NumberColumn("end", help="Position after the token's last character."),
            "special": st.column_config.CheckboxColumn(
                "special", help="Whether the tokenizer added the token."
            ),
        },
    )


_BATCH = "batch_texts"
_EXAMPLE_TEXTS = "A short one.\nOne word\nAnd this one is longer than those."
"""Default value of the text field for additional texts of the batch, one per line."""
_MAX_TEXTS = 20
_SHADE = "background-color: rgba(138,135,151,0.28); color: rgba(138,135,151,1)"
"""CSS style of padding cells, readable in the light and the dark theme."""
_CELLS = {
    "token": "Tokens",
    "input_ids": "Ids",
    "token_type_ids": "Segments",
    "attention_mask": "Attention mask",
}


def _in_one_batch(traced: workbench.TracedRequest) -> None:
    """Draw a padded batch of the user's texts and additional texts, and how padding affects the vectors."""
    st.header("Padding in a batch", anchor=False)
    st.markdown(
        ":gray[The texts of a batch must have the same length, so shorter texts are padded with a special "
        "token that the attention mask hides from the model.]"
    )
    if not state.toggle(
        "padding",
        "Batch my text with other texts",
        False,
        "This analysis runs three forward passes on the texts of the batch.",
    ):
        return
    if _BATCH not in st.session_state:
        recalled = url_texts.recall(_BATCH)
        st.session_state[_BATCH] = _EXAMPLE_TEXTS if recalled is None else recalled
        try:
            url_texts.check(_BATCH)
        except TextError as error:
            st.session_state[_BATCH] = ""
            blocks.error_box(error)
    more = st.text_area(
        "More texts for the batch, one per line",
        key=_BATCH,
        height=100,
        persist_state="session",
        help="These texts are batched with your text. Leave the field empty to batch your own texts only.",
    )
    url_texts.remember(_BATCH, None if more == _EXAMPLE_TEXTS else more)
    try:
        with st.spinner("Running the batch …", show_time=False):
            check_lines(more)
            result = _pad(traced, lines(more))
    except ProbeError as error:
        with st.container(border=True, key="batch_refusal"):
            st.text(str(error))
        return
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        cells = {name: label for name, label in _CELLS.items() if name == "token" or name in result.arrays}
        cell = state.segmented_control("padding_cells", "Cells", cells, "token")
        st.space("stretch")
        with st.container(horizontal=True, width="content", gap="small"):
            export(result.showing(show="differences"), "padding-differences", label="Export differences")
            export(result, "padding-inputs", label="Export batch")
    blocks.table(
        _batch_table(result, cell),
        "The batch: one row per text, one column per position, padding shaded",
        max_height=640,
        show_index=True,
    )
    _show_padding_check(result)


def _pad(traced: workbench.TracedRequest, more: Sequence[str]) -> PaddingEffectResult:
    """Return the effect of padding for a batch of the user's texts and the additional texts `more`."""
    own: list[Trace] = [trace for trace in (traced.a, traced.b) if trace is not None]
    texts: list[shared_cache.Text] = [(text, None) for text in more[:_MAX_TEXTS]]
    further = page_traces.traces(traced.checkpoint, texts, traced.request.truncate)
    if len(more) > _MAX_TEXTS:
        st.caption(f":orange[You entered {len(more):,} lines, but only the first {_MAX_TEXTS} are used.]")
    result: PaddingEffectResult = shared_cache.answers.of(PaddingEffect().of, (*own, *further))
    return result


def _batch_table(result: PaddingEffectResult, cell: str) -> Any:
    """Return a batch as a pandas Styler: one row per text, one column per position, shaded padding."""
    rows = [
        [
            shorten(result.token(text, position))
            if cell == "token"
            else str(result.arrays[cell][text, position])
            for position in range(result.length)
        ]
        for text in range(len(result.encodings))
    ]
    names = [f"{number} · {shorten(text.text)[:24]}" for number, text in enumerate(result.encodings, start=1)]
    columns = [*map(str, range(result.length))]
    frame = pd.DataFrame(rows, index=pd.Index(names, name="text"), columns=columns)
    padding = pd.DataFrame(result.padding, index=frame.index, columns=frame.columns)
    styles = padding.map(lambda is_padding: _SHADE if is_padding else "")
    return frame.style.apply(lambda _: styles, axis=None)


def _show_padding_check(result: PaddingEffectResult) -> None:
    """Show whether padding changes the vectors, and how much they would change without the attention mask."""
    if result.is_unaffected:
        verdict = (
            f"padding does not change the vectors (the largest difference is {result.difference:.1e}, "
            f"within the rounding error of {result.allowed:.0e})"
        )
    else:
        verdict = (
            f"padding changes this model's vectors by up to {result.difference:.1e}, more than the rounding "
            f"error of {result.allowed:.0e}. For this model, the app does not batch texts of different "
            "lengths"
        )
    st.markdown(
        f"**Check:** compared with separate runs of the texts, {verdict}. Without the attention mask, the "
        f"vectors would differ by up to **{result.without_mask:.2g}**."
    )
    blocks.caveat(
        f"{result.padding_share:.0%} of the {result.length * len(result.encodings):,} positions are "
        f"padding tokens ({state.escape(result.padding_token)}). The attention mask adds −∞ to the "
        "scores of padding keys, so no token attends to them. The vectors of padding tokens are "
        f"discarded. Column names in exported files: {', '.join(COLUMNS.values())}."
    )
