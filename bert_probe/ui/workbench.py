"""The workbench: the form in the sidebar with the texts and the model, and the traces of the texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import streamlit as st

from bert_probe.errors import PickledWeightsError, TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.lengths import max_trace_tokens
from bert_probe.model.progress import Progress
from bert_probe.model.sources import BUILT_IN, stamp
from bert_probe.model.trace import Trace
from bert_probe.runtime import permissions, shared_cache
from bert_probe.server import asgi, page_traces
from bert_probe.text.formats import single_record
from bert_probe.ui import blocks, jobs, model_choice, state, url_texts
from bert_probe.ui.sentence_input import EXAMPLES, Relation, check_size

PATIENCE = 4.0
"""Seconds that a page waits for a model before it shows progress and reruns. A rerun may lose typed text."""
_SEEN, _REPLACED = "model files", "replaced models"
"""Session keys of the file stamps of each opened model, and of the models whose files were replaced."""
_OPENING, _NEXT_MODEL = "opening", "next model"
"""Key of the job that opens the model, and session key of the model to select in the next script run."""
_TOO_LARGE = "too large"
"""Session key of the error for a submitted text that is too large, until the form has shown it."""
_RUNS = "runs"
"""Session key of the number of times that the user clicked Run or an example in the sidebar."""
_SILENCE = 300.0
"""Seconds without progress after which opening a model is aborted."""
_RELATIONS = {"compare": "Separate text", "pair": "Second segment"}


@dataclass(frozen=True)
class OwnInput:
    """The input of a page that does not read the texts in the form of the workbench.

    Attributes:
        description: text that completes the sentence "This page reads …".
        parameter: URL parameter that selects a section of the page; "" if no section reads the form's texts.
        parts: values of `parameter` for sections that do not read the texts; "" means a missing parameter.
        has_model: whether the page uses the model of the form.
    """

    description: str
    parameter: str = ""
    parts: tuple[str, ...] = ()
    has_model: bool = True


_KEPT = "Sentences A and B remain available on the other pages."
_OWN_INPUTS = {
    "report": OwnInput("the views that you add with Export on other pages", has_model=False),
    "corpus": OwnInput("a store of sentences, which you choose or build on the page"),
    "heads": OwnInput("many sentences, which you choose on the page", "heads_part", ("many",)),
    "context": OwnInput("sentences that you add on the page"),
    "sentences": OwnInput("sentences that you type on the page"),
    "search": OwnInput("a query and documents that you enter on the page"),
    "evaluate": OwnInput("data with human judgments, which you choose on the page"),
    "map": OwnInput("a file, which you choose on the page", "map_from", ("file",)),
    "train": OwnInput("a dataset, which you choose on the page"),
    "parameters": OwnInput("the parameters of the model"),
    "sizes": OwnInput("the configs of this model and of the models that you choose on the page"),
    "vocabulary": OwnInput("the vocabulary of the model", "vocabulary_part", ("", "pieces", "kinds")),
    "positions": OwnInput("the position encoding of the model"),
    "probes": OwnInput(
        "labeled data, which you choose on the page", "probes_part", ("", "layers", "relations")
    ),
}
"""Page → input that the page reads instead of the texts in the form. All other pages read the texts."""


@dataclass(frozen=True)
class Request:
    """The texts, the model and the options that the user submitted. Field names are URL parameters.

    Attributes:
        a, b: the texts; ``b`` is empty if there is only one.
        relation: "compare" if B is a separate input, "pair" if B is the second segment of A's input.
        model, revision: the model to open; "" for the built-in model and for the default revision of the Hub.
        dtype: data type of the weights and the computation, a key of `model_choice.PRECISIONS`.
        truncate: whether to truncate texts that are too long.
    """

    a: str
    b: str = ""
    relation: Relation = "compare"
    model: str = ""
    revision: str = ""
    dtype: str = "float32"
    truncate: bool = False

    @property
    def texts(self) -> list[shared_cache.Text]:
        """The model inputs as (text, second segment or None): one text, one pair, or two separate texts."""
        if not self.b.strip():
            return [(self.a, None)]
        return [(self.a, self.b)] if self.relation == "pair" else [(self.a, None), (self.b, None)]


@dataclass(frozen=True, eq=False)
class TracedRequest:
    """A request and the traces of its texts.

    Attributes:
        a: trace of sentence A, or of the pair.
        b: trace of sentence B if it is a separate text, otherwise None.
    """

    request: Request
    checkpoint: Checkpoint
    a: Trace
    b: Trace | None


_TEXT_FIELDS = ("a", "b", "model", "revision")
"""Fields of `Request` that contain free text of any length."""

_DEFAULT_REQUEST = Request(EXAMPLES[0].a, EXAMPLES[0].b, EXAMPLES[0].relation)


def request() -> Request:
    """Return the current request: the last submitted request, the request in the URL, or an example."""
    if "request" not in st.session_state:
        missing = url_texts.missing(*_TEXT_FIELDS)
        submit(_request_from_url())
        # Keep the names of missing texts in the URL until another request is submitted.
        for name, value in missing.items():
            state.remember(name, value)
    return cast(Request, st.session_state["request"])


def _request_from_url() -> Request:
    parameters = state.url_parameters()
    texts = {name: url_texts.recall(name) or "" for name in _TEXT_FIELDS}
    dtype = parameters.get("dtype", "")
    dtype = dtype if dtype in permissions.current().dtypes else "float32"
    texts["model"] = texts["model"].strip() or permissions.current().default_model
    if "a" not in parameters and not texts["a"] and not url_texts.missing("a"):
        return replace(_DEFAULT_REQUEST, model=texts["model"], revision=texts["revision"], dtype=dtype)
    relation: Relation = "pair" if parameters.get("relation") == "pair" else "compare"
    return Request(**texts, relation=relation, dtype=dtype, truncate=parameters.get("truncate") == "1")


def submit(new: Request) -> None:
    """Make a request the current one: write it to the session, the form and the URL."""
    st.session_state["request"] = new
    empty, drafts = Request(""), {}
    for name in _TEXT_FIELDS:  # remove all old texts first, because they count toward the length of the URL
        url_texts.remember(name, None)
    for field in fields(Request):
        value = getattr(new, field.name)
        drafts[f"draft_{field.name}"] = value
        text = ("1" if value else "0") if isinstance(value, bool) else value
        url_texts.remember(field.name, None if value == getattr(empty, field.name) else text)
    allowed = permissions.current()
    model = new.model if allowed.allows(new.model) else allowed.default_model
    _set_drafts(drafts | {"draft_model": model or BUILT_IN})


def _set_drafts(drafts: Mapping[str, Any]) -> None:
    """Set form values and record them as unconfirmed; see `_restore_drafts`.

    Args:
        drafts: widget key → value.
    """
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
    """Form values that the server has set and that the browser has not yet sent back.

    Attributes:
        changes: widget key → (old value, new value).
        is_new: whether no script run has started since the values were set.
        is_received: whether the browser sent the current request after it had received the values: the
            values are not new, and the request does not contain an old value.
        is_sent: whether a script run that drew the values has ended, so that the values were sent.
    """

    changes: dict[str, tuple[Any, Any]]
    is_new: bool = True
    is_received: bool = False
    is_sent: bool = False


_UNCONFIRMED = "unconfirmed drafts"


def _restore_drafts() -> None:
    """Restore form values that a request from the browser has overwritten with outdated values.

    Each request contains the values of all widgets. A request that the browser sent before it received the
    values set by the server still contains the old values. Form values change only when the form is
    submitted, so old values in any other request are outdated.
    """
    unconfirmed: Unconfirmed | None = st.session_state.get(_UNCONFIRMED)
    if unconfirmed is None:
        return
    drafts = {key: st.session_state.get(key) for key in unconfirmed.changes}
    is_outdated = any(drafts[key] == before for key, (before, _) in unconfirmed.changes.items())
    unconfirmed.is_sent = unconfirmed.is_sent and not is_outdated
    for key, (before, value) in unconfirmed.changes.items():
        if drafts[key] == before or (drafts[key] == value and not unconfirmed.is_sent):
            # Send the value again, because Streamlit drops the messages of an interrupted run. Stop when the
            # browser has confirmed the value, so that newly typed text is not overwritten.
            st.session_state[key] = value
    unconfirmed.is_received = not (unconfirmed.is_new or is_outdated)
    unconfirmed.is_new = False


def confirm_drafts() -> None:
    """Stop restoring form values that the browser has received.

    Call this function at the end of a script run that was not interrupted.
    """
    unconfirmed: Unconfirmed | None = st.session_state.get(_UNCONFIRMED)
    if unconfirmed is None:
        return
    if unconfirmed.is_received:
        del st.session_state[_UNCONFIRMED]
    else:
        unconfirmed.is_sent = True


def _run() -> None:
    draft = {field.name: st.session_state[f"draft_{field.name}"] for field in fields(Request)}
    model = (draft["model"] or "").strip()
    draft["model"] = "" if model == BUILT_IN else model
    new, now = Request(**draft), request()
    try:
        for name, text in (("Sentence A", new.a), ("Sentence B", new.b)):
            check_size(name, text or "")
    except TextError as error:
        st.session_state[_TOO_LARGE] = str(error)
        return
    model_choice.choose((new.model, new.revision), (now.model, now.revision))
    _count_run()
    submit(new)


def _count_run() -> None:
    """Increase the run counter. `server/static/index.js` observes it to close the sidebar on phones."""
    st.session_state[_RUNS] = st.session_state.get(_RUNS, 0) + 1


def _run_example() -> None:
    title = st.session_state["example"]
    example = next((example for example in EXAMPLES if example.title == title), None)
    if example is not None:
        _count_run()
        submit(replace(request(), a=example.a, b=example.b, relation=example.relation))


def _own_input() -> OwnInput | None:
    """Return the `OwnInput` of the current page, or None if the page reads the texts in the form."""
    own = _OWN_INPUTS.get(state.current_page())
    if own is None or not own.parameter:
        return own
    parameters = state.url_parameters()
    part = st.session_state.get(own.parameter) or parameters.get(own.parameter, "")
    return own if part in own.parts else None


def _draw_inputs() -> None:
    """Draw a note about the page's own input, if any, with data attributes for the style sheet and scripts.

    The attributes contain the form fields that the page reads, the section of the navigation menu and the
    number of runs. The style sheet hides the other fields. They are not removed, because only the browser
    keeps text that was typed but not submitted.
    """
    own = _own_input()
    inputs = "texts model" if own is None else "model" if own.has_model else ""
    note = "" if own is None else f"This page reads {own.description}. {_KEPT}"
    page = state.current_page()
    section = next((title for title, pages in asgi.sections().items() if page in pages), "")
    data = f'data-inputs="{inputs}" data-section="{section}" data-runs="{st.session_state.get(_RUNS, 0)}"'
    st.html(f'<p class="workbench-inputs" {data}>{note}</p>')


def _submitted_values() -> dict[str, str]:
    """Return the submitted values of the form fields that the page reads: widget key → displayed value."""
    now, own = request(), _own_input()
    texts = {"draft_a": now.a, "draft_b": now.b, "draft_relation": _RELATIONS[now.relation]}
    model = {
        "draft_model": now.model or BUILT_IN,
        "draft_revision": now.revision,
        "draft_dtype": now.dtype,
        "draft_truncate": "on" if now.truncate else "off",
    }
    if permissions.current().is_public:  # `_draw_offered_models` draws the models of a public server
        model = {name: model[name] for name in ("draft_model", "draft_truncate")}
    if own is None:
        return texts | model
    return model if own.has_model else {}


def draw_sidebar() -> None:
    """Draw the form with the texts and the model. Fields that the page does not read are hidden.

    Each field has the submitted value as its default, although the session has it too: if a script run ends
    before the browser has loaded the code of a widget, the browser loses a value that was sent to it.
    """
    if _NEXT_MODEL in st.session_state:  # set by `_open_next` after the last script run had drawn the form
        model, revision = st.session_state.pop(_NEXT_MODEL)
        submit(replace(request(), model=model, revision=revision))
    now = request()
    _restore_drafts()
    own = _own_input()
    with st.sidebar:
        with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
            st.markdown("**Your text**" if own is None else "**Model**" if own.has_model else "**Input**")
            st.menu_button(
                "Examples",
                [example.title for example in EXAMPLES],
                key="example",
                on_click=_run_example,
                type="tertiary",
            )
        _draw_inputs()
        with st.form("workbench", border=False):
            with st.container(key="workbench_texts"):
                st.text_area(
                    "Sentence A", now.a, key="draft_a", height=110, placeholder="Type or paste a sentence"
                )
                st.text_area(
                    "Sentence B", now.b, key="draft_b", height=110, placeholder="Optional: a second sentence"
                )
                st.segmented_control(
                    "Role of sentence B",
                    list(_RELATIONS),
                    default=now.relation,
                    required=True,
                    format_func=_RELATIONS.__getitem__,
                    key="draft_relation",
                    help="A separate text is processed on its own and compared with A. A second segment "
                    "is joined to A with [SEP], so that the tokens of both sentences can attend to "
                    "each other.",
                )
            allowed = permissions.current()
            with st.expander("Length" if len(allowed.models) == 1 else "Model and length"):
                model_choice.draw_fields(now.model, now.revision, now.dtype)
                st.toggle(
                    "Truncate long texts",
                    now.truncate,
                    key="draft_truncate",
                    help="If this option is off, a text that exceeds the maximum length of the model "
                    "causes an error.",
                )
            if _TOO_LARGE in st.session_state:
                st.error(st.session_state.pop(_TOO_LARGE))
            if allowed.is_public:
                st.caption("Your text is processed on this server and kept in memory only.")
            st.form_submit_button(
                "Run", type="primary", shortcut="Ctrl+Enter", on_click=_run, width="stretch"
            )
            blocks.not_run(_submitted_values())  # below the button, which therefore does not move


def draw_precision() -> None:
    """Draw a note about the data type with which the page is computed, unless it is float32."""
    now, own = request(), _own_input()
    if shared_cache.is_in_memory(now.model):
        return
    if model_choice.PRECISIONS[now.dtype] and (own is None or own.has_model):
        st.caption(f"The model runs in {now.dtype}: {model_choice.PRECISIONS[now.dtype]}")


def draw_model_line() -> None:
    """Draw the name and the size of the model below the form, after the page has opened the model."""
    now, own = request(), _own_input()
    checkpoint = shared_cache.cached_checkpoint(now.model, now.revision, now.dtype)
    if checkpoint is None or (own is not None and not own.has_model):
        return
    model = checkpoint.description
    with st.sidebar:
        st.caption(
            f"{state.escape(model.name)} · {model.layers} layers × {model.heads} heads · "
            f"{model.hidden_size} dimensions · up to {max_trace_tokens(model.max_tokens):,} tokens"
        )
        for note in model.notes:
            st.caption(state.escape(note))
        if (now.model, now.revision) in st.session_state.get(_REPLACED, ()):
            st.caption(
                "The model's files have been replaced since this page was opened. The new files are used."
            )


def checkpoint() -> Checkpoint:
    """Return the checkpoint of the current request. If it is not cached, open it in a job with progress.

    Raises:
        CheckpointError: see `bert_probe.load`.
    """
    now = request()
    origin = "This model is named in the URL of this page."
    return open_model(
        now.model, now.revision, now.dtype, origin=origin, cancel=("Use the built-in model", _use_built_in)
    )


def _open_next(model: str, revision: str) -> None:
    """Select a model in the next script run, for example after its weights were converted."""
    st.session_state[_NEXT_MODEL] = model, revision


def _use_built_in() -> None:
    """Switch to the built-in model without discarding text that was typed but not submitted."""
    st.session_state["request"] = replace(request(), model="", revision="", dtype="float32")
    for name in ("model", "revision", "dtype"):
        url_texts.remember(name, None)
    _set_drafts({"draft_model": BUILT_IN, "draft_revision": "", "draft_dtype": "float32"})


def open_model(
    model: str,
    revision: str,
    dtype: str = "float32",
    key: str = _OPENING,
    origin: str = "",
    cancel: tuple[str, Callable[[], None]] | None = None,
) -> Checkpoint:
    """Return the checkpoint of a model. If it is not cached, open it in a job with progress.

    The script run stops until the model is open. If the user has not agreed to open this model, the page asks
    the user; see `model_choice`.

    Args:
        dtype: data type of the weights and the computation.
        key: key of the job; a page that opens a second model needs a second key.
        origin: sentence that explains the source of the model name, such as the URL.
        cancel: label and callback of a second button, next to the button that opens the model.

    Raises:
        CheckpointError: see `bert_probe.load`, and `Permissions.check_model`.
    """
    permissions.current().check_model(model, revision)
    checkpoint = shared_cache.cached_checkpoint(model, revision, dtype)
    if checkpoint is not None:
        jobs.drop(key)
        model_choice.agree([(model, revision)])
        _notice_replaced(model, revision, dtype)
        return checkpoint
    if not model_choice.is_agreed(model, revision):
        model_choice.ask(
            [(model, revision)], key.replace(" ", "_"), "Open this model?", origin, cancel=cancel
        )
        st.stop()
    name = state.escape(model or BUILT_IN)

    def describe() -> str:
        return f"Opening {name}. {shared_cache.opening_progress(model, revision, dtype).notice}".rstrip()

    def work(progress: Progress) -> Checkpoint:
        return shared_cache.open_checkpoint(model, revision, progress, dtype)

    try:
        with st.spinner(f"Opening {name} …", show_time=False):
            checkpoint = jobs.run(
                key,
                ("opening", model, revision, dtype, stamp(model)),
                f"Open {name}",
                work,
                "B",
                start=True,
                describe=describe,
                patience=PATIENCE,
                queued=False,
                silence=_SILENCE,
            )
    except PickledWeightsError as error:
        # `_open_next` selects the first model, so conversion is not offered for a second model.
        if key != _OPENING or not permissions.current().can_write_files:
            raise
        model_choice.offer_conversion(error, model, revision, key, _open_next)
        st.stop()
    if checkpoint is None:
        st.stop()
    jobs.drop(key)  # otherwise, the session would keep the model after the shared cache has evicted it
    _notice_replaced(model, revision, dtype)
    return checkpoint


def _notice_replaced(model: str, revision: str, dtype: str) -> None:
    """Draw a message if the files of the model have changed since this session opened it."""
    stamps: dict[tuple[str, str], Any] = st.session_state.setdefault(_SEEN, {})
    state.preserve(_SEEN, _REPLACED)
    files = shared_cache.loaded_stamp(model, revision, dtype)
    if stamps.setdefault((model, revision), files) != files:
        stamps[model, revision] = files
        st.session_state.setdefault(_REPLACED, set()).add((model, revision))
        st.toast(f"The files of {state.escape(model)} were replaced. The model was opened again.")


def trace_request() -> TracedRequest:
    """Return the current request with the traces of its texts.

    Raises:
        ProbeError: the model cannot be opened, or it cannot read a text.
    """
    opened = checkpoint()
    now = request()
    traces = trace_texts(opened, now.texts, now.truncate)
    return TracedRequest(now, opened, traces[0], traces[1] if len(traces) > 1 else None)


def trace_texts(
    opened: Checkpoint, texts: Sequence[shared_cache.Text], truncate: bool, key: str = "unknown"
) -> list[Trace]:
    """Return one trace for each text, for pages that do not use the traces of `trace_request`.

    If a text is a FASTA record, only its sequence is read, and a message is drawn. If most tokens of a text
    are unknown to the model, a warning with a button is drawn.

    Args:
        key: prefix of the button keys, different for each call on a page.

    Raises:
        ProbeError: the model cannot read a text, or a text has several FASTA records.
    """
    now = request()
    url_texts.check(*(name for name in ("a", "b") if not getattr(now, name)))
    sequences = [
        (_read_sequence(text), None if pair is None else _read_sequence(pair)) for text, pair in texts
    ]
    with st.spinner("Running the model …", show_time=False):
        traces = page_traces.traces(opened, sequences, truncate)
    fields = ["a", "b"]
    for trace in traces:
        matches = [field for field in fields if _is_sequence_of(getattr(now, field), trace)]
        # If fields a and b match, use the shorter text: the longer text has letters before the traced text.
        field = min(matches, key=lambda name: len(getattr(now, name)), default=None)
        fields = [name for name in fields if name != field]
        _unknown_tokens_notice(trace, field, key)
    return traces


def _read_sequence(text: str) -> str:
    """Return the sequence of a FASTA record, and draw a message; return any other text unchanged.

    Raises:
        TextError: the text has several FASTA records, or invalid lines.
    """
    record = single_record(text)
    if record is None:
        return text
    st.info(
        f"The text is FASTA. The model reads the sequence of **{state.escape(record.name)}** "
        f"({len(record.sequence):,} characters) without its header."
    )
    return record.sequence


def _unknown_tokens_notice(trace: Trace, field: str | None, key: str) -> None:
    """Draw a warning if most tokens are unknown, with a button that corrects the text, such as its case.

    Args:
        field: field of the request with the text of the trace, "a" or "b"; None to omit the button.
    """
    from bert_probe.analyses.vocabulary.tokens import find_unknown_tokens  # imports pandas

    unknown = find_unknown_tokens(trace)
    if unknown is None:
        return
    st.warning(state.escape(str(unknown), 1_000), icon=":material/help:")
    now = request()
    if unknown.change and field is not None:
        st.button(
            f"Write sentence {field.upper()} with {unknown.change}",
            key=f"{key}_{field}",
            on_click=submit,
            args=(replace(now, a=unknown.text) if field == "a" else replace(now, b=unknown.text),),
        )


def _is_sequence_of(text: str, trace: Trace) -> bool:
    sequence = "".join(trace.encoding.text.split())
    return bool(text) and trace.encoding.pair is None and "".join(text.split()).endswith(sequence)


def choose_trace(traced: TracedRequest) -> Trace:
    """Return the trace of one text. If the request has two separate texts, draw a selector for A or B."""
    if traced.b is None:
        return traced.a
    text = state.segmented_control("of", "Text", {"a": "Sentence A", "b": "Sentence B"}, "a")
    return traced.a if text == "a" else traced.b
