"""Traces for pages. A public server limits the memory of the traces that open pages use.

An open page keeps the traces of its results, for example for downloads, even if the cache has evicted them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import cachetools

from bert_probe.errors import UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from bert_probe.runtime import permissions, shared_cache
from bert_probe.server import sessions

_sessions: WeakKeyDictionary[Trace, dict[str, str]] = WeakKeyDictionary()
"""For each trace in memory, the sessions whose pages have used it, and the client of each session."""
_pending: dict[str, tuple[str, int]] = {}
"""For each session that is computing traces, its client and the estimated size of the traces in bytes."""
_lock = threading.Lock()
_emptied: cachetools.TTLCache[str, bool] = cachetools.TTLCache(1_024, ttl=10.0)
"""Clients for which the cache was emptied in the last 10 seconds, so that none can keep it empty."""


def traces(checkpoint: Checkpoint, texts: Sequence[shared_cache.Text], truncate: bool) -> list[Trace]:
    """Return traces for the page whose script runs in this thread; see `shared_cache.traces`.

    Raises:
        UnavailableError: the traces of other open pages reach a limit of `Permissions`.
        TextError, OutOfMemoryError: see `shared_cache.traces`.
    """
    session = sessions.current()
    if not session or permissions.current().page_trace_bytes is None:
        return shared_cache.traces(checkpoint, texts, truncate)
    with _reserved(session, shared_cache.estimated_bytes(checkpoint, texts, truncate)) as client:
        found = shared_cache.traces(checkpoint, texts, truncate)
        with _lock:
            for trace in found:
                _sessions.setdefault(trace, {})[session] = client
    return found


@contextmanager
def _reserved(session: str, size: int) -> Iterator[str]:
    """Context in which `size` bytes count as used by a session; yields the name of the session's client.

    Raises:
        UnavailableError: the other open pages reach a limit.
    """
    client = sessions.client(session)
    problem = _reserve(session, client, size)
    if problem and _may_empty_cache(client):
        shared_cache.drop_traces()  # cached traces that no page uses do not count
        problem = _reserve(session, client, size)
    if problem:
        raise UnavailableError(problem)
    try:
        yield client
    finally:
        with _lock:
            _pending.pop(session, None)


def _reserve(session: str, client: str, size: int) -> str:
    """Record that a session is computing traces of `size` bytes, and return "".

    If the session may not compute them, record nothing and return the reason.
    """
    with _lock:
        problem = _problem(session, client)
        if not problem:
            _pending[session] = client, size
        return problem


def _may_empty_cache(client: str) -> bool:
    """Return whether the cache may be emptied for a client, and note that it is emptied."""
    with _lock:
        is_recent = client in _emptied
        if not is_recent:
            _emptied[client] = True
    return not is_recent


def _problem(session: str, client: str) -> str:
    """Return why a session may not compute a trace; "" if it may. Its own traces are not counted.

    The caller holds the lock.
    """
    allowed = permissions.current()
    assert allowed.page_trace_bytes is not None
    assert allowed.client_trace_bytes is not None
    others = [
        (trace.nbytes, {user for other, user in users.items() if other != session})
        for trace, users in list(_sessions.items())
    ]
    others += [(size, {user}) for other, (user, size) in _pending.items() if other != session]
    of_all = sum(size for size, users in others if users)
    of_client = sum(size for size, users in others if client in users)
    if of_client >= allowed.client_trace_bytes:
        return (
            f"The other pages of your address use results of {allowed.client_trace_bytes / 1e6:,.0f} MB, "
            "which is the limit of this server. Close pages, and try again after two minutes."
        )
    if of_all >= allowed.page_trace_bytes:
        return (
            f"The open pages of all users have results of {allowed.page_trace_bytes / 1e6:,.0f} MB, which is "
            "the limit of this server. Try again later."
        )
    return ""
