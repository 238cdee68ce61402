"""A patch of Streamlit: the server refers only to messages that are still in the browser's cache.

Streamlit sends a large message once and refers to it by its hash afterwards. With each request the browser
lists the messages in its cache, but it may drop one before the reference arrives: it drops messages that were
not used in the last ``global.maxCachedMessageAge`` finished runs. A reference to a dropped message closes the
connection.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import wraps
from typing import Final

from streamlit.proto.ClientState_pb2 import ClientState
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.runtime.app_session import AppSession

RECENT: Final = 4
"""Number of finished runs for which an unused message can be referred to.

Few runs can finish between a request and its response; ``global.maxCachedMessageAge`` allows for 16.
"""
_ATTRIBUTE: Final = "sent_messages"


class SentMessages:
    """The large messages of a session: hash -> number of finished runs when it was last used."""

    def __init__(self) -> None:
        self._finished = 0
        self._used: dict[str, int] = {}

    def record(self, messages: Iterable[ForwardMsg]) -> None:
        """Record messages that are sent to the browser, in order."""
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
        """Return the hashes that were used in the last `RECENT` finished runs."""
        return [name for name in hashes if name in self._used]


def limit_references() -> None:
    """Patch Streamlit's sessions once per process."""
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
