"""Test model sizes from configs: parity with published sizes and with created models, and hostile configs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from transformers import AutoModel, BertConfig, BertModel

import bert_probe
from bert_probe import ModelSizes, Parameters, open_config
from bert_probe.core import files
from bert_probe.errors import ProbeError, SelectionError, SubjectError
from bert_probe.model import preflight
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.config import PUBLISHED
from tests.helpers import families
from tests.helpers.command_line import bert_probe as run

Folders = Callable[[str], Path]
Opened = Callable[[str], Checkpoint]


def test_sizes_equal_published_figures() -> None:
    base, large = ModelSizes().of(open_config("bert-base"), open_config("bert-large")).sizes
    assert (base.tensors, base.parameters, large.parameters) == (199, 109_482_240, 335_141_888)
    assert base.parts == {
        "embeddings": (30_522 + 512 + 2 + 2) * 768,
        "attention": 12 * 3 * (768 + 1) * 768,
        "attention output": 12 * (768 + 1 + 2) * 768,
        "feed-forward": 12 * ((768 + 1) * 3072 + (3072 + 1 + 2) * 768),
        "pooler": (768 + 1) * 768,
    }
    assert [base.bytes(dtype) for dtype in ("float64", "float32", "float16")] == [
        size * 109_482_240 for size in (8, 4, 2)
    ]
    small = ModelSizes().of(*map(open_config, ("bert-tiny", "bert-mini", "bert-small", "bert-medium")))
    assert [size.parameters for size in small.sizes] == [4_385_920, 11_170_560, 28_763_648, 41_373_184]


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "heads"),
    [("bert-tiny", 2, 128, 2), ("bert-small", 4, 512, 8), ("bert-large", 24, 1024, 16)],
)
def test_published_size_equals_transformers_model(name: str, layers: int, hidden: int, heads: int) -> None:
    config = BertConfig(
        num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads, intermediate_size=4 * hidden
    )
    with torch.device("meta"):
        raw = BertModel(config)
    (result,) = ModelSizes().of(open_config(name)).sizes
    assert (result.layers, result.heads, result.hidden_size) == (layers, heads, hidden)
    assert result.tensors == len([*raw.named_parameters()])
    assert result.parameters == sum(part.numel() for part in raw.parameters())


@pytest.mark.parametrize("name", ["modernbert", "mobilebert", "deberta-v2"])
def test_config_file_folder_and_checkpoint_have_equal_sizes(
    name: str, family: Opened, family_folder: Folders
) -> None:
    folder = family_folder(name)
    result = ModelSizes().of(open_config(folder), open_config(str(folder / "config.json")), family(name))
    raw = AutoModel.from_pretrained(folder)
    for size in result.sizes:
        assert size.parameters == sum(part.numel() for part in raw.parameters())
        assert (size.family, size.layers, size.heads, size.hidden_size) == (name, 3, 4, 32)
        assert size.vocabulary_size == raw.config.vocab_size
        stored = sum(part.numel() * part.element_size() for part in raw.to(torch.float16).parameters())
        assert size.bytes("float16") == stored
    assert Parameters().of(family(name)).inventory.total == result.sizes[2].parameters
    assert result.http == "# The HTTP API does not answer this question; use Python or the command line."
    table = result.table()
    assert table.iloc[0, 1:].equals(table.iloc[2, 1:])
    parts = table.iloc[0, table.columns.get_loc("parameters") + 1 : -3]
    assert parts.sum() == table["parameters"][0]


def test_snippets_produce_same_table(family: Opened) -> None:
    opened = family("bert")
    result = ModelSizes().of(open_config("bert-tiny"), opened)
    lines, _, last = result.python.rpartition("\n")
    names: dict[str, Any] = {}
    exec(lines, names)
    again = eval(last, names)
    pd.testing.assert_frame_equal(again, result.table())
    assert again.attrs["provenance"] == result.table().attrs["provenance"]
    description = again.attrs["provenance"]["configs"]
    assert (description[0]["source"], description[1]["origin"]) == ("Turc et al. 2019", "local folder")
    assert result.shell == f"bert-probe parameters --config bert-tiny --model {opened.folder}"
    assert run(*shlex.split(result.shell)[1:]).text == files.to_bytes(result.table(), "csv").decode()
    assert ModelSizes().of(opened, open_config("bert-tiny")).shell.startswith("# ")
    assert result.finding.startswith("bert-tiny has 4,385,920 parameters, ")
    minimum = result.sizes[1].parameters
    assert result.finding.endswith(f"{4_385_920 / minimum:.3g} times the {minimum:,} of {opened.folder}.")


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "no family": ({"model_type": None}, "has no model_type"),
    "native code": ({"model_type": "rwkv"}, "needs native code"),
    "an unknown one": ({"model_type": "nonsense"}, "is not a model type of transformers"),
    "too many layers": ({"num_hidden_layers": 10**9}, "describes 1,000,000,000 layers, but at most 1,000"),
    "too many words": ({"vocab_size": 10**12}, "vocab_size in config.json is 1000000000000, but at most"),
    "a size that is a word": ({"hidden_size": "many"}, "config.json is not valid for bert"),
    "no layers": ({"num_hidden_layers": 0}, "a size is less than 1"),
    "heads that do not divide": (
        {"num_attention_heads": 5},
        "transformers cannot build a model from this config",
    ),
    "an unknown function": (
        {"hidden_act": "__import__"},
        "transformers cannot build a model from this config",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_config_raises(case: str, tmp_path: Path) -> None:
    changes, word = HOSTILE[case]
    result = families.config("bert").to_dict() | changes
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({name: value for name, value in result.items() if value is not None}))
    with pytest.raises(ProbeError) as caught:
        ModelSizes().of(open_config(path))
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_config_with_too_many_tensors_is_refused_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "MOST_TENSORS", 100)
    result = families.config("albert").to_dict() | {"num_hidden_groups": 10**7}
    (tmp_path / "config.json").write_text(json.dumps(result))
    with pytest.raises(ProbeError, match="more than 100 tensors, more than any encoder has"):
        ModelSizes().of(open_config(tmp_path))


def test_invalid_config_raises(tmp_path: Path) -> None:
    for content, word in (("[1]", "x.json is not a JSON object"), ("{", "x.json cannot be read")):
        (tmp_path / "x.json").write_text(content)
        with pytest.raises(ProbeError, match=word):
            open_config(tmp_path / "x.json")
    for name, word in (("", "The name of the model is empty"), (str(tmp_path / "no"), "There is no folder")):
        with pytest.raises(ProbeError, match=word):
            open_config(name)
    with pytest.raises(SelectionError, match="There are no models"):
        ModelSizes().of()
    with pytest.raises(SubjectError, match="ModelSizes accepts configs and checkpoints, not a str"):
        ModelSizes().of("bert-base")


def test_command_prints_sizes(tmp_path: Path) -> None:
    lines = run("parameters", *(word for name in PUBLISHED for word in ("--config", name))).text.splitlines()
    assert lines[0].startswith(
        "name,family,layers,heads,hidden_size,vocabulary_size,tensors,parameters,embeddings"
    )
    assert [line.split(",")[0] for line in lines[1:]] == [*PUBLISHED]
    assert lines[5].split(",")[6:8] == ["199", "109482240"]
    assert (
        "--all-columns and --config cannot be combined. Omit one of the two."
        in run("parameters", "--config", "bert-tiny", "--all-columns").refusal
    )
    assert "There is no folder" in run("parameters", "--config", str(tmp_path / "nowhere")).refusal


def test_in_memory_model_has_no_shell_snippet(family: Opened) -> None:
    wrapped = bert_probe.wrap(family("bert").model, family("bert").tokenizer)
    assert ModelSizes().of(wrapped).shell.startswith("# A model that is only in memory")
