"""Tokens by the names that people give them."""

from __future__ import annotations

import pytest

from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.words import find_token


def test_digits_are_a_position_and_with_a_number_a_word(minilm: Checkpoint) -> None:
    trace = minilm.trace("in 2 or 3 days")
    assert find_token(trace, "2") == "2"
    assert find_token(trace, "3") == "or"
    assert find_token(trace, "3:1").position == 4
    assert find_token(trace, "[SEP]").position == 6


@pytest.mark.parametrize("name", ["7", "9" * 10, "9" * 5000])
def test_more_than_any_text_has_tokens_is_a_sentence(minilm: Checkpoint, name: str) -> None:
    with pytest.raises(SelectionError, match="this text has tokens 0 to 6"):
        find_token(minilm.trace("in 2 or 3 days"), name)
