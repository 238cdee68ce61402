"""Where tuned lenses are kept, and how one is opened: for the checkpoint that it was trained on alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from bert_probe.analyses.outputs.tuned_lens import ENDING, RECORD, TuneLens, TuneLensResult
from bert_probe.core.files import described
from bert_probe.core.provenance import InputRecord
from bert_probe.errors import ProbeError, WeightsError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Array, read_only
from bert_probe.text import strict_json

_BEGINS = "tuned-lens-"
_SENTENCES = ("sentences", "sentences_sha256", "tokens_dropped")
_KINDS = ("F32", "F64")
_AGAIN = "Train one with bert-probe tune-lens FILE."


def opened(file: str | Path, checkpoint: Checkpoint) -> TuneLensResult:
    """The lens in a file.

    Raises:
        WeightsError: no such file, no lens, a broken one, or one of another checkpoint.
    """
    path = Path(file)
    if not path.is_file():
        raise WeightsError(f"There is no file {path}. {_AGAIN}")
    try:
        with safe_open(path, framework="np") as lens:
            record = _record(path, (lens.metadata() or {}).get(RECORD))
            _check_checkpoint(path, record, checkpoint)
            arrays = {name: read_only(lens.get_tensor(name)) for name in _checked(path, lens, checkpoint)}
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path.name} is broken or truncated ({error}). {_AGAIN}") from None
    if not all(np.isfinite(part).all() for part in arrays.values()):
        raise WeightsError(f"{path.name} holds numbers that are not finite. {_AGAIN}")
    try:
        return _lens(record, arrays)
    except (KeyError, TypeError, ValueError, ProbeError):
        raise WeightsError(f"{path.name} does not say how well it does. {_AGAIN}") from None


def _record(path: Path, written: str | None) -> dict[str, Any]:
    """What the file says of itself."""
    try:
        record = strict_json.loads(written or "")
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or "weights_sha256" not in record:
        raise WeightsError(f"{path.name} is no tuned lens. {_AGAIN}")
    return record


def _check_checkpoint(path: Path, record: dict[str, Any], checkpoint: Checkpoint) -> None:
    about = checkpoint.description
    theirs = record["weights_sha256"], record.get("outputs_sha256", "")
    if theirs != (about.weights_sha256, about.outputs_sha256):
        raise WeightsError(
            f"{path.name} was trained for {str(record.get('model'))[:200]} with other weights than those of "
            f"{about.name}, and fits no others. {_AGAIN}"
        )


def _checked(path: Path, lens: Any, checkpoint: Checkpoint) -> tuple[str, ...]:
    """Names of the arrays, if they have the shapes that the model needs; before any of them is read."""
    layers, size = checkpoint.description.layers, checkpoint.description.hidden_size
    needed = {"weights": [layers, size, size], "biases": [layers, size]}
    there = {name: lens.get_slice(name) for name in lens.keys()}  # noqa: SIM118 - no mapping
    found = {name: part.get_shape() for name, part in there.items()}
    if found != needed or not {part.get_dtype() for part in there.values()} <= {*_KINDS}:
        raise WeightsError(
            f"{path.name} holds arrays of shapes {found}; {needed} are needed, in float32 or float64. "
            f"{_AGAIN}"
        )
    return tuple(needed)


def _lens(record: dict[str, Any], arrays: dict[str, Array]) -> TuneLensResult:
    facts, asked = record["facts"], dict(record["question"])
    asked.pop("analysis")
    model = {name: value for name, value in record.items() if name not in ("question", "facts", *_SENTENCES)}
    for name, value in model.items():
        if not isinstance(value, dict if name == "libraries" else str | None):
            raise TypeError(name)
    kinds = zip(_SENTENCES, (int, str, int), strict=True)
    subject = InputRecord(model, (), {name: kind(record[name]) for name, kind in kinds})
    plain, tuned = (
        read_only(np.array(facts[f"{which}_loss_bits"], dtype=np.float64)) for which in ("plain", "tuned")
    )
    words = facts["masked_words"]
    counts = int(words["learned_from"]), int(words["held_out"])
    return TuneLensResult(
        TuneLens(**asked), subject, arrays["weights"], arrays["biases"], plain, tuned, *counts
    )


def usual_folder(checkpoint: Checkpoint) -> Path:
    """Where lenses of a checkpoint are kept: beside it in the reader's own folder, else in one of theirs.

    The hub's cache and installed packages are no place for what somebody made, and may be emptied.
    """
    about, folder = checkpoint.description, checkpoint.folder
    if about.origin == "local folder" and folder is not None and os.access(folder, os.W_OK):
        return folder
    data = os.environ.get("XDG_DATA_HOME") or os.environ.get("LOCALAPPDATA")
    home = Path(data) if data else Path.home() / ".local" / "share"
    return home / "bert-probe" / "tuned-lenses" / about.weights_sha256[:16]


def keep(lens: TuneLensResult, checkpoint: Checkpoint) -> Path:
    """Save a lens in the usual folder. Its name is of its numbers, so none takes the place of another.

    Raises:
        ExportError: it cannot be written.
    """
    folder = usual_folder(checkpoint)
    place = folder / f"{_BEGINS}{lens.digest[:12]}{ENDING}"
    with suppress(OSError):  # told where the file is written
        folder.mkdir(parents=True, exist_ok=True)
    lens.save(place)
    return place


def lens_files(folder: Path) -> set[Path]:
    """Return the files that `keep` saved in a folder, whatever checkpoint they are for."""
    found: set[Path] = set()
    for file in _by_age(folder):
        with suppress(SafetensorError, OSError, WeightsError), safe_open(file, framework="np") as lens:
            _record(file, (lens.metadata() or {}).get(RECORD))
            found |= {*described(file)}
    return found


def newest(checkpoint: Checkpoint) -> tuple[Path, TuneLensResult] | None:
    """The lens in the usual folder that was saved last, and its file; None where there is none that fits."""
    for file in _by_age(usual_folder(checkpoint)):
        try:
            return file, opened(file, checkpoint)
        except WeightsError:  # of other weights, which stood in this folder before
            continue
    return None


def _by_age(folder: Path) -> Iterator[Path]:
    files = [file for file in folder.glob(f"{_BEGINS}*{ENDING}") if file.is_file()]
    return iter(sorted(files, key=lambda file: file.stat().st_mtime, reverse=True))
