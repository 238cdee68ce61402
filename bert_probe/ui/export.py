"""The menu by which what is shown is taken along: as a file, and as the lines that make it again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import streamlit as st

from bert_probe.core import files, snippets
from bert_probe.core.result import Result
from bert_probe.ui import view_files
from bert_probe.views import pictures

More = tuple[str, str, Callable[[bool], bytes]]
"""A further download: label, file name, and what makes the bytes when it is clicked, told whether text in CSV
is to be kept from being a formula."""

_MIME = {
    "csv": "text/csv",
    "json": "application/json",
    "parquet": "application/vnd.apache.parquet",
    "npz": "application/octet-stream",
    "safetensors": "application/octet-stream",
    "zip": "application/zip",
    "html": "text/html",
    "txt": "text/plain",
    "py": "text/x-python",
    "sh": "application/x-sh",
    "conll": "text/plain",
    "conllu": "text/plain",
}

_SHOWN = 5_000
"""Characters of code that is printed on the page; with a longer text it is a file."""


def export(
    result: Result,
    name: str,
    more: Sequence[More] = (),
    what: str = "Exactly what is shown, at full precision.",
    ready: Callable[[], bool] = lambda: True,
    label: str = "Export",
    drawn: Mapping[str, str] | None = None,
    data: Mapping[str, Any] | None = None,
) -> None:
    """A menu with the table of a result in every format, and the code that makes it again.

    Args:
        name: of the files, without their ending.
        what: a sentence on what the files hold.
        ready: whether there is ``more`` to be had already; it draws what has to be done first.
        label: of the menu; a page that has two tells them apart.
        drawn: how attention is drawn, where that is not the result's own picture; see `ViewFile`.
        data: sentences or files that the result does not hold; see `ViewFile.of`.
    """
    with st.popover(label, icon=":material/download:"):
        st.caption(what)
        # Several menus of a page may be of one kind of answer, but none are called alike.
        kind = type(result.question).__name__
        csv_safe = st.checkbox(
            "CSV for spreadsheets", key=f"csv_safe_{kind}" + ("" if label == "Export" else f" {label}")
        )
        st.caption(
            files.CSV_SAFE if csv_safe else "In CSV text is exact; a spreadsheet may run it as a formula."
        )
        with st.container(horizontal=True):
            for form in files.FORMATS:
                _download(form.upper(), f"{name}.{form}", partial(written, result, form, csv_safe))
            _download("CSV + provenance", f"{name}.zip", partial(zipped, result, name, csv_safe))
        if pictures.is_drawn(result) and not any(file_name.endswith(".html") for _, file_name, _ in more):
            _download("Interactive page, HTML", f"{name}.html", lambda: pictures.page(result).html().encode())
        for named, file_name, make in more if ready() else ():
            _download(named, file_name, partial(make, csv_safe))
        view_files.menu(result, name, drawn or {}, data)
        python, shell = result.snippets(csv_safe)
        _code("The same in Python", python, "python", f"{name}.py")
        _code("The same on the command line", shell, "bash", f"{name}.sh")
        http = snippets.http(result.question, result.inputs, _origin())
        _code("The same over HTTP", http, "bash", f"{name}-http.sh")


def _origin() -> str:
    """Where this app is for who looks at it."""
    found = urlsplit(st.context.url or "")
    return f"{found.scheme}://{found.netloc}" if found.netloc else snippets.DEFAULT_URL


def written(result: Result, form: str, csv_safe: bool) -> bytes:
    """The table in one of the formats."""
    return files.to_bytes(result.table(), form, csv_safe)


def zipped(result: Result, name: str, csv_safe: bool) -> bytes:
    """The table as CSV with its provenance beside it."""
    return files.csv_zip(result.table(), name, csv_safe)


def _code(label: str, code: str, language: str, file_name: str) -> None:
    """Code to copy, or to download where a text makes it long."""
    if len(code) > _SHOWN:
        _download(f"{label}, {len(code):,} characters", file_name, lambda: f"{code}\n".encode())
        return
    st.caption(label)
    st.code(code, language=language, wrap_lines=language == "bash")


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
