"""The Report page: edit the views and notes of the report draft, and create the report."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Final, Literal, NamedTuple

import streamlit as st

from bert_probe.errors import ProbeError, ReportError, ReportTooLargeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress
from bert_probe.model.sources import stamp
from bert_probe.reports import tables
from bert_probe.reports.drafts import Draft, DraftEntry
from bert_probe.reports.numbers import NamedModels
from bert_probe.reports.report import Report
from bert_probe.reports.view_files import (
    ModelReference,
    TextInput,
    ViewFile,
    describe_inputs,
    describe_question,
)
from bert_probe.runtime import permissions, shared_cache
from bert_probe.server.sessions import Preview
from bert_probe.ui import blocks, drafts, jobs, model_choice, state
from bert_probe.ui.sentence_input import EXAMPLES

MAX_PAGE_BYTES: Final = 20_000_000
"""Maximum size in bytes of a report's HTML file in the app. The command line has no such limit."""
_PREVIEW_HEIGHT: Final = 720
_TITLE: Final = "report_title"
_REFUSED: Final = "report_refused_texts"
"""Session key of the texts that could not be written into the draft; see `_RefusedText`."""
_REMOVED: Final = "report_removed_view"
"""Session key of the view that was removed last; see `_Removed`."""
_PREVIEW: Final = "report_preview"


def render() -> None:
    """Draw the Report page."""
    blocks.heading(
        "Report",
        "Arrange the views that you added, write notes, and create one file with interactive figures, "
        "tables, provenance and the code of each result.",
    )
    if drafts.is_missing():
        st.warning(
            "The views in this URL are no longer stored, because the app was restarted. If you saved the "
            "views, open the saved file under Open a view."
        )
    draft = drafts.current()
    if not draft.entries:
        _undo(0)
        with st.container(border=True, key="report_empty"):
            st.header("The report has no views yet", anchor=False)
            st.markdown(
                "On any page choose **Export**, then **Add to report**. The views are kept while you use "
                "other pages."
            )
            st.button("Try an example", type="primary", on_click=_use_example)
            st.caption("This adds three views of two example sentences, with notes that you can change.")
        return
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        with st.container(width=420):
            _title(draft)
        st.download_button(
            "Save these views",
            partial(_file, drafts.latest()),
            file_name="report.views.json",
            mime="application/json",
            on_click="ignore",
            help="This small file contains the views and notes, but no results. To continue later, open "
            "the file under Open a view.",
        )
    drafts.show_message()
    for index, entry in enumerate(draft.entries):
        _undo(index)
        with st.container(border=True, key=f"report_view_{index}"):
            _entry(index, entry, len(draft.entries))
            _note(index, entry)
    _undo(len(draft.entries))
    _report(draft)


def _file(draft: Callable[[], Draft]) -> bytes:
    """Return the file of the draft at the time of the click: the user may just have typed a note."""
    return draft().to_bytes()


def _use_example() -> None:
    drafts.replace_draft(_example_draft())


def _example_draft() -> Draft:
    """Return the example draft of the Report page: three views of the first example in `EXAMPLES`."""
    a, b = EXAMPLES[0].a, EXAMPLES[0].b
    texts = (TextInput(a), TextInput(b))
    address = {"a": a, "b": b}
    return Draft(
        "Example: full or empty?",
        (
            DraftEntry(
                ViewFile("MinimalPair", texts=texts, page="compare", address=address),
                "The two sentences differ in one word. Head {{1, head}} of layer {{1, layer}} has the "
                "largest change of attention: a total variation of {{1, total_variation}}.",
            ),
            DraftEntry(
                ViewFile("Similarity", texts=texts, page="similarity", address=address),
                "The cosine between every token of one sentence and every token of the other, in the "
                "last layer.",
            ),
            DraftEntry(
                ViewFile(
                    "Attention", texts=texts[:1], page="attention", address=address | {"show": "heatmap"}
                ),
                "The mean attention over all heads of the last layer. The mean hides what individual "
                "heads do.",
            ),
        ),
    )


# ---------------------------------------------------------------- draft


def _title(draft: Draft) -> None:
    refused = _refused().get("title")
    st.session_state[_TITLE] = draft.title if refused is None else refused.text
    st.text_input("Title", key=_TITLE, max_chars=200, placeholder="Report", on_change=_change_title)
    if refused is not None:
        st.caption(refused.message)


def _change_title() -> None:
    _apply("title", st.session_state[_TITLE].strip())


def _entry(index: int, entry: DraftEntry, count: int) -> None:
    """Draw the description of a view in the draft, with buttons to move or remove the view."""
    view = entry.view
    title, question = describe_question(view)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        page = f" · from {view.page.title()}" if view.page and view.page != title.lower() else ""
        st.markdown(f"**{index + 1} · {state.escape(title)}**:gray[{page}]", width="content")
        st.space("stretch")
        # The keys identify the view: the second click of a double click must not apply to another view.
        # Put the buttons into their own container, so that they stay together on a narrow screen.
        with st.container(horizontal=True, vertical_alignment="center", gap="small", width="content"):
            for label, direction, by in (("↑", "up", -1), ("↓", "down", 1)):
                st.button(
                    label,
                    key=f"{direction} {entry.key}",
                    help=f"Move view {index + 1} {direction}",
                    disabled=not 0 <= index + by < count,
                    on_click=partial(drafts.move, entry.key, by),
                )
            st.button(
                "Remove",
                key=f"remove {entry.key}",
                type="tertiary",
                help=f"Remove view {index + 1}",
                on_click=partial(_remove, entry.key),
            )
    lines = [
        state.escape(describe_inputs(view), 400),
        state.escape(question, 300),
        *(state.escape(model.shown) for model in view.models),
    ]
    st.caption("  \n".join(line for line in lines if line))


def _note(index: int, entry: DraftEntry) -> None:
    key = f"report_note_{entry.key}"
    # Set the text in every run, because another draft may have been opened. A refused text is kept.
    refused = _refused().get(entry.key)
    st.session_state[key] = entry.note if refused is None else refused.text
    st.text_area(
        f"Note on view {index + 1}",
        key=key,
        height="content",
        max_chars=tables.MAX_NOTE_CHARACTERS,
        placeholder=f"Plain text. {tables.REFERENCE_HELP}",
        on_change=_change_note,
        args=(entry.key, key),
    )
    if refused is not None:
        st.caption(refused.message)
        return
    unchecked = tables.unchecked_numbers(entry.note)
    if unchecked:
        numbers = state.escape(", ".join(unchecked))
        st.caption(
            f"These numbers were typed manually, so they cannot be verified: {numbers}. "
            f"{state.escape(tables.REFERENCE_HELP)}"
        )


def _change_note(field: int, key: str) -> None:
    if key in st.session_state:  # not if the view has been removed since
        _apply(field, st.session_state[key])


_Field = int | Literal["title"]
"""A field of the page: the title, or the note of the entry with this key."""


class _RefusedText(NamedTuple):
    """A typed text that could not be written into the draft, and stays in its field.

    Attributes:
        text: the typed text.
        problem: the error message.
    """

    text: str
    problem: str

    @property
    def message(self) -> str:
        """A sentence to show below the field."""
        return f":orange[This text is not saved.] {state.escape(self.problem, 400)}"


def _refused() -> dict[_Field, _RefusedText]:
    refused: dict[_Field, _RefusedText] = st.session_state.setdefault(_REFUSED, {})
    return refused


def _apply(field: _Field, text: str) -> None:
    """Write a text into the draft. If that fails, keep the text in its field, and show the error."""
    _refused().pop(field, None)
    try:
        if field == "title":
            drafts.replace_draft(Draft(text, drafts.current().entries))
        else:
            drafts.set_note(field, text)
    except ProbeError as error:
        _refused()[field] = _RefusedText(text, str(error))
        drafts.set_message(str(error))


class _Removed(NamedTuple):
    """The view that was removed last.

    Attributes:
        entry: the view and its note.
        position: the position of the view, counted from 0.
        others: keys of the other views. Undo is offered until these change.
    """

    entry: DraftEntry
    position: int
    others: tuple[int, ...]


def _undo(index: int) -> None:
    """Draw a button that restores the view that was removed from this position, if any.

    It takes the place of the removed view, so that the second click of a double click on Remove, which is on
    the right, does not remove the next view.
    """
    removed: _Removed | None = st.session_state.get(_REMOVED)
    if removed is None or removed.position != index or removed.others != _keys():
        return
    with st.container(border=True, horizontal=True, vertical_alignment="center", key="report_removed"):
        title, _ = describe_question(removed.entry.view)
        st.button("Undo", on_click=_restore)
        st.markdown(f"{state.escape(title)} was removed.", width="content")


def _keys() -> tuple[int, ...]:
    return tuple(entry.key for entry in drafts.current().entries)


def _restore() -> None:
    removed: _Removed | None = st.session_state.get(_REMOVED)
    if removed is None or removed.others != _keys():
        return
    entries = list(drafts.current().entries)
    entries.insert(removed.position, removed.entry)
    try:
        drafts.set_entries(entries)
    except ReportError:  # other notes have become longer
        drafts.set_message("The draft has no room for this view. Shorten other notes, and undo again.")
    else:
        del st.session_state[_REMOVED]


def _remove(key: int) -> None:
    """Remove a view, and retry to write the texts that did not fit into the draft; see `_RefusedText`."""
    keys, entries = _keys(), drafts.current().entries
    if key not in keys:
        return
    _refused().pop(key, None)
    drafts.remove(key)
    index = keys.index(key)
    st.session_state[_REMOVED] = _Removed(entries[index], index, _keys())
    state.preserve(_REMOVED)
    for field, refused in [*_refused().items()]:
        _apply(field, refused.text)


# ---------------------------------------------------------------- report


def _report(draft: Draft) -> None:
    """Draw the job that creates the report and, when it is done, the downloads and a preview."""
    models = [model for entry in draft.entries for model in entry.view.models]
    unknown = [
        (model.name, model.revision)
        for model in models
        if not model_choice.is_agreed(model.name, model.revision)
    ]
    if unknown:
        title = "Open the models of this report?"
        model_choice.ask(
            unknown, "report", title, "The views of this report use models that this session has not opened."
        )
        return
    names = ", ".join(dict.fromkeys(model.shown for model in models))
    created = jobs.run(
        "report",
        (hashlib.sha256(draft.to_bytes()).digest(), *(stamp(model.name) for model in models)),
        "Create the report",
        lambda progress: _create(draft, progress),
        "views",
        state.escape(
            f"The app opens {names} twice: once for the results, and once in float64 to measure the "
            "numerical error.",
            1_000,
        ),
        droppable=True,
    )
    if created is None:
        return
    page, archive = created
    with st.container(horizontal=True, vertical_alignment="center"):
        for label, content, suffix, mime in (
            ("Page (HTML)", page, "html", "text/html"),
            ("All files (ZIP)", archive, "zip", "application/zip"),
        ):
            st.download_button(
                f"{label} · {len(content) / 1e6:.1f} MB",
                partial(_content, content, draft, drafts.latest()),
                file_name=f"report.{suffix}",
                mime=mime,
                key=f"report {suffix}",
                type="primary" if suffix == "html" else "secondary",
                on_click="ignore",
            )
    st.caption(
        "The page works offline, with interactive figures. The ZIP file contains the page, data (Parquet), "
        "figures (SVG) and a manifest. Anyone can check either file with bert-probe verify."
    )
    _preview(page)


def _create(draft: Draft, progress: Progress) -> tuple[bytes, bytes]:
    try:
        report = Report.of(draft, NamedModels(_open_model, is_limited=True), progress, MAX_PAGE_BYTES)
        page = report.html(MAX_PAGE_BYTES).encode()
    except ReportTooLargeError:
        raise ReportError(
            f"The report has more than {MAX_PAGE_BYTES / 1e6:.0f} MB, the limit of the app. Save these "
            "views, and create the report with bert-probe report."
        ) from None
    return page, report.zip()


def _content(content: bytes, draft: Draft, latest: Callable[[], Draft]) -> bytes:
    """Return a file of the report, unless the user has just changed the draft.

    Raises:
        ReportError: the draft was changed after the report was created.
    """
    if latest() != draft:
        raise ReportError("The report does not contain your last change. Create the report again.")
    return content


def _open_model(model: ModelReference) -> Checkpoint:
    permissions.current().check_model(model.name, model.revision, model.dtype)
    return shared_cache.open_checkpoint(model.name, model.revision, dtype=model.dtype)


def _preview(page: bytes) -> None:
    """Draw a preview of the report in a frame."""
    preview: Preview | None = st.session_state.get(_PREVIEW)
    if preview is None or preview.page is not page:
        preview = st.session_state[_PREVIEW] = Preview(page)
    st.header("Preview", anchor=False)
    with st.container(border=True):
        st.iframe(preview.address, height=_PREVIEW_HEIGHT, alt="The report, with interactive figures")
