"""Convert a checkpoint with pickled weights to safetensors, and copy its other files."""

from __future__ import annotations

import hashlib
import json
import math
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

import bert_probe
from bert_probe.conversion.child import Conversion, FileSetup, Setup
from bert_probe.errors import (
    CheckpointError,
    NotFoundError,
    OutOfMemoryError,
    ProbeError,
    SelectionError,
    UnavailableError,
    WeightsError,
)
from bert_probe.model.checkpoint import FILL_MASK, HISTORY_FILE
from bert_probe.model.config import load_config, read_head_settings
from bert_probe.model.late_interaction import COLBERT_FILE
from bert_probe.model.outputs import CLASSES
from bert_probe.model.preflight import described, reserved_memory
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.sources import (
    MAX_CONFIG_BYTES,
    Source,
    check_readable,
    digest,
    expand_home,
    file_names,
    has_file,
    locate,
    read_json,
)
from bert_probe.model.tokenizer_files import MAX_TOKENIZER_BYTES, OTHER_TOKENIZER_FILES, TOKENIZER_FILES
from bert_probe.training.saving import check_space, write_folder

HUB_PATTERNS = (
    *("*.json", "*.txt", *OTHER_TOKENIZER_FILES, "model.safetensors", "model-*-of-*.safetensors"),
    *("pytorch_model.bin", "pytorch_model-*-of-*.bin", COLBERT_FILE),
    *("[0-9]*_*/pytorch_model.bin", "[0-9]*_*/model.safetensors"),
    *("*_[0-9]_*/pytorch_model.bin", "*_[0-9]_*/pytorch_model-*-of-*.bin", "*_[0-9]_*/model*.safetensors"),
)
"""Glob patterns of the files to download from the hub; * also matches a slash."""

_ROUTER_FILE = "router_config.json"
_CONFIGS = (
    *("config.json", "generation_config.json", "modules.json", "sentence_*_config.json"),
    *("config_sentence_transformers.json", _ROUTER_FILE, COLBERT_FILE),
)
_WORD_FILES = ("whitespacetokenizer_config.json", "wordembedding_config.json", "word_weights.json")
_PICKLE, _PICKLE_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
_WEIGHTS, _WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
_MAX_FOLDERS = 200


@dataclass(frozen=True)
class CheckpointFiles:
    """The files of a checkpoint, as paths relative to its folder.

    Attributes:
        pickles: for each pickled file, the safetensors file to write.
        copies: files to copy.
        indices: for each index file to write, the safetensors files that the index lists.
    """

    pickles: dict[str, str]
    copies: tuple[str, ...]
    indices: dict[str, tuple[str, ...]]


def find_files(source: Source) -> CheckpointFiles:
    """Find the files of a checkpoint and of its sentence-transformers modules.

    Raises:
        NotFoundError: the checkpoint has no config.json.
        WeightsError: the checkpoint has no pickled weights, or an index file is broken.
        CheckpointError: modules.json is broken, or a file is too large or outside the folder.
    """
    folder = source.folder
    pickles: dict[str, str] = {}
    copies: list[str] = []
    indices: dict[str, tuple[str, ...]] = {}
    for subfolder in _folders(folder):
        prefix = "" if subfolder == folder else f"{subfolder.relative_to(folder).as_posix()}/"
        names = file_names(subfolder)
        copies += [
            prefix + name
            for name in names
            if any(fnmatchcase(name, pattern) for pattern in (*_CONFIGS, *TOKENIZER_FILES, *_WORD_FILES))
        ]
        weights, pickled = _weight_names(subfolder, names)
        copies += [prefix + name for name in weights]
        targets = _target_names(pickled)
        pickles |= {prefix + name: prefix + target for name, target in targets.items()}
        if len(targets) > 1:
            indices[prefix + _WEIGHTS_INDEX] = tuple(targets.values())
    if not any(Path(name).name == "config.json" for name in copies):
        raise NotFoundError(f"{folder} has no config.json. Use a folder saved with save_pretrained.")
    if not pickles:
        raise WeightsError(_nothing_to_convert(source, copies))
    for name in copies:
        _check_size(folder / name)
    for name in (*copies, *pickles):
        _check_inside(folder, name)
    return CheckpointFiles(pickles, tuple(copies), indices)


def _nothing_to_convert(source: Source, copies: list[str]) -> str:
    if any(name.endswith(".safetensors") for name in copies):
        return (
            f"The weights of {source.name} are already in safetensors format. Open the model without "
            "converting it."
        )
    return (
        f"{source.name} has no {_PICKLE}, the only weight format that can be converted. Check the files "
        "of the model."
    )


def _folders(folder: Path) -> Iterator[Path]:
    """Yield the folder of a checkpoint and the folders of its modules, with their subfolders."""
    yield folder
    if not has_file(folder, "modules.json"):
        return
    modules = read_json(folder / "modules.json")
    router = read_json(folder / _ROUTER_FILE) if has_file(folder, _ROUTER_FILE) else {}
    try:
        names = [*(module["path"] for module in modules), *router.get("types", ())]
        is_valid = all(
            isinstance(name, str) and name.isprintable() and Path(name).name == name.rstrip("/")
            for name in names
        )
    except (AttributeError, TypeError, KeyError):
        is_valid = False
    if not is_valid or any(name == ".." for name in names):
        raise CheckpointError(
            f"modules.json{f' or {_ROUTER_FILE}' if router else ''} is broken, or refers to a folder that is "
            "not directly in the model's folder. Download the model again."
        )
    count = 0
    for name in dict.fromkeys(filter(None, names)):
        for path, below, _ in os.walk(folder / name):
            below.sort()
            count += 1
            if count > _MAX_FOLDERS:
                raise CheckpointError(
                    f"The modules of the model have more than {_MAX_FOLDERS} folders, the maximum that is "
                    "supported. Remove folders that do not belong to the model."
                )
            yield Path(path)


def _weight_names(subfolder: Path, names: list[str]) -> tuple[list[str], list[str]]:
    """Return the names of the safetensors files in a folder or, if there are none, of the pickled files."""
    if _WEIGHTS in names:
        return [_WEIGHTS], []
    if _WEIGHTS_INDEX in names:
        return [_WEIGHTS_INDEX, *_listed(subfolder / _WEIGHTS_INDEX, ".safetensors")], []
    if _PICKLE in names:
        return [], [_PICKLE]
    return [], _listed(subfolder / _PICKLE_INDEX, ".bin") if _PICKLE_INDEX in names else []


def _listed(index: Path, suffix: str) -> list[str]:
    """Return the names of the weight files that an index file lists; they must end in ``suffix``."""
    try:
        names = sorted(set(read_json(index)["weight_map"].values()))
        is_valid = bool(names) and all(Path(name).name == name and name.endswith(suffix) for name in names)
    except (KeyError, AttributeError, TypeError):
        is_valid = False
    if not is_valid:
        raise WeightsError(
            f"{index.name} is broken, or refers to files in other folders. Download the model again."
        )
    for name in names:
        if not has_file(index.parent, name):
            raise WeightsError(f"{name} is missing, but {index.name} lists it. Download the model again.")
    return names


def _target_names(pickled: list[str]) -> dict[str, str]:
    if len(pickled) == 1:
        return {pickled[0]: _WEIGHTS}
    return {
        name: f"model-{number:05}-of-{len(pickled):05}.safetensors" for number, name in enumerate(pickled, 1)
    }


def _check_size(file: Path) -> None:
    if file.suffix == ".safetensors":
        return
    limit = MAX_TOKENIZER_BYTES if file.name != "config.json" else MAX_CONFIG_BYTES
    if file.stat().st_size > limit:
        raise CheckpointError(
            f"{file.name} has {file.stat().st_size:,} bytes, but at most {limit:,} are allowed. Check "
            "the model."
        )


def _check_inside(folder: Path, name: str) -> None:
    """Raise an error for a file outside its model's folder, to which a symbolic link in the folder leads."""
    root, file = folder.resolve(), (folder / name).resolve()
    # In the hub's cache, files in snapshots/REVISION are symbolic links to files in blobs.
    snapshots = next((parent for parent in root.parents if parent.name == "snapshots"), None)
    is_blob = snapshots is not None and file.parent == snapshots.with_name("blobs")
    if not is_blob and not file.is_relative_to(root):
        raise CheckpointError(
            f"A symbolic link leads from {name} to a file outside the model's folder. Replace the link by "
            "the file if it belongs to the model."
        )


SAFE_TORCH = (2, 10)
"""The oldest version of torch whose restricted unpickler has no known vulnerability."""
SPARE_MEMORY = 1 << 30
"""Bytes of address space that the child process may use in addition to twice the largest file size."""
WORKING_MEMORY = 1 << 29
"""Bytes of memory that the child process needs for torch and one tensor, in addition to the weights."""
CONSTANT_SECONDS, BYTES_PER_SECOND = 120, 10_000_000
"""The default time limit is CONSTANT_SECONDS + bytes / BYTES_PER_SECOND; the speed is a low estimate."""
MAX_SECONDS = 86_400
"""Maximum time limit in seconds, which is one day."""
START_SECONDS = 600
"""Time limit for the child process to import torch, before the time limit of the conversion begins."""
_POLL_SECONDS = 0.05
_MAX_LINE = 1 << 24
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "LANG")
"""Environment variables that are passed to the child process. Others may contain passwords."""


@dataclass(frozen=True)
class ConvertedModel:
    """A model whose weights have been converted.

    Attributes:
        folder: the new folder.
        record: the content of bert_probe.json in the folder: the model, the versions, and for each file the
            name and SHA-256 before and after, the number of tensors, and the tied weights, which were not
            written.
    """

    folder: Path
    record: dict[str, Any]


def convert(
    model: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    revision: str | None = None,
    *,
    replaces: bool = False,
    seconds: float | None = None,
    progress: Progress = no_progress,
) -> ConvertedModel:
    """Convert a checkpoint with pickled weights (pytorch_model.bin) to safetensors, in a new folder.

    A separate process reads the weights with torch's restricted unpickler. The process has no network access,
    cannot start programs or open files for writing, and has limited memory and time. Files that contain
    anything other than tensors are rejected. Config, tokenizer and sentence-transformers modules are copied.

    Args:
        model: a local folder or a Hub ID, whose pickled files are downloaded.
        folder: the new folder, which is created only after the conversion is complete.
        revision: branch, tag or commit on the hub.
        replaces: whether to replace an existing folder that BERT Probe saved.
        seconds: time limit; by default 2 minutes and 1 second for every 10 MB.
        progress: called with bytes done and total bytes; an exception from this callback cancels the
            conversion.

    Raises:
        NotFoundError, NetworkError: the files are unavailable.
        WeightsError: there are no pickled weights, or the weights are broken or unsafe.
        CheckpointError: a file may not be read.
        OutOfMemoryError: the weights need more memory than is available or allowed.
        ExportError: the folder cannot be written.
        UnavailableError: this version of torch cannot read pickled weights safely.
        SelectionError: the time limit is not positive, or is longer than a day.
    """
    if seconds is not None and not 0 < seconds <= MAX_SECONDS:
        raise SelectionError(
            f"The time limit must be above 0 and at most {MAX_SECONDS:,} seconds, not {seconds:g}."
        )
    check_torch_version(str(torch.__version__))
    target = expand_home(folder)
    source = locate(model, revision, progress, HUB_PATTERNS)
    files = find_files(source)
    sizes = {}
    for name in (*files.pickles, *files.copies):
        check_readable(source.folder / name)
        sizes[name] = (source.folder / name).stat().st_size
    check_space(target, sum(sizes.values()))
    tied = find_tied_weights(source.folder)
    records: list[dict[str, Any]] = []

    def fill(new_folder: Path) -> None:
        for name in files.copies:
            (new_folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source.folder / name, new_folder / name)
        for name in files.pickles.values():
            (new_folder / name).parent.mkdir(parents=True, exist_ok=True)
        setups = [
            FileSetup(
                source=str((source.folder / name).resolve()),
                target=str(new_folder / written_name),
                tied=tied if "/" not in name else {},
            )
            for name, written_name in files.pickles.items()
        ]
        memory = WORKING_MEMORY + max(sizes[name] for name in files.pickles)
        with reserved_memory(memory, f"Converting {source.name}", "Close other programs."):
            digests, conversions = _run(setups, seconds, progress)
        records[:] = _check_results(new_folder, files, digests, conversions)
        _write_indices(new_folder, files)
        record = _record(source.name, source.revision, records)
        (new_folder / HISTORY_FILE).write_text(
            json.dumps({"conversion": record}, indent=1) + "\n", encoding="utf-8"
        )

    write_folder(target, fill, replaces)
    return ConvertedModel(target, _record(source.name, source.revision, records))


def check_torch_version(version: str) -> None:
    """Raise an error for torch versions whose restricted unpickler can be bypassed.

    Before 2.6, files in tar format can run code (CVE-2025-32434); before 2.10, wrong storage sizes can
    corrupt memory (CVE-2026-24747).

    Raises:
        UnavailableError: the version is older than `SAFE_TORCH`.
    """
    numbers = tuple(int(number) for number in version.split("+")[0].split(".")[:2])
    if numbers < SAFE_TORCH:
        raise UnavailableError(
            f"torch {version} does not read pickled weights safely. Install torch "
            f"{'.'.join(map(str, SAFE_TORCH))} or newer."
        )


def find_tied_weights(folder: Path) -> dict[str, str]:
    """Return a dict from the names of weights that transformers ties to the names of the stored tensors.

    For a model that BERT Probe cannot open, return {}, so that tied weights are written separately.
    """
    try:
        config = load_config(folder, folder.name)
        name = CLASSES[FILL_MASK].get(config.model_type, "")
        if not name:
            return {}
        import transformers

        tied = read_head_settings(folder).tied
        if tied is not None:
            config.tie_word_embeddings = tied
        network = described(config, getattr(transformers, name))
    except ProbeError:
        return {}
    return {str(target): str(other) for target, other in network.all_tied_weights_keys.items()}


def _run(
    setups: Sequence[FileSetup], seconds: float | None, progress: Progress
) -> tuple[list[str], list[Conversion]]:
    """Convert files in a separate process.

    Returns:
        For each file, the SHA-256 before the conversion, and the result.
    """
    paths = [Path(setup["source"]) for setup in setups]
    stamps = [_stamp(path) for path in paths]
    sizes = [path.stat().st_size for path in paths]
    limit = CONSTANT_SECONDS + sum(sizes) / BYTES_PER_SECOND if seconds is None else seconds
    setup = Setup(files=list(setups), memory=2 * max(sizes) + SPARE_MEMORY, seconds=math.ceil(limit))
    with _Process(setup) as process:
        digests = [digest([path]) for path in paths]  # hash the files while the process starts
        answer = process.wait(limit, sum(sizes), progress)
    if "error" in answer:
        raise (OutOfMemoryError if answer.get("is_memory") else WeightsError)(str(answer["error"]))
    if [_stamp(path) for path in paths] != stamps:
        raise WeightsError("The weights changed during the conversion. Convert the model again.")
    return digests, answer["files"]


def _stamp(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


class _Process:
    """A context manager that starts the child process (see `child`), and kills it when the block ends."""

    def __init__(self, setup: Setup) -> None:
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        paths = [str(Path(__file__).parents[2]), *filter(None, sys.path)]
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "bert_probe.conversion.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment
            | {
                "PYTHONPATH": os.pathsep.join(paths),
                "PYTHONDONTWRITEBYTECODE": "1",
                "CUDA_VISIBLE_DEVICES": "",
                # Stacks and malloc arenas of unused threads would fill the limited address space.
                **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
                "MALLOC_ARENA_MAX": "2",
            },
            # A separate process group lets Ctrl+C reach only the parent process.
            process_group=0 if os.name == "posix" else None,
        )
        assert self._child.stdin is not None
        with suppress(OSError):  # ignored, because `wait` reports the error if the process has ended
            self._child.stdin.write(json.dumps(setup).encode() + b"\n")
            self._child.stdin.flush()
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.wait()
        with suppress(OSError):
            assert self._child.stdin is not None
            self._child.stdin.close()

    def _read(self) -> None:
        assert self._child.stdout is not None
        with self._child.stdout as stream:
            while line := stream.readline(_MAX_LINE):
                self._lines.put(line)
        self._lines.put(b"")

    def wait(self, seconds: float, total: int, progress: Progress) -> dict[str, Any]:
        """Wait for the last line of JSON from the process, and return its value.

        Raises:
            WeightsError: the process took too long, or ended without a result.
        """
        end, done = time.monotonic() + START_SECONDS, -1
        while True:
            progress(max(0, done), total)
            if time.monotonic() > end:
                raise WeightsError(
                    f"Reading the weights took longer than {seconds:g} seconds, so the process was "
                    "stopped. The file may be crafted to exhaust the machine. Use other weights, or "
                    "allow more time."
                )
            try:
                line = self._lines.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
            answer = self._parse(line)
            if "progress" not in answer:
                return answer
            if done < 0:  # the first progress line: reading has begun, so start the time limit
                end = time.monotonic() + seconds
            done = min(int(answer["progress"]), total)

    def _parse(self, line: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if isinstance(answer, dict):
            return answer
        raise WeightsError(
            "The process that read the weights ended unexpectedly: the weights are broken, or need more "
            "memory or time than is allowed for their size. Use other weights."
        )


def _check_results(
    new_folder: Path, files: CheckpointFiles, digests: Sequence[str], conversions: Sequence[Conversion]
) -> list[dict[str, Any]]:
    """Check the files that the child process has written, and return a record of each file."""
    records = []
    for (name, written_name), sha256, conversion in zip(
        files.pickles.items(), digests, conversions, strict=True
    ):
        path = new_folder / written_name
        if len(_tensor_names(path)) != conversion["tensors"]:
            raise CheckpointError(f"{name} was not converted completely. Convert the model again.")
        with path.open("rb") as stream:
            written_sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        records.append(
            {
                "source": name,
                "source_sha256": sha256,
                "file": written_name,
                "sha256": written_sha256,
                "tensors": conversion["tensors"],
                "tied": conversion["shared"],
            }
        )
    return records


def _tensor_names(path: Path) -> list[str]:
    try:
        with safe_open(path, framework="np") as weights:
            return list(weights.keys())
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path.name} was not written correctly ({error}). Convert the model again."
        ) from None


def _write_indices(new_folder: Path, files: CheckpointFiles) -> None:
    for index, names in files.indices.items():
        folder = (new_folder / index).parent
        file_names = [Path(name).name for name in names]
        weight_map = {tensor: name for name in file_names for tensor in _tensor_names(folder / name)}
        content = {
            "metadata": {"total_size": sum((folder / name).stat().st_size for name in file_names)},
            "weight_map": dict(sorted(weight_map.items())),
        }
        (new_folder / index).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _record(name: str, revision: str | None, files: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "model": name,
        "revision": revision,
        "files": files,
        "versions": {"bert-probe": bert_probe.__version__, "torch": str(torch.__version__)},
    }
