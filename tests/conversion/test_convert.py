"""Test conversion of checkpoints with pickled weights."""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import copyfile, copytree

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import bert_probe
from bert_probe.cli.main import main
from bert_probe.conversion import child
from bert_probe.conversion import convert as conversion
from bert_probe.conversion.convert import find_files
from bert_probe.errors import (
    CheckpointError,
    ExportError,
    NotFoundError,
    PickledWeightsError,
    SelectionError,
    UnavailableError,
    WeightsError,
)
from bert_probe.model.progress import Cancelled
from bert_probe.model.sources import Source
from tests.helpers import multi_vector_models, pickles, sentence_models, trained
from tests.helpers.families import TEXT
from tests.helpers.folders import change_config, copy
from tests.helpers.unprivileged import as_nobody, read_only_folder


@pytest.fixture
def folder(tmp_path: Path, family_folder: Callable[[str], Path]) -> Path:
    return copy(family_folder("bert"), tmp_path / "model")


def pickle_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Replace the safetensors file in a folder by a pickle, and return the weights."""
    weights = load_file(folder / "model.safetensors")
    pickles.write(folder, pickles.saved(weights))
    return weights


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def source(folder: Path) -> Source:
    return Source(folder, str(folder), "local folder", None)


def test_converted_model_equals_original_with_tied_weights_and_modules(tmp_path: Path) -> None:
    """The checkpoint has tied weights, a masked-language-modeling head and a Dense module."""
    folder = trained.build("bert", "fill-mask", tmp_path / "model")
    original = bert_probe.load(folder)
    once = load_file(folder / "model.safetensors")
    name = "bert.embeddings.word_embeddings.weight"
    state = {**once, "cls.predictions.decoder.weight": once[name]}
    state["cls.predictions.decoder.bias"] = state["cls.predictions.bias"]
    pickles.write(folder, pickles.saved(state))
    modules = [{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Dense"}, {"path": "3_Normalize"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    for module in ("1_Pooling", "2_Dense", "9_Other"):
        (folder / module).mkdir()
        (folder / module / "config.json").write_text("{}")
    dense = {"linear.weight": torch.randn(3, 4), "linear.bias": torch.randn(3)}
    torch.save(dense, folder / "2_Dense" / "pytorch_model.bin")
    for other in ("modeling_evil.py", "optimizer.pt", "training_args.bin", "bert_probe.json", "x.json"):
        (folder / other).write_bytes(b"{}")

    reports: list[tuple[int, int]] = []
    target = tmp_path / "converted"
    result = bert_probe.convert(folder, target, progress=lambda *report: reports.append(report))

    names = sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file())
    assert names == [
        *("1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors", "bert_probe.json"),
        *("config.json", "model.safetensors", "modules.json", "tokenizer.json", "tokenizer_config.json"),
    ]
    record = json.loads((target / "bert_probe.json").read_text())
    assert record["conversion"] == result.record
    assert record["files"] == {name: sha256(target / name) for name in names if name != "bert_probe.json"}
    first, second = result.record["files"]
    assert (first["source"], first["file"]) == ("pytorch_model.bin", "model.safetensors")
    assert first["source_sha256"] == sha256(folder / "pytorch_model.bin")
    assert first["sha256"] == sha256(target / "model.safetensors")
    assert first["tied"] == {
        "cls.predictions.decoder.weight": name,
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }
    assert second["source"] == "2_Dense/pytorch_model.bin"
    assert second["source_sha256"] == sha256(folder / "2_Dense" / "pytorch_model.bin")
    assert second["tensors"] == 2
    converted_dense = load_file(target / "2_Dense" / "model.safetensors")
    assert all(torch.equal(converted_dense[key], dense[key]) for key in dense)
    assert load_file(target / "model.safetensors").keys() == once.keys()

    opened = bert_probe.load(target)
    np.testing.assert_array_equal(opened.trace(TEXT).hidden_states, original.trace(TEXT).hidden_states)
    for question in (bert_probe.FillMask(),):
        masked = TEXT.replace("ground", "[MASK]")
        expected = question.of(original.trace(masked)).table()
        assert question.of(opened.trace(masked)).table().equals(expected)
    done = [report[0] for report in reports]
    assert done == sorted(done)
    assert done[-1] > 0.9 * reports[-1][1]


@pytest.mark.prove
def test_sharded_weights_are_converted_by_the_command(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    weights = pickle_weights(folder)
    (folder / "pytorch_model.bin").unlink()
    files = ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin")
    weight_map = {name: files[number % 2] for number, name in enumerate(weights)}
    for file in files:
        torch.save({name: weights[name] for name in weights if weight_map[name] == file}, folder / file)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    target = tmp_path / "converted"
    with pytest.raises(SystemExit) as ended:
        main(["convert", str(folder), "--out", str(target)])
    assert ended.value.code == 0
    assert f"The model was saved in {target}. Open the model with --model {target}." in capfd.readouterr().err
    index = json.loads((target / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {
        name: f"model-0000{1 + files.index(file)}-of-00002.safetensors"
        for name, file in sorted(weight_map.items())
    }
    assert not list(target.glob("*.bin*"))
    description = bert_probe.load(target).description
    assert description.parameter_count == sum(tensor.numel() for tensor in weights.values())


def test_refused_weights_leave_no_folder(folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    pickles.write(folder, pickles.zipped(pickles.GADGETS["posix.system"].replace(b"{mark}", bytes(mark))))
    with pytest.raises(WeightsError, match=r"pytorch_model\.bin refers to posix\.system, which"):
        bert_probe.convert(folder, tmp_path / "converted")
    assert not mark.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_existing_folder_is_not_replaced_before_anything_is_read(folder: Path, tmp_path: Path) -> None:
    pickle_weights(folder)
    (tmp_path / "converted").mkdir()
    (tmp_path / "converted" / "mine.txt").write_text("mine")
    with pytest.raises(ExportError, match=r"already exists. Choose another name, or replace it with --force"):
        bert_probe.convert(folder, tmp_path / "converted")
    with pytest.raises(ExportError, match="is not replaced, because"):
        bert_probe.convert(folder, tmp_path / "converted", replaces=True)
    assert (tmp_path / "converted" / "mine.txt").read_text() == "mine"


def test_folder_may_begin_with_the_home_directory(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "converted").write_text("mine")
    pickle_weights(folder)
    with pytest.raises(ExportError, match="converted is a file"):
        bert_probe.convert(folder, "~/converted")


def test_cancelled_conversion_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    pickle_weights(folder)

    def cancel(*_: int) -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        bert_probe.convert(folder, tmp_path / "converted", progress=cancel)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


@pytest.mark.prove
def test_killed_conversion_leaves_no_model_and_no_process(folder: Path, tmp_path: Path) -> None:
    pickles.write(folder, pickles.zipped(pickles.ENDLESS))
    target = tmp_path / "converted"
    arguments = f"{str(folder)!r}, {str(target)!r}, progress=lambda *_: print(1, flush=True)"
    code = f"import bert_probe; bert_probe.convert({arguments})"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        program.stdout.readline()
        children = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
        program.send_signal(signal.SIGKILL)
    assert len(children) == 1
    while Path(f"/proc/{children[0]}").exists() and "Z" not in Path(f"/proc/{children[0]}/stat").read_text():
        pass
    assert not target.exists()


def test_process_gets_no_secrets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    environments: list[dict[str, str]] = []

    class StopError(Exception):
        pass

    def start(*_: object, env: dict[str, str], **__: object) -> None:
        environments.append(env)
        raise StopError

    monkeypatch.setattr(subprocess, "Popen", start)
    path = folder / "model.safetensors"
    with pytest.raises(StopError):
        conversion._run([child.FileSetup(source=str(path), target="x", tied={})], 1, lambda *_: None)
    assert "secret" not in environments[0].values()
    assert os.environ["HF_TOKEN"] == "secret"


@pytest.mark.parametrize("version", ["2.5.1", "2.9.1+cpu", "1.13.0"])
def test_unsafe_torch_is_refused(version: str) -> None:
    with pytest.raises(
        UnavailableError, match=r"does not read pickled weights safely\. Install torch 2\.10 or"
    ):
        conversion.check_torch_version(version)
    conversion.check_torch_version("2.10.0+cpu")
    conversion.check_torch_version("3.0.0a0+git123")


# ---------------------------------------------------------------- files


def test_safetensors_need_no_conversion(folder: Path, tmp_path: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"a second copy")
    with pytest.raises(
        WeightsError, match=r"are already in safetensors format. Open the model without converting"
    ):
        bert_probe.convert(folder, tmp_path / "converted")


def test_folder_without_weights_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"has no pytorch_model.bin, the only weight format"):
        bert_probe.convert(folder, tmp_path / "converted")


def test_folder_without_config_is_refused(folder: Path, tmp_path: Path) -> None:
    pickle_weights(folder)
    (folder / "config.json").unlink()
    with pytest.raises(NotFoundError, match=r"has no config\.json"):
        bert_probe.convert(folder, tmp_path / "converted")


@pytest.mark.parametrize("name", ["../x.bin", "/etc/passwd", "a/b.bin", "x.py", 3, None])
def test_index_pointing_outside_folder_is_refused(folder: Path, name: object) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(WeightsError, match=r"pytorch_model\.bin\.index\.json is broken, or refers"):
        find_files(source(folder))


def test_index_with_a_name_that_is_too_long_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    weight_map = {"w": "x" * 5000 + ".bin"}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(WeightsError, match="is missing"):
        find_files(source(folder))


@pytest.mark.parametrize(
    "modules",
    [
        {"a": 1},
        [{}],
        [3],
        [{"path": ".."}],
        [{"path": "../x"}],
        [{"path": 3}],
        [{"path": "a\0b"}],
        [{"path": "\ud800"}],
    ],
)
def test_module_outside_folder_is_refused(folder: Path, modules: object) -> None:
    pickle_weights(folder)
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointError, match=r"modules\.json is broken, or refers to a folder that is not"):
        find_files(source(folder))


@pytest.mark.parametrize(
    "link", ["special_tokens_map.json", "pytorch_model.bin", "1_Pooling", "1_Pooling/config.json"]
)
def test_link_out_of_the_folder_is_refused(folder: Path, tmp_path: Path, link: str) -> None:
    pickle_weights(folder)
    (folder / "modules.json").write_text(json.dumps([{"path": ""}, {"path": "1_Pooling"}]))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    outside = tmp_path / Path(link).name
    if (folder / link).exists():
        (folder / link).rename(outside)
    else:
        outside.write_text("{}")
    (folder / link).symlink_to(outside)
    name = "1_Pooling/config.json" if link == "1_Pooling" else link
    with pytest.raises(CheckpointError, match=f"A symbolic link leads from {name} to a file outside the"):
        bert_probe.convert(folder, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("subfolder", ["", "encoder"])
@pytest.mark.parametrize("is_outside", [False, True])
def test_links_to_the_blobs_of_the_hub_cache_are_allowed(
    folder: Path, tmp_path: Path, is_outside: bool, subfolder: str
) -> None:
    pickle_weights(folder)
    (folder / "modules.json").write_text(json.dumps([{"path": ""}, {"path": "1_Pooling"}]))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    repository = tmp_path / "models--org--name"
    snapshot = repository / "snapshots" / "0123" / subfolder
    blobs = repository / ("other" if is_outside else "blobs")
    blobs.mkdir(parents=True)
    files = [path for path in folder.rglob("*") if path.is_file()]
    for number, file in enumerate(files):
        link = snapshot / file.relative_to(folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        file.rename(blobs / str(number))
        link.symlink_to(os.path.relpath(blobs / str(number), link.parent))
    if is_outside:
        with pytest.raises(CheckpointError, match="to a file outside the model's folder"):
            find_files(source(snapshot))
        return
    checkpoint = find_files(source(snapshot))
    assert len(checkpoint.copies) + len(checkpoint.pickles) == len(files)


@pytest.mark.parametrize("seconds", [0, -1, 86_401, math.inf, math.nan])
def test_invalid_time_limit_is_refused(folder: Path, tmp_path: Path, seconds: float) -> None:
    pickle_weights(folder)
    with pytest.raises(SelectionError, match=r"must be above 0 and at most 86,400 seconds, not "):
        bert_probe.convert(folder, tmp_path / "new", seconds=seconds)
    assert not (tmp_path / "new").exists()


def test_module_with_safetensors_is_copied(folder: Path) -> None:
    pickle_weights(folder)
    (folder / "modules.json").write_text(json.dumps([{"path": ""}, {"path": "2_Dense"}]))
    (folder / "2_Dense").mkdir()
    save_file({"w": torch.ones(2)}, folder / "2_Dense" / "model.safetensors")
    files = find_files(source(folder))
    assert files.pickles == {"pytorch_model.bin": "model.safetensors"}
    assert "2_Dense/model.safetensors" in files.copies


def test_router_in_the_folder_of_the_model_is_converted(
    tmp_path: Path, family_folder: Callable[[str], Path]
) -> None:
    folder = sentence_models.save("router with the encoder", family_folder("bert"), tmp_path / "model")
    for file in [*folder.glob("*/model.safetensors")]:
        pickle_weights(file.parent)
    files = find_files(source(folder))
    assert {"router_config.json", "query_0_Transformer/config.json"} <= {*files.copies}
    assert "query_0_Transformer/pytorch_model.bin" in files.pickles


@pytest.mark.parametrize("layout", multi_vector_models.LAYOUTS)
def test_all_other_files_of_late_interaction_models_are_copied(
    layout: str, tmp_path: Path, family_folder: Callable[[str], Path]
) -> None:
    folder = multi_vector_models.save(layout, family_folder("bert"), tmp_path / "model")
    pickle_weights(folder)
    files = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert files - {*find_files(source(folder)).copies} <= {"pytorch_model.bin", "README.md"}


@pytest.mark.prove
def test_all_tokenizer_files_are_copied(folder: Path, tmp_path: Path) -> None:
    pickle_weights(folder)
    names = ("tokenizer.4.0.0.json", "source.spm", "tokenizer.model.v3", "a.tokenizer", "entity_vocab.json")
    for name in names:
        (folder / name).write_text("{}")
    copyfile(folder / "tokenizer.json", folder / names[0])
    change_config(folder, "tokenizer_config.json", fast_tokenizer_files=[names[0]])
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text.replace('"lowercase":true', '"lowercase":false'))
    assert {*names} <= {*find_files(source(folder)).copies}
    bert_probe.convert(folder, tmp_path / "converted")
    (folder / "pytorch_model.bin").unlink()
    copyfile(tmp_path / "converted" / "model.safetensors", folder / "model.safetensors")
    expected = bert_probe.load(folder).encode(TEXT.upper())
    assert bert_probe.load(tmp_path / "converted").encode(TEXT.upper()).ids == expected.ids


@pytest.mark.parametrize("name", ["pytorch_model.bin", "tokenizer.json"])
def test_file_without_read_permission_is_named(name: str, folder: Path) -> None:
    pickle_weights(folder)
    with read_only_folder() as parent:
        copytree(folder, parent / "open" / "model")
        (parent / "open" / "model" / name).chmod(0o600)
        message = as_nobody(lambda: bert_probe.convert(parent / "open" / "model", parent / "open" / "new"))
        file = parent / "open" / "model" / name
        assert message == f"{file} cannot be read: Permission denied. Check its permissions."


def test_tied_weights_follow_the_config(tmp_path: Path) -> None:
    tied = trained.build("bert", "fill-mask", tmp_path / "tied")
    untied = trained.build("bert", "fill-mask", tmp_path / "untied", tie_word_embeddings=False)
    assert conversion.find_tied_weights(tied)["cls.predictions.decoder.weight"] == (
        "bert.embeddings.word_embeddings.weight"
    )
    assert conversion.find_tied_weights(untied) == {}


def test_refused_model_names_the_command(folder: Path) -> None:
    pickle_weights(folder)
    with pytest.raises(PickledWeightsError) as caught:
        bert_probe.load(folder)
    assert str(caught.value) == (
        "The weights are only available as pytorch_model.bin, a format that can run code when it is "
        f"opened. Convert the weights to model.safetensors with bert-probe convert {folder} --out FOLDER."
    )
    assert caught.value.model == str(folder)
