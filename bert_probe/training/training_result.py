"""What came of teaching a checkpoint: how it went, what to know of it, and the checkpoint that is saved."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pandas as pd

from bert_probe.core import inputs
from bert_probe.core.result import Result
from bert_probe.errors import ShapeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.training_history import write_trainings
from bert_probe.model.weights import QUIET
from bert_probe.training.lora import LoraAdapter
from bert_probe.training.model_card import card
from bert_probe.training.saving import write_folder, write_zip
from bert_probe.training.training_loop import EvaluationPoint

CARD = "README.md"
SHARE = 0.2
"""Of the data, held out where nothing is said."""


@dataclass(frozen=True, eq=False, repr=False)
class TrainingResult(Result):
    """A checkpoint that was taught.

    Attributes:
        question: with the epochs and the learning rate that were meant.
        task: as transformers names it; labels: of its head; measure: by which the best was chosen.
        history: all evaluations; best: the one whose weights these are.
        ended: why it ended before its last step: "", "early", "stopped" or "diverged".
        trainable, parameters: numbers that were updated, and all; memory: bytes, as estimated before.
        warnings: why the measure may flatter; notes: what else a person should know, a sentence each.
        checkpoint: the model as it is now, in memory.
        pooling: files by which texts become one vector each, as those of the model it was; see `own_files`.
        data: what it was taught with; held_out: what it was asked for, of the same type; None for nothing.
        adapter: of lora, by itself.
        files: what the files of data are called in the lines that make it again.
    """

    task: str
    labels: tuple[str, ...]
    measure: str
    history: tuple[EvaluationPoint, ...]
    best: EvaluationPoint
    ended: str
    trainable: int
    parameters: int
    memory: int
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    checkpoint: Checkpoint
    pooling: Mapping[str, Any]
    data: Any
    held_out: Any
    adapter: LoraAdapter | None
    files: Mapping[str, str]

    def __post_init__(self) -> None:
        if self.best not in self.history:
            raise ShapeError("The best evaluation is none of the history.")

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Which evaluation is kept, and what was updated."""
        return {
            "task": self.task,
            "measure": self.measure,
            "kept_step": self.best.step,
            "ended": self.ended,
            "updated_parameters": self.trainable,
            "parameters": self.parameters,
            "notes": [*self.warnings, *self.notes],
        }

    def frame(self) -> pd.DataFrame:
        """A row for each evaluation: step, epoch, loss, held_out_loss, the measure, whether it is kept."""
        return pd.DataFrame(
            {
                "step": [one.step for one in self.history],
                "epoch": [one.epoch for one in self.history],
                "loss": [one.loss for one in self.history],
                "held_out_loss": [one.held_out_loss for one in self.history],
                self.measure: [one.measure for one in self.history],
                "kept": [one is self.best for one in self.history],
            }
        )

    def save_model(self, folder: str | Path, replace: bool = False) -> Path:
        """Write the checkpoint as a folder that transformers and `load` open.

        Where the model that it was opens in sentence-transformers, so does it, with the same pooling.
        With lora its matrices have the products added, and the adapter stands in a folder ``adapter`` within.
        The folder is written beside its place and renamed, so that it is whole or not there.

        Args:
            replace: take the place of a model that is there.

        Raises:
            ExportError: it cannot be written; what was there is as it was.
        """
        place = Path(folder).expanduser()
        write_folder(place, self._fill, replace)
        return place

    def save_zip(self, file: BinaryIO, name: str = "taught") -> None:
        """Write the same folder as a zip into an open file.

        Args:
            name: of the folder within.

        Raises:
            ExportError: it cannot be written.
        """
        write_zip(file, name, self._fill, self.nbytes)

    def _fill(self, folder: Path) -> None:
        whole = self.checkpoint.outputs[self.task].whole
        with QUIET:
            whole.save_pretrained(folder)
        self.checkpoint.tokenizer.save_pretrained(folder)
        if self.adapter is not None:
            self.adapter.save(folder / "adapter")
        write_trainings(folder, self.checkpoint.before)
        for name, said in self.pooling.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
        text = card(self.provenance, self.labels, self.frame(), [*self.warnings, *self.notes])
        (folder / CARD).write_text(text, encoding="utf-8")

    def snippets(self, csv_safe: bool = False) -> tuple[str, str]:  # noqa: ARG002
        """Both; no text is in the table."""
        return self.python, self.shell

    @property
    def python(self) -> str:
        """A script whose last line makes this table again, with the data in the files that it names."""
        read = [
            f"{name} = bert_probe.{reader}({file!r})"
            for name, reader, file in (
                ("data", self.files["reader"], self.files["data"]),
                ("held_out", self.files["reader"], self.files.get("held_out", "")),
            )
            if file
        ]
        given = ", ".join(["checkpoint", *(line.partition(" =")[0] for line in read)])
        return "\n".join(
            [
                "import bert_probe",
                "",
                f"checkpoint = {inputs.load(self.inputs.model)}",
                *read,
                f"bert_probe.{self.question!r}.of({given}).table()",
            ]
        )

    @property
    def shell(self) -> str:
        """The command that teaches it again, with the data in the files that it names."""
        model = self.inputs.model
        if model.get("origin") == "in memory":
            return "# What is only in memory cannot be reached from the command line; use Python."
        share = self.question.to_json()["held_out"]
        held_out = self.files.get("held_out") or (f"{share:g}" if share != SHARE else None)
        named = {
            "--held-out": held_out,
            "--model": inputs.model_name(model),
            "--revision": model.get("revision"),
            "--dtype": "float64" if model["dtype"] == "float64" else None,
        }
        options = [word for option, value in named.items() if value for word in (option, value)]
        words = ["bert-probe", "train", *self.question.options(), *options, "--out", "taught"]
        return shlex.join([*words, self.files["data"]])

    @property
    def nbytes(self) -> int:
        """Bytes of the checkpoint, which is by far the most."""
        return sum(part.numel() * part.element_size() for part in self.checkpoint.model.parameters())
