"""Copies of checkpoint folders that tests can change, and a check of loading errors."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import bert_probe
from bert_probe.errors import ProbeError

Weights = dict[str, torch.Tensor]

REMEDIES = (
    "use ",
    "save ",
    "give ",
    "convert ",
    "download ",
    "check ",
    "supported: ",
    "rename ",
    "load the model again",
)


def copy(source: Path, target: Path) -> Path:
    """Copy a folder, so that a test can change the copy, and return its path."""
    shutil.copytree(source, target)
    return target


def change_config(folder: Path, name: str = "config.json", /, **changes: Any) -> None:
    """Change settings in a JSON file of a folder."""
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_weights(folder: Path, change: Callable[[Weights], Weights]) -> None:
    """Change the weights in a folder's only weight file."""
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def shard(folder: Path) -> dict[str, str]:
    """Split the weights into two files with an index, and return the index's mapping from tensor to file."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    files = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    where = {name: files[number % 2] for number, name in enumerate(names)}
    for file in files:
        part = {name: weights[name] for name in names if where[name] == file}
        save_file(part, folder / file, metadata={"format": "pt"})
    write_index(folder, where)
    return where


def write_index(folder: Path, where: Any) -> None:
    """Write the index of sharded weights, which maps tensor names to files."""
    index = {"metadata": {}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def assert_refused(error: type[ProbeError], model: Any, *words: str, **options: Any) -> str:
    """Assert that loading raises an error of exactly this type, and return its message.

    The message must be one line that contains the given words and a remedy.
    """
    with pytest.raises(ProbeError) as caught:
        bert_probe.load(model, **options)
    message = str(caught.value)
    assert type(caught.value) is error, f"{type(caught.value).__name__}: {message}"
    assert "\n" not in message
    assert message.endswith(".")
    assert any(remedy in message.lower() for remedy in REMEDIES), f"no remedy in: {message}"
    for word in words:
        assert word in message, f"{word!r} is not in: {message}"
    return message
