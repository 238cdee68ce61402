"""Files of tuned lenses: where they are saved, and how one is loaded for the checkpoint it was trained on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from bert_probe.analyses.outputs.tuned_lens import METADATA_KEY, SUFFIX, TuneLens, TuneLensResult
from bert_probe.core.files import with_metadata_file
from bert_probe.core.provenance import InputRecord
from bert_probe.errors import ProbeError, WeightsError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Array, read_only
from bert_probe.text import strict_json

_PREFIX = "tuned-lens-"
_SENTENCE_KEYS = ("sentences", "sentences_sha256", "tokens_dropped")
_DTYPES = ("F32", "F64")
_TRAIN_AGAIN = "Train one with bert-probe tune-lens FILE."


def load_lens(file: str | Path, checkpoint: Checkpoint) -> TuneLensResult:
    """Load a lens from a file.

    Raises:
        WeightsError: there is no such file, or it is not a lens, is damaged, or was trained for another
            checkpoint.
    """
    path = Path(file)
    if not path.is_file():
        raise WeightsError(f"There is no file {path}. {_TRAIN_AGAIN}")
    try:
        with safe_open(path, framework="np") as lens:
            record = _record(path, (lens.metadata() or {}).get(METADATA_KEY))
            _check_checkpoint(path, record, checkpoint)
            arrays = {name: read_only(lens.get_tensor(name)) for name in _array_names(path, lens, checkpoint)}
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path.name} is damaged or truncated ({error}). {_TRAIN_AGAIN}") from None
    if not all(np.isfinite(part).all() for part in arrays.values()):
        raise WeightsError(f"{path.name} contains values that are not finite. {_TRAIN_AGAIN}")
    try:
        return _lens(record, arrays)
    except (KeyError, TypeError, ValueError, ProbeError):
        raise WeightsError(f"The metadata of {path.name} is incomplete or invalid. {_TRAIN_AGAIN}") from None


def _record(path: Path, text: str | None) -> dict[str, Any]:
    """Return the provenance in a file's metadata."""
    try:
        record = strict_json.loads(text or "")
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or "weights_sha256" not in record:
        raise WeightsError(f"{path.name} is not a tuned lens. {_TRAIN_AGAIN}")
    return record


def _check_checkpoint(path: Path, record: dict[str, Any], checkpoint: Checkpoint) -> None:
    description = checkpoint.description
    digests = record["weights_sha256"], record.get("outputs_sha256", "")
    if digests != (description.weights_sha256, description.outputs_sha256):
        raise WeightsError(
            f"{path.name} was trained for {str(record.get('model'))[:200]}, whose weights differ from those "
            "of "
            f"{description.name}. {_TRAIN_AGAIN}"
        )


def _array_names(path: Path, lens: Any, checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the names of the arrays after checking their shapes and types, before any is loaded."""
    layers, size = checkpoint.description.layers, checkpoint.description.hidden_size
    needed = {"weights": [layers, size, size], "biases": [layers, size]}
    slices = {name: lens.get_slice(name) for name in lens.keys()}  # noqa: SIM118 - not a mapping
    shapes = {name: array.get_shape() for name, array in slices.items()}
    if shapes != needed or not {array.get_dtype() for array in slices.values()} <= {*_DTYPES}:
        raise WeightsError(
            f"{path.name} has arrays of shapes {shapes}, but {needed} in float32 or float64 are needed. "
            f"{_TRAIN_AGAIN}"
        )
    return tuple(needed)


def _lens(record: dict[str, Any], arrays: dict[str, Array]) -> TuneLensResult:
    metadata, fields = record["facts"], dict(record["question"])
    fields.pop("analysis")
    model = {
        name: value for name, value in record.items() if name not in ("question", "facts", *_SENTENCE_KEYS)
    }
    for name, value in model.items():
        if not isinstance(value, dict if name == "libraries" else str | None):
            raise TypeError(name)
    types = zip(_SENTENCE_KEYS, (int, str, int), strict=True)
    inputs = InputRecord(model, (), {name: type_(record[name]) for name, type_ in types})
    logit_lens, tuned = (
        read_only(np.array(metadata[f"{lens}_loss_bits"], dtype=np.float64)) for lens in ("plain", "tuned")
    )
    words = metadata["masked_words"]
    counts = int(words["learned_from"]), int(words["held_out"])
    return TuneLensResult(
        TuneLens(**fields), inputs, arrays["weights"], arrays["biases"], logit_lens, tuned, *counts
    )


def lens_folder(checkpoint: Checkpoint) -> Path:
    """Return the folder for the lenses of a checkpoint: its own if it is local and writable, else a data
    folder.

    Lenses are never saved to the Hub cache or to installed packages, which may be deleted at any time.
    """
    description, folder = checkpoint.description, checkpoint.folder
    if description.origin == "local folder" and folder is not None and os.access(folder, os.W_OK):
        return folder
    data = os.environ.get("XDG_DATA_HOME") or os.environ.get("LOCALAPPDATA")
    home = Path(data) if data else Path.home() / ".local" / "share"
    return home / "bert-probe" / "tuned-lenses" / description.weights_sha256[:16]


def save_lens(lens: TuneLensResult, checkpoint: Checkpoint) -> Path:
    """Save a lens in the default folder under a name with its digest, so that no two lenses share a file.

    Raises:
        ExportError: the file cannot be written.
    """
    folder = lens_folder(checkpoint)
    path = folder / f"{_PREFIX}{lens.digest[:12]}{SUFFIX}"
    with suppress(OSError):  # writing the file reports the error
        folder.mkdir(parents=True, exist_ok=True)
    lens.save(path)
    return path


def lens_files(folder: Path) -> set[Path]:
    """Return the files that `save_lens` saved in a folder, for any checkpoint."""
    paths: set[Path] = set()
    for file in _newest_first(folder):
        with suppress(SafetensorError, OSError, WeightsError), safe_open(file, framework="np") as lens:
            _record(file, (lens.metadata() or {}).get(METADATA_KEY))
            paths |= {*with_metadata_file(file)}
    return paths


def newest_lens(checkpoint: Checkpoint) -> tuple[Path, TuneLensResult] | None:
    """Return the most recently saved lens that fits the checkpoint, and its file; None if there is none."""
    for file in _newest_first(lens_folder(checkpoint)):
        try:
            return file, load_lens(file, checkpoint)
        except WeightsError:  # trained for weights that this folder had before
            continue
    return None


def _newest_first(folder: Path) -> Iterator[Path]:
    files = [file for file in folder.glob(f"{_PREFIX}*{SUFFIX}") if file.is_file()]
    return iter(sorted(files, key=lambda file: file.stat().st_mtime, reverse=True))
