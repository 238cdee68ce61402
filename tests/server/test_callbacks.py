"""Test that requests of the previous page do not undo a page change, and that clicks are kept."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from streamlit.proto.ClientState_pb2 import ClientState
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.proto.WidgetStates_pb2 import WidgetStates
from streamlit.runtime.app_session import AppSession
from streamlit.runtime.scriptrunner.script_runner import ScriptRunnerEvent
from streamlit.runtime.scriptrunner_utils.script_requests import RerunData, ScriptRequests
from streamlit.runtime.scriptrunner_utils.script_run_context import ScriptRunContext
from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.element_tree import Markdown
from streamlit.testing.v1.local_script_runner import LocalScriptRunner

from bert_probe.server import callbacks


@pytest.fixture(autouse=True)
def patched() -> None:
    callbacks.keep_clicks()


def pending(*requests: RerunData) -> RerunData:
    """Return the rerun that the script runner would execute after `requests`."""
    queue = ScriptRequests()
    for data in requests:
        queue.request_rerun(data)
    request = queue.on_scriptrunner_ready()
    assert request.rerun_data is not None
    return request.rerun_data


NEW_PAGE = RerunData(page_script_hash="new", query_string="layer=2")


def test_fragment_does_not_replace_the_page_of_a_pending_rerun() -> None:
    fragment = RerunData(page_script_hash="old", query_string="layer=1", fragment_id="progress")
    data = pending(NEW_PAGE, fragment)
    assert (data.page_script_hash, data.query_string) == ("new", "layer=2")
    assert data.fragment_id_queue == []


def test_rerun_by_the_script_does_not_replace_the_page_of_a_pending_rerun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context: Any = SimpleNamespace(page_script_hash="old")
    monkeypatch.setattr(callbacks, "get_script_run_ctx", lambda **_: context)
    assert pending(NEW_PAGE, RerunData(page_script_hash="old")).page_script_hash == "new"
    assert pending(NEW_PAGE, RerunData(page_script_hash="third")).page_script_hash == "third"


def test_newer_request_replaces_an_older_one() -> None:
    data = pending(NEW_PAGE, RerunData(page_script_hash="third", query_string="head=1"))
    assert (data.page_script_hash, data.query_string) == ("third", "head=1")


def test_fragment_of_the_same_page_is_run() -> None:
    data = pending(RerunData(page_script_hash="new", fragment_id="progress"))
    assert (data.page_script_hash, data.fragment_id_queue) == ("new", ["progress"])


def clicks(number: int, count: int) -> RerunData:
    """Return a request with clicks on `count` buttons."""
    states = WidgetStates()
    for button in range(count):
        states.widgets.add(id=f"{number}-{button}", trigger_value=True)
    return RerunData(widget_states=states)


def test_clicks_of_waiting_requests_are_kept_and_limited() -> None:
    few = pending(*(clicks(number, 1) for number in range(50))).widget_states
    assert few is not None
    assert len(few.widgets) == 50
    many = pending(*(clicks(number, 500) for number in range(50))).widget_states
    assert many is not None
    assert len(many.widgets) <= callbacks.MAX_WIDGETS + 500


@pytest.mark.parametrize("name", ["progress", ""], ids=["fragment", "full run"])
def test_fragment_does_not_discard_messages_of_an_ended_run(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script runner that has ended is replaced before the event loop has handled its last messages."""

    async def run() -> tuple[list[str], bool]:
        session = AppSession(Mock(main_script_path="app.py"), Mock(), Mock(), Mock(), {}, Mock())
        session._fragment_storage.register("progress", Mock())
        ended, newer = (Mock(_execing=False, **{"request_rerun.return_value": False}) for _ in range(2))
        session._scriptrunner = ended
        monkeypatch.setattr(
            session, "_create_scriptrunner", lambda _: setattr(session, "_scriptrunner", newer)
        )
        session.request_rerun(ClientState(fragment_id=name))
        message = ForwardMsg()
        message.page_info_changed.query_string = "layer=2"
        handle = session._handle_scriptrunner_event_on_event_loop
        handle(ended, ScriptRunnerEvent.ENQUEUE_FORWARD_MSG, forward_msg=message)
        handle(ended, ScriptRunnerEvent.SHUTDOWN, client_state=ClientState())
        handle(ended, ScriptRunnerEvent.ENQUEUE_FORWARD_MSG, forward_msg=message)
        sent = [item.page_info_changed.query_string for item in session.flush_browser_queue()]
        session._script_event_loop.close()
        return sent, session._scriptrunner is newer

    assert asyncio.run(run()) == (["layer=2"] if name else [], True)


def test_page_after_a_fragment_is_not_drawn_in_its_container(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page is requested after a fragment has ended, but before its script thread has."""

    def script() -> None:
        import streamlit as st
        from streamlit.runtime.scriptrunner import get_script_run_ctx
        from streamlit.runtime.scriptrunner_utils.script_requests import RerunData

        context = get_script_run_ctx()
        assert context is not None

        @st.fragment
        def progress() -> None:
            st.write("50%")

        if "next page" in st.session_state:
            st.write("next page")
            return
        with st.container():
            progress()
        (fragment,) = context.fragment_storage._fragments  # type: ignore[attr-defined]
        request = RerunData(page_script_hash=context.page_script_hash, fragment_id=fragment)
        context.script_requests.request_rerun(request)  # type: ignore[union-attr]

    finish = LocalScriptRunner._on_script_finished

    def request_page(self: LocalScriptRunner, context: ScriptRunContext, *arguments: Any) -> None:
        finish(self, context, *arguments)
        if context.fragment_ids_this_run:
            self.session_state["next page"] = True
            self.request_rerun(RerunData())

    monkeypatch.setattr(LocalScriptRunner, "_on_script_finished", request_page)
    app = AppTest.from_function(script).run()
    assert [type(child) for child in app.main.children.values()] == [Markdown]


@pytest.mark.parametrize("has_fragments", [False, True])
def test_request_for_a_fragment_of_an_earlier_session_runs_the_page(
    has_fragments: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[RerunData] = []
    monkeypatch.setattr(AppSession, "_create_scriptrunner", lambda _, data: requests.append(data))
    state = ClientState(fragment_id="lost", query_string="layer=2")

    async def run() -> None:
        session = AppSession(Mock(main_script_path="app.py"), Mock(), Mock(), Mock(), {}, Mock())
        if has_fragments:
            session._fragment_storage.register("another", Mock())
        session.request_rerun(state)
        session._script_event_loop.close()

    asyncio.run(run())
    runs = [(data.query_string, data.fragment_id) for data in requests]
    assert runs == ([] if has_fragments else [("layer=2", None)])
    assert state.fragment_id == "lost"


def test_text_that_was_sent_just_before_a_request_for_another_page_is_kept() -> None:
    """ "Back" requests another page while the run with the text is still pending."""
    callbacks.keep_clicks()
    requests = ScriptRequests()
    text, page = WidgetStates(), WidgetStates()
    text.widgets.add(id="text", string_value="typed")
    text.widgets.add(id="number", int_value=1)
    page.widgets.add(id="other", string_value="kept")
    requests.request_rerun(RerunData(widget_states=text, page_script_hash="first"))
    requests.request_rerun(RerunData(widget_states=page, page_script_hash="second"))
    assert requests._rerun_data.page_script_hash == "second"
    merged = requests._rerun_data.widget_states
    assert merged is not None
    assert {state.id: state.string_value for state in merged.widgets} == {"other": "kept", "text": "typed"}
    text.widgets[0].string_value = "typed later"
    requests.request_rerun(RerunData(widget_states=text, page_script_hash="first"))
    merged = requests._rerun_data.widget_states
    assert merged is not None
    assert next(state.string_value for state in merged.widgets if state.id == "text") == "typed later"
    text.widgets[0].string_value = "x" * (callbacks.MAX_TEXTS + 1)
    requests.request_rerun(RerunData(widget_states=text, page_script_hash="first"))
    requests.request_rerun(RerunData(widget_states=page, page_script_hash="second"))
    assert requests._rerun_data.widget_states is not None
    assert [state.id for state in requests._rerun_data.widget_states.widgets] == ["other"]
