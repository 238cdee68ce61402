"""References in notes, which may come from an untrusted view file or report."""

from __future__ import annotations

import time

import pytest

from bert_probe.reports import notes


@pytest.mark.parametrize(
    "text", ["{{1," + " " * 2_000, "{{" + " " * 20_000, "{{1," * 5_000, "{{ 1, " * 3_000]
)
def test_unfinished_references_are_read_in_linear_time(text: str) -> None:
    start = time.process_time()
    notes.unchecked(text)
    assert time.process_time() - start < 1


def test_reference_with_spaces_is_not_a_number_of_the_reader() -> None:
    assert notes.unchecked("7 and {{ 3 ,  mean weight\n}} and 2.5") == ["7", "2.5"]
