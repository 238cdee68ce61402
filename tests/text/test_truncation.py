"""Test truncation of text in messages."""

from __future__ import annotations

from bert_probe.text.words import truncate_text


def test_long_text_ends_in_an_ellipsis() -> None:
    assert truncate_text("boat", 4) == "boat"
    assert truncate_text("boats", 4) == "boa…"
    assert [len(truncate_text("a" * count)) for count in (39, 40, 41, 10_000)] == [39, 40, 40, 40]
    assert truncate_text("") == ""
