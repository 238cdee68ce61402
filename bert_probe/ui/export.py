"""The Export menu: downloads of a result as files, and code that reproduces the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pandas as pd
import streamlit as st

from bert_probe.core import files, snippets
from bert_probe.core.result import Result
from bert_probe.runtime import permissions
from bert_probe.runtime.tables import limited_parts, limited_table
from bert_probe.ui import view_files
from bert_probe.views import pictures

ExtraDownload = tuple[str, str, Callable[[bool], bytes]]
"""Label and file name of an additional download, and a function that returns its bytes when the user clicks.
The function's argument is whether to escape CSV text, so that a spreadsheet does not run it as a formula."""

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
    "jsonl": "application/jsonl",
    "conll": "text/plain",
    "conllu": "text/plain",
}

_MAX_CODE = 5_000
"""Maximum number of characters of code shown in the menu. Longer code is offered as a download."""


def export(
    result: Result,
    name: str,
    more: Sequence[ExtraDownload] = (),
    caption: str = "Save the result at full precision.",
    ready: Callable[[], bool] = lambda: True,
    label: str = "Export",
    display: Mapping[str, str] | None = None,
    data: Mapping[str, Any] | None = None,
) -> None:
    """Draw a menu with downloads of a result in every format, and the code that reproduces the result.

    Args:
        result: the result to export.
        name: name of the files, without extension.
        more: additional downloads.
        caption: a sentence that describes the contents of the files.
        ready: function that returns whether the downloads in ``more`` are ready. It may draw a button that
            computes them.
        label: label of the menu; must be unique on a page.
        display: display options of an attention view that is not the result's default view; see `ViewFile`.
        data: sentences or files that are saved with the view, because the result does not contain them; see
            `ViewFile.of`.
    """
    with st.popover(label, icon=":material/download:"):
        st.caption(caption)
        # The key includes the label, because a page may have two menus for results of the same type.
        kind = type(result.question).__name__
        csv_safe = st.checkbox(
            "CSV for spreadsheets", key=f"csv_safe_{kind}" + ("" if label == "Export" else f" {label}")
        )
        st.caption(
            files.CSV_SAFE_HELP
            if csv_safe
            else "Text is exported without changes, so a spreadsheet may run a text that begins with = "
            "as a formula."
        )
        with st.container(horizontal=True):
            for form in files.FORMATS:
                _download(form.upper(), f"{name}.{form}", partial(table_bytes, result, form, csv_safe))
            _download("CSV + provenance", f"{name}.zip", partial(table_zip, result, name, csv_safe))
        if pictures.is_drawn(result) and not any(file_name.endswith(".html") for _, file_name, _ in more):
            _download(
                "Interactive page (HTML)", f"{name}.html", lambda: pictures.page(result).html().encode()
            )
        for extra_label, file_name, make in more if ready() else ():
            _download(extra_label, file_name, partial(make, csv_safe))
        view_files.menu(result, name, display or {}, data)
        python, shell = result.snippets(csv_safe)
        _code("Python code", python, "python", f"{name}.py")
        _code("Command line", shell, "bash", f"{name}.sh")
        if permissions.current().has_api:
            url = urlsplit(st.context.url or "")
            origin = f"{url.scheme}://{url.netloc}" if url.netloc else snippets.DEFAULT_URL
            http = snippets.http(result.question, result.inputs, origin)
            _code("HTTP request", http, "bash", f"{name}-http.sh")


def table_bytes(result: Result, form: str, csv_safe: bool) -> bytes:
    """Return the table of a result as a file in the format `form`.

    Raises:
        TooLargeError: the server is public, and the table exceeds a limit; see `limited_table`.
    """
    return files.to_bytes(_table(result), form, csv_safe)


def table_zip(result: Result, name: str, csv_safe: bool) -> bytes:
    """Return a ZIP file that contains a result's table as CSV and its provenance.

    Raises:
        TooLargeError: see `table_bytes`.
    """
    return files.csv_zip(_table(result), name, csv_safe)


def long_table_zip(result: Result, name: str, csv_safe: bool) -> bytes:
    """Return the ZIP file of `table_zip`, created in blocks of rows.

    Raises:
        TooLargeError: see `table_bytes`.
    """
    parts = limited_parts(result) if permissions.current().is_public else result.parts()
    return files.parts_zip(parts, name, csv_safe)


def _table(result: Result) -> pd.DataFrame:
    return limited_table(result) if permissions.current().is_public else result.table()


def _code(label: str, code: str, language: str, file_name: str) -> None:
    """Draw code in the menu, or a download button if the code has more than `_MAX_CODE` characters."""
    if len(code) > _MAX_CODE:
        _download(f"{label}, {len(code):,} characters", file_name, lambda: f"{code}\n".encode())
        return
    st.caption(label)
    st.code(code, language=language, wrap_lines=language == "bash")


def _download(label: str, file_name: str, make: Callable[[], bytes]) -> None:
    # Pass a function instead of bytes, so that the file is created only when the user clicks.
    st.download_button(
        label,
        make,
        file_name=file_name,
        mime=_MIME[file_name.rpartition(".")[2]],
        key=f"download {file_name} {label}",
        on_click="ignore",
    )
