"""What pages are put together from: headings, token strips, exports, refusals."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from functools import partial

import pandas as pd
import streamlit as st

from bert_probe.errors import CheckpointError, ProbeError, TextError
from bert_probe.model.encoding import Token
from bert_probe.model.trace import Trace
from bert_probe.results import files
from bert_probe.text.words import Unit
from bert_probe.web.components.strip import Piece, strip
from bert_probe.web.workbench import Request

_MIME = {
    "csv": "text/csv",
    "json": "application/json",
    "parquet": "application/vnd.apache.parquet",
    "npz": "application/octet-stream",
    "zip": "application/zip",
    "html": "text/html",
    "txt": "text/plain",
}


def heading(title: str, lead: str) -> None:
    """A page's title and the sentence that says what it is for."""
    st.title(title, anchor=False)
    st.markdown(f":gray[{lead}]")


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


def labels(tokens: Sequence[Token | Unit]) -> list[str]:
    """Tokens as people read them."""
    return [token.display for token in tokens]


def positions(tokens: Sequence[Token | Unit]) -> list[int]:
    """Places of the tokens in the input."""
    return [token.position for token in tokens]


def named(tokens: Sequence[Token | Unit]) -> list[str]:
    """Tokens as unique column names: each with its position."""
    return [f"{token.position} {token.display}" for token in tokens]


def token_strip(trace: Trace, key: str, label: str, selected: int | None = None) -> int | None:
    """The text as pills; with ``selected`` one can be chosen."""
    tokens = trace.tokens
    pieces = [
        Piece(
            text=token.display,
            position=token.position,
            segment=token.segment,
            special=token.special,
            joined=token.position > 0 and token.continues(tokens[token.position - 1]),
            detail=_detail(token),
        )
        for token in tokens
    ]
    return strip(
        pieces, key=key, label=label, selectable="none" if selected is None else "one", selected=selected
    )


def _detail(token: Token) -> str:
    place = "special token" if token.special else f"characters {token.start}–{token.end}"
    raw = "" if token.display == str(token) else f" · in the vocabulary {token}"
    return f"id {token.id} · position {token.position} · segment {'AB'[token.segment]} · {place}{raw}"


def exports(
    frame: pd.DataFrame | Callable[[], pd.DataFrame],
    name: str,
    python: str,
    command: str,
    more: Sequence[tuple[str, str, Callable[[], bytes]]] = (),
    what: str = "Exactly what is shown, at full precision.",
) -> None:
    """A menu with the table as a file in every format, and the code that makes it again.

    Args:
        frame: the table, or what makes it when somebody wants it.
        more: further downloads: label, file name, and what makes the bytes when it is clicked.
        what: a sentence on what the files hold.
    """

    def table() -> pd.DataFrame:
        return frame if isinstance(frame, pd.DataFrame) else frame()

    def written(form: str) -> bytes:
        return files.to_bytes(table(), form)

    with st.popover("Export", icon=":material/download:"):
        st.caption(what)
        with st.container(horizontal=True):
            for form in files.FORMATS:
                _download(form.upper(), f"{name}.{form}", partial(written, form))
            _download("CSV + provenance", f"{name}.zip", lambda: files.csv_zip(table(), name))
        for label, file_name, make in more:
            _download(label, file_name, make)
        st.caption("The same in Python")
        st.code(python, language="python")
        st.caption("The same on the command line")
        st.code(command, language="bash", wrap_lines=True)


def _download(label: str, file_name: str, make: Callable[[], bytes]) -> None:
    # The bytes are made when somebody clicks, so an open page costs nothing.
    st.download_button(
        label,
        make,
        file_name=file_name,
        mime=_MIME[file_name.rpartition(".")[2]],
        key=f"download {file_name} {label}",
        on_click="ignore",
    )


def python_code(request: Request, *lines: str) -> str:
    """A script that opens the same model and ends in ``lines``."""
    model = repr(request.model) if request.model else ""
    revision = f", revision={request.revision!r}" if request.revision else ""
    return "\n".join(["import bert_probe", "", f"checkpoint = bert_probe.load({model}{revision})", *lines])


def trace_code(request: Request, trace: Trace, name: str = "trace") -> str:
    """The line of Python that makes this trace."""
    given = [repr(trace.encoding.text)]
    if trace.encoding.pair is not None:
        given.append(repr(trace.encoding.pair))
    if request.truncate:
        given.append("truncate=True")
    return f"{name} = checkpoint.trace({', '.join(given)})"


def command_line(
    request: Request,
    command: str,
    *options: str,
    trace: Trace | None = None,
    texts: Sequence[str] = (),
    note: str = "",
) -> str:
    """The shell command for a table, quoted.

    Args:
        trace: of the text and its pair that it reads; otherwise ``texts``.
        note: how its table differs from the one that is shown; a comment above it.
    """
    words = ["bert-probe", command]
    if trace is not None:
        texts = [trace.encoding.text]
        words += ["--pair", trace.encoding.pair] if trace.encoding.pair is not None else []
    words += [*options]
    for option, value in (("--model", request.model), ("--revision", request.revision)):
        words += [option, value] if value else []
    words += ["--truncate"] if request.truncate else []
    # Texts come last, after a mark that ends the options where one of them begins like an option.
    words += ["--"] if any(text.startswith("-") for text in texts) else []
    return (f"# {note}\n" if note else "") + shlex.join([*words, *texts])


def caveat(text: str) -> None:
    """What a picture does not mean, beneath it."""
    st.caption(text)


def dark() -> bool:
    """Whether the reader's theme is dark."""
    return st.context.theme.type == "dark"
