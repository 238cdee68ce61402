"""Test the memory limit of the traces that open pages use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from bert_probe.errors import UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from bert_probe.runtime import permissions, shared_cache
from bert_probe.runtime.permissions import Permissions
from bert_probe.server import page_traces, sessions

TEXT = "The river is wide and cold "
_ARGUMENTS = {"_emptied": (10, 10.0)}


@pytest.fixture
def visit(minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Return a function that computes the trace of a text for a session of a client."""
    monkeypatch.setattr(sessions, "client", lambda session: session.partition(" ")[0])
    for name in ("_sessions", "_pending", "_emptied"):  # without the pages of other tests
        monkeypatch.setattr(page_traces, name, type(getattr(page_traces, name))(*_ARGUMENTS.get(name, ())))
    before = permissions.current()

    def trace(session: str, text: str) -> Trace:
        monkeypatch.setattr(sessions, "current", lambda: session)
        return page_traces.traces(minilm, [(text, None)], True)[0]

    yield trace
    permissions.set_current(before)
    shared_cache.drop_traces()


def limit(client: float, total: float) -> None:
    permissions.set_current(
        replace(Permissions(), client_trace_bytes=int(client), page_trace_bytes=int(total))
    )


def test_traces_of_open_pages_are_limited_per_client_and_in_total(visit: object) -> None:
    assert callable(visit)
    size = visit("", TEXT * 9).nbytes
    limit(1.5 * size, 2.5 * size)
    open_pages = [visit(f"anna {number}", f"{TEXT * 9} {number}") for number in range(2)]
    with pytest.raises(UnavailableError, match="other pages of your address use results"):
        visit("anna 2", f"{TEXT * 9} 2")
    assert visit("anna 1", f"{TEXT * 9} 3"), "the traces of the same session do not count"
    open_pages.append(visit("ben 0", f"{TEXT * 9} 4"))
    with pytest.raises(UnavailableError, match="open pages of all users"):
        visit("carla 0", f"{TEXT * 9} 5")
    open_pages.clear()
    page_traces._emptied.clear()
    assert visit("anna 2", f"{TEXT * 9} 2"), "cached traces that no page uses do not count"


def test_pages_that_are_opened_at_once_are_limited(
    minilm: Checkpoint, visit: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sizes of traces that are being computed count, and they are close to those of the traces."""
    assert callable(visit)
    text = TEXT * 9
    size = visit("", text).nbytes
    assert shared_cache.estimated_bytes(minilm, [(text, None)], True) == pytest.approx(size, rel=0.1)
    limit(0.5 * size, 5 * size)
    compute, refused = shared_cache.traces, []

    def compute_while_another_page_opens(*arguments: object) -> list[Trace]:
        monkeypatch.setattr(shared_cache, "traces", compute)
        with pytest.raises(UnavailableError) as error:
            visit("anna 1", text + "!")
        refused.append(error)
        return compute(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(shared_cache, "traces", compute_while_another_page_opens)
    assert visit("anna 0", text)
    assert len(refused) == 1
    assert not page_traces._pending


def test_public_server_limits_traces_of_pages() -> None:
    allowed = permissions.public()
    assert allowed.client_trace_bytes is not None
    assert allowed.page_trace_bytes is not None
    assert allowed.client_trace_bytes < allowed.page_trace_bytes
    assert Permissions().page_trace_bytes is None
