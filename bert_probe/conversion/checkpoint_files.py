"""The files of a checkpoint that is converted: pickled weights to convert, and other files to copy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from bert_probe.errors import CheckpointError, NotFoundError, WeightsError
from bert_probe.model.sources import MAX_JSON_BYTES, MAX_TOKENIZER_BYTES, Source, read_json

HUB_PATTERNS = (
    *("*.json", "*.txt", "*.model", "*.codes", "model.safetensors", "model-*-of-*.safetensors"),
    *("pytorch_model.bin", "pytorch_model-*-of-*.bin"),
    *("[0-9]*_*/pytorch_model.bin", "[0-9]*_*/model.safetensors"),
)
"""Glob patterns of the files to download from the hub; * also matches a slash."""

_CONFIGS = (
    *("config.json", "generation_config.json", "modules.json", "sentence_*_config.json"),
    *("config_sentence_transformers.json", "router_config.json"),
)
_TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "bpe.codes", "dict.txt", "emoji_vocab.txt", "*.model"),
    *("whitespacetokenizer_config.json", "wordembedding_config.json", "word_weights.json"),
)
_PICKLE, _PICKLE_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
_WEIGHTS, _WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
_MAX_FOLDERS = 200


@dataclass(frozen=True)
class CheckpointFiles:
    """The files of a checkpoint, as paths relative to its folder.

    Attributes:
        pickles: pickled file → safetensors file to write.
        copies: files that are copied.
        indices: index to write → the safetensors files it lists.
    """

    pickles: dict[str, str]
    copies: tuple[str, ...]
    indices: dict[str, tuple[str, ...]]


def find_files(source: Source) -> CheckpointFiles:
    """Find the files of a checkpoint and of its sentence-transformers modules.

    Raises:
        NotFoundError: the checkpoint has no config.json.
        WeightsError: it has no pickled weights, or an index is broken.
        CheckpointError: modules.json is broken, or a file is too large.
    """
    folder = source.folder
    pickles: dict[str, str] = {}
    copies: list[str] = []
    indices: dict[str, tuple[str, ...]] = {}
    for part in _folders(folder):
        prefix = "" if part == folder else f"{part.relative_to(folder).as_posix()}/"
        names = sorted(entry.name for entry in part.iterdir() if entry.is_file())
        copies += [
            prefix + name
            for name in names
            if any(fnmatchcase(name, pattern) for pattern in (*_CONFIGS, *_TOKENIZER_FILES))
        ]
        weights, pickled = _weight_names(part, names)
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
    return CheckpointFiles(pickles, tuple(copies), indices)


def _nothing_to_convert(source: Source, copies: list[str]) -> str:
    if any(name.endswith(".safetensors") for name in copies):
        return f"The weights of {source.name} are safetensors already. Open the model as it is."
    return (
        f"{source.name} has no {_PICKLE}; no other format of weights can be converted. Check the files "
        "of the model."
    )


def _folders(folder: Path) -> Iterator[Path]:
    """Yield the folder of a checkpoint and the folders of its modules, with their subfolders."""
    yield folder
    if not (folder / "modules.json").is_file():
        return
    modules = read_json(folder / "modules.json")
    try:
        names = [module["path"] for module in modules]
        is_valid = all(
            isinstance(name, str) and name.isprintable() and Path(name).name == name.rstrip("/")
            for name in names
        )
    except (TypeError, KeyError):
        is_valid = False
    if not is_valid or any(name == ".." for name in names):
        raise CheckpointError("modules.json is broken, or refers to other folders. Download the model again.")
    count = 0
    for name in dict.fromkeys(filter(None, names)):
        for path, below, _ in os.walk(folder / name):
            below.sort()
            count += 1
            if count > _MAX_FOLDERS:
                raise CheckpointError(f"The modules have more than {_MAX_FOLDERS} folders. Check the model.")
            yield Path(path)


def _weight_names(part: Path, names: list[str]) -> tuple[list[str], list[str]]:
    """Return the names of the safetensors files of a folder or, if there are none, of its pickled files."""
    if _WEIGHTS in names:
        return [_WEIGHTS], []
    if _WEIGHTS_INDEX in names:
        return [_WEIGHTS_INDEX, *_listed(part / _WEIGHTS_INDEX, ".safetensors")], []
    if _PICKLE in names:
        return [], [_PICKLE]
    return [], _listed(part / _PICKLE_INDEX, ".bin") if _PICKLE_INDEX in names else []


def _listed(index: Path, suffix: str) -> list[str]:
    """Return the files that an index lists."""
    try:
        names = sorted(set(read_json(index)["weight_map"].values()))
        is_valid = bool(names) and all(Path(name).name == name and name.endswith(suffix) for name in names)
    except (KeyError, AttributeError, TypeError):
        is_valid = False
    if not is_valid:
        raise WeightsError(f"{index.name} is broken, or refers to other folders. Download the model again.")
    for name in names:
        if not (index.parent / name).is_file():
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
    limit = MAX_TOKENIZER_BYTES if file.name != "config.json" else MAX_JSON_BYTES
    if file.stat().st_size > limit:
        raise CheckpointError(
            f"{file.name} has {file.stat().st_size:,} bytes; at most {limit:,} are read. Check the model."
        )
