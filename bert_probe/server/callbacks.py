"""Patch Streamlit so that clicks are not lost: callbacks run to completion, and clicks reach the script.

Streamlit stops a running script as soon as the user clicks again. It checks for new clicks at every access to
``st.session_state``, also within callbacks and before the first callback, and never repeats a callback. A
click on a button is reported to a single run, even if this run is stopped before it reaches the button. A
late request from the previous page can undo a page change, and a request to run a fragment can discard the
last messages of the run before it. A file that is generated for a click must contain what the user typed
before the click.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any, Final

from streamlit import runtime
from streamlit.delta_generator_singletons import context_dg_stack, get_default_dg_stack_value
from streamlit.proto.ClientState_pb2 import ClientState
from streamlit.proto.WidgetStates_pb2 import WidgetStates
from streamlit.runtime.app_session import AppSession
from streamlit.runtime.scriptrunner import RerunException, get_script_run_ctx
from streamlit.runtime.scriptrunner.script_runner import ScriptRunner, ScriptRunnerEvent
from streamlit.runtime.scriptrunner_utils import script_requests
from streamlit.runtime.scriptrunner_utils.script_requests import (
    RerunData,
    ScriptRequest,
    ScriptRequests,
    ScriptRequestType,
)
from streamlit.runtime.state.safe_session_state import SafeSessionState

_MARK: Final = "keeps clicks"
_STARTING: Final = "starts_run"
"""Attribute of script requests: whether a run was requested whose callbacks have not finished."""
_LATER_SECONDS: Final = 0.25
"""Time in which the browser sends a text after the click that moved the focus; measured: 0.04 s."""
_POLL_SECONDS: Final = 0.05
"""Time between two checks whether the callbacks of a session have finished."""
_WAIT_SECONDS: Final = 30.0
"""Maximum time to wait for the callbacks of a session."""
_ENDED: Final = "ended_runner"
"""Attribute of a session: the script runner whose last messages are still accepted."""
MAX_WIDGETS: Final = 2_000
"""Maximum number of widget states of a pending run to which a new request is merged. A page has at most a few
hundred widgets. Streamlit copies all states and keeps the clicks of every request, also on unknown widgets.
"""
MAX_TEXTS: Final = 1_000_000
"""Maximum number of characters of the texts that are kept for a pending run if a new request lacks them."""


def keep_clicks() -> None:
    """Patch Streamlit's script runner, once per process, so that clicks are not lost."""
    if not hasattr(ScriptRunner, _MARK):
        setattr(ScriptRunner, _MARK, True)
        _finish_callbacks()
        _replay_clicks()
        _skip_fragments_of_other_pages()
        _run_lost_fragments_fully()
        _limit_widgets()
        _keep_last_messages()
        _note_started_runs()


def _finish_callbacks() -> None:
    """Postpone requests that arrive while callbacks run; Streamlit handles them after the callbacks."""
    run_callbacks = SafeSessionState.on_script_will_rerun

    @wraps(run_callbacks)
    def run_all(self: SafeSessionState, *args: Any, **options: Any) -> None:
        try:
            with _ignore_requests(self):
                run_callbacks(self, *args, **options)
        finally:
            runner = getattr(self._yield_callback, "__self__", None)
            if isinstance(runner, ScriptRunner):
                setattr(runner._requests, _STARTING, False)

    SafeSessionState.on_script_will_rerun = run_all  # type: ignore[method-assign]


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Within the context, prevent Streamlit from stopping the script when the user clicks again."""
    context = get_script_run_ctx(suppress_warning=True)
    if context is None:
        yield
        return
    with _ignore_requests(context.session_state):
        yield
    context.session_state._yield_callback()  # handle the requests that arrived during the block


@contextmanager
def _ignore_requests(state: SafeSessionState) -> Iterator[None]:
    """Within the context, disable Streamlit's check for newer requests."""
    runner = getattr(state._yield_callback, "__self__", None)
    if not isinstance(runner, ScriptRunner) or not runner._execing:  # no script run, as in tests
        yield
        return
    runner._execing = False
    try:
        yield
    finally:
        runner._execing = True


def _replay_clicks() -> None:
    """If a run is stopped before it reaches a clicked button, pass the click to the next run."""
    check = ScriptRunner._maybe_handle_execution_control_request

    @wraps(check)
    def check_and_replay(self: ScriptRunner) -> None:
        try:
            check(self)
        except RerunException as stop:
            pending = _pending_clicks(self)
            if not pending.widgets:
                raise
            later = stop.rerun_data.replay_trigger_states
            states = script_requests._coalesce_replay_trigger_states(pending, later)
            raise RerunException(replace(stop.rerun_data, replay_trigger_states=states)) from None

    ScriptRunner._maybe_handle_execution_control_request = check_and_replay  # type: ignore[method-assign]


def _skip_fragments_of_other_pages() -> None:
    """Prevent fragments and ``st.rerun()`` of the previous page from undoing a page change.

    The browser reruns a fragment with ``run_every`` until the new page arrives. Without this patch, Streamlit
    redirects the pending run of the new page to the previous page or, if the new page is already running,
    runs the fragment afterwards and clears the new page in the browser.
    """
    request, run = ScriptRequests.request_rerun, ScriptRunner._run_script

    @wraps(request)
    def request_rerun(self: ScriptRequests, new_data: RerunData) -> bool:
        pending, context = self._rerun_data, get_script_run_ctx(suppress_warning=True)
        by_script = context is not None and new_data.page_script_hash == context.page_script_hash
        is_full = self._state == ScriptRequestType.RERUN and not _is_fragment_run(pending)
        if is_full and (by_script or _is_fragment_run(new_data)):
            new_data = replace(
                new_data,
                page_script_hash=pending.page_script_hash,
                page_name=pending.page_name,
                query_string=pending.query_string,
            )
        return request(self, new_data)

    @wraps(run)
    def run_script(self: ScriptRunner, rerun_data: RerunData) -> None:
        page = self._get_script_run_ctx().page_script_hash
        if not _has_widget_states(rerun_data):
            setattr(self._requests, _STARTING, False)
        if not _is_fragment_run(rerun_data):
            # A fragment that was stopped may have left its container selected: the page would be drawn there.
            context_dg_stack.set(get_default_dg_stack_value())
            run(self, rerun_data)
        elif rerun_data.page_script_hash == page:
            run(self, rerun_data)

    ScriptRequests.request_rerun = request_rerun  # type: ignore[method-assign]
    ScriptRunner._run_script = run_script  # type: ignore[method-assign]


def _run_lost_fragments_fully() -> None:
    """Patch Streamlit so that a request for a fragment of an earlier session runs the whole script.

    A page that is still open after the server was restarted would otherwise get no reply.
    """
    request = AppSession.request_rerun

    @wraps(request)
    def request_rerun(self: AppSession, client_state: ClientState | None) -> None:
        if client_state and client_state.fragment_id and not self._fragment_storage.registration_sequence():
            full = ClientState()
            full.CopyFrom(client_state)
            full.fragment_id = ""
            client_state = full
        request(self, client_state)

    AppSession.request_rerun = request_rerun  # type: ignore[method-assign]


def _limit_widgets() -> None:
    """Patch Streamlit to limit the widget states of a pending run, and to keep its texts.

    States of more than `MAX_WIDGETS` widgets are discarded before a new request is merged into the run. A
    request for another page, such as that of "Back", does not contain the text that the browser sent just
    before, and would replace it.
    """
    request = ScriptRequests.request_rerun

    @wraps(request)
    def request_rerun(self: ScriptRequests, new_data: RerunData) -> bool:
        pending = self._rerun_data
        if pending.widget_states is not None and len(pending.widget_states.widgets) > MAX_WIDGETS:
            self._rerun_data = replace(pending, widget_states=None)
        elif self._state == ScriptRequestType.RERUN:
            states = _with_texts(pending.widget_states, new_data.widget_states)
            new_data = replace(new_data, widget_states=states)
        return request(self, new_data)

    ScriptRequests.request_rerun = request_rerun  # type: ignore[method-assign]


def _with_texts(old: WidgetStates | None, new: WidgetStates | None) -> WidgetStates | None:
    """Return the new widget states with the texts of old widgets that the new states do not contain."""
    if old is None or new is None:
        return new
    known = {state.id for state in new.widgets}
    texts = [state for state in old.widgets if state.WhichOneof("value") == "string_value"]
    missing = [state for state in texts if state.id not in known]
    if sum(len(state.string_value) for state in missing) > MAX_TEXTS:
        return new
    return WidgetStates(widgets=[*new.widgets, *missing]) if missing else new


def _keep_last_messages() -> None:
    """Send the last messages of a script runner to the browser, even if a newer script runner has started.

    A script runner accepts no requests after it has finished its script. If the browser then requests the
    run of a fragment, Streamlit creates a new script runner and, without this patch, discards the messages of
    the old one that are still in the queue of the event loop. As a result, elements of the old run are
    missing in the browser, or elements of the run before it remain.
    """
    request, handle = AppSession.request_rerun, AppSession._handle_scriptrunner_event_on_event_loop

    @wraps(request)
    def request_rerun(self: AppSession, client_state: ClientState | None) -> None:
        runner = self._scriptrunner
        request(self, client_state)
        # A full run makes the messages of the run before it obsolete.
        is_fragment = client_state is not None and bool(client_state.fragment_id)
        if is_fragment and runner is not None and runner is not self._scriptrunner and not runner._execing:
            setattr(self, _ENDED, runner)

    @wraps(handle)
    def handle_event(
        self: AppSession, sender: ScriptRunner | None, event: ScriptRunnerEvent, *args: Any, **options: Any
    ) -> None:
        if sender is not None and sender is getattr(self, _ENDED, None):
            # The last event. Handled as an event of the new runner, it would end the new runner.
            if event is ScriptRunnerEvent.SHUTDOWN:
                setattr(self, _ENDED, None)
                return
            sender = self._scriptrunner
        handle(self, sender, event, *args, **options)

    AppSession.request_rerun = request_rerun  # type: ignore[method-assign]
    AppSession._handle_scriptrunner_event_on_event_loop = handle_event  # type: ignore[method-assign]


def _note_started_runs() -> None:
    """Note when the script thread takes a request for a run, for `callbacks_finished`."""

    def patch(name: str) -> None:
        take = getattr(ScriptRequests, name)

        @wraps(take)
        def take_request(self: ScriptRequests) -> ScriptRequest | None:
            was_starting = getattr(self, _STARTING, False)
            setattr(self, _STARTING, True)  # before the request is taken, so that there is no gap
            request: ScriptRequest | None = take(self)
            is_run = request is not None and request.type is ScriptRequestType.RERUN
            setattr(self, _STARTING, is_run or (was_starting and request is None))
            return request

        setattr(ScriptRequests, name, take_request)

    patch("on_scriptrunner_yield")
    patch("on_scriptrunner_ready")


async def callbacks_finished(session: str) -> None:
    """Wait until the callbacks of all requests that a session has received have run, at most 30 seconds.

    A click on a download moves the focus from the field in which the user typed. The browser sends the text
    shortly after the click.
    """
    await asyncio.sleep(_LATER_SECONDS)
    end = time.monotonic() + _WAIT_SECONDS
    while _has_callbacks(session) and time.monotonic() < end:
        await asyncio.sleep(_POLL_SECONDS)


def _has_callbacks(session: str) -> bool:
    info = runtime.get_instance()._session_mgr.get_session_info(session) if runtime.exists() else None
    runner = None if info is None else info.session._scriptrunner
    if runner is None:
        return False
    requests = runner._requests
    is_requested = requests._state is ScriptRequestType.RERUN and not _is_fragment_run(requests._rerun_data)
    return is_requested or getattr(requests, _STARTING, False)


def _has_widget_states(data: RerunData) -> bool:
    """Return whether Streamlit runs callbacks before the script, if a widget has changed."""
    return any(
        states is not None
        for states in (data.widget_states, data.replay_trigger_states, data.replay_trigger_values)
    )


def _is_fragment_run(data: RerunData) -> bool:
    return bool(data.fragment_id or data.fragment_id_queue)


def _pending_clicks(runner: ScriptRunner) -> WidgetStates:
    """Return the current run's clicks on widgets that the script has not reached."""
    context, pending = get_script_run_ctx(suppress_warning=True), WidgetStates()
    if context is None:
        return pending
    reached, widgets = context.shared.widget_ids_this_run, runner._session_state._state._new_widget_state
    for name in list(widgets.states):
        metadata = widgets.widget_metadata.get(name)
        if metadata is None or name in reached or "trigger" not in str(metadata.value_type):
            continue
        state = widgets.get_serialized(name)
        if state is not None and script_requests._has_active_trigger_value(state):
            pending.widgets.append(state)
    return pending
