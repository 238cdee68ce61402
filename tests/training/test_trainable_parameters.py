"""Test trainable parameters of each update type: their number, and their names in the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

import bert_probe
from bert_probe import Train
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
from tests.helpers.families import config, randomize, save_tokenizer
from tests.helpers.gate import prove_unless
from tests.helpers.teaching import texts

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


_POOLERS = ["albert", "bert", "big_bird", "deberta-v2", "ernie", "gte", "layoutlm", "markuplm"]
_POOLERS += ["megatron-bert", "mobilebert", "nomic_bert", "rembert", "roc_bert"]


@pytest.mark.parametrize("name", prove_unless({"albert", "bert", "big_bird"}, _POOLERS))
def test_head_trains_exactly_the_reported_parameters(name: str, tmp_path: Path) -> None:
    """The poolers of ALBERT and BigBird are a linear layer only; the head of BigBird does not read it."""
    original, trained = tmp_path / "original", tmp_path / "trained"
    settings = config(name, id2label={0: "with", 1: "without"})
    model = AutoModelForSequenceClassification.from_config(settings)
    randomize(model)
    model.save_pretrained(original)
    save_tokenizer(name, original)
    checkpoint = bert_probe.load(original, dtype="float64")
    result = Train("head", epochs=2, rate=1e-2, batch=4, held_out=0).of(checkpoint, texts(16))
    result.save_model(trained)
    before, after = (
        AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float64).state_dict()
        for folder in (original, trained)
    )
    changed = {part for part in before if not torch.equal(before[part], after[part])}
    assert changed == trainable_parameters(checkpoint, TEXT_CLASSIFICATION, HEAD).names
    assert sum(before[part].numel() for part in changed) == result.trainable
    assert any("pooler" in part for part in changed) == (name != "big_bird")


@pytest.mark.parametrize(
    ("name", "task", "auto"),
    [
        ("albert", TEXT_CLASSIFICATION, AutoModelForSequenceClassification),
        ("big_bird", TEXT_CLASSIFICATION, AutoModelForSequenceClassification),
        ("layoutlm", TOKEN_CLASSIFICATION, AutoModelForTokenClassification),
        ("layoutlm", FILL_MASK, AutoModelForMaskedLM),
    ],
)
def test_pooler_is_trained_only_if_the_head_reads_it(family: Opened, name: str, task: str, auto: Any) -> None:
    model = auto.from_config(config(name))
    model(input_ids=torch.arange(5, 11)[None]).logits.sum().backward()
    poolers = {part: parameter for part, parameter in model.named_parameters() if "pooler" in part}
    assert poolers
    read = {part for part, parameter in poolers.items() if parameter.grad is not None}
    for update in (HEAD, LORA):
        assert trainable_parameters(family(name), task, update).names & poolers.keys() == read
