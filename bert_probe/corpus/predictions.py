"""What a model's trained head says of each sentence: its classes, or the likeliest label of each token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from bert_probe.analyses.outputs.classify_text import PROBABILITIES, problem_of
from bert_probe.analyses.outputs.prediction import softmax
from bert_probe.corpus.tokenization import ReadRecord
from bert_probe.errors import UnavailableError
from bert_probe.model.checkpoint import CLASSIFYING, LABELLING, Checkpoint
from bert_probe.model.forward import as_array
from bert_probe.model.outputs import OutputHead
from bert_probe.model.trace import Array


class BatchPredictions:
    """The answers of a head, taken a batch at a time.

    Args:
        output: for classes of texts, or for labels of tokens.
    """

    def __init__(self, output: OutputHead) -> None:
        self._output = output
        self._logits: dict[int, Array] = {}

    def take(
        self, group: Sequence[int], read: Sequence[ReadRecord], inputs: Mapping[str, torch.Tensor], given: Any
    ) -> None:
        """Those of one pass.

        Args:
            group: which sentences these are.
            given: what the encoder made of them.

        Raises:
            UnavailableError: numbers that are not finite.
        """
        pooled = getattr(given, "pooler_output", None)
        answers = as_array(self._output.answer(inputs, given.last_hidden_state, pooled))
        for number, one, logits in zip(group, read, answers, strict=True):
            own = logits[: len(one.encoding)] if self._of_tokens else logits
            if not np.isfinite(own).all():
                raise UnavailableError(
                    f"The {self._output.task} head gives numbers that are not finite for line "
                    f"{one.record.line:,} of {one.record.file}. Use float32, or leave answers out."
                )
            self._logits[number] = own.copy()  # a view would hold the whole batch

    @property
    def _of_tokens(self) -> bool:
        return self._output.task == LABELLING

    def columns(self, read: Sequence[ReadRecord]) -> dict[str, list[Any]]:
        """Of the table of answers, a line an answer."""
        lines = [line for number, one in enumerate(read) for line in self._lines(one, self._logits[number])]
        names = ("row", "position", "label", "logit", "probability")
        columns = zip(*lines, strict=True) if lines else ((),) * len(names)
        return {name: list(column) for name, column in zip(names, columns, strict=True)}

    def _lines(self, read: ReadRecord, logits: Array) -> list[tuple[Any, ...]]:
        row, names = read.record.row, self._output.labels
        if not self._of_tokens:
            shares = PROBABILITIES[problem_of(self._output)](logits)
            told = zip(names, logits.tolist(), shares.tolist(), strict=True)
            return [
                (row, None, label, logit, None if share != share else share) for label, logit, share in told
            ]
        best, shares = logits.argmax(axis=-1), softmax(logits)
        return [
            (row, token.position + 1, names[place], float(logits[at, place]), float(shares[at, place]))
            for at, (token, place) in enumerate(zip(read.encoding.tokens, best.tolist(), strict=True))
            if not token.special
        ]


def answering(checkpoint: Checkpoint) -> BatchPredictions:
    """Use the classification head, or else the token classification head; `IngestConfig.of` checks both."""
    return BatchPredictions(checkpoint.outputs.get(CLASSIFYING) or checkpoint.outputs[LABELLING])
