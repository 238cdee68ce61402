"""Test that the server sends a reference to a cached message only if the browser still has the message."""

from __future__ import annotations

from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from bert_probe.server import paths
from bert_probe.server.messages import RECENT, SentMessages


def large(name: str) -> ForwardMsg:
    message = ForwardMsg(hash=name)
    message.delta.new_element.text.body = name
    message.metadata.cacheable = True
    return message


def finished(status: ForwardMsg.ScriptFinishedStatus.ValueType) -> ForwardMsg:
    return ForwardMsg(script_finished=status)


DONE = finished(ForwardMsg.FINISHED_SUCCESSFULLY)
INTERRUPTED = finished(ForwardMsg.FINISHED_EARLY_FOR_RERUN)


def test_recent_lists_messages_until_enough_runs_finished_without_them() -> None:
    sent = SentMessages()
    sent.record([large("a"), large("b"), *[DONE] * RECENT])
    assert sent.recent(["a", "b", "never sent"]) == ["a", "b"]
    sent.record([ForwardMsg(ref_hash="a"), DONE])
    assert sent.recent(["a", "b"]) == ["a"]


def test_interrupted_runs_are_not_counted() -> None:
    sent = SentMessages()
    sent.record([large("a"), *[INTERRUPTED] * 50])
    assert sent.recent(["a"]) == ["a"]


def test_small_messages_are_not_listed() -> None:
    sent, small = SentMessages(), large("a")
    small.metadata.cacheable = False
    sent.record([small])
    assert sent.recent(["a"]) == []


def test_browser_caches_messages_longer_than_the_server_refers_to_them() -> None:
    assert paths.settings()["global.maxCachedMessageAge"] >= 4 * RECENT
