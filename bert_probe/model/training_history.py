"""A model's earlier training runs, stored with the model to detect held-out data that it was trained on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bert_probe.errors import CheckpointError
from bert_probe.model.sources import read_json

HISTORY_FILE = "bert_probe.json"
"""Name of the file in the folder of a trained model; it lists training runs, oldest first."""


@dataclass(frozen=True)
class TrainingHistory:
    """The data and the held-out split of one training run.

    Attributes:
        data: SHA-256 of the data, as in provenance; including the held-out examples if a share was held out.
        held_out: SHA-256 of separate held-out data; "" if a share of `data` was held out.
        share, seed: the held-out share and the seed that selected it; 0 and 0 for separate held-out data.
    """

    data: str
    held_out: str
    share: float
    seed: int


def read_training_history(folder: Path) -> tuple[TrainingHistory, ...]:
    """Return the training runs recorded in a folder; empty if the record is missing or invalid."""
    try:
        records = read_json(folder / HISTORY_FILE)["trainings"] if (folder / HISTORY_FILE).is_file() else []
        trainings = tuple(TrainingHistory(**record) for record in records)
    except (CheckpointError, TypeError, KeyError):
        return ()
    return trainings if all(map(_is_valid, trainings)) else ()


def _is_valid(training: TrainingHistory) -> bool:
    texts, numbers = (training.data, training.held_out), (training.share, training.seed)
    return all(isinstance(text, str) for text in texts) and all(
        isinstance(number, int | float) for number in numbers
    )


def write_training_history(folder: Path, trainings: Sequence[TrainingHistory]) -> None:
    """Write the training runs into a model's folder."""
    record = {"trainings": [asdict(training) for training in trainings]}
    (folder / HISTORY_FILE).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def overlap_warning(earlier: Sequence[TrainingHistory], training: TrainingHistory) -> str:
    """Return a warning if the held-out data of a training run may have been trained on before; otherwise "".

    No warning is needed for the same data, share and seed: the same rows were held out before.
    """
    for previous in reversed(earlier):
        if training.held_out and previous.data == training.held_out:
            return _WARNING.format(
                "on the held-out data", "Hold out data on which the model was not trained."
            )
        same_split = (previous.held_out, previous.share, previous.seed) == (
            training.held_out,
            training.share,
            training.seed,
        )
        if not training.held_out and training.share and previous.data == training.data and not same_split:
            split = (
                f"a share of {previous.share:g} with seed {previous.seed}" if previous.share else "nothing"
            )
            again = f"{previous.share:g} with seed {previous.seed} again" if previous.share else "other data"
            return _WARNING.format(
                f"on this data, of which {split} was held out",
                f"Hold out {again}, or start from a model that was not trained on this data.",
            )
    return ""


_WARNING = (
    "This model was trained {}. It may have been trained on examples that are held out now, so its scores "
    "may be too good. {}"
)
