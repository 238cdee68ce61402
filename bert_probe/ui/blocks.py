"""Elements that pages share: headings, token strips, captions and error messages."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from bert_probe.errors import CheckpointError, ProbeError, TextError
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Trace
from bert_probe.runtime import permissions
from bert_probe.text.words import Unit
from bert_probe.ui.components import strip
from bert_probe.ui.state import escape
from bert_probe.views.text import StripToken, place_name, ruler_number, shorten
from bert_probe.views.text import labels as labels
from bert_probe.views.text import positions as positions

if TYPE_CHECKING:
    import pandas as pd

TASK_LABELS: Final = {
    "fill-mask": "Fill mask",
    "text-classification": "Text classification",
    "token-classification": "Token classification",
    "question-answering": "Question answering",
    "next-sentence-prediction": "Next-sentence prediction",
    "sentence-similarity": "Sentence similarity",
}
"""Display names of the tasks of task heads."""

_HEADER_HEIGHT, _ROW_HEIGHT = 38, 35
"""Heights of a table's header and of its other rows, in pixels."""

_COMPACT: Final = Path(__file__).with_name("static") / "compact.css"


def heading(title: str, lead: str) -> None:
    """Draw a page's title and a sentence about the page."""
    st.title(title, anchor=False)
    st.markdown(f":gray[{lead}]")


def heading_with_corner(title: str, lead: str) -> DeltaGenerator:
    """Draw a page's heading; return a container to the right of the title, for the export menu."""
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        st.title(title, anchor=False, width="content")
        corner = st.container(width="content")
    st.markdown(f":gray[{lead}]")
    return corner


def compact_heading(title: str, lead: str) -> DeltaGenerator:
    """Draw a page's title with `lead` as its help text. Return the row, to which widgets can be added."""
    st.html(_COMPACT)
    row = st.container(horizontal=True, vertical_alignment="center", gap="small", key="compact_heading")
    row.title(title, anchor=False, help=lead, width="content")
    return row


def error_box(error: ProbeError, remedy: str = "") -> None:
    """Draw an error message and a remedy in place of the result.

    Args:
        error: the error to describe.
        remedy: sentence that tells the user what to change. Pass it only for errors in the page's own fields.
    """
    if remedy:
        title = "This input cannot be read"
    elif isinstance(error, CheckpointError):
        models = permissions.current().models
        title = "This model cannot be opened"
        remedy = "Choose another model under Model and length."
        if len(models) == 1:
            remedy = f"Press Run to use {models[0]}."
    elif isinstance(error, TextError):
        title, remedy = (
            "This text cannot be read",
            "Change the text under Your text, or choose an example there.",
        )
    else:
        title, remedy = "This result cannot be shown", "Your texts and settings are kept."
    with st.container(border=True, key="refusal"):
        st.header(title, anchor=False)
        # st.text does not interpret Markdown in the user's text.
        st.text(str(error))
        st.caption(remedy)


def truncation_notice(trace: Trace) -> None:
    """Draw a warning if the text was truncated."""
    dropped = trace.encoding.dropped
    if dropped:
        st.warning(
            f"The text was truncated by {dropped:,} {'token' if dropped == 1 else 'tokens'}, because this "
            f"model reads at most {trace.encoding.max_tokens:,} tokens. The results are for the truncated "
            "text.",
            icon=":material/content_cut:",
        )


def unique_names(tokens: Sequence[Token | Unit]) -> list[str]:
    """Return a unique column name for each token: its position and text, or a residue such as K10."""
    return [
        f"{token.position} {shorten(token.display)}" if token.residue is None else place_name(token)
        for token in tokens
    ]


def token_strip(
    trace: Trace, key: str, label: str, selected: int | None = None, row: bool = False
) -> int | None:
    """Draw the tokens as pills and return the position of the selected one, if any.

    Args:
        trace: trace of the text.
        key: key of the component.
        label: description for screen readers.
        selected: position that is initially selected; None if tokens cannot be selected.
        row: whether to keep all tokens in one row, which scrolls.
    """
    tokens = trace.tokens
    pieces = [
        StripToken(
            text=shorten(token.display),
            position=token.position,
            segment=token.segment,
            special=token.special,
            joined=token.position > 0 and token.continues(tokens[token.position - 1]),
            detail=_detail(token),
            number=ruler_number(token),
        )
        for token in tokens
    ]
    selectable: Literal["none", "one"] = "none" if selected is None else "one"
    return strip(pieces, key=key, label=label, selectable=selectable, selected=selected, row=row)


def _detail(token: Token) -> str:
    place = "special token" if token.special else f"characters {token.start}–{token.end}"
    place = place if token.residue is None else f"residue {token.residue} · {place}"
    raw = "" if token.display == str(token) else f" · in the vocabulary: {shorten(token)}"
    return f"id {token.id} · position {token.position} · segment {'AB'[token.segment]} · {place}{raw}"


def not_run(submitted: Mapping[str, str], width: Literal["stretch", "content"] = "stretch") -> None:
    """Draw the mark "Not run yet", which the browser shows while a field differs from its submitted value.

    The server receives the values of a form only when it is submitted, so `server/static/index.js` compares
    the fields.

    Args:
        submitted: submitted value by widget key: a text, the label of the selected option, "on" or "off".
        width: width of the mark; see `st.html`.
    """
    # Browsers normalize line breaks in text fields to \n.
    values = {key: re.sub("\r\n?", "\n", value) for key, value in submitted.items()}
    # The sanitizer of st.html removes attributes that contain certain tags, so escape angle brackets.
    text = json.dumps(values).replace("<", r"\u003c").replace(">", r"\u003e")
    st.html(f'<p class="not-run" role="status" data-submitted="{html.escape(text)}"></p>', width=width)


def not_run_on_page() -> None:
    """Draw a mark at the bottom of the window, which the browser shows while any field is not submitted."""
    # The container takes no space on the page; the placeholder of an element that is not loaded yet would.
    with st.container(key="not_run_page"):
        st.html('<p class="not-run not-run-page" role="status"></p>')


def up_to(difference: float) -> str:
    """Return "exactly" if a difference is 0, otherwise "up to a difference of …"."""
    return f"up to a difference of {difference:.1e}" if difference else "exactly"


def caveat(text: str) -> None:
    """Draw a caption about the limits of a result."""
    st.caption(text)


def table(
    frame: Any,
    alt: str,
    max_height: int = 420,
    *,
    show_index: bool = False,
    column_config: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Draw a table with a height that fits its rows. A table with more rows than fit `max_height` scrolls.

    Args:
        frame: data frame or styled data frame; missing values are drawn as a dash.
        alt: description for screen readers.
        max_height: maximum height in pixels.
        show_index: whether to show the index of the data frame.
        column_config: see `st.dataframe`.
        options: see `st.dataframe`, for example ``key`` and ``on_select``.

    Returns:
        The value of `st.dataframe`: the selection if ``on_select`` is set.
    """
    rows = min(max(1, len(frame.index)), (max_height - _HEADER_HEIGHT) // _ROW_HEIGHT)
    return st.dataframe(
        frame,
        hide_index=not show_index,
        width="stretch",
        height=_HEADER_HEIGHT + _ROW_HEIGHT * rows,
        placeholder="–",
        column_config=column_config,
        alt=alt,
        **options,
    )


def selected_rows(event: Any, frame: Sized) -> list[int]:
    """Return the positions of the rows that are selected in a table, in the order of their selection.

    If the data of a table change, Streamlit keeps the selection. Rows that the new data lack are left out.

    Args:
        event: return value of `table` with ``on_select``.
        frame: data frame that the table shows.
    """
    return [int(row) for row in event.selection.rows if row < len(frame)]


def chart(figure: Any, alt: str, **options: Any) -> Any:
    """Draw a Plotly figure at the full width of the page; `alt` describes it for screen readers."""
    from bert_probe.ui.figures import CONFIG  # imported on first use, because it imports Plotly

    return st.plotly_chart(figure, alt=alt, **{"width": "stretch", "config": CONFIG, **options})


def is_dark() -> bool:
    """Return whether the user's theme is dark."""
    return st.context.theme.type == "dark"


COLOURS = ("violet", "orange", "green", "blue", "red", "yellow")
"""Streamlit names of the colors of highlighted spans. Spans with different names may have the same color."""

_MAX_PLAIN = 400
"""Maximum number of characters shown before, between or after highlighted spans. Of longer text, the middle
is omitted."""


@dataclass(frozen=True)
class HighlightSpan:
    """A span of characters with the name drawn next to the span, and a color from `COLOURS`."""

    start: int
    end: int
    name: str
    colour: str


def span_colors(names: Iterable[str]) -> dict[str, str]:
    """Return a color for each name; colors are assigned to the names in alphabetical order."""
    return {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(sorted(set(names)))}


def highlight_markdown(text: str, marks: Sequence[HighlightSpan]) -> str:
    """Return the text as escaped Markdown with highlighted spans, which must not overlap.

    Adjacent spans with the same name are joined, and the name follows the last of them.
    """
    spans = _join_spans(marks)
    end, parts = 0, []
    for number, span in enumerate(spans, start=1):
        parts.append(_plain_text(text[end : span.start]))
        parts.append(f":{span.colour}-background[{_escape(text[span.start : span.end])}]")
        end = span.end
        following = spans[number] if number < len(spans) else None
        if following is None or following.name != span.name or text[span.end : following.start].strip():
            parts.append(f" :{span.colour}[**{escape(span.name)}**] ")
    parts.append(_plain_text(text[end:]))
    return "".join(parts)


def _join_spans(marks: Sequence[HighlightSpan]) -> list[HighlightSpan]:
    joined: list[HighlightSpan] = []
    for span in sorted(marks, key=lambda span: (span.start, span.end)):
        if joined and joined[-1].name == span.name and joined[-1].end == span.start:
            joined[-1] = replace(joined[-1], end=span.end)
        else:
            joined.append(span)
    return joined


def _plain_text(text: str) -> str:
    if len(text) <= _MAX_PLAIN:
        return _escape(text)
    half = _MAX_PLAIN // 2
    return f"{_escape(text[:half])} … {_escape(text[-half:])}"


def _escape(text: str) -> str:
    """Escape text for Markdown; leading and trailing whitespace becomes a single space each."""
    before, after = (" " if end.isspace() else "" for end in (text[:1], text[-1:]))
    return f"{before}{escape(text, len(text))}{after}" if text.strip() else before


def numbers(frame: pd.DataFrame, title: str = "Numbers") -> None:
    """Draw a table of numbers in an expander that is initially closed."""
    rows = frame.reset_index() if frame.index.name else frame
    decimals = st.column_config.NumberColumn(format="%.4f")
    columns = {str(name): decimals for name in rows if rows[name].dtype.kind == "f"}
    with st.expander(title):
        table(rows, title, column_config=columns)
