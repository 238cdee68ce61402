"""The report itself: made in a job, then downloaded."""

from __future__ import annotations

from typing import Final

import streamlit as st

from bert_probe.errors import ReportError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress as Progress
from bert_probe.reports.drafts import Draft
from bert_probe.reports.numbers import NamedModels
from bert_probe.reports.report import Report
from bert_probe.reports.view_files import ModelReference
from bert_probe.runtime import shared_cache
from bert_probe.ui import consent, jobs, state
from bert_probe.ui.report import preview

MOST_BYTES: Final = 20_000_000
"""Of a page that is kept for a session, as of its files; the command line writes larger ones."""


def part(tray: Draft) -> None:
    """The button that makes it, and the files."""
    named = [model for entry in tray.entries for model in entry.view.models]
    unknown = [(one.name, one.revision) for one in named if not consent.is_agreed(one.name, one.revision)]
    if unknown:
        title = "Open the models of this report?"
        consent.question(unknown, "report", title, "Its views name models that this session has not opened.")
        return
    models = dict.fromkeys(one.shown for one in named)
    note = f"Opens {', '.join(models)}, and each again in float64, to know how exact the numbers are."
    made = jobs.run(
        "report",
        tray.to_bytes(),
        "Make the report",
        lambda report: _made(tray, report),
        "views",
        state.plain(note, 1_000),
    )
    if made is None:
        return
    page, archive = made
    with st.container(horizontal=True, vertical_alignment="center"):
        for label, content, ending, mime in (
            ("Page, HTML", page, "html", "text/html"),
            ("Everything, ZIP", archive, "zip", "application/zip"),
        ):
            st.download_button(
                f"{label} · {len(content) / 1e6:.1f} MB",
                content,
                file_name=f"report.{ending}",
                mime=mime,
                key=f"report {ending}",
                type="primary" if ending == "html" else "secondary",
                on_click="ignore",
            )
    st.caption(
        "The page opens from a disk without a network, with live pictures. The ZIP holds it too, with data "
        "(Parquet), pictures (SVG) and a manifest. Whoever has either can run bert-probe verify on it."
    )
    preview.part(page)


def _made(tray: Draft, report: Progress) -> tuple[bytes, bytes]:
    made = Report.of(tray, NamedModels(_opened), report)
    page = made.html().encode()
    if len(page) > MOST_BYTES:
        raise ReportError(
            f"The report is a page of {len(page) / 1e6:,.0f} MB, and the app keeps at most "
            f"{MOST_BYTES / 1e6:.0f}. Save these views, and make it with bert-probe report."
        )
    return page, made.zip()


def _opened(named: ModelReference) -> Checkpoint:
    """A model for the report: one that is open already, where it computes in the usual type."""
    if named.dtype == "float32":
        return shared_cache.open_checkpoint(named.name, named.revision)
    from bert_probe.model.loading import load

    return load(named.name or None, named.revision or None, dtype=named.dtype)
