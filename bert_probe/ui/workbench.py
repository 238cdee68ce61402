"""The workbench: the input that every page reads, and what the model made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import streamlit as st

from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.lengths import most_tokens
from bert_probe.model.progress import Progress
from bert_probe.model.sources import BUILT_IN, stamp
from bert_probe.model.trace import Trace
from bert_probe.runtime import shared_cache
from bert_probe.ui import consent, jobs, state, url_texts
from bert_probe.ui.examples import EXAMPLES, Relation

SUGGESTED = (
    BUILT_IN,
    "google-bert/bert-base-uncased",
    "google-bert/bert-base-cased",
    "FacebookAI/roberta-base",
    "distilbert/distilbert-base-uncased",
    "answerdotai/ModernBERT-base",
)
PATIENCE = 4.0
"""Seconds that a page waits for a model before it shows how far the opening is. At its end the page runs
again; by then the browser has drawn what was typed, and will not lose it."""
_SEEN, _REPLACED = "opened from", "opened anew"
"""Session keys: of which files each model was, and those that are of others by now."""
_SILENCE = 300.0
"""Seconds in which nothing is heard of an opening, neither bytes nor an end, after which it is given up."""
_RELATIONS = {"compare": "Separate text", "pair": "Second segment"}


@dataclass(frozen=True)
class Request:
    """What a person asked for. Fields are named as in the address.

    Attributes:
        a, b: the texts; ``b`` is empty when there is one.
        relation: whether B is a text of its own, or the second segment of A's input.
        model, revision: what to open; "" is the built-in, and the hub's default revision.
        truncate: cut texts that are too long.
    """

    a: str
    b: str = ""
    relation: Relation = "compare"
    model: str = ""
    revision: str = ""
    truncate: bool = False

    @property
    def texts(self) -> list[shared_cache.Text]:
        """Inputs of the model: one, or two to compare."""
        if not self.b.strip():
            return [(self.a, None)]
        return [(self.a, self.b)] if self.relation == "pair" else [(self.a, None), (self.b, None)]


@dataclass(frozen=True, eq=False)
class TracedRequest:
    """A request and what the model made of it.

    Attributes:
        a: trace of sentence A, or of the pair.
        b: trace of sentence B where it is a text of its own, else None.
    """

    request: Request
    checkpoint: Checkpoint
    a: Trace
    b: Trace | None


_WRITTEN = ("a", "b", "model", "revision")
"""Fields of a request that a person writes, at any length."""

_FIRST = Request(EXAMPLES[0].a, EXAMPLES[0].b, EXAMPLES[0].relation)


def request() -> Request:
    """What was asked for last; at first what the address holds, else an example."""
    if "request" not in st.session_state:
        lost = url_texts.gone(*_WRITTEN)
        ask(_from_address())
        for name, value in lost.items():  # until something else is asked for
            state.remember(name, value)
    return cast(Request, st.session_state["request"])


def _from_address() -> Request:
    given = state.address()
    written = {name: url_texts.recall(name) or "" for name in _WRITTEN}
    if "a" not in given and not written["a"] and not url_texts.gone("a"):
        return replace(_FIRST, model=written["model"], revision=written["revision"])
    relation: Relation = "pair" if given.get("relation") == "pair" else "compare"
    return Request(**written, relation=relation, truncate=given.get("truncate") == "1")


def ask(asked: Request) -> None:
    """Make this the request: in the session, in the form and in the address."""
    st.session_state["request"] = asked
    plain, drafts = Request(""), {}
    for name in _WRITTEN:  # what was asked before takes no room from what is asked now
        url_texts.remember(name, None)
    for field in fields(Request):
        value = getattr(asked, field.name)
        drafts[f"draft_{field.name}"] = value
        written = ("1" if value else "0") if isinstance(value, bool) else value
        url_texts.remember(field.name, None if value == getattr(plain, field.name) else written)
    _set_drafts(drafts | {"draft_model": asked.model or BUILT_IN})


def _set_drafts(drafts: Mapping[str, Any]) -> None:
    """Set values of the form by widget key; see `_restore_drafts`."""
    unconfirmed: Unconfirmed | None = st.session_state.get(_UNCONFIRMED)
    changes = {} if unconfirmed is None else unconfirmed.changes
    for key, value in drafts.items():
        before = st.session_state.get(key)
        changes.pop(key, None)
        if value != before:
            changes[key] = before, value
        st.session_state[key] = value
    st.session_state[_UNCONFIRMED] = Unconfirmed(changes)


@dataclass
class Unconfirmed:
    """Values of the form that the server set and that no request of the browser has contained yet.

    Attributes:
        changes: by widget key, the value before and the value that was set.
        is_new: whether no script has run since.
        is_received: whether the request of this run was sent after the browser could receive the values.
    """

    changes: dict[str, tuple[Any, Any]]
    is_new: bool = True
    is_received: bool = False


_UNCONFIRMED = "unconfirmed drafts"


def _restore_drafts() -> None:
    """Undo what a request did that the browser sent before it received the values that the server had set.

    Each request contains the values of all widgets. Those of a form change only when it is submitted, so an
    old value in another request is outdated.
    """
    unconfirmed: Unconfirmed | None = st.session_state.get(_UNCONFIRMED)
    if unconfirmed is None:
        return
    drafts = {key: st.session_state.get(key) for key in unconfirmed.changes}
    is_outdated = any(drafts[key] == before for key, (before, _) in unconfirmed.changes.items())
    for key, (before, value) in unconfirmed.changes.items():
        if drafts[key] in (before, value):
            st.session_state[key] = value  # sent again: the messages of an interrupted run are dropped
    unconfirmed.is_received = not (unconfirmed.is_new or is_outdated)
    unconfirmed.is_new = False


def confirm_drafts() -> None:
    """Stop restoring the form; called at the end of a run that was not interrupted."""
    unconfirmed: Unconfirmed | None = st.session_state.get(_UNCONFIRMED)
    if unconfirmed is not None and unconfirmed.is_received:
        del st.session_state[_UNCONFIRMED]


def _run() -> None:
    draft = {field.name: st.session_state[f"draft_{field.name}"] for field in fields(Request)}
    model = (draft["model"] or "").strip()
    draft["model"] = "" if model == BUILT_IN else model
    asked, now = Request(**draft), request()
    consent.choose((asked.model, asked.revision), (now.model, now.revision))
    ask(asked)


def _run_example() -> None:
    title = st.session_state["example"]
    chosen = next((example for example in EXAMPLES if example.title == title), None)
    if chosen is not None:
        ask(replace(request(), a=chosen.a, b=chosen.b, relation=chosen.relation))


def sidebar() -> None:
    """Draw the workbench."""
    now = request()
    _restore_drafts()
    with st.sidebar:
        with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
            st.markdown("**Your text**")
            st.menu_button(
                "Examples",
                [example.title for example in EXAMPLES],
                key="example",
                on_click=_run_example,
                type="tertiary",
            )
        with st.form("workbench", border=False):
            st.text_area("Sentence A", key="draft_a", height=110, placeholder="Type or paste a sentence")
            st.text_area("Sentence B", key="draft_b", height=110, placeholder="Optional: a second sentence")
            st.segmented_control(
                "Sentence B is",
                list(_RELATIONS),
                required=True,
                format_func=_RELATIONS.__getitem__,
                key="draft_relation",
                help="A separate text is read on its own and compared with A. A second segment is read "
                "together with A, joined by [SEP], so that the words of both can attend to each other.",
            )
            with st.expander("Model and length"):
                st.selectbox(
                    "Model",
                    list(dict.fromkeys([*SUGGESTED, now.model or BUILT_IN])),
                    key="draft_model",
                    accept_new_options=True,
                    help=f"{BUILT_IN} is built in and works offline. You can also type the path of a "
                    "local folder, or a hub id, which is downloaded once.",
                )
                st.text_input(
                    "Revision",
                    key="draft_revision",
                    placeholder="Newest",
                    help="Branch, tag or commit on the hub. Leave it empty for the newest.",
                )
                st.toggle(
                    "Cut texts that are too long",
                    key="draft_truncate",
                    help="Off: a text longer than the model accepts is refused, and nothing is lost.",
                )
            st.form_submit_button(
                "Run", type="primary", shortcut="Ctrl+Enter", on_click=_run, width="stretch"
            )


def model_line() -> None:
    """Say beneath the workbench what the model is; drawn last, when the page has opened it."""
    now = request()
    found = shared_cache.opened(now.model, now.revision)
    if found is None:
        return
    about = found.description
    with st.sidebar:
        st.caption(
            f"{state.plain(about.name)} · {about.layers} layers × {about.heads} heads · "
            f"{about.hidden_size} dimensions · up to {most_tokens(about.max_tokens):,} tokens"
        )
        for note in about.notes:
            st.caption(state.plain(note))
        if (now.model, now.revision) in st.session_state.get(_REPLACED, ()):
            st.caption(
                "Its files were replaced since this page was opened. What is shown is of the new ones."
            )


def checkpoint() -> Checkpoint:
    """The checkpoint that was asked for, opened if need be with its progress shown.

    Raises:
        CheckpointError: see `bert_probe.load`.
    """
    now = request()
    origin = "It was named by the address of this page."
    return open_model(
        now.model, now.revision, origin=origin, cancel=("Use the built-in model", _use_built_in)
    )


def _use_built_in() -> None:
    """Replace the model of the request, and leave the texts of the form as they are."""
    st.session_state["request"] = replace(request(), model="", revision="")
    for name in ("model", "revision"):
        url_texts.remember(name, None)
    _set_drafts({"draft_model": BUILT_IN, "draft_revision": ""})


def open_model(
    model: str,
    revision: str,
    key: str = "opening",
    origin: str = "",
    cancel: tuple[str, Callable[[], None]] | None = None,
) -> Checkpoint:
    """A checkpoint, opened if need be in a job, whose progress stands where the page will be.

    The script stops with a question where the reader has not agreed to this model, see `consent`.

    Args:
        key: of the job; a page that opens a second model has two.
        origin: where the name of the model comes from, for the question.
        cancel: a second button of the question, with what it does.

    Raises:
        CheckpointError: see `bert_probe.load`.
    """
    there = shared_cache.opened(model, revision)
    if there is not None:
        consent.agree([(model, revision)])
        _notice_replaced(model, revision)
        return there
    if not consent.is_agreed(model, revision):
        consent.question(
            [(model, revision)], key.replace(" ", "_"), "Open this model?", origin, cancel=cancel
        )
        st.stop()
    name = state.plain(model or BUILT_IN)

    def about() -> str:
        return f"Opening {name}. {shared_cache.opening(model, revision).notice}".rstrip()

    def work(report: Progress) -> Checkpoint:
        return shared_cache.open_checkpoint(model, revision, report)

    with st.spinner(f"Opening {name} …", show_time=False):
        found = jobs.run(
            key,
            ("opening", model, revision, stamp(model)),
            f"Open {name}",
            work,
            "B",
            start=True,
            about=about,
            patience=PATIENCE,
            queued=False,
            silence=_SILENCE,
        )
    if found is None:
        st.stop()
    _notice_replaced(model, revision)
    return found


def _notice_replaced(model: str, revision: str) -> None:
    """Say where a folder holds other files than those that this session saw before."""
    seen: dict[tuple[str, str], Any] = st.session_state.setdefault(_SEEN, {})
    state.hold(_SEEN, _REPLACED)
    there = shared_cache.opened_from(model, revision)
    if seen.setdefault((model, revision), there) != there:
        seen[model, revision] = there
        st.session_state.setdefault(_REPLACED, set()).add((model, revision))
        st.toast(f"{state.plain(model)} was replaced, and is opened anew.")


def study() -> TracedRequest:
    """The request carried out: traces of its text or texts.

    Raises:
        ProbeError: the model cannot be opened, or a text cannot be read by it.
    """
    opened = checkpoint()
    now = request()
    made = traced(opened, now.texts, now.truncate)
    return TracedRequest(now, opened, made[0], made[1] if len(made) > 1 else None)


def traced(opened: Checkpoint, texts: Sequence[shared_cache.Text], truncate: bool) -> list[Trace]:
    """What the model makes of texts of the request, for a page that puts them together in its own way.

    Raises:
        ProbeError: a text cannot be read.
    """
    now = request()
    url_texts.check(*(name for name in ("a", "b") if not getattr(now, name)))
    with st.spinner("Running the model …", show_time=False):
        return shared_cache.traces(opened, texts, truncate)


def chosen_text(shown: TracedRequest) -> Trace:
    """The trace to look at on a page that shows one: a choice between A and B where there are two."""
    if shown.b is None:
        return shown.a
    which = state.pick("of", "Text", {"a": "Sentence A", "b": "Sentence B"}, "a")
    return shown.a if which == "a" else shown.b
