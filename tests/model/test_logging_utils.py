"""Logging is silenced inside the context manager and restored afterwards."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bert_probe.model.logging_utils import SilencedLogging


@pytest.fixture
def messages() -> list[str]:
    return ["spoken"]


@pytest.fixture
def restored_logging(messages: list[str]) -> SilencedLogging:
    def silence() -> Callable[[], None]:
        before = messages[-1]
        messages.append("silent")
        return lambda: messages.append(before)

    return SilencedLogging(silence)


def test_logging_is_restored_after_the_last_overlapping_context(
    restored_logging: SilencedLogging, messages: list[str]
) -> None:
    restored_logging.__enter__()
    restored_logging.__enter__()
    restored_logging.__exit__()
    assert messages == ["spoken", "silent"], "the second context is still open"
    restored_logging.__exit__()
    assert messages == ["spoken", "silent", "spoken"]


def test_logging_is_restored_after_an_error(restored_logging: SilencedLogging, messages: list[str]) -> None:
    with pytest.raises(ValueError, match="inside"), restored_logging:
        raise ValueError("inside")
    with restored_logging:
        assert messages[-1] == "silent"
    assert messages[-1] == "spoken"
