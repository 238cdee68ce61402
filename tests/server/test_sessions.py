"""Test when sessions are closed: soon after a page was closed, later after a connection was lost."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from streamlit.proto.ClientState_pb2 import ClientState
from streamlit.proto.WidgetStates_pb2 import WidgetStates
from streamlit.runtime.fragment import MemoryFragmentStorage
from streamlit.runtime.memory_session_storage import MemorySessionStorage
from streamlit.runtime.state import SafeSessionState, SessionState
from streamlit.runtime.state.common import WidgetMetadata
from streamlit.runtime.websocket_session_manager import WebsocketSessionManager

from bert_probe.runtime import permissions
from bert_probe.server import sessions
from bert_probe.ui.state import RESTARTED
from tests.helpers.pages import open_page


class Result:
    """Stands in for the result that a page shows."""


class Session:
    """A session whose state, callbacks and fragments refer to the same result."""

    def __init__(self, name: str) -> None:
        self.id = name
        result = Result()
        self.result = weakref.ref(result)
        self._client_state = ClientState()
        self._client_state.widget_states.widgets.add(id="a", string_value="text")
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
    """Functions that are due some seconds later; stands in for the event loop."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []
        self.seconds: list[float] = []

    def call_later(self, seconds: float, function: Callable[..., None], *arguments: Any) -> None:
        self.seconds.append(seconds)
        self.due.append(partial(function, *arguments))


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> Timers:
    timers = Timers()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: timers)
    return timers


def connected(manager: Any, code: int | None = 1001, name: str = "s") -> Session:
    """Return a connected session whose browser then closes the WebSocket with a code; None without a code."""
    session = Session(name)
    closing = {} if code is None else {"code": code}
    client = Mock(_websocket=SimpleNamespace(scope={"bert_probe.closing": closing}))
    manager._active_session_info_by_id[session.id] = SimpleNamespace(
        session=session, script_run_count=1, client=client
    )
    return session


def test_session_is_closed_and_its_objects_are_released(
    manager: Any, timers: Timers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sessions, "is_connected", lambda session: session in manager._active_session_info_by_id
    )
    session = connected(manager)
    assert sessions.is_kept(session.id)
    manager.disconnect_session(session.id)
    session.shutdown.assert_not_called()
    assert session.result() is not None, "the browser may return"
    assert sessions.is_kept(session.id)
    timers.due[0]()
    assert not sessions.is_kept(session.id)
    session.shutdown.assert_called_once()
    assert manager.get_session_info(session.id) is None
    assert session.result() is None


def test_client_of_a_lost_session_is_released(manager: Any, timers: Timers) -> None:
    """It can have an incomplete message of 16 MB, and its code can arrive later."""
    session = connected(manager)
    active = manager._active_session_info_by_id[session.id]
    client, closing = weakref.ref(active.client), active.client._websocket.scope["bert_probe.closing"]
    closing.clear()
    del active
    unknown = b"\xa2\x38\x04long"  # field 900
    session._client_state.context_info.MergeFromString(unknown)
    session._client_state.MergeFromString(unknown)
    manager.disconnect_session(session.id)
    assert client() is None
    assert not session._client_state.widget_states.widgets
    assert b"long" not in session._client_state.SerializeToString()
    closing["code"] = 1001
    timers.due[0]()
    session.shutdown.assert_called_once()


def test_session_whose_browser_returns_is_not_closed(manager: Any, timers: Timers) -> None:
    session = connected(manager)
    manager.disconnect_session(session.id)
    assert manager._resume_stored_session(session.id, Mock(), {}) == session.id
    timers.due[0]()
    session.shutdown.assert_not_called()
    assert session.result() is not None


@pytest.mark.parametrize("code", [1005, 1006, 1011, None])
def test_session_that_lost_its_connection_is_kept_for_an_hour(
    manager: Any, timers: Timers, code: int | None
) -> None:
    session = connected(manager, code)
    manager.disconnect_session(session.id)
    timers.due[0]()
    session.shutdown.assert_not_called()
    assert sum(timers.seconds) == sessions.LOST_SECONDS
    assert manager._session_storage._cache.ttl > sessions.LOST_SECONDS
    timers.due[1]()
    session.shutdown.assert_called_once()
    assert session.result() is None


def test_public_server_closes_sessions_that_lost_their_connection(
    manager: Any, timers: Timers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(permissions, "current", lambda: SimpleNamespace(is_public=True))
    session = connected(manager, 1006)
    manager.disconnect_session(session.id)
    timers.due[0]()
    session.shutdown.assert_called_once()


def test_oldest_of_too_many_lost_sessions_is_closed(
    manager: Any, timers: Timers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_LOST", 2)
    lost = [connected(manager, 1006, f"s{number}") for number in range(4)]
    for session in lost:
        manager.disconnect_session(session.id)
    assert [session.shutdown.called for session in lost] == [True, True, False, False]
    assert [session.result() is None for session in lost] == [True, True, False, False]
    assert len(timers.due) == 4


def test_second_disconnection_starts_a_new_period(manager: Any, timers: Timers) -> None:
    session = connected(manager)
    client = manager._active_session_info_by_id[session.id].client
    manager.disconnect_session(session.id)
    manager._resume_stored_session(session.id, client, {})
    manager.disconnect_session(session.id)
    first, second = timers.due
    first()
    session.shutdown.assert_not_called()
    second()
    session.shutdown.assert_called_once()


@pytest.mark.parametrize("has_states", [False, True])
def test_page_of_an_earlier_session_is_recognized(has_states: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new page has no widgets yet; one of an earlier session sends their states with its first request."""
    state = SessionState()
    if has_states:
        states = WidgetStates()
        states.widgets.add(id="$$ID-1-draft_a", string_value="typed")
        state.set_widgets_from_proto(states)
    context = SimpleNamespace(session_state=SafeSessionState(state, lambda: None))
    monkeypatch.setattr(sessions, "get_script_run_ctx", lambda: context)
    assert sessions.is_restarted() is has_states


def test_message_tells_that_the_session_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not open_page("tokens").toast
    monkeypatch.setattr(sessions, "is_restarted", lambda: True)
    app = open_page("tokens")
    assert [toast.value for toast in app.toast] == [RESTARTED]
    assert not app.run().toast
