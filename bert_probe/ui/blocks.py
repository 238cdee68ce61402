"""What pages are put together from: headings, token strips, refusals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from bert_probe.errors import CheckpointError, ProbeError, TextError
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Trace
from bert_probe.text.words import Unit
from bert_probe.ui.components.strip import strip
from bert_probe.views.strip import StripToken
from bert_probe.views.text import labels as labels
from bert_probe.views.text import positions as positions
from bert_probe.views.text import shown

_COMPACT: Final = Path(__file__).with_name("static") / "compact.css"


def heading(title: str, lead: str) -> None:
    """A page's title and the sentence that says what it is for."""
    st.title(title, anchor=False)
    st.markdown(f":gray[{lead}]")


def compact_heading(title: str, lead: str) -> DeltaGenerator:
    """A page's title, the sentence a hint, in a row that takes choosers too: the picture comes first."""
    st.html(_COMPACT)
    row = st.container(horizontal=True, vertical_alignment="center", gap="small", key="compact_heading")
    row.title(title, anchor=False, help=lead, width="content")
    return row


def refusal(error: ProbeError, rest: str = "") -> None:
    """What went wrong, with the remedy, where the picture would be.

    Args:
        rest: where to change what was given, on a page with a text of its own.
    """
    if rest:
        title = "This cannot be read"
    elif isinstance(error, CheckpointError):
        title, rest = "This model cannot be opened", "Choose another one under Model and length."
    elif isinstance(error, TextError):
        title, rest = "This text cannot be read", "Change it under Your text, or choose an example there."
    else:
        title, rest = "This cannot be shown", "Everything you typed and chose is still there."
    with st.container(border=True, key="refusal"):
        st.header(title, anchor=False)
        # st.text shows a person's own words as they are; Markdown would not.
        st.text(str(error))
        st.caption(rest)


def truncation_notice(trace: Trace) -> None:
    """Say what was cut off."""
    dropped = trace.encoding.dropped
    if dropped:
        st.warning(
            f"{dropped:,} tokens at the end were cut off: this model reads {trace.encoding.max_tokens:,}. "
            "What follows is about the part that is left.",
            icon=":material/content_cut:",
        )


def named(tokens: Sequence[Token | Unit]) -> list[str]:
    """Tokens as unique column names: each with its position."""
    return [f"{token.position} {shown(token.display)}" for token in tokens]


def token_strip(
    trace: Trace, key: str, label: str, selected: int | None = None, row: bool = False
) -> int | None:
    """The text as pills; with ``selected`` one can be chosen, with ``row`` they are pushed aside."""
    tokens = trace.tokens
    pieces = [
        StripToken(
            text=shown(token.display),
            position=token.position,
            segment=token.segment,
            special=token.special,
            joined=token.position > 0 and token.continues(tokens[token.position - 1]),
            detail=_detail(token),
        )
        for token in tokens
    ]
    selectable: Literal["none", "one"] = "none" if selected is None else "one"
    return strip(pieces, key=key, label=label, selectable=selectable, selected=selected, row=row)


def _detail(token: Token) -> str:
    place = "special token" if token.special else f"characters {token.start}–{token.end}"
    raw = "" if token.display == str(token) else f" · in the vocabulary {shown(token)}"
    return f"id {token.id} · position {token.position} · segment {'AB'[token.segment]} · {place}{raw}"


def caveat(text: str) -> None:
    """What a picture does not mean, beneath it."""
    st.caption(text)


def dark() -> bool:
    """Whether the reader's theme is dark."""
    return st.context.theme.type == "dark"
