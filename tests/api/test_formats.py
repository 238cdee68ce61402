"""Tables as they are sent."""

from __future__ import annotations

import pandas as pd
import pytest

from bert_probe import AttentionLong
from bert_probe.analyses.attention.attention import AttentionResult
from bert_probe.api import formats
from bert_probe.api.errors import TooLargeError
from bert_probe.model.checkpoint import Checkpoint


def test_each_part_of_a_table_is_made_once(minilm: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    result = AttentionLong().of(minilm.trace("A boat."))
    long, made = AttentionResult.long, []

    def counted(shown: AttentionResult) -> pd.DataFrame:
        made.append(shown)
        return long(shown)

    monkeypatch.setattr(AttentionResult, "long", counted)
    table = formats.build_table(result)
    assert len(made) == len(result.chosen) > 1
    pd.testing.assert_frame_equal(table, result.table())
    monkeypatch.setattr(formats, "MAX_CELLS", table.size - 1)
    made.clear()
    with pytest.raises(TooLargeError, match="Ask for less of it"):
        formats.build_table(result)
    assert len(made) == len(result.chosen), "the last part is what is too much"
    monkeypatch.setattr(formats, "MAX_CELLS", 1)
    made.clear()
    with pytest.raises(TooLargeError):
        formats.build_table(result)
    assert len(made) == 1, "no more than has to be"
