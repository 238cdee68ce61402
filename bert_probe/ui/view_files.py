"""Widgets that download and open view files. A view file stores a view of a page.

A view file may come from an untrusted source. Before the app opens a model that is neither built in nor in
use, it shows the name of the model and asks the user.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import streamlit as st

from bert_probe.core.inputs import DOCUMENTS_FILE, SENTENCES_FILE
from bert_probe.errors import ProbeError, ReportError, TextError, UnavailableError
from bert_probe.reports.drafts import Draft
from bert_probe.reports.view_files import ENDING, ModelReference, ViewFile, describe_inputs
from bert_probe.runtime import shared_cache
from bert_probe.server import asgi, callbacks, paths, sessions
from bert_probe.text.sentence_files import parse_sentences
from bert_probe.ui import (
    drafts,
    labeled_inputs,
    model_choice,
    sentence_input,
    state,
    url_texts,
    workbench,
)

if TYPE_CHECKING:
    from bert_probe.core.result import Result
    from bert_probe.model.checkpoint import Checkpoint

_PENDING, _ERROR, _TARGET = "view_coming", "view_refused", "view_leads"
"""Session keys of the file to open, of the error message of a file, and of the page to open for a file."""
_MODELS, _COUNT = "view_wanted", "view_count"
"""Session keys of the models with which the opened view was created, and of the number of uploads so far."""

_PARAMETER: Final = "view"
_LEFT_OUT: Final = ("tray", "view")
"""URL parameters that are not stored in a view file."""
_FILE_SOURCES: Final = {"map": "map_from", "search": "documents_from"}
"""Page → URL parameter that states whether its texts come from a file."""


# ---------------------------------------------------------------- download


def menu(
    result: Result, name: str, display: Mapping[str, str], data: Mapping[str, Any] | None = None
) -> None:
    """Draw two buttons of an Export menu: add the view to the report, and download the view file.

    Args:
        result: the result to save.
        name: name of the view file without its extension.
        display: display options of an attention view; see `ViewFile`.
        data: sentences or files that are saved with the view, because the result does not contain them; see
            `ViewFile.of`.
    """
    try:
        view, reason = replace(_view_of(result, data), drawn=dict(display)), ""
    except UnavailableError as error:
        view, reason = ViewFile(), str(error)
    parameters = state.url_parameters()
    drafts.show_message()
    with st.container(horizontal=True):
        st.button(
            "Add to report",
            key=f"add {name}",
            disabled=bool(reason),
            help=reason or "Add this view to the draft on the Report page.",
            on_click=_add,
            args=(view,),
        )
        st.download_button(
            "View file",
            partial(_file, view, state.current_page(), parameters),
            file_name=f"{name}{ENDING}",
            mime="application/json",
            key=f"view {name}",
            on_click="ignore",
            help="Save a file with which others can open this view if they have the same model: under "
            "Open a view, or with bert-probe app --view.",
        )
    if reason:
        st.caption(f"This view cannot be added to a report: {state.escape(reason, 400)}")
    else:
        st.caption(_link_note(parameters, _uses_files(view, state.current_page(), parameters)))


def _view_of(result: Result, data: Mapping[str, Any] | None) -> ViewFile:
    """Return the view file of a result. It is cached, because creating it serializes and parses files."""
    if result not in _VIEWS:
        _VIEWS[result] = ViewFile.of(result, data)
    return _VIEWS[result]


_VIEWS: Final[WeakKeyDictionary[Result, ViewFile]] = WeakKeyDictionary()


def _add(view: ViewFile) -> None:
    added = view.on(state.current_page(), _expanded(state.url_parameters()))
    entries = drafts.current().entries
    if entries and entries[-1].view == added:  # a double click
        drafts.set_message("The report already ends with this view.")
        return
    try:
        drafts.add(added)
    except ProbeError as error:
        drafts.set_message(str(error))
        return
    count = len(drafts.current().entries)
    drafts.set_message(f"The view was added. The report has {count} view{'s' if count > 1 else ''}.")


def _file(view: ViewFile, page: str, parameters: Mapping[str, str]) -> bytes:
    return view.on(page, _expanded(parameters)).to_bytes()


def _expanded(parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the URL parameters for a view file: with full texts, and without those in `_LEFT_OUT`."""
    left_out = {*_LEFT_OUT, *map(sessions.text_parameter, _LEFT_OUT)}
    return url_texts.expand({name: value for name, value in parameters.items() if name not in left_out})


def _uses_files(view: ViewFile, page: str, parameters: Mapping[str, str]) -> bool:
    """Return whether a view shows uploaded or pasted data, which the URL does not contain."""
    if page == "evaluate":
        return any(parameters.get(labeled_inputs.source_parameter(name)) == "file" for name in view.files)
    if page in ("heads", "changes"):
        return bool(view.sentences) and parameters.get("sentences_source") in ("paste", "file")
    if page == "probes" or (page == "search" and "pairs" in view.files):
        return bool(view.files)
    has_data = bool(view.sentences or view.files)
    return has_data and parameters.get(_FILE_SOURCES.get(page, "sentences_from")) == "file"


def _link_note(parameters: Mapping[str, str], uses_files: bool) -> str:
    """Return a text that explains whether the browser's URL can be shared as a link."""
    if uses_files:
        return (
            "The browser's URL does not contain the data that you uploaded or pasted. To keep or share the "
            "view, use the view file."
        )
    length = url_texts.length(parameters)
    if not url_texts.has_stored(parameters, _LEFT_OUT) and length <= url_texts.MAX_LINK:
        return "The browser's URL is a link to this view."
    is_complete = length <= state.MAX_QUERY_STRING
    limit = "works only while this app is running" if is_complete else "does not contain the longest texts"
    return (
        f"A permanent link to this view would exceed {url_texts.MAX_LINK:,} characters. The browser's URL "
        f"{limit}. To keep or share the view, use the view file."
    )


# ---------------------------------------------------------------- open


def uploader() -> None:
    """Draw the uploader for view files."""
    with st.expander("Open a view"):
        # Use a new widget key after each upload. Otherwise Streamlit returns the file again after a reset.
        key = f"view_upload_{st.session_state.get(_COUNT, 0)}"
        st.file_uploader(
            "A view file, or the views of a report",
            ["json"],
            key=key,
            on_change=_on_upload,
            args=(key,),
            help="A file that was downloaded with View file in an export menu, "
            f"{sentence_input.upload_note()}",
        )


def _on_upload(key: str) -> None:
    file = st.session_state[key]
    if file is not None and not sentence_input.is_deleted(file):
        st.session_state[_COUNT] = st.session_state.get(_COUNT, 0) + 1
        state.preserve(_COUNT)
        _set_pending(file.getvalue(), file.name)


def _set_pending(content: bytes, name: str) -> None:
    _clear()
    try:
        st.session_state[_PENDING] = parse(content, name)
    except ReportError as error:
        st.session_state[_ERROR] = str(error)


def parse(content: bytes, name: str) -> ViewFile | Draft:
    """Parse a view file or the draft of a report.

    Raises:
        ReportError: the file is neither a view nor a draft, or the view belongs to an unknown page.
    """
    parsed = drafts.read_shared(content, name)
    if isinstance(parsed, ViewFile) and parsed.page and parsed.page not in asgi.pages():
        raise ReportError(
            f"{name} is a view of the page {parsed.page[:60]!r}, which this app does not have. Update "
            "BERT Probe, or open the view in your own installation."
        )
    return parsed


def open_pending() -> None:
    """Open an uploaded view file. If the user has not agreed to open its models, ask the user first.

    Call this function before the page is drawn.
    """
    if _TARGET in st.session_state:
        _switch_page()
    _take_from_url()
    pending: ViewFile | Draft | None = st.session_state.get(_PENDING)
    unknown = _models_to_confirm(pending) if isinstance(pending, ViewFile) else set()
    if isinstance(pending, ViewFile) and unknown:
        _confirm(pending, unknown)
    elif pending is not None:
        _open()
        _switch_page()
    if _ERROR in st.session_state:
        with st.container(border=True, key="view_refused"):
            st.markdown("**This view cannot be opened**")
            st.text(st.session_state[_ERROR])
            st.button("Close", on_click=_clear, key="view_close")


def _take_from_url() -> None:
    """Read the view file of ``bert-probe app --view``, which passes its content in the URL."""
    text, missing = url_texts.recall(_PARAMETER), url_texts.missing(_PARAMETER)
    url_texts.remember(_PARAMETER, None)
    if text is not None:
        _set_pending(text.encode(), "The view file")
    elif missing:
        st.session_state[_ERROR] = "The view of this URL is no longer stored. Open the view file again."


def _models_to_confirm(view: ViewFile) -> set[model_choice.Model]:
    """Return the models of a view that the user has not agreed to open."""
    parameters = view.address
    models = {
        (parameters.get("model", ""), parameters.get("revision", "")),
        (parameters.get("other", ""), parameters.get("other_revision", "")),
        *((model.name, model.revision) for model in view.models),
    }
    return {model for model in models if not model_choice.is_agreed(*model)}


def _confirm(view: ViewFile, unknown: set[model_choice.Model]) -> None:
    """Draw the names of the models of a view, and ask the user whether to open them."""
    subject = describe_inputs(view)
    model_choice.ask(
        unknown,
        "view",
        "Open the models of this view?" if len(unknown) > 1 else "Open the model of this view?",
        f"Text of the view: {state.escape(subject, 400)}" if subject else "",
        on_open=_open,
        cancel=("Cancel", _clear),
    )


def _clear() -> None:
    for key in (_PENDING, _ERROR):
        st.session_state.pop(key, None)


def _open() -> None:
    """Restore the uploaded view or draft, and store the name of the page that `_switch_page` opens."""
    pending: ViewFile | Draft = st.session_state.pop(_PENDING)
    try:
        page = _restore(pending)
    except ProbeError as error:
        st.session_state[_ERROR] = str(error)
        return
    st.session_state[_TARGET] = page


def _restore(pending: ViewFile | Draft) -> str:
    """Restore the session state from a view file or a draft, and return the name of its page."""
    if isinstance(pending, Draft):
        drafts.replace_draft(pending)
        return "report"
    if not pending.page:
        drafts.add(pending)
        return "report"
    state.reset({}, replaced=pending.address.keys())
    for name, value in pending.address.items():
        if name in state.TEXTS and name not in _LEFT_OUT:
            url_texts.remember(name, value)
        elif name not in {*_LEFT_OUT, *map(sessions.text_parameter, state.TEXTS)}:
            state.remember(name, value)
    _restore_files(pending)
    st.session_state[_MODELS] = pending.models
    return pending.page


def _restore_files(view: ViewFile) -> None:
    """Store the files of a view as if the user had uploaded them on its page.

    If the view shows other data, such as a sample, the files that the user has uploaded are kept.
    """
    files = {
        name: (file.file, file.content.encode("utf-8", "surrogatepass")) for name, file in view.files.items()
    }
    if not _uses_files(view, view.page, view.address):
        return
    sentences = _sentences_file(view.sentences)
    if view.page == "probes":
        labeled_inputs.use_probe_files(list(files.values()))
    elif view.page == "evaluate":
        labeled_inputs.use_evaluation_files(files)
    elif view.page == "search" and "pairs" in files:
        labeled_inputs.use_pairs(*files["pairs"], view.asked)
        state.remember("documents_from", None)  # the view of a threshold does not contain documents
    elif view.page in ("heads", "changes"):
        labeled_inputs.use_sentences(*sentences)
    elif view.page == "map":
        labeled_inputs.use_map_file(*files.get("rows", sentences))
    elif view.page == "search":
        sentence_input.use_documents(DOCUMENTS_FILE, _lines(view.sentences))
    else:
        sentence_input.use_file(*sentences)


def _sentences_file(sentences: Sequence[str]) -> tuple[str, bytes]:
    """Return the name and content of a file from which the app reads exactly these sentences.

    Lines that look like a table or FASTA would be refused in a text file, and are written as JSONL instead.
    """
    content = _lines(sentences)
    try:
        if parse_sentences(content, SENTENCES_FILE) == tuple(sentences):
            return SENTENCES_FILE, content
    except TextError:
        pass
    return f"{Path(SENTENCES_FILE).stem}.jsonl", _lines(json.dumps({"text": text}) for text in sentences)


def _lines(texts: Iterable[str]) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode("utf-8", "surrogatepass")


def _switch_page() -> None:
    """Switch to the page of a view that has just been opened, if any."""
    with callbacks.uninterrupted():
        page = st.session_state.pop(_TARGET, None)
        if page is not None and page != state.current_page():
            st.switch_page(paths.page_script(page))


def warn_other_weights() -> None:
    """Draw a warning if the current model has other weights than the model that created the opened view."""
    now = workbench.request()
    checkpoint = shared_cache.cached_checkpoint(now.model, now.revision, now.dtype)
    if checkpoint is not None:
        compare_weights(now.model, now.revision, checkpoint)


def compare_weights(name: str, revision: str, checkpoint: Checkpoint, which: str = "this model") -> None:
    """Draw a warning if a model has other weights than the model of this name in the opened view.

    Args:
        name, revision: the model as the user named it.
        checkpoint: the opened model.
        which: name of the model in the warning, such as "model B".
    """
    current = ModelReference(name, revision).shown
    for model in st.session_state.get(_MODELS, ()):
        if model.shown == current and not model.fits(checkpoint):
            st.warning(
                f"The weights of {which} differ from those with which the view was created, so the "
                f"results will differ. SHA-256 of the view: {model.weights_sha256[:12]}…, of {which}: "
                f"{checkpoint.description.weights_sha256[:12]}…."
            )
            return
