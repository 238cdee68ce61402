"""Test that a session is closed after its browser has disconnected, unless the browser returns."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from streamlit.runtime.fragment import MemoryFragmentStorage
from streamlit.runtime.memory_session_storage import MemorySessionStorage
from streamlit.runtime.state import SessionState
from streamlit.runtime.state.common import WidgetMetadata
from streamlit.runtime.websocket_session_manager import WebsocketSessionManager

from bert_probe.server import sessions


class Result:
    """Stands in for the result that a page shows."""


class Session:
    """A session whose state, callbacks and fragments refer to the same result."""

    id = "s"

    def __init__(self) -> None:
        result = Result()
        self.result = weakref.ref(result)
        self._session_state = SessionState()
        self._session_state["result"] = result
        button: Any = WidgetMetadata("button", lambda *_: result, lambda _: "", "string_value")
        self._session_state._set_widget_metadata(button)
        self._fragment_storage = MemoryFragmentStorage()
        self._fragment_storage.register("fragment", lambda: result)
        self.cycle = self
        self.shutdown = Mock()
        self.request_script_stop = self.disconnect_file_watchers = self.clear_session_caches = Mock()
        self.is_resumable = self.matches_user_info = lambda *_: True
        self.register_file_watchers = Mock()


@pytest.fixture
def manager() -> Any:
    sessions.close_disconnected()
    return WebsocketSessionManager(MemorySessionStorage(), Mock(), Mock(), Mock())


class Timers:
    """Functions that are due `RECONNECT_SECONDS` after a session has disconnected; stands in for the loop."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_later(self, seconds: float, function: Callable[..., None], *arguments: Any) -> None:
        assert seconds == sessions.RECONNECT_SECONDS
        self.due.append(partial(function, *arguments))


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> Timers:
    timers = Timers()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: timers)
    return timers


def connected(manager: Any) -> Session:
    session = Session()
    manager._active_session_info_by_id[session.id] = SimpleNamespace(session=session, script_run_count=1)
    return session


def test_session_is_closed_and_its_objects_are_released(manager: Any, timers: Timers) -> None:
    session = connected(manager)
    manager.disconnect_session(session.id)
    session.shutdown.assert_not_called()
    assert session.result() is not None, "the browser may return"
    timers.due[0]()
    session.shutdown.assert_called_once()
    assert manager.get_session_info(session.id) is None
    assert session.result() is None


def test_session_whose_browser_returns_is_not_closed(manager: Any, timers: Timers) -> None:
    session = connected(manager)
    manager.disconnect_session(session.id)
    assert manager._resume_stored_session(session.id, Mock(), {}) == session.id
    timers.due[0]()
    session.shutdown.assert_not_called()
    assert session.result() is not None


def test_second_disconnection_starts_a_new_period(manager: Any, timers: Timers) -> None:
    session = connected(manager)
    manager.disconnect_session(session.id)
    manager._resume_stored_session(session.id, Mock(), {})
    manager.disconnect_session(session.id)
    first, second = timers.due
    first()
    session.shutdown.assert_not_called()
    second()
    session.shutdown.assert_called_once()
