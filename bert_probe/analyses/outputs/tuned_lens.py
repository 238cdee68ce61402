"""The tuned lens: one trained affine map per layer, from the layer's hidden states to the last layer's."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from bert_probe.analyses.outputs.fill_mask import mask_token
from bert_probe.analyses.outputs.lens_training import (
    BATCH_SIZE,
    WordHead,
    collect_targets,
    encode_lines,
    mask_lines,
    measure_losses,
    train_maps,
)
from bert_probe.core import files, writing
from bert_probe.core.field_types import Number
from bert_probe.core.files import with_metadata_file
from bert_probe.core.inputs import SentenceList
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import (
    ExportError,
    ProbeError,
    SelectionError,
    ShapeError,
    TextError,
    UnavailableError,
    WeightsError,
)
from bert_probe.model.checkpoint import FILL_MASK, Checkpoint
from bert_probe.model.layers import record_forward_pass
from bert_probe.model.lengths import are_tasks_limited
from bert_probe.model.outputs import output_head
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.sources import TUNED_LENS
from bert_probe.model.trace import Array, read_only
from bert_probe.text import strict_json
from bert_probe.text.duplicates import group_rows, text_key
from bert_probe.text.sentence_files import is_file, with_line_numbers

SUFFIX = ".safetensors"
"""File suffix of a saved lens."""
METADATA_KEY = "bert_probe"
"""Key of the provenance in the metadata of a lens file."""


@question("tuned lens", command="tune-lens")
class TuneLens(Question):
    """Train a tuned lens for masked words (Belrose et al. 2023).

    Before the task head is applied to the vector h of a layer, the lens maps the vector to h + A h + b. A and
    b are initialized to 0, so that the lens equals the logit lens at first. The loss is the Kullback-Leibler
    divergence between the prediction from the mapped vector and the model's prediction. The last layer is not
    mapped. The paper trains at all tokens, because its models predict the next word at every token.
    Masked-language models predict words only at masks, so this lens is trained and used at masks.

    Attributes:
        steps: number of training steps.
        seed: seed of the masks, of the order of the training data, and of the selection of held-out lines.
        held_out: share of the lines held out for evaluation.
    """

    inputs = SentenceList()
    is_training = True

    steps: int = param(Number(1, 100_000), default=200, about="Number of training steps.  [default: 200]")
    seed: int = param(
        Number(0), default=0, about="Seed of the masks and of the held-out lines.  [default: 0]"
    )
    held_out: float = param(
        Number(0, 1, integer=False),
        default=0.2,
        about="Fraction of lines held out for evaluation.  [default: 0.2]",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.held_out < 1:
            raise SelectionError(
                f"held_out must be greater than 0 and less than 1, not {self.held_out:g}. The default is 0.2."
            )

    def check_limits(self, *_inputs: Any) -> None:
        """Raise UnavailableError on a public server, which does not train."""
        if are_tasks_limited():
            raise UnavailableError("This server does not train tuned lenses. Use the command line.")

    def of(
        self,
        checkpoint: Checkpoint,
        sentences: Sequence[str],
        truncate: bool = False,
        progress: Progress = no_progress,
    ) -> TuneLensResult:
        """Train a lens on most of the lines, and evaluate it on the held-out lines.

        Args:
            sentences: the lines. Blank lines are skipped, and lines with the same tokens as an earlier line,
                or that differ from it only in case, spaces or accents (`text_key`).
            truncate: truncate lines that are too long instead of raising an error.
            progress: called with the number of steps done and the total.

        Raises:
            UnavailableError: the checkpoint has no masked-language-modeling head or no mask token, does not
                expose its layers, or its hidden states are not finite.
            EmptyTextError, TextError: there are fewer than two lines, or lines cannot be encoded. The message
                lists the line numbers.
            OutOfMemoryError: there is not enough memory for this many lines.
        """
        checkpoint = checkpoint.snapshot()
        output = output_head(checkpoint, FILL_MASK)
        mask_token(checkpoint)
        lines = with_line_numbers(sentences, "line")
        progress(0, 0)
        inputs = encode_lines(checkpoint, lines, truncate)
        # Remove duplicates, because a line could otherwise be in both the training and the held-out lines.
        groups = group_rows([text_key(line) for _, line in lines], [text.key for text in inputs])
        texts = [inputs[row] for row in dict.fromkeys(groups)]
        if len(texts) < 2:
            raise TextError(
                "Training a tuned lens needs at least two different lines: one for training and one for "
                "evaluation. Lines with the same tokens, or that differ only in case, spaces or accents, "
                "count once. Use more lines."
            )
        held_out_count = min(len(texts) - 1, max(1, round(self.held_out * len(texts))))
        is_held_out = np.random.default_rng(self.seed).permutation(len(texts)) < held_out_count
        masked = mask_lines(checkpoint, texts, self.seed)
        held_out_masks = sum(
            len(positions)
            for positions, line in zip(masked.places, masked.lines, strict=True)
            if is_held_out[line]
        )
        on_step = _StepReporter(
            progress, len(masked.groups) + self.steps + math.ceil(held_out_masks / BATCH_SIZE)
        )
        targets = collect_targets(checkpoint, masked, on_step)
        rows_held_out = is_held_out[targets.lines]
        training, held_out = targets.of(~rows_held_out), targets.of(rows_held_out)
        if not len(training) or not len(held_out):
            raise TextError("Too few of these lines have words that can be masked. Use more lines.")
        with checkpoint.running():
            with torch.no_grad():
                head = WordHead(output, record_forward_pass(checkpoint.trace(lines[0][1], truncate=True)))
            with torch.enable_grad():
                weights, biases = train_maps(head, training, self.steps, self.seed, on_step)
            logit_lens, tuned = measure_losses(head, held_out, weights, biases, on_step)
        dropped = sum(text.dropped for text in texts)
        return TuneLensResult(
            self,
            InputRecord.of_sentences(checkpoint, [text for _, text in lines], dropped),
            read_only(weights),
            read_only(biases),
            read_only(logit_lens),
            read_only(tuned),
            len(training),
            len(held_out),
        )


class _StepReporter:
    """Callback that counts steps and reports the progress after each step."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._report, self._total, self._done = progress, total, 0
        progress(0, total)

    def __call__(self) -> None:
        self._done += 1
        self._report(self._done, self._total)


@dataclass(frozen=True, eq=False, repr=False)
class TuneLensResult(Result):
    """A tuned lens and its losses on held-out lines.

    Attributes:
        weights, biases: A and b of the affine map h + A h + b, for the embeddings and every layer but the
            last, [layer, hidden, hidden] and [layer, hidden].
        logit_lens, tuned: mean divergence from the model's prediction at held-out masks, in bits, for the
            logit lens and for the tuned lens, float64 [layer].
        learned, kept: numbers of masked words used for training and for evaluation.
    """

    question: TuneLens
    weights: Array
    biases: Array
    logit_lens: Array
    tuned: Array
    learned: int
    kept: int

    def __post_init__(self) -> None:
        layers, size = self.biases.shape
        fits = self.weights.shape == (layers, size, size)
        if not fits or not self.logit_lens.shape == self.tuned.shape == (layers,):
            raise ShapeError(
                f"weights must have shape {(layers, size, size)}, and logit_lens and tuned must have shape "
                f"{(layers,)}, not {self.weights.shape}, {self.logit_lens.shape} and {self.tuned.shape}."
            )

    @property
    def worse(self) -> tuple[int, ...]:
        """Layers at which the tuned lens has no lower loss than the logit lens; 0 is the embeddings."""
        return tuple(np.flatnonzero(~(self.tuned < self.logit_lens)).tolist())

    @property
    def verdict(self) -> str:
        """A sentence that states whether the lens is closer to the model's prediction than the logit lens."""
        words = f"{self.kept:,} held-out masked words"
        if not self.worse:
            return (
                f"On {words}, the tuned lens is closer to the model's prediction than the logit lens at "
                "all layers."
            )
        layers = ", ".join(map(str, self.worse))
        layer_names = f"layer {layers}" if len(self.worse) == 1 else f"layers {layers}"
        return (
            f"On {words}, the tuned lens is not closer to the model's prediction than the logit lens at "
            f"{layer_names}."
        )

    @property
    def digest(self) -> str:
        """SHA-256 digest of the weights and biases."""
        return hashlib.sha256(self.weights.tobytes() + self.biases.tobytes()).hexdigest()

    def on(self, layer: int, states: torch.Tensor) -> torch.Tensor:
        """Return the vectors of a layer after applying the affine map of the lens, [..., hidden].

        Args:
            layer: layer index; 0 is the embeddings.
            states: vectors of the layer, [..., hidden].
        """
        weight, bias = (
            torch.tensor(array[layer], device=states.device) for array in (self.weights, self.biases)
        )
        dtype = torch.promote_types(states.dtype, weight.dtype)
        vectors = states.to(dtype)
        return (vectors + F.linear(vectors, weight.to(dtype), bias.to(dtype))).to(states.dtype)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The losses, and the numbers of masked words used for training and evaluation."""
        return {
            "plain_loss_bits": self.logit_lens.tolist(),
            "tuned_loss_bits": self.tuned.tolist(),
            "masked_words": {"learned_from": self.learned, "held_out": self.kept},
        }

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per layer, except the last.

        Columns: layer (0 is the embeddings), plain_loss_bits (of the logit lens), tuned_loss_bits.
        """
        layers = np.arange(len(self.logit_lens))
        return pd.DataFrame(
            {"layer": layers, "plain_loss_bits": self.logit_lens, "tuned_loss_bits": self.tuned}
        )

    def save(self, path: str | Path, csv_safe: bool = False, overwrite: bool = True) -> list[Path]:
        """Save the lens if the suffix of the path is .safetensors, otherwise the table; see `Result.save`.

        The provenance is saved in the metadata of the .safetensors file and in a .json file next to it.
        """
        path = Path(path)
        if path.suffix.lower() != SUFFIX:
            return super().save(path, csv_safe, overwrite)
        paths = files.with_metadata_file(path)
        record = self.provenance
        arrays = {"weights": self.weights, "biases": self.biases}
        # Escape the lone surrogates of undecodable folder names, because UTF-8 cannot encode them.
        readable = json.dumps(record, ensure_ascii=False, indent=1).encode("utf-8", "backslashreplace")
        contents = to_bytes(arrays, {METADATA_KEY: json.dumps(record)}), readable
        writing.write(dict(zip(paths, contents, strict=True)), overwrite)
        return paths


_SENTENCE_KEYS = ("sentences", "sentences_sha256", "tokens_dropped")
_DTYPES = ("F32", "F64")
_TRAIN_AGAIN = "Train a tuned lens with bert-probe tune-lens FILE."


def load_lens(file: str | Path, checkpoint: Checkpoint) -> TuneLensResult:
    """Load a tuned lens from a .safetensors file.

    Raises:
        WeightsError: the file does not exist, is not a lens, is damaged, or was trained for another
            checkpoint.
    """
    path = Path(file)
    if not is_file(path):
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
    """Return the provenance from the metadata of a lens file."""
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
            f"of {description.name}. {_TRAIN_AGAIN}"
        )


def _array_names(path: Path, lens: Any, checkpoint: Checkpoint) -> tuple[str, ...]:
    """Check the arrays in a lens file, and return their names.

    Shapes and data types are checked before the arrays are loaded into memory.
    """
    layers, size = checkpoint.description.layers, checkpoint.description.hidden_size
    needed = {"weights": [layers, size, size], "biases": [layers, size]}
    slices = {name: lens.get_slice(name) for name in lens.keys()}  # noqa: SIM118 - not a mapping
    shapes = {name: array.get_shape() for name, array in slices.items()}
    if shapes != needed or not {array.get_dtype() for array in slices.values()} <= {*_DTYPES}:
        raise WeightsError(
            f"The arrays of {path.name} must have shapes {needed} in float32 or float64, not {shapes}. "
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
    """Return the folder for the lenses of a checkpoint.

    Lenses are saved in the folder of a local checkpoint if this folder is writable, otherwise in the user's
    data folder. Lenses are never saved to the Hub cache or to installed packages, which may be deleted at any
    time.

    Raises:
        ExportError: the lens would be saved in the user's data folder, but there is no home folder.
    """
    description, folder = checkpoint.description, checkpoint.folder
    if description.origin == "local folder" and folder is not None and os.access(folder, os.W_OK):
        return folder
    data = os.environ.get("XDG_DATA_HOME") or os.environ.get("LOCALAPPDATA")
    try:
        parent = Path(data) if data else Path.home() / ".local" / "share"
    except RuntimeError:
        raise ExportError(
            "There is no home folder to save the tuned lens in. Pass --out FILE.safetensors, or set "
            "XDG_DATA_HOME to a folder."
        ) from None
    return parent / "bert-probe" / "tuned-lenses" / description.weights_sha256[:16]


def save_lens(lens: TuneLensResult, folder: Path) -> Path:
    """Save a lens in a folder, and return the path of its file, whose name contains the digest.

    Raises:
        ExportError: the file cannot be written.
    """
    path = folder / f"{TUNED_LENS}{lens.digest[:12]}{SUFFIX}"
    with suppress(OSError):  # `save` raises an error if the folder does not exist
        folder.mkdir(parents=True, exist_ok=True)
    lens.save(path)
    return path


def lens_files(folder: Path) -> set[Path]:
    """Return all files in a folder that were written by `save_lens`, for any checkpoint."""
    paths: set[Path] = set()
    for file in _newest_first(folder):
        with suppress(SafetensorError, OSError, WeightsError), safe_open(file, framework="np") as lens:
            _record(file, (lens.metadata() or {}).get(METADATA_KEY))
            paths |= {*with_metadata_file(file)}
    return paths


def newest_lens(checkpoint: Checkpoint) -> tuple[Path, TuneLensResult] | None:
    """Return the file and the content of the newest lens that fits a checkpoint, or None.

    Damaged lenses are skipped.
    """
    try:
        folder = lens_folder(checkpoint)
    except ExportError:  # there is no folder, so no lens was saved
        return None
    for file in _newest_first(folder):
        try:
            return file, load_lens(file, checkpoint)
        except WeightsError:  # trained for other weights, for example before fine-tuning
            continue
    return None


def _newest_first(folder: Path) -> Iterator[Path]:
    files = [file for file in folder.glob(f"{TUNED_LENS}*{SUFFIX}") if file.is_file()]
    return iter(sorted(files, key=lambda file: file.stat().st_mtime, reverse=True))
