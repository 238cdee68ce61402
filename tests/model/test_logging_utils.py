"""Logging is silenced inside the context and restored afterwards."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bert_probe.model.logging_utils import SilencedLogging


@pytest.fixture
def messages() -> list[str]:
    return ["spoken"]


@pytest.fixture
def quiet(messages: list[str]) -> SilencedLogging:
    def silence() -> Callable[[], None]:
        before = messages[-1]
        messages.append("silent")
        return lambda: messages.append(before)

    return SilencedLogging(silence)


def test_logging_is_restored_after_the_last_overlapping_context(
    quiet: SilencedLogging, messages: list[str]
) -> None:
    quiet.__enter__()
    quiet.__enter__()
    quiet.__exit__()
    assert messages == ["spoken", "silent"], "the second context is still open"
    quiet.__exit__()
    assert messages == ["spoken", "silent", "spoken"]


def test_logging_is_restored_after_an_error(quiet: SilencedLogging, messages: list[str]) -> None:
    with pytest.raises(ValueError, match="inside"), quiet:
        raise ValueError("inside")
    with quiet:
        assert messages[-1] == "silent"
    assert messages[-1] == "spoken"
