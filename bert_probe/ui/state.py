"""View state that is kept across pages and mirrored in the URL, so that a link opens the same view.

This module validates every value from the URL. An invalid value is reported on the page and replaced by the
default.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar
from urllib.parse import quote_plus

import streamlit as st

from bert_probe.core.earlier_names import current_parameters
from bert_probe.server import callbacks, paths, sessions

T = TypeVar("T")

_URL_PARAMETERS = "address"
"""Session key of a dict with the URL parameters of all pages."""
_PAGE, _WIDGET_PAGES = "page shown", "drawn by page"
"""Session keys of the current page, and of a dict: widget key → page that last drew the widget."""
_NAVIGATION = "went"
"""URL parameter that the browser changes when the user navigates back or forward, and session key of its last
value."""
_PUBLISHED = "published parameters"
"""Session key of the parameters that were last written to the browser's URL."""
_OMITTED = "omitted parameters"
"""Session key of a dict: page → the URL parameters that its URL omits."""
_TEXT_PARAMETERS = ("a", "b", "relation", "model", "revision", "dtype", "truncate")
"""URL parameters of the texts and the model. For texts that are too long for the URL, see `url_texts`."""
_PAGE_TEXTS = {
    "sentences": "sentences",
    "batch_texts": "batch_texts",
    "documents": "documents",
    "search_query": "search_query",
    "context": "context",
    "context_words": "context",
    "near_text": "near_text",
    "sql": "sql",
}
"""URL parameters of texts that only their own pages read → the text that they belong to."""
TEXTS = ("a", "b", "model", "revision", *_PAGE_TEXTS, "tray", "view")
"""URL parameters whose text is stored on the server if it is too long for the URL."""
MAX_QUERY_STRING = 16_000
"""Maximum length of the browser's query string in characters. The server rejects much longer ones; see
`messages.MAX_ADDRESS_BYTES` and `connections.MAX_HEAD_BYTES`.
"""
RESTARTED = (
    "The connection to the server was lost for too long, or the server was restarted, so this page was "
    "opened again. Text that was typed but not run, uploaded files and results of jobs are lost. "
    "Enter them again."
)
"""Message if the page of an earlier session sends its first request to a new one."""
_PRESERVED = "preserved keys"
"""Session key of the set of session keys that `reset` does not delete."""
_DRAFTS = "drafts"
"""Session key of a dict: widget key of a text field → its URL parameter and its submitted text."""


def enter(page: str) -> None:
    """Start a script run of a page. Apply the URL if the user navigated back or forward, or used a link."""
    if _PAGE not in st.session_state and sessions.is_restarted():
        st.toast(RESTARTED, duration="infinite")
    for name in _repeated_parameters():
        last = escape(st.query_params[name])
        st.caption(
            f":orange[The URL contains {escape(name)} more than once. The last value is used: {last}.]"
        )
    navigation = st.query_params.get(_NAVIGATION)
    if navigation is not None and navigation != st.session_state.get(_NAVIGATION):
        parameters = _query_parameters()
        omitted = st.session_state.get(_OMITTED, {}).get(page, ())
        current = {name: value for name, value in url_parameters().items() if name not in omitted}
        _navigate(parameters, current)
        st.session_state[_NAVIGATION] = navigation
    elif page != st.session_state.get(_PAGE, page):
        # Parameters show that the user followed a link: the navigation menu opens pages without parameters.
        parameters = _query_parameters()
        if parameters and parameters != st.session_state.get(_PUBLISHED):
            _follow_link(parameters)
    st.session_state[_PAGE] = page


def _repeated_parameters() -> list[str]:
    """Return the parameters that the browser's URL contains more than once."""
    return [name for name in st.query_params if len(st.query_params.get_all(name)) > 1]


def _query_parameters() -> dict[str, str]:
    parameters = {name: value for name, value in st.query_params.items() if name != _NAVIGATION}
    return current_parameters(parameters)


def current_page() -> str:
    """Return the name of the current page, or "" before the first page is drawn."""
    page: str = st.session_state.get(_PAGE, "")
    return page


def reset(parameters: dict[str, str], replaced: Collection[str] | None = None) -> None:
    """Delete all session values except the preserved ones and drafts, and replace the URL parameters.

    Args:
        parameters: the new URL parameters.
        replaced: URL parameters of the texts whose drafts are deleted; by default those that change.
    """
    if replaced is None:
        replaced = {name.removesuffix("_kept") for name in _changed(parameters, url_parameters())}
    drafts: dict[str, tuple[str, str]] = st.session_state.get(_DRAFTS, {})
    unsubmitted = {
        key
        for key, (name, submitted) in drafts.items()
        if name not in replaced and st.session_state.get(key, submitted) != submitted
    }
    preserved = st.session_state.get(_PRESERVED, set()) | unsubmitted | {_PRESERVED, _DRAFTS}
    for key in [key for key in st.session_state if key not in preserved]:
        del st.session_state[key]
    st.session_state[_URL_PARAMETERS] = parameters


def _navigate(parameters: dict[str, str], current: dict[str, str]) -> None:
    """Apply the URL parameters of an entry in the browser's history.

    Unsubmitted text is kept, except in the field of a text that changes.
    """
    changed = _changed(parameters, current)
    if any(name in TEXTS or name.removesuffix("_kept") in TEXTS for name in changed):
        reset(parameters)
    else:
        _replace(changed, parameters)


def _follow_link(parameters: dict[str, str]) -> None:
    """Apply the URL parameters of a link. The texts of other pages are kept unless the link contains them."""
    replaced = {_page_text(name) for name in parameters} | {None}
    kept = {name: value for name, value in url_parameters().items() if _page_text(name) not in replaced}
    parameters = kept | parameters
    if text_parameters(parameters) != text_parameters(url_parameters()):
        reset(parameters)
    else:
        _replace(_changed(parameters, url_parameters()), parameters)


def _changed(parameters: dict[str, str], current: dict[str, str]) -> set[str]:
    return {name for name in {*parameters, *current} if parameters.get(name) != current.get(name)}


def _page_text(name: str) -> str | None:
    """Return the text in `_PAGE_TEXTS` that a URL parameter belongs to; None for other parameters."""
    return _PAGE_TEXTS.get(name.removesuffix("_kept"))


def _replace(names: set[str], parameters: dict[str, str]) -> None:
    """Replace some URL parameters, and delete their session values, so that widgets read the URL."""
    for name in names:
        remember(name, parameters.get(name))
        st.session_state.pop(name, None)


def text_parameters(parameters: dict[str, str]) -> dict[str, str]:
    """Return the URL parameters that specify the texts and the model."""
    return {
        name: value for name, value in parameters.items() if name.removesuffix("_kept") in _TEXT_PARAMETERS
    }


def preserve(*keys: str) -> None:
    """Mark session keys, such as those of uploaded files and job results, that `reset` must not delete."""
    st.session_state.setdefault(_PRESERVED, set()).update(keys)


def keep_draft(key: str, name: str, submitted: str) -> None:
    """Mark a text field whose unsubmitted text `reset` must not delete.

    Args:
        key: widget key of the text field.
        name: URL parameter of the submitted text, whose change replaces the draft; "" if there is none.
        submitted: the submitted text.
    """
    st.session_state.setdefault(_DRAFTS, {})[key] = (name, submitted)


def url_parameters() -> dict[str, str]:
    """Return the URL parameters of all pages. To change them, use `remember`."""
    if _URL_PARAMETERS not in st.session_state:
        st.session_state[_URL_PARAMETERS] = _query_parameters()
    parameters: dict[str, str] = st.session_state[_URL_PARAMETERS]
    return parameters


def remember(key: str, value: str | None) -> None:
    """Set a URL parameter, or remove it if the value is None. Streamlit's own parameters are ignored."""
    if value is None or key.casefold() in ("embed", "embed_options"):  # Streamlit refuses to set these
        url_parameters().pop(key, None)
    else:
        # A URL cannot contain a lone surrogate.
        url_parameters()[key] = value.encode("utf-8", "replace").decode()


_LEAVING = "page_to_open"
"""Session key of the page that the user left, and of the page to open; see `leave_for`."""


def leave_for(page: str) -> None:
    """Open a page at the next call of `follow_link`, unless the user opens another page first.

    Call this function in the callback of a button that also changes the model. Loading the model may rerun
    the script, and in the rerun, `st.button` returns False.
    """
    st.session_state[_LEAVING] = (current_page(), page)


def follow_link() -> None:
    """Open the page that the user chose, if any. Call this function before the model is loaded."""
    with callbacks.uninterrupted():
        left, page = st.session_state.pop(_LEAVING, ("", ""))
        if page and left == current_page():
            st.switch_page(paths.page_script(page))


def select(key: str, value: str) -> None:
    """Select the value of a widget on a page that is opened next, as if the user had selected it.

    Args:
        key: widget key, which is also the name of the URL parameter.
    """
    st.session_state[key] = value
    remember(key, value)


def publish(without: Collection[str] = ()) -> None:
    """Write the URL parameters to the browser's URL. The longest ones are omitted beyond `MAX_QUERY_STRING`.

    Args:
        without: parameters to omit because the page does not use them.
    """
    parameters = {name: value for name, value in url_parameters().items() if name not in without}
    too_long = _too_long(parameters)
    parameters = {name: value for name, value in parameters.items() if name not in too_long}
    st.session_state.setdefault(_OMITTED, {})[current_page()] = too_long.union(without)
    # The browser can send a click before it has received the URL of the previous run.
    known = (dict(st.query_params), st.session_state.get(_PUBLISHED, parameters))
    if any(parameters != other for other in known) or _repeated_parameters():
        st.query_params.from_dict(parameters)
    st.session_state[_PUBLISHED] = parameters


def _too_long(parameters: dict[str, str]) -> frozenset[str]:
    """Return the names of the parameters that are omitted to limit a URL to `MAX_QUERY_STRING` characters.

    The longest parameters are omitted first. Only the start of a long parameter is encoded to measure its
    length, because parameters of a view file can have millions of characters.
    """
    length = -1  # no separator before the first parameter
    ordered = sorted(parameters.items(), key=lambda item: sum(map(len, item)))
    for index, item in enumerate(ordered):
        length += sum(len(quote_plus(part[: MAX_QUERY_STRING + 1])) + 1 for part in item)
        if length > MAX_QUERY_STRING:
            return frozenset(name for name, _ in ordered[index:])
    return frozenset()


def prepare(
    key: str, options: Sequence[T], default: T, write: Callable[[T], str] = str, keep_default: bool = False
) -> None:
    """Set the value of a widget before the widget is drawn: from the session, the URL, or the default.

    Args:
        key: widget key, which is also the name of the URL parameter.
        options: all allowed values.
        default: the default value.
        write: function that converts a value to text for the URL.
        keep_default: whether to keep a URL parameter that equals the default. Use it for parameters whose
            absence has another meaning on some pages.
    """
    current: Any = st.session_state.get(key)
    requested = write(current) if current is not None else url_parameters().get(key)
    by_text = {write(option): option for option in options}
    if requested is not None and requested not in by_text:
        st.caption(
            f":orange[There is no {key.replace('_', ' ')} {escape(requested)}; showing {write(default)} "
            "instead.]"
        )
    value = by_text.get(requested, default) if requested is not None else default
    _set_widget(key, value)
    is_implied = value == default and not (keep_default and key in url_parameters())
    remember(key, None if is_implied else write(value))


def _set_widget(key: str, value: object) -> None:
    """Set the session value of a widget.

    An unchanged value is set again if another page drew the widget last, because Streamlit treats a widget
    with the same key on another page as new and resets it to its default.
    """
    pages: dict[str, str] = st.session_state.setdefault(_WIDGET_PAGES, {})
    page = st.session_state.get(_PAGE, "")
    if st.session_state.get(key) != value or pages.get(key) != page:
        st.session_state[key] = value
    pages[key] = page


# Matches positions in Streamlit markup (links, icons, arrows) that a backslash does not escape.
_STREAMLIT_MARKUP = re.compile(
    r"(?<=http:)(?=//)|(?<=https:)(?=//)|(?<=www)(?=\.)|(?<=@)(?=[\w-])"
    r"|(?<=:)(?=material[/_]|streamlit:)|(?<=-)(?=[->])|(?<=<)(?=[-=])|(?<=[>~!])(?==)",
    re.IGNORECASE,
)
_WORD_JOINER = "\u2060"


def escape(text: str, limit: int = 200) -> str:
    """Return text on one line, truncated to `limit` characters and escaped for Markdown."""
    joined = _STREAMLIT_MARKUP.sub(_WORD_JOINER, text[:limit])
    escaped = "".join(f"\\{c}" if c in "\\`*_{}[]()<>#+-.!|~$:&=" else c for c in joined)
    return " ".join(escaped.split())


def select_layer(key: str, first: int, last: int, help_text: str, label: str = "Layer") -> int:
    """Draw a slider for the layer and return the layer. Layer 0 is the output of the embeddings."""
    prepare(key, range(first, last + 1), last, keep_default=key == "layer")
    if first == last:
        st.caption(f"{label} {last} (the only layer)")
        return last
    layer: int = st.slider(label, first, last, key=key, help=help_text, persist_state="session")
    return layer


def select_head(key: str, count: int) -> int | str:
    """Draw a selector for a head; return the head, counted from 1, or "mean" for the mean of all heads."""
    options: list[int | str] = ["mean", *range(1, count + 1)]
    prepare(key, options, "mean")
    head = st.pills(
        "Head",
        options,
        required=True,
        wrap=True,
        format_func=lambda option: "Mean of all" if option == "mean" else str(option),
        key=key,
        persist_state="session",
        help="Each layer has several attention heads with their own weights. The mean over the heads "
        "hides what individual heads do.",
    )
    return "mean" if head is None else head


def select_single_head(key: str, count: int) -> int:
    """Draw a selector for a single head and return the head, counted from 1.

    The selector shares its value with `select_head`. If "mean" is selected there, the first head is returned
    and the value is not changed.
    """
    prepare(key, ["mean", *range(1, count + 1)], "mean")
    single_key = f"single_{key}"
    st.session_state[single_key] = 1 if st.session_state[key] == "mean" else st.session_state[key]

    def keep() -> None:
        st.session_state[key] = st.session_state[single_key]

    head = st.pills(
        "Head",
        range(1, count + 1),
        required=True,
        wrap=True,
        key=single_key,
        on_change=keep,
        help="Each layer has several attention heads with their own query, key and value projections.",
    )
    return 1 if head is None else head


def token_position(key: str, tokens: Sequence[str], default: int) -> int:
    """Return the token position in the URL parameter `key`, counted from 0, or the default.

    The parameter is used only for the text for which this function was first called in the session.
    Callers pass later selections to `remember`.
    """
    first_visit = f"first_{key}"
    if first_visit not in st.session_state:
        st.session_state[first_visit] = (url_parameters().get(key), tuple(tokens))
    position, first_tokens = st.session_state[first_visit]
    if position is None or first_tokens != tuple(tokens):
        return default
    if position in map(str, range(len(tokens))):
        return int(position)
    st.caption(f":orange[There is no token {escape(position)}; showing {default} instead.]")
    st.session_state[first_visit] = (None, first_tokens)
    return default


def toggle(key: str, label: str, default: bool, help_text: str, disabled: bool = False) -> bool:
    """Draw a toggle and return its value. The URL parameter is "1" for on and "0" for off."""
    prepare(key, [False, True], default, lambda value: "1" if value else "0")
    return st.toggle(label, key=key, help=help_text, disabled=disabled, persist_state="session")


def segmented_control(
    key: str,
    label: str,
    options: dict[str, str],
    default: str,
    help_text: str | None = None,
) -> str:
    """Draw a segmented control and return its value. ``options`` maps each URL value to its label."""
    prepare(key, list(options), default)
    value = st.segmented_control(
        label,
        list(options),
        required=True,
        wrap=True,
        format_func=options.__getitem__,
        key=key,
        help=help_text,
        label_visibility="visible" if help_text else "collapsed",
        persist_state="session",
    )
    return default if value is None else value


def selectbox(key: str, label: str, options: dict[str, str], default: str, show_label: bool = False) -> str:
    """Draw a select box and return its value. ``options`` maps each URL value to its label.

    Args:
        show_label: whether to draw the label above the box.
    """
    prepare(key, list(options), default)
    value = st.selectbox(
        label,
        list(options),
        format_func=options.__getitem__,
        key=key,
        label_visibility="visible" if show_label else "collapsed",
        persist_state="session",
    )
    return default if value is None else value


def text_input(key: str, label: str, placeholder: str, on_change: Callable[[], None] | None = None) -> str:
    """Draw a text field and return its text, which is stored in a URL parameter.

    Args:
        on_change: called when the user, and not a link, changed the text.
    """
    if key not in st.session_state:
        st.session_state[key] = url_parameters().get(key, "")
    text: str = st.text_input(
        label, key=key, placeholder=placeholder, on_change=on_change, persist_state="session"
    )
    remember(key, text or None)
    return text


def multiselect(
    key: str,
    label: str,
    options: dict[str, str],
    default: list[str],
    placeholder: str,
    help_text: str,
    accept_new_options: bool = False,
    on_change: Callable[[], None] | None = None,
) -> list[str]:
    """Draw a multiselect and return the selected values. ``options`` maps each value to its label.

    The URL contains the selected values, separated by commas.

    Args:
        accept_new_options: whether the user can enter other values. The caller must validate them.
        on_change: called when the user, and not a link, changed the selection.
    """
    values: list[str] | None = st.session_state.get(key)
    if values is None:
        parameter = url_parameters().get(key)
        values = default if parameter is None else [value for value in parameter.split(",") if value]
    unknown = [value for value in values if value not in options]
    if accept_new_options:
        options = options | {value: value for value in unknown}
    elif unknown:
        st.caption(f":orange[Unknown values in the URL are ignored: {escape(', '.join(unknown))}.]")
    _set_widget(key, list(dict.fromkeys(value for value in values if value in options)))
    selected = st.multiselect(
        label,
        list(options),
        format_func=options.__getitem__,
        key=key,
        placeholder=placeholder,
        help=help_text,
        select_all=False,
        accept_new_options=accept_new_options,
        on_change=on_change,
        persist_state="session",
    )
    remember(key, None if selected == default else ",".join(selected))
    return selected
