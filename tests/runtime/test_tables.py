"""Test tables within the limits of a server."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import pytest

from bert_probe import AttentionLong, Sentences
from bert_probe.analyses.attention.attention import AttentionResult
from bert_probe.core.frames import text_length
from bert_probe.errors import TooLargeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.runtime import tables


def test_each_part_of_a_table_is_computed_once(minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    result = AttentionLong().of(minilm.trace("A boat."))
    long, calls = AttentionResult.long, []

    def count_calls(part: AttentionResult) -> Iterator[pd.DataFrame]:
        calls.append(part)
        return long(part)

    monkeypatch.setattr(AttentionResult, "long", count_calls)
    table = tables.limited_table(result)
    assert len(calls) == len(result.chosen) > 1
    pd.testing.assert_frame_equal(table, result.table())
    monkeypatch.setattr(tables, "MAX_CELLS", table.size - 1)
    calls.clear()
    with pytest.raises(TooLargeError, match="Request a smaller table"):
        tables.limited_table(result)
    assert len(calls) == len(result.chosen), "only the last part exceeds the limit"
    monkeypatch.setattr(tables, "MAX_CELLS", 1)
    calls.clear()
    with pytest.raises(TooLargeError):
        tables.limited_table(result)
    assert len(calls) == 1, "parts after the limit are not computed"


def test_repeated_texts_of_a_table_are_limited(minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["a boat " + "x" * 100, "a river " + "y" * 100, "a house"]
    result = Sentences(show="nearest", count=3).of(minilm, texts)
    frame = result.table()
    characters = sum(map(len, [*frame["sentence_a"], *frame["sentence_b"]]))
    assert characters == 2 * sum(map(len, texts))
    assert text_length(frame) == characters
    monkeypatch.setattr(tables, "MAX_TABLE_CHARACTERS", characters)
    assert len(tables.limited_table(result)) == 3
    monkeypatch.setattr(tables, "MAX_TABLE_CHARACTERS", characters - 1)
    with pytest.raises(TooLargeError, match=r"texts in the table have more than .* characters"):
        tables.limited_table(result)
