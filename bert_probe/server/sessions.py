"""Streamlit sessions: the id of the current session, and whether a session's browser is connected."""

from __future__ import annotations

from streamlit import runtime
from streamlit.runtime.scriptrunner import get_script_run_ctx


def current() -> str:
    """Return the id of the session whose script runs in this thread, or "" outside of a session."""
    context = get_script_run_ctx()
    return "" if context is None else context.session_id


def is_connected(session: str) -> bool:
    """Return whether a session's browser is connected; always True without a server. Thread-safe."""
    return not runtime.exists() or runtime.get_instance().is_active_session(session)
