"""A label for each word, said of its first piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from bert_probe.errors import TextError
from bert_probe.model.checkpoint import LABELLING, Checkpoint
from bert_probe.model.encoding import ModelInputs
from bert_probe.text.tag_alignment import NOWHERE, placed
from bert_probe.text.tagged_sentences import TaggedSentence
from bert_probe.text.validation import ValidationErrors
from bert_probe.training.objectives import UNTAUGHT, Objective, TrainingExample


class TokenObjective(Objective):
    """Labels of words, in BIO or any other scheme.

    The target of an example is a label's index at each word's first piece, and `UNTAUGHT` elsewhere.
    """

    task = LABELLING
    of_tokens = True

    def __init__(self, checkpoint: Checkpoint, labels: tuple[str, ...]) -> None:
        self.labels, self.measure = labels, "accuracy"
        self.padding, self.pads = checkpoint.padding, checkpoint.pads

    def examples(
        self, checkpoint: Checkpoint, data: Sequence[TaggedSentence], longest: int | None
    ) -> list[TrainingExample]:
        """Each sentence encoded as it is written."""
        places = {label: place for place, label in enumerate(self.labels)}
        found, faults = [], ValidationErrors("The data")
        for sentence in data:
            try:
                encoding = checkpoint.encoder.encode(sentence.text, truncate=True, max_tokens=longest)
            except TextError as error:
                faults.add(sentence.line, str(error))
                continue
            words = placed(sentence, encoding)
            target = np.full(len(encoding), UNTAUGHT)
            for tag, unit in reversed([*zip(sentence.tags, words.units, strict=True)]):
                if unit != NOWHERE:
                    target[words.lens.units[unit].positions[0]] = places[tag]
            found.append(
                TrainingExample(ModelInputs(encoding.inputs, encoding.dropped), target, sentence.line)
            )
        faults.check()
        return found

    def right(self, examples: Sequence[TrainingExample], length: int) -> torch.Tensor:
        """Indices of labels, [text, token]."""
        rows = np.full((len(examples), length), UNTAUGHT)
        for row, example in zip(rows, examples, strict=True):
            row[: len(example)] = example.target
        return torch.from_numpy(rows)

    def answers(self, whole: Any, given: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the words' first pieces: [word, label] and [word]."""
        said, right = super().answers(whole, given)
        return said[right != UNTAUGHT], right[right != UNTAUGHT]
