"""The result of a training run: the history, notes, and the trained checkpoint with usage instructions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pandas as pd

from bert_probe.core import provenance
from bert_probe.core.result import Result
from bert_probe.core.snippets import shell_join
from bert_probe.errors import ShapeError
from bert_probe.model.checkpoint import Checkpoint, write_training_history
from bert_probe.model.outputs import OutputHead
from bert_probe.model.sentence_head import HEAD_FOLDER, SentenceClassifier, write_sentence_head
from bert_probe.model.sentence_modules import SentenceModel
from bert_probe.model.sources import expand_home
from bert_probe.model.weights import QUIET
from bert_probe.training.models import LoraAdapter
from bert_probe.training.saving import write_folder, write_sentence_model, write_zip
from bert_probe.training.training_loop import EvaluationPoint

MODEL_CARD = "README.md"
DEFAULT_HELD_OUT = 0.2
"""Default share of the data that is held out."""


@dataclass(frozen=True, eq=False, repr=False)
class TrainingResult(Result):
    """The result of a training run: the trained checkpoint, and a record of the training.

    Attributes:
        question: the question, with the number of epochs and the learning rate of this run; both are None for
            a head on the sentence vector.
        task: name of the task in transformers.
        labels: the labels of the task head.
        measure: name of the measure that selected the best checkpoint.
        history: all evaluations.
        best: the evaluation of the returned checkpoint.
        ended: reason why training ended early: "early", "stopped" or "diverged"; "" if it did not.
        trainable, parameters: number of trainable and of all parameters.
        memory: estimated peak memory in bytes.
        warnings: reasons why the held-out measure may be overly optimistic, one sentence each.
        notes: other notes for the user, one sentence each.
        checkpoint: the trained model, in memory.
        sentence_model: the `SentenceModel` of the trained checkpoint, or else of the original one; None if
            there is none or it is sparse.
        data: training texts.
        held_out: held-out texts, of the same type; None if there are none.
        adapter: the LoRA adapter; None if there is none.
        files: names of the data files and of the function that reads these files, for code snippets.
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
    sentence_model: SentenceModel | None
    data: Any
    held_out: Any
    adapter: LoraAdapter | None
    files: Mapping[str, str]

    def __post_init__(self) -> None:
        if self.best not in self.history:
            raise ShapeError("best must be one of the evaluations in history.")

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Values saved with the table: step of the best checkpoint, number of trainable parameters, notes."""
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
        """Return one row per evaluation: step, epoch, loss, held_out_loss, measure, and whether it is best.

        For a head on the sentence vector, C replaces the epoch.
        """
        is_path = self.best.penalty is not None
        return pd.DataFrame(
            {
                "step": [evaluation.step for evaluation in self.history],
                "C" if is_path else "epoch": [
                    evaluation.penalty if is_path else evaluation.epoch for evaluation in self.history
                ],
                "loss": [evaluation.loss for evaluation in self.history],
                "held_out_loss": [evaluation.held_out_loss for evaluation in self.history],
                self.measure: [evaluation.measure for evaluation in self.history],
                "kept": [evaluation is self.best for evaluation in self.history],
            }
        )

    def save_model(self, folder: str | Path, replace: bool = False) -> Path:
        """Save the checkpoint in a folder that transformers and `load` can open.

        If the original model is a sentence-transformers model, so is the saved model, with the same pooling.
        A head on the sentence vector is saved in the subfolder ``classification_head``. The script
        ``predict.py`` applies this head with sentence-transformers; transformers opens only the encoder.
        LoRA matrices are merged into the weights, and the adapter is saved in the subfolder ``adapter``. The
        folder is written completely or not at all.

        Args:
            folder: path of the folder to write.
            replace: whether to replace an existing model.

        Raises:
            ExportError: the folder cannot be written; an existing folder is unchanged.
        """
        path = expand_home(folder)
        write_folder(path, self._fill, replace)
        return path

    def save_zip(self, file: BinaryIO, name: str = "trained") -> None:
        """Write the folder of `save_model` as a zip.

        Args:
            file: the open file to which the zip is written.
            name: name of the folder in the zip.

        Raises:
            ExportError: the zip cannot be written.
        """
        write_zip(file, name, self._fill, self.nbytes)

    def _fill(self, folder: Path) -> None:
        head = self.checkpoint.outputs.get(self.task)
        has_sentence_head = head is not None and isinstance(head.model, SentenceClassifier)
        with QUIET:
            model: Any = self.checkpoint.model if head is None or has_sentence_head else head.model
            model.save_pretrained(folder)
        if head is not None and has_sentence_head:
            write_sentence_head(folder, head)
            (folder / SCRIPT_FILE).write_text(prediction_script(head), encoding="utf-8")
        self.checkpoint.tokenizer.save_pretrained(folder)
        if self.adapter is not None:
            self.adapter.save(folder / "adapter")
        write_training_history(folder, self.checkpoint.training_history)
        if self.sentence_model is not None:
            write_sentence_model(folder, self.sentence_model)
        usage = EMBEDDER_USAGE if head is None else transformers_usage(self.task)
        usage = SENTENCE_USAGE if has_sentence_head else usage
        notes = [*self.warnings, *self.notes]
        text = model_card(self.provenance, self.labels, self.frame(), notes, usage)
        (folder / MODEL_CARD).write_text(text, encoding="utf-8")

    def snippets(self, csv_safe: bool = False) -> tuple[str, str]:  # noqa: ARG002
        """Return the Python and shell snippets, which refer to the data files instead of containing texts."""
        return self.python, self.shell

    @property
    def python(self) -> str:
        """A Python script that reproduces the training from the data files."""
        read = [
            f"{name} = bert_probe.{reader}({file!r})"
            for name, reader, file in (
                ("data", self.files["reader"], self.files["data"]),
                ("held_out", self.files["reader"], self.files.get("held_out", "")),
            )
            if file
        ]
        arguments = ", ".join(["checkpoint", *(line.partition(" =")[0] for line in read)])
        return "\n".join(
            [
                "import bert_probe",
                "",
                f"checkpoint = {provenance.load_expression(self.inputs.model)}",
                *read,
                f"bert_probe.{self.question!r}.of({arguments}).table()",
            ]
        )

    @property
    def shell(self) -> str:
        """A shell command that reproduces the training from the data files."""
        model = self.inputs.model
        if model.get("origin") == "in memory":
            return "# A model that is only in memory cannot be used from the command line. Use Python."
        share = self.question.to_json()["held_out"]
        held_out = self.files.get("held_out") or (f"{share:g}" if share != DEFAULT_HELD_OUT else None)
        values = {
            "--held-out": held_out,
            "--model": provenance.model_name(model),
            "--revision": model.get("revision"),
            "--dtype": "float64" if model["dtype"] == "float64" else None,
        }
        options = [word for option, value in values.items() if value for word in (option, value)]
        words = ["bert-probe", "train", *self.question.options(), *options, "--out", "trained"]
        return shell_join([*words, self.files["data"]])

    @property
    def nbytes(self) -> int:
        """Size in bytes of all weights of the encoder, trained or not, without the task head."""
        return sum(
            parameter.numel() * parameter.element_size() for parameter in self.checkpoint.model.parameters()
        )


@dataclass(frozen=True)
class Usage:
    """Instructions for using a saved model, for its model card.

    Attributes:
        library: the library named in the metadata of the card.
        lines: lines of Markdown.
    """

    library: str
    lines: tuple[str, ...]


def transformers_usage(task: str) -> Usage:
    """Return instructions for a model with a transformers task head."""
    lines = (
        "This model was fine-tuned with BERT Probe. Open the model with transformers or BERT Probe:",
        "",
        "```python",
        "import transformers",
        "",
        f"transformers.pipeline({task!r}, FOLDER)",
        "```",
    )
    return Usage("transformers", lines)


EMBEDDER_USAGE = Usage(
    "sentence-transformers",
    (
        "This model was fine-tuned with BERT Probe. Open the model with sentence-transformers or BERT Probe:",
        "",
        "```python",
        "import sentence_transformers",
        "",
        "sentence_transformers.SentenceTransformer(FOLDER)",
        "```",
    ),
)

SCRIPT_FILE = "predict.py"

_SCRIPT = '''"""Print {meaning} for each text of the command line, as JSON. Needs sentence-transformers."""
import json, pathlib, sys
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
folder = pathlib.Path(__file__).resolve().parent
labels = json.loads((folder / "classification_head/labels.json").read_text(encoding="utf-8"))["labels"]
head = load_file(folder / "classification_head/model.safetensors")
vectors = SentenceTransformer(str(folder), device="cpu").encode(sys.argv[1:], convert_to_tensor=True)
logits = vectors.to(head["linear.bias"]) @ head["linear.weight"].T + head["linear.bias"]
for text, row in zip(sys.argv[1:], logits{activation}.tolist()):
    print(json.dumps({{"text": text, "{name}": dict(zip(labels, row))}}))
'''

_OUTPUTS = {
    "single_label_classification": ("the probability of each label", ".softmax(dim=-1)", "probabilities"),
    "multi_label_classification": ("the probability of each label", ".sigmoid()", "probabilities"),
    "regression": ("the predicted number", "", "prediction"),
}
"""Maps a problem type to three strings: what ``predict.py`` prints, the code of the activation function, and
the JSON key of the output.
"""

SENTENCE_USAGE = Usage(
    "sentence-transformers",
    (
        "A linear head on the sentence vector of the base model, fitted with BERT Probe. Open the model "
        "with BERT Probe, or print the probability of each label with sentence-transformers:",
        "",
        "```sh",
        f'python {SCRIPT_FILE} "a text" "another text"',
        "```",
        "",
        "sentence-transformers loads the folder as a model that returns the sentence vectors of the base "
        "model, and transformers loads the encoder. A transformers text-classification pipeline cannot load "
        f"the head, which is in {HEAD_FOLDER}.",
    ),
)


def prediction_script(head: OutputHead) -> str:
    """Return the source code of ``predict.py``, which applies a head on the sentence vector to texts."""
    meaning, activation, name = _OUTPUTS[head.problem]
    return _SCRIPT.format(meaning=meaning, activation=activation, name=name)


def model_card(
    provenance: Mapping[str, Any],
    labels: Sequence[str],
    history: pd.DataFrame,
    notes: Sequence[str],
    usage: Usage,
) -> str:
    """Return a model card in Markdown.

    Names and values from files are written as JSON literals, so that they cannot add markup to the card.

    Args:
        provenance: provenance of the training result.
        labels: the labels of the task head.
        history: table with one row per evaluation.
        notes: notes for the user, one sentence each.
        usage: instructions for using the model.
    """
    metadata = provenance["facts"]
    front = {
        "library_name": usage.library,
        "pipeline_tag": metadata["task"],
        "base_model": provenance["model"],
        "tags": ["bert-probe"],
    }
    data = {name: value for name, value in provenance.items() if name in _DATA}
    model = {name: value for name, value in provenance.items() if name in _MODEL}
    best = history[history["kept"]].drop(columns="kept").to_dict("records")
    parts = [
        "---",
        *(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in front.items()),
        "---",
        "",
        f"# Fine-tuned model for {metadata['task']}",
        "",
        *usage.lines,
        "",
        *_json_section("Scores on held-out texts", best[0] | {"measure": metadata["measure"]}),
        *_json_section("Settings", provenance["question"]),
        *_json_section("Data", data),
        *_json_section("Base model", model),
        *_json_section(
            "Updated parameters", {name: metadata[name] for name in ("updated_parameters", "parameters")}
        ),
        *_json_section("Labels", list(labels)),
        *(_json_section("Notes", list(notes)) if notes else ()),
        "## All evaluations",
        "",
        "```csv",
        history.to_csv(index=False).rstrip("\n"),
        "```",
        "",
    ]
    return "\n".join(parts)


_DATA = ("sentences", "sentences_sha256", "held_out", "held_out_sha256", "tokens_dropped")
_MODEL = ("model", "origin", "revision", "architecture", "weights_sha256", "dtype", "device", "libraries")


def _json_section(title: str, value: Any) -> list[str]:
    text = json.dumps(value, ensure_ascii=False, indent=1, default=str).replace("`", "\\u0060")
    return [f"## {title}", "", "```json", text, "```", ""]
