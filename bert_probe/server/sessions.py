"""Whose browser is there: a session ends for the app when its connection does."""

from __future__ import annotations

from streamlit import runtime
from streamlit.runtime.scriptrunner import get_script_run_ctx


def current() -> str:
    """The session whose script runs in this thread; "" outside of one."""
    context = get_script_run_ctx()
    return "" if context is None else context.session_id


def is_here(session: str) -> bool:
    """Whether a session's browser is connected; threads may ask. Without a server everybody is."""
    return not runtime.exists() or runtime.get_instance().is_active_session(session)
