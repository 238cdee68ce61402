"""What a model is taught with: examples as it reads them, the loss, and the measure on what was held out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from bert_probe.errors import TextError
from bert_probe.model.checkpoint import CLASSIFYING, Checkpoint
from bert_probe.model.encoding import ModelInputs
from bert_probe.model.forward import batches, pad
from bert_probe.model.trace import Array
from bert_probe.text.labeled_texts import CLASSES, NUMBER, SEVERAL, LabeledText, LabeledTexts
from bert_probe.text.validation import ValidationErrors
from bert_probe.training.schedule import LengthBuckets

UNTAUGHT = -100
"""Stands where nothing is learned, as torch's losses have it."""


@dataclass(frozen=True, eq=False)
class TrainingExample:
    """A text as the model reads it, and what is right.

    Attributes:
        inputs: of the model, name → [token].
        target: what is right; its form is the lesson's.
        line: of the file.
    """

    inputs: ModelInputs
    target: Any
    line: int

    def __len__(self) -> int:
        return len(self.inputs)


class Objective(ABC):
    """What is taught; the same whatever is updated.

    Attributes:
        task: as transformers names it; of_tokens: the head looks at each token by itself.
        labels: what the head's numbers are of; problem: what kind of classes, as a config says it.
        measure: what the best is chosen by, the larger the better.
        padding: what fills up shorter texts of a batch, by the name of the input; pads: whether texts of
            different lengths may share one.
    """

    task: ClassVar[str]
    of_tokens: ClassVar[bool] = False
    labels: tuple[str, ...] = ()
    problem: str = ""
    measure: str
    padding: Mapping[str, int]
    pads: bool

    @abstractmethod
    def examples(self, checkpoint: Checkpoint, data: Any, longest: int | None) -> list[TrainingExample]:
        """The texts as the model reads them, cut at so many tokens.

        Raises:
            TextError: texts that it cannot read, all of them by their lines.
        """

    def batch(self, examples: Sequence[TrainingExample]) -> dict[str, torch.Tensor]:
        """Inputs [text, token], padded on the right, and what is right under ``labels``."""
        given = pad([example.inputs for example in examples], self.padding)
        return given | {"labels": self.right(examples, given["input_ids"].shape[1])}

    def order(self, examples: Sequence[TrainingExample], batch: int, seed: int) -> LengthBuckets:
        """Batches in which they are taught."""
        return LengthBuckets([len(example) for example in examples], batch, seed, self.pads)

    def groups(self, examples: Sequence[TrainingExample], tokens: int) -> list[list[int]]:
        """Places of examples that are read together, of at most so many tokens."""
        return batches([len(example) for example in examples], tokens, self.pads)

    @abstractmethod
    def right(self, examples: Sequence[TrainingExample], length: int) -> torch.Tensor:
        """What is right for each text, or for each token of texts of a length."""

    def answers(self, whole: Any, given: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """What the model says and what is right, a row for each thing that is taught: [row, …]."""
        inputs = {name: values for name, values in given.items() if name != "labels"}
        return whole(**inputs).logits, given["labels"]

    def loss(self, said: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """The mean over rows; the loss that the model's own class computes."""
        if self.problem == "regression":
            return mse_loss(said.squeeze(-1), right)
        if self.problem == "multi_label_classification":
            return binary_cross_entropy_with_logits(said, right)
        return cross_entropy(said, right)

    def verdict(self, said: torch.Tensor) -> torch.Tensor:
        """What an answer comes down to, small enough to keep of every row."""
        if self.problem == "regression":
            return said.squeeze(-1)
        return (said > 0).long() if self.problem == "multi_label_classification" else said.argmax(dim=-1)

    def score(self, verdicts: Array, right: Array) -> float:
        """The measure."""
        return float((verdicts == right).mean())


_PROBLEMS = {
    CLASSES: "single_label_classification",
    SEVERAL: "multi_label_classification",
    NUMBER: "regression",
}
_MEASURES = {CLASSES: "accuracy", SEVERAL: "micro F1", NUMBER: "R²"}


class TextObjective(Objective):
    """Classes, several labels, or a number, for a text or for two in one input."""

    task = CLASSIFYING

    def __init__(self, checkpoint: Checkpoint, data: LabeledTexts, labels: tuple[str, ...]) -> None:
        self.kind = data.kind
        self.problem, self.measure = _PROBLEMS[data.kind], _MEASURES[data.kind]
        self.labels = labels or (NUMBER,)
        self.padding, self.pads = checkpoint.padding, checkpoint.pads
        self._places = {label: place for place, label in enumerate(self.labels)}

    def examples(
        self, checkpoint: Checkpoint, data: Sequence[LabeledText], longest: int | None
    ) -> list[TrainingExample]:
        """Each row encoded."""
        found, faults = [], ValidationErrors("The data")
        for row in data:
            try:
                inputs = checkpoint.encoder.inputs(row.text, longest, truncate=True, pair=row.pair)
            except TextError as error:
                faults.add(row.line, str(error))
                continue
            found.append(TrainingExample(inputs, self._target(row), row.line))
        faults.check()
        return found

    def _target(self, row: LabeledText) -> Any:
        if isinstance(row.label, str):
            return self._places[row.label]
        if isinstance(row.label, tuple):
            return [float(label in row.label) for label in self.labels]
        return row.label

    def right(self, examples: Sequence[TrainingExample], length: int) -> torch.Tensor:  # noqa: ARG002
        """Indices of classes, or numbers: [text] or [text, label]."""
        targets = [example.target for example in examples]
        return torch.tensor(targets, dtype=torch.long if self.kind == CLASSES else torch.float32)

    def loss(self, said: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """In the model's own precision."""
        return super().loss(said, right if self.kind == CLASSES else right.to(said.dtype))

    def score(self, verdicts: Array, right: Array) -> float:
        """Share of right classes; F1 over all labels of all texts; share of variance explained."""
        if self.kind == CLASSES:
            return super().score(verdicts, right)
        if self.kind == SEVERAL:
            both = float(((verdicts > 0) & (right > 0)).sum())
            any_of = float((verdicts > 0).sum() + (right > 0).sum())
            return 2 * both / any_of if any_of else 1.0
        spread = float(((right - right.mean()) ** 2).sum())
        return 1 - float(((verdicts - right) ** 2).sum()) / spread if spread else float(np.nan)
