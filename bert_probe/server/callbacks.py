"""No click is lost to a quicker one: callbacks run to their end, and clicks on buttons reach the script.

Streamlit drops a running script as soon as the reader clicks again. It checks for that at every access to
``st.session_state``, also within callbacks and right before the first, and calls no callback twice. And it
reports a click on a button to a single run, even if that is dropped before it comes to the button. A late
request of the page that the reader leaves can undo the change of page.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any, Final

from streamlit.proto.WidgetStates_pb2 import WidgetStates
from streamlit.runtime.scriptrunner import RerunException, get_script_run_ctx
from streamlit.runtime.scriptrunner.script_runner import ScriptRunner
from streamlit.runtime.scriptrunner_utils import script_requests
from streamlit.runtime.scriptrunner_utils.script_requests import RerunData, ScriptRequests, ScriptRequestType
from streamlit.runtime.state.safe_session_state import SafeSessionState

_MARK: Final = "keeps clicks"


def keep_clicks() -> None:
    """Change Streamlit's script runner accordingly, once for the process."""
    if not hasattr(ScriptRunner, _MARK):
        setattr(ScriptRunner, _MARK, True)
        _finish_callbacks()
        _remember_buttons()
        _skip_fragments_of_other_pages()


def _finish_callbacks() -> None:
    """Ignore newer requests while callbacks run; Streamlit looks for one as soon as they are done."""
    run_callbacks = SafeSessionState.on_script_will_rerun

    @wraps(run_callbacks)
    def run_all(self: SafeSessionState, *args: Any, **options: Any) -> None:
        with _uninterrupted(self):
            run_callbacks(self, *args, **options)

    SafeSessionState.on_script_will_rerun = run_all  # type: ignore[method-assign]


@contextmanager
def to_the_end() -> Iterator[None]:
    """Run what follows a click on a button to its end, also if the reader clicks again meanwhile."""
    context = get_script_run_ctx(suppress_warning=True)
    if context is None:
        yield
        return
    with _uninterrupted(context.session_state):
        yield
    context.session_state._yield_callback()  # a newer request, or a change of page, takes over now


@contextmanager
def _uninterrupted(state: SafeSessionState) -> Iterator[None]:
    runner = getattr(state._yield_callback, "__self__", None)
    if not isinstance(runner, ScriptRunner) or not runner._execing:  # as in tests without a browser
        yield
        return
    runner._execing = False  # the check for a newer request then does nothing
    try:
        yield
    finally:
        runner._execing = True


def _remember_buttons() -> None:
    """Pass clicks on buttons that a dropped run had not drawn yet on to the run that takes its place."""
    check = ScriptRunner._maybe_handle_execution_control_request

    @wraps(check)
    def remembering(self: ScriptRunner) -> None:
        try:
            check(self)
        except RerunException as stop:
            unseen = _unseen_clicks(self)
            if not unseen.widgets:
                raise
            later = stop.rerun_data.replay_trigger_states
            both = script_requests._coalesce_replay_trigger_states(unseen, later)
            raise RerunException(replace(stop.rerun_data, replay_trigger_states=both)) from None

    ScriptRunner._maybe_handle_execution_control_request = remembering  # type: ignore[method-assign]


def _skip_fragments_of_other_pages() -> None:
    """Let neither fragments nor ``st.rerun()`` of a page undo that the reader has left it.

    The browser reruns a fragment with ``run_every`` until it has heard of the new page. Streamlit would give
    the pending rerun of the new page the page of that request, or, if the new page is already running, run
    the fragment afterwards and clear the new page in the browser.
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
        if not _is_fragment_run(rerun_data) or rerun_data.page_script_hash == page:
            run(self, rerun_data)

    ScriptRequests.request_rerun = request_rerun  # type: ignore[method-assign]
    ScriptRunner._run_script = run_script  # type: ignore[method-assign]


def _is_fragment_run(data: RerunData) -> bool:
    return bool(data.fragment_id or data.fragment_id_queue)


def _unseen_clicks(runner: ScriptRunner) -> WidgetStates:
    """Return the clicks that the running script was sent for widgets that it has not come to."""
    context, unseen = get_script_run_ctx(suppress_warning=True), WidgetStates()
    if context is None:
        return unseen
    drawn, widgets = context.shared.widget_ids_this_run, runner._session_state._state._new_widget_state
    for name in list(widgets.states):
        metadata = widgets.widget_metadata.get(name)
        if metadata is None or name in drawn or "trigger" not in str(metadata.value_type):
            continue
        state = widgets.get_serialized(name)
        if state is not None and script_requests._has_active_trigger_value(state):
            unseen.widgets.append(state)
    return unseen
