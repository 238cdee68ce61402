"""Test that all errors of a file are counted, and the first ones are listed with their lines."""

from __future__ import annotations

import pytest

from bert_probe.errors import InvalidFileError, TextError
from bert_probe.text.formats import MAX_LISTED, ValidationErrors


def test_no_errors_raise_nothing() -> None:
    ValidationErrors("good.csv").check()


def test_one_error_is_listed_with_its_line() -> None:
    faults = ValidationErrors("bad.csv")
    faults.add(1_234, "there is no label.")
    with pytest.raises(TextError, match=r"^bad\.csv has an error: line 1,234: there is no label\. Correct"):
        faults.check()


@pytest.mark.parametrize("count", [2, MAX_LISTED, MAX_LISTED + 1, 5_000])
def test_first_ten_errors_are_listed(count: int) -> None:
    faults = ValidationErrors("bad.csv")
    for line in range(count):
        faults.add(line + 1, f"fault {line}")
    with pytest.raises(InvalidFileError) as raised:
        faults.check()
    message = str(raised.value)
    assert f"has {count:,} errors: " in message
    assert message.count("line ") == min(count, MAX_LISTED)
    assert (f"and {count - MAX_LISTED:,} more" in message) == (count > MAX_LISTED)
    assert raised.value.count == count
    assert raised.value.faults == tuple((line + 1, f"fault {line}") for line in range(min(count, MAX_LISTED)))
