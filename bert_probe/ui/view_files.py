"""View files in the app: taken along from any page, and opened on any.

A file may be a stranger's. Which model it wants is said, and the reader confirms, before another one than the
built-in or the one in use is opened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import streamlit as st

from bert_probe.core.inputs import SENTENCES_FILE
from bert_probe.errors import ProbeError, ReportError, UnavailableError
from bert_probe.reports.drafts import Draft, read_any
from bert_probe.reports.view_files import ENDING, ModelReference, ViewFile, subject_of
from bert_probe.runtime import shared_cache
from bert_probe.server import asgi, callbacks, paths, text_store
from bert_probe.ui import consent, drafts, map_texts, sentence_input, state, url_texts, workbench
from bert_probe.ui.probes import inputs as probed

if TYPE_CHECKING:
    from bert_probe.core.result import Result

_COMING, _REFUSED, _LEADS = "view_coming", "view_refused", "view_leads"
"""Session keys: of a file that waits to be opened, of why one is not, of the page that one leads to."""
_WANTED, _COUNT = "view_wanted", "view_count"
"""Of the models that a view was made with, and of how many files were dropped."""

_PARAMETER: Final = "view"
_LEFT_OUT: Final = ("tray", "view")
"""Parameters that are no part of a view."""


# ---------------------------------------------------------------- taken along


def menu(result: Result, name: str, drawn: Mapping[str, str], data: Mapping[str, Any] | None = None) -> None:
    """The part of an export menu by which a view itself is taken along: to the report, or as a file.

    Args:
        drawn: how attention is drawn, see `ViewFile`.
        data: sentences or files that the result does not hold.
    """
    try:
        view, why = replace(_view_of(result, data), drawn=dict(drawn)), ""
    except UnavailableError as error:
        view, why = ViewFile(), str(error)
    address = state.address()
    drafts.told()
    with st.container(horizontal=True):
        st.button(
            "Add to report",
            key=f"add {name}",
            disabled=bool(why),
            help=why or "Kept with others on the page Report, which makes one file of them.",
            on_click=_add,
            args=(view,),
        )
        st.download_button(
            "View file",
            partial(_file, view, state.page(), address),
            file_name=f"{name}{ENDING}",
            mime="application/json",
            key=f"view {name}",
            on_click="ignore",
            help="Opens this view again in any BERT Probe: under Open a view, or with bert-probe app --view.",
        )
    if why:
        st.caption(f"Not for a report: {state.plain(why, 400)}")
    st.caption(_link(address))


def _view_of(result: Result, data: Mapping[str, Any] | None) -> ViewFile:
    """Made once for each answer: a page runs often, and files are written and read again for it."""
    if result not in _MADE:
        _MADE[result] = ViewFile.of(result, data)
    return _MADE[result]


_MADE: Final[WeakKeyDictionary[Result, ViewFile]] = WeakKeyDictionary()


def _add(view: ViewFile) -> None:
    try:
        drafts.add(view.on(state.page(), _whole(state.address())))
    except ProbeError as error:
        drafts.tell(str(error))
        return
    count = len(drafts.held().entries)
    drafts.tell(f"Added. The report has {count} view{'s' if count > 1 else ''}.")


def _file(view: ViewFile, page: str, address: Mapping[str, str]) -> bytes:
    return view.on(page, _whole(address)).to_bytes()


def _whole(address: Mapping[str, str]) -> dict[str, str]:
    """An address as a view has it."""
    left = {*_LEFT_OUT, *map(text_store.parameter, _LEFT_OUT)}
    return url_texts.whole({name: value for name, value in address.items() if name not in left})


def _link(address: Mapping[str, str]) -> str:
    """Whether the browser's address can be passed on."""
    if not url_texts.names(address, _LEFT_OUT) and url_texts.length(address) <= url_texts.LINK:
        return "The browser's address is a link to this view."
    return (
        f"This view is more than the {url_texts.LINK:,} characters of a link. The address opens it as long "
        "as this app runs; the view file everywhere."
    )


# ---------------------------------------------------------------- opened


def uploader() -> None:
    """Where a view file is dropped."""
    with st.expander("Open a view"):
        # Another one after each file: Streamlit would give the same one again when its state begins anew.
        key = f"view_upload_{st.session_state.get(_COUNT, 0)}"
        st.file_uploader(
            "A view file, or the views of a report",
            ["json"],
            key=key,
            on_change=_dropped,
            args=(key,),
            help="From View file in the export menu of a page. It stays on this machine.",
        )


def _dropped(key: str) -> None:
    given = st.session_state[key]
    if given is not None and not sentence_input.is_deleted(given):
        st.session_state[_COUNT] = st.session_state.get(_COUNT, 0) + 1
        state.hold(_COUNT)
        _take(given.getvalue(), given.name)


def _take(content: bytes, name: str) -> None:
    _forget()
    try:
        st.session_state[_COMING] = parsed(content, name)
    except ReportError as error:
        st.session_state[_REFUSED] = str(error)


def parsed(content: bytes, name: str) -> ViewFile | Draft:
    """A view, or several for a report.

    Raises:
        ReportError: neither, or a view of a page that there is not.
    """
    found = read_any(content, name)
    views = [found] if isinstance(found, ViewFile) else [entry.view for entry in found.entries]
    notes = [] if isinstance(found, ViewFile) else [found.title, *(entry.note for entry in found.entries)]
    try:
        json.dumps([notes, *(view.to_json() for view in views)], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ReportError(
            f"{name} holds half of a surrogate pair, which no page can show. Remove it, or use the command "
            "line."
        ) from None
    if isinstance(found, ViewFile) and found.page and found.page not in asgi.PAGES:
        raise ReportError(f"{name} is of a page {found.page[:60]!r}, which is not here. Update BERT Probe.")
    return found


def arrive() -> None:
    """Open a file that came, or ask first; nothing of the page is drawn yet."""
    if _LEADS in st.session_state:
        _lead()
    _from_address()
    coming: ViewFile | Draft | None = st.session_state.get(_COMING)
    unknown = _not_agreed(coming) if isinstance(coming, ViewFile) else set()
    if isinstance(coming, ViewFile) and unknown:
        _confirm(coming, unknown)
    elif coming is not None:
        _open()
        _lead()
    if _REFUSED in st.session_state:
        with st.container(border=True, key="view_refused"):
            st.markdown("**This view cannot be opened**")
            st.text(st.session_state[_REFUSED])
            st.button("Close", on_click=_forget, key="view_close")


def _from_address() -> None:
    """A file that the app was started with."""
    given, gone = url_texts.recall(_PARAMETER), url_texts.gone(_PARAMETER)
    url_texts.remember(_PARAMETER, None)
    if given is not None:
        _take(given.encode(), "The view file")
    elif gone:
        st.session_state[_REFUSED] = "The view of this address is not kept any more. Open its file again."


def _not_agreed(view: ViewFile) -> set[consent.Model]:
    """Return the models that a view opens and that the reader has not agreed to."""
    address = view.address
    models = {
        (address.get("model", ""), address.get("revision", "")),
        (address.get("other", ""), address.get("other_revision", "")),
        *((model.name, model.revision) for model in view.models),
    }
    return {model for model in models if not consent.is_agreed(*model)}


def _confirm(view: ViewFile, unknown: set[consent.Model]) -> None:
    """Draw the models that a view names, and let the reader decide."""
    subject = subject_of(view)
    consent.question(
        unknown,
        "view",
        "Open the models of this view?" if len(unknown) > 1 else "Open the model of this view?",
        f"Text of the view: {state.plain(subject, 400)}" if subject else "",
        on_open=_open,
        cancel=("Cancel", _forget),
    )


def _forget() -> None:
    for key in (_COMING, _REFUSED):
        st.session_state.pop(key, None)


def _open() -> None:
    """Make what came the view of the session, as a visit with its address would; `_lead` goes there."""
    coming: ViewFile | Draft = st.session_state.pop(_COMING)
    try:
        page = _taken(coming)
    except ProbeError as error:
        st.session_state[_REFUSED] = str(error)
        return
    st.session_state[_LEADS] = page


def _taken(coming: ViewFile | Draft) -> str:
    """The page that shows it."""
    if isinstance(coming, Draft):
        drafts.take(coming)
        return "report"
    if not coming.page:
        drafts.add(coming)
        return "report"
    state.begin({})
    for name, value in coming.address.items():
        if name in url_texts.TEXTS and name not in _LEFT_OUT:
            url_texts.remember(name, value)
        elif name not in {*_LEFT_OUT, *map(text_store.parameter, url_texts.TEXTS)}:
            state.remember(name, value)
    _hand_in(coming)
    st.session_state[_WANTED] = coming.models
    return coming.page


def _hand_in(view: ViewFile) -> None:
    """Give the page the files that it would else ask for."""
    lines = "".join(f"{sentence}\n" for sentence in view.sentences).encode("utf-8", "surrogatepass")
    files = {
        name: (one.file, one.content.encode("utf-8", "surrogatepass")) for name, one in view.files.items()
    }
    if view.page == "probes":
        probed.take(list(files.values()))
    elif view.page == "map":
        map_texts.take(*files.get("rows", (SENTENCES_FILE, lines)))
    elif view.sentences:
        sentence_input.take(SENTENCES_FILE, lines)


def _lead() -> None:
    """Go where an opened view is shown."""
    with callbacks.to_the_end():
        page = st.session_state.pop(_LEADS, None)
        if page is not None and page != state.page():
            st.switch_page(paths.page(page))


def other_weights() -> None:
    """Say so where a view was made with other weights than those of the model that is open now."""
    now = workbench.request()
    found = shared_cache.opened(now.model, now.revision)
    for named in st.session_state.get(_WANTED, ()):
        current = ModelReference(now.model, now.revision).shown
        if found is not None and named.shown == current and not named.fits(found):
            st.warning(
                "The view was made with other weights than this model has: its numbers will differ. "
                f"Then SHA-256 {named.weights_sha256[:12]}…, now {found.description.weights_sha256[:12]}…."
            )
            return
