"""What a person chose: kept over pages, and in the address, so that a copied link opens the same view.

Everything that comes out of an address is checked here; what cannot be had is said, never replaced in
silence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import streamlit as st

T = TypeVar("T")

_ADDRESS = "address"
"""Session key of the parameters to be shown in the address, those of other pages included."""
_PAGE, _DRAWN = "page shown", "drawn by page"
"""Session keys of the page that is drawn, and of the page that last drew each widget."""
_WENT = "went"
"""Parameter by which the browser tells of a step back or forward, and session key of the last one told."""
_SHOWN = "shown in the browser"
"""Session key of the parameters that the browser's address was given last."""
_TEXTS = ("a", "b", "relation", "model", "revision", "truncate")
"""Parameters of the texts and the model; those that are too long for an address are named by others."""
_HELD = "held over"
"""Session key of the names of all session keys that no address can hold."""


def enter(page: str) -> None:
    """A page is drawn from here on."""
    for name in _repeated():
        last = plain(st.query_params[name])
        st.caption(f":orange[The address gives {plain(name)} more than once; showing the last, {last}.]")
    went = st.query_params.get(_WENT)
    if went is not None and went != st.session_state.get(_WENT):
        begin(_given())
        st.session_state[_WENT] = went
    elif page != st.session_state.get(_PAGE, page):
        # The navigation opens a page by its bare address; a link says more.
        given = _given()
        if given and given != st.session_state.get(_SHOWN):
            _follow(given)
    st.session_state[_PAGE] = page


def _repeated() -> list[str]:
    """Return the parameters that the browser's address gives more than once."""
    return [name for name in st.query_params if len(st.query_params.get_all(name)) > 1]


def _given() -> dict[str, str]:
    """Parameters that the browser came with, as far as they are of the pages."""
    return {name: value for name, value in st.query_params.items() if name != _WENT}


def page() -> str:
    """The page that is drawn."""
    drawn: str = st.session_state.get(_PAGE, "")
    return drawn


def begin(given: dict[str, str]) -> None:
    """Begin anew with an address, as a visit with it would; only what no address holds is kept."""
    kept: set[str] = st.session_state.get(_HELD, set())
    for key in [key for key in st.session_state if key not in kept | {_HELD}]:
        del st.session_state[key]
    st.session_state[_ADDRESS] = given


def _follow(given: dict[str, str]) -> None:
    """Take over what a link says, which is all that stands in the address; of the same texts what is typed
    and not run stays."""
    if of_texts(given) != of_texts(address()):
        begin(given)
        return
    for name in {*given, *address()}:
        if address().get(name) != given.get(name):
            remember(name, given.get(name))
            st.session_state.pop(name, None)  # a control that is drawn begins with the address


def of_texts(given: dict[str, str]) -> dict[str, str]:
    """What parameters say of the texts and the model that reads them."""
    return {name: value for name, value in given.items() if name.removesuffix("_kept") in _TEXTS}


def hold(*keys: str) -> None:
    """These session keys outlive going back in the browser: uploaded files, work that is done."""
    st.session_state.setdefault(_HELD, set()).update(keys)


def address() -> dict[str, str]:
    """Parameters of the address, from the first visit on; change them with `remember`."""
    if _ADDRESS not in st.session_state:
        st.session_state[_ADDRESS] = _given()
    held: dict[str, str] = st.session_state[_ADDRESS]
    return held


def remember(key: str, value: str | None) -> None:
    """Put a parameter into the address; None takes it out, as for a default."""
    if value is None:
        address().pop(key, None)
    else:
        address()[key] = value.encode("utf-8", "replace").decode()  # no address holds half a surrogate pair


def publish(without: Collection[str] = ()) -> None:
    """Show the parameters in the browser's address.

    Args:
        without: those that the page has nothing to do with, and another one is known by.
    """
    wanted = {name: value for name, value in address().items() if name not in without}
    if dict(st.query_params) != wanted or _repeated():
        st.query_params.from_dict(wanted)
    st.session_state[_SHOWN] = wanted


def prepare(
    key: str, options: Sequence[T], default: T, write: Callable[[T], str] = str, keep: bool = False
) -> None:
    """Give a widget its value before it is drawn: from the session, else the address, else the default.

    Args:
        key: of the widget and of the parameter in the address.
        options: all values that can be had now; a model with fewer layers has fewer.
        default: one of them.
        write: how a value stands in the address.
        keep: the default stays in an address that names it, for a page where to say nothing means another.
    """
    held: Any = st.session_state.get(key)
    asked = write(held) if held is not None else address().get(key)
    known = {write(option): option for option in options}
    if asked is not None and asked not in known:
        st.caption(
            f":orange[There is no {key.replace('_', ' ')} {plain(asked)} here; showing {write(default)}.]"
        )
    chosen = known.get(asked, default) if asked is not None else default
    _give(key, chosen)
    goes_without_saying = chosen == default and not (keep and key in address())
    remember(key, None if goes_without_saying else write(chosen))


def _give(key: str, value: object) -> None:
    """A widget's value, where it does not have it already.

    A widget of another page with the same key is another one to Streamlit: it would begin anew.
    """
    drawn: dict[str, str] = st.session_state.setdefault(_DRAWN, {})
    page = st.session_state.get(_PAGE, "")
    if st.session_state.get(key) != value or drawn.get(key) != page:
        st.session_state[key] = value
    drawn[key] = page


# What Streamlit makes links, icons and arrows of when Markdown has been read, so that no backslash helps.
_MADE_LATER = re.compile(
    r"(?<=http:)(?=//)|(?<=https:)(?=//)|(?<=www)(?=\.)|(?<=@)(?=[\w-])"
    r"|(?<=:)(?=material[/_]|streamlit:)|(?<=-)(?=[->])|(?<=<)(?=[-=])|(?<=[>~!])(?==)",
    re.IGNORECASE,
)
_WORD_JOINER = "\u2060"


def plain(text: str, limit: int = 200) -> str:
    """Text of a person for a place that reads Markdown: shown as it is, whatever it holds, up to a limit."""
    parted = _MADE_LATER.sub(_WORD_JOINER, text[:limit])  # which nobody sees
    escaped = "".join(f"\\{c}" if c in "\\`*_{}[]()<>#+-.!|~$:&=" else c for c in parted)
    return " ".join(escaped.split())


def layer(key: str, first: int, last: int, help_text: str, label: str = "Layer") -> int:
    """A slider over layers, counted from 1; 0, where it is offered, is the output of the embeddings."""
    prepare(key, range(first, last + 1), last, keep=key == "layer")
    if first == last:
        st.caption(f"{label} {last}, the only one")
        return last
    chosen: int = st.slider(label, first, last, key=key, help=help_text, persist_state="session")
    return chosen


def head(key: str, count: int) -> int | str:
    """Pills for the mean over the heads and each head, counted from 1."""
    options: list[int | str] = ["mean", *range(1, count + 1)]
    prepare(key, options, "mean")
    chosen = st.pills(
        "Head",
        options,
        required=True,
        wrap=True,
        format_func=lambda option: "Mean of all" if option == "mean" else str(option),
        key=key,
        persist_state="session",
        help="Each layer looks at the text through several heads at once, each with weights of its own. "
        "The mean over them is a summary that hides what single heads do.",
    )
    return "mean" if chosen is None else chosen


def single_head(key: str, count: int) -> int:
    """Pills for each head, counted from 1: the choice of `head`, where that is one.

    While the mean is chosen there, the first head is shown and the choice is left as it is.
    """
    prepare(key, ["mean", *range(1, count + 1)], "mean")
    shown = f"single_{key}"
    st.session_state[shown] = 1 if st.session_state[key] == "mean" else st.session_state[key]

    def keep() -> None:
        st.session_state[key] = st.session_state[shown]

    chosen = st.pills(
        "Head",
        range(1, count + 1),
        required=True,
        wrap=True,
        key=shown,
        on_change=keep,
        help="Each layer looks at the text through several heads at once, each with q, k and v of its own.",
    )
    return 1 if chosen is None else chosen


def token(key: str, tokens: Sequence[str], default: int) -> int:
    """Position of a token that the address asks for, from 0, else the default.

    It is asked for in the text of the first visit, and in no other; `remember` what is chosen later.
    """
    first = f"first_{key}"
    if first not in st.session_state:
        st.session_state[first] = (address().get(key), tuple(tokens))
    asked, of = st.session_state[first]
    if asked is None or of != tuple(tokens):
        return default
    if asked in map(str, range(len(tokens))):
        return int(asked)
    st.caption(f":orange[There is no token {plain(asked)} here; showing {default}.]")
    st.session_state[first] = (None, of)
    return default


def switch(key: str, label: str, default: bool, help_text: str, disabled: bool = False) -> bool:
    """An on-off switch."""
    prepare(key, [False, True], default, lambda value: "1" if value else "0")
    return st.toggle(label, key=key, help=help_text, disabled=disabled, persist_state="session")


def pick(
    key: str,
    label: str,
    options: dict[str, str],
    default: str,
    help_text: str | None = None,
) -> str:
    """One of a few named views; ``options`` maps the word in the address to the label."""
    prepare(key, list(options), default)
    chosen = st.segmented_control(
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
    return default if chosen is None else chosen


def choose(key: str, label: str, options: dict[str, str], default: str, labelled: bool = False) -> str:
    """One of many named views, as a list that opens; otherwise like `pick`.

    Args:
        labelled: the label stands above it, where what is chosen does not say what it is.
    """
    prepare(key, list(options), default)
    chosen = st.selectbox(
        label,
        list(options),
        format_func=options.__getitem__,
        key=key,
        label_visibility="visible" if labelled else "collapsed",
        persist_state="session",
    )
    return default if chosen is None else chosen


def words(key: str, label: str, placeholder: str, on_change: Callable[[], None] | None = None) -> str:
    """A line that a person writes, in the address as it is.

    Args:
        on_change: called when the reader, and not an address, changed it.
    """
    if key not in st.session_state:
        st.session_state[key] = address().get(key, "")
    written: str = st.text_input(
        label, key=key, placeholder=placeholder, on_change=on_change, persist_state="session"
    )
    remember(key, written or None)
    return written


def several(
    key: str,
    label: str,
    options: dict[str, str],
    default: list[str],
    placeholder: str,
    help_text: str,
    own: bool = False,
    on_change: Callable[[], None] | None = None,
) -> list[str]:
    """Any number of named things, in the address with commas between; ``options`` maps words to labels.

    Args:
        own: words of the reader's own can be given too, which the caller checks.
        on_change: called when the reader, and not an address, changed the choice.
    """
    held: list[str] | None = st.session_state.get(key)
    if held is None:
        written = address().get(key)
        held = default if written is None else [word for word in written.split(",") if word]
    unknown = [word for word in held if word not in options]
    if own:
        options = options | {word: word for word in unknown}
    elif unknown:
        st.caption(f":orange[There is no {plain(', '.join(unknown))} here; left out.]")
    known = list(dict.fromkeys(word for word in held if word in options))
    _give(key, known)
    chosen = st.multiselect(
        label,
        list(options),
        format_func=options.__getitem__,
        key=key,
        placeholder=placeholder,
        help=help_text,
        select_all=False,
        accept_new_options=own,
        on_change=on_change,
        persist_state="session",
    )
    remember(key, None if chosen == default else ",".join(chosen))
    return chosen
