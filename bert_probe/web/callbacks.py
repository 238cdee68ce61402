"""No click is lost to a quicker one: callbacks run to their end, and clicks on buttons reach the script.

Streamlit drops a running script as soon as the reader clicks again. It checks for that at every access to
``st.session_state``, also within callbacks and right before the first, and calls no callback twice. And it
reports a click on a button to a single run, even if that is dropped before it comes to the button.
"""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from typing import Any, Final

from streamlit.proto.WidgetStates_pb2 import WidgetStates
from streamlit.runtime.scriptrunner import RerunException, get_script_run_ctx
from streamlit.runtime.scriptrunner.script_runner import ScriptRunner
from streamlit.runtime.scriptrunner_utils import script_requests
from streamlit.runtime.state.safe_session_state import SafeSessionState

_MARK: Final = "keeps clicks"


def keep_clicks() -> None:
    """Change Streamlit's script runner accordingly, once for the process."""
    if not hasattr(ScriptRunner, _MARK):
        setattr(ScriptRunner, _MARK, True)
        _finish_callbacks()
        _remember_buttons()


def _finish_callbacks() -> None:
    """Ignore newer requests while callbacks run; Streamlit looks for one as soon as they are done."""
    run_callbacks = SafeSessionState.on_script_will_rerun

    @wraps(run_callbacks)
    def uninterrupted(self: SafeSessionState, *args: Any, **options: Any) -> None:
        runner = getattr(self._yield_callback, "__self__", None)
        if not isinstance(runner, ScriptRunner):  # as in tests without a browser
            run_callbacks(self, *args, **options)
            return
        runner._execing = False  # the check for a newer request then does nothing
        try:
            run_callbacks(self, *args, **options)
        finally:
            runner._execing = True

    SafeSessionState.on_script_will_rerun = uninterrupted  # type: ignore[method-assign]


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


def _unseen_clicks(runner: ScriptRunner) -> WidgetStates:
    """Return the clicks that the running script was sent for widgets that it has not come to."""
    context, unseen = get_script_run_ctx(suppress_warning=True), WidgetStates()
    if context is None:
        return unseen
    drawn, widgets = context.shared.widget_ids_this_run, runner._session_state._state._new_widget_state
    for name in list(widgets.states):
        metadata = widgets.widget_metadata.get(name)
        if metadata is None or name in drawn or "trigger" not in metadata.value_type:
            continue
        state = widgets.get_serialized(name)
        if state is not None and script_requests._has_active_trigger_value(state):
            unseen.widgets.append(state)
    return unseen
