"""Test trainable parameters of each update type: their number, and their names in the model."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bert_probe.model.checkpoint import FILL_MASK, TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION, Checkpoint
from bert_probe.training.models import (
    ALL,
    HEAD,
    LORA,
    RANK,
    count_by_scope,
    trainable_parameters,
    without_weights,
)

Opened = Callable[[str], Checkpoint]


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("bert", TEXT_CLASSIFICATION),
        ("distilbert", TOKEN_CLASSIFICATION),
        ("albert", TEXT_CLASSIFICATION),
        ("bert", FILL_MASK),
        ("xlm-roberta", FILL_MASK),  # transformers registers the tied head before the encoder
    ],
)
def test_trainable_parameters_match_the_count(family: Opened, name: str, task: str) -> None:
    checkpoint = family(name)
    result = {
        count.update: (count, trainable_parameters(checkpoint, task, count.update, 3))
        for count in count_by_scope(checkpoint, task, 3)
    }
    model = without_weights(checkpoint, task, ("a", "b", "c"))
    raw = dict(model.named_parameters(remove_duplicate=False))
    for update, (count, marked) in result.items():
        assert marked.count() == count.trainable
        narrow = [row for row in marked.inventory.rows if row.name not in raw and not row.tied_to]
        assert marked.inventory.total == count.parameters + sum(row.count for row in narrow)
        assert bool(narrow) == (update == LORA)
        assert sum(row.share for row in marked.inventory.rows) == pytest.approx(1)
        for part in marked.names & raw.keys():
            assert next(row.count for row in marked.inventory.rows if row.name == part) == raw[part].numel()
    trained = [raw[part] for part in result[ALL][1].names]
    assert sorted(map(id, trained)) == sorted(map(id, model.parameters()))
    assert not {id(raw[part]) for part in result[HEAD][1].names} & {
        id(parameter) for name, parameter in raw.items() if "embeddings" in name
    }
    assert not any("embeddings" in part for part in result[HEAD][1].names)
    assert len(result) == (3 if name == "albert" else 6)


def test_lora_matrices_by_hand(family: Opened) -> None:
    marked = trainable_parameters(family("bert"), TEXT_CLASSIFICATION, LORA)
    rows = {row.name: row for row in marked.inventory.rows}
    item, other = (rows[f"bert.encoder.layer.1.intermediate.dense.lora_{side}"] for side in "AB")
    assert (item.group, item.part) == (other.group, other.part) == ("layer 2", "feed-forward")
    assert (item.shape, other.shape) == ((RANK, 32), (48, RANK))
    # Each of the three layers has four matrices of 32 × 32, and two matrices of 32 × 48.
    narrow = 3 * RANK * (4 * (32 + 32) + 2 * (32 + 48))
    head = (32 * 32 + 32) + (32 * 2 + 2)
    assert marked.count() == narrow + head
    assert marked.count(lambda row: row.group == "layer 3") == narrow // 3
    assert rows["bert.encoder.layer.1.intermediate.dense.weight"].name not in marked.names
