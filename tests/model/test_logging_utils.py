"""A library is silent while anybody needs it, and then as it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bert_probe.model.logging_utils import SilencedLogging


@pytest.fixture
def said() -> list[str]:
    return ["spoken"]


@pytest.fixture
def quiet(said: list[str]) -> SilencedLogging:
    def silence() -> Callable[[], None]:
        before = said[-1]
        said.append("silent")
        return lambda: said.append(before)

    return SilencedLogging(silence)


def test_it_speaks_again_only_after_the_last_of_those_that_overlap(
    quiet: SilencedLogging, said: list[str]
) -> None:
    quiet.__enter__()
    quiet.__enter__()
    quiet.__exit__()
    assert said == ["spoken", "silent"], "the second is still inside"
    quiet.__exit__()
    assert said == ["spoken", "silent", "spoken"]


def test_it_speaks_again_after_a_failure(quiet: SilencedLogging, said: list[str]) -> None:
    with pytest.raises(ValueError, match="inside"), quiet:
        raise ValueError("inside")
    with quiet:
        assert said[-1] == "silent"
    assert said[-1] == "spoken"
