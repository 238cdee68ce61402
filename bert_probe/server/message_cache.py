"""The server refers only to messages that the browser surely still has.

Streamlit sends a large message once and refers to it by its hash afterwards. With each request the browser
lists the messages that it has cached, but it may drop one of them before the reference arrives: it drops what
more than ``global.maxCachedMessageAge`` finished runs did not use. A reference to a dropped message closes
the connection.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import wraps
from typing import Final

from streamlit.proto.ClientState_pb2 import ClientState
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.runtime.app_session import AppSession

RECENT: Final = 4
"""Finished runs for which a message counts as surely cached.

At most a few runs can finish between a request and its answer; ``global.maxCachedMessageAge`` leaves room
for 16.
"""
_ATTRIBUTE: Final = "sent_messages"


class SentMessages:
    """The hashes of large messages by the last finished run before they were sent or referred to."""

    def __init__(self) -> None:
        self._finished = 0
        self._used: dict[str, int] = {}

    def record(self, messages: Iterable[ForwardMsg]) -> None:
        """Count messages that leave for the browser, in their order."""
        for message in messages:
            kind = message.WhichOneof("type")
            if kind == "ref_hash":
                self._used[message.ref_hash] = self._finished
            elif message.metadata.cacheable:
                self._used[message.hash] = self._finished
            elif kind == "script_finished" and message.script_finished != ForwardMsg.FINISHED_EARLY_FOR_RERUN:
                self._finished += 1
                self._used = {name: run for name, run in self._used.items() if self._finished - run <= RECENT}

    def recent(self, hashes: Iterable[str]) -> list[str]:
        """Return those that were used within the last `RECENT` finished runs."""
        return [name for name in hashes if name in self._used]


def refer_to_recent_messages() -> None:
    """Change Streamlit's sessions accordingly, once for the process."""
    if hasattr(AppSession, _ATTRIBUTE):
        return
    setattr(AppSession, _ATTRIBUTE, None)
    flush, request = AppSession.flush_browser_queue, AppSession.request_rerun

    @wraps(flush)
    def recording(self: AppSession) -> list[ForwardMsg]:
        messages = flush(self)
        _sent(self).record(messages)
        return messages

    @wraps(request)
    def filtering(self: AppSession, client_state: ClientState | None) -> None:
        if client_state is not None:
            recent = _sent(self).recent(client_state.cached_message_hashes)
            del client_state.cached_message_hashes[:]
            client_state.cached_message_hashes.extend(recent)
        request(self, client_state)

    AppSession.flush_browser_queue = recording  # type: ignore[method-assign]
    AppSession.request_rerun = filtering  # type: ignore[method-assign]


def _sent(session: AppSession) -> SentMessages:
    messages: SentMessages | None = getattr(session, _ATTRIBUTE)
    if messages is None:
        messages = SentMessages()
        setattr(session, _ATTRIBUTE, messages)
    return messages
