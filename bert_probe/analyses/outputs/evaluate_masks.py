"""Evaluation of a masked-language-modeling head: how often it predicts the masked tokens of a text file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.outputs import head_predictions
from bert_probe.analyses.outputs.fill_mask import mask_token
from bert_probe.analyses.outputs.lens_training import encode_lines, mask_tokens
from bert_probe.core.field_types import Choice, Number
from bert_probe.core.inputs import SentenceList
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import EmptyTextError, ShapeError, UnavailableError
from bert_probe.model.checkpoint import FILL_MASK, Checkpoint
from bert_probe.model.encoding import ModelInputs
from bert_probe.model.forward import BATCH_TOKENS, batch, forward, group_by_length
from bert_probe.model.outputs import OutputHead, output_head
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, read_only
from bert_probe.text.sentence_files import with_line_numbers

TOP_K = 5
"""Value of k in top-k accuracy: the masked token must be among the k most probable tokens."""
CHUNK_SIZE = 256
"""Number of masks whose logits over the whole vocabulary are in memory at a time."""

TABLES: Mapping[str, str] = {
    "measures": "Accuracy of the predictions at masks, and their mean cross-entropy in bits.",
    "masks": "Each masked token with its rank, its probability, and the top prediction.",
}


@question("mask evaluation", command="evaluate")
class EvaluateMasks(Question):
    """Accuracy of the predictions for masked tokens.

    In each line 15% of the tokens, at least one, are masked at the same time, as in BERT's training (Devlin
    et al. 2019). Special and unknown tokens are never masked.

    Attributes:
        seed: random seed that selects the masked tokens.
        show: the table to return; see `TABLES`.
    """

    inputs = SentenceList()

    seed: int = param(Number(0), default=0, about="Seed that selects the masked tokens.  [default: 0]")
    show: str = param(Choice(TABLES), default="measures", about="Table to show.", display_only=True)

    def of(
        self,
        checkpoint: Checkpoint,
        sentences: Sequence[str],
        truncate: bool = False,
        progress: Progress = no_progress,
    ) -> EvaluateMasksResult:
        """Mask tokens of the lines and compare them with the head's predictions.

        Args:
            sentences: the lines; blank lines are skipped.
            truncate: truncate lines that are too long instead of raising an error.
            progress: called with the number of lines done and the total.

        Raises:
            UnavailableError: the checkpoint has no masked-language-modeling head or mask token, or its
                predictions are not finite.
            EmptyTextError: there are no lines, or no line has a token that can be masked.
            TextError: a line cannot be encoded.
            OutOfMemoryError: there is not enough memory.
        """
        checkpoint = checkpoint.snapshot()
        output = output_head(checkpoint, FILL_MASK)
        mask_token(checkpoint)
        lines = with_line_numbers(sentences, "line")
        originals = encode_lines(checkpoint, lines, truncate)
        tokenizer, random = checkpoint.tokenizer, np.random.default_rng(self.seed)
        texts = [
            mask_tokens(text, tokenizer.all_special_ids, tokenizer.mask_token_id, random)
            for text in originals
        ]
        masks = [
            np.flatnonzero(text.inputs["input_ids"] != original.inputs["input_ids"])
            for text, original in zip(texts, originals, strict=True)
        ]
        if not sum(map(len, masks)):
            raise EmptyTextError(
                "No line has a token that can be masked. Use lines with words from the model's vocabulary."
            )
        predictions: list[list[_MaskPrediction]] = [[] for _ in lines]
        done = 0
        progress(done, len(lines))
        for group in group_by_length([len(text) for text in texts], BATCH_TOKENS, checkpoint.pads):
            in_group = _predict(
                checkpoint, output, [texts[index] for index in group], [originals[index] for index in group]
            )
            for index in group:
                predictions[index] = [next(in_group) for _ in masks[index]]
            done += len(group)
            progress(done, len(lines))
        ranks, logs, top_ids = (
            np.array(values) for values in zip(*(row for rows in predictions for row in rows), strict=True)
        )
        counts = [len(positions) for positions in masks]
        inputs = InputRecord.of_sentences(
            checkpoint, [text for _, text in lines], sum(original.dropped for original in originals)
        )
        masked_ids = [
            original.inputs["input_ids"][positions]
            for original, positions in zip(originals, masks, strict=True)
        ]
        return EvaluateMasksResult(
            self,
            inputs,
            read_only(np.repeat([number for number, _ in lines], counts)),
            read_only(np.concatenate(masks)),
            _tokens(checkpoint, masked_ids),
            _tokens(checkpoint, [top_ids]),
            read_only(ranks),
            read_only(logs),
        )


# Rank of the masked token, its log probability in nats, and the id of the top prediction.
_MaskPrediction = tuple[int, float, int]


def _predict(
    checkpoint: Checkpoint, output: OutputHead, texts: Sequence[ModelInputs], originals: Sequence[ModelInputs]
) -> Iterator[_MaskPrediction]:
    """Yield the prediction for each masked token of a batch of texts, in their order."""
    outputs, _ = forward(checkpoint, texts)
    inputs = batch(checkpoint, texts)
    true = batch(checkpoint, originals)["input_ids"]
    is_mask = true != inputs["input_ids"]
    with torch.inference_mode(), checkpoint.running():
        states = outputs.last_hidden_state[is_mask]
        for start in range(0, len(states), CHUNK_SIZE):
            chunk = slice(start, start + CHUNK_SIZE)
            # The head is applied only at masks, because its output is as wide as the vocabulary.
            chunk_inputs = {name: values[is_mask][chunk][None] for name, values in inputs.items()}
            logits = output.answer(chunk_inputs, states[chunk][None], None)[0].double()
            if not torch.isfinite(logits).all():
                raise UnavailableError(
                    f"The head of {checkpoint.description.name} predicts values that are not finite, so "
                    f"the head "
                    "cannot be evaluated. Use float32, or train the head with a lower learning rate."
                )
            score = logits.gather(1, true[is_mask][chunk][:, None])
            ranks = (logits > score).sum(dim=1) + 1
            logs = (score - logits.logsumexp(dim=1, keepdim=True))[:, 0]
            yield from zip(ranks.tolist(), logs.tolist(), logits.argmax(dim=1).tolist(), strict=True)


def _tokens(checkpoint: Checkpoint, ids: Sequence[Array]) -> tuple[str, ...]:
    return tuple(checkpoint.tokenizer.convert_ids_to_tokens(np.concatenate(ids).tolist()))


@dataclass(frozen=True, eq=False, repr=False)
class EvaluateMasksResult(Result):
    """The predictions for masked tokens. All arrays have shape [mask].

    Attributes:
        lines: line number of each mask, from 1.
        positions: token position of each mask in its line, from 0.
        tokens: the tokens that were masked.
        guesses: the top predictions.
        ranks: rank of the masked token in the vocabulary, from 1.
        logs: log probability of the masked token, in nats, float64.
    """

    question: EvaluateMasks
    lines: Array
    positions: Array
    tokens: tuple[str, ...]
    guesses: tuple[str, ...]
    ranks: Array
    logs: Array

    def __post_init__(self) -> None:
        count = len(self.tokens)
        if {len(self.lines), len(self.positions), len(self.guesses), len(self.ranks), len(self.logs)} != {
            count
        }:
            raise ShapeError(
                f"lines, positions, guesses, ranks and logs must have one value for each of {count} masks."
            )

    @property
    def measures(self) -> Mapping[str, float]:
        """Mapping from the name of each measure to its value.

        first_guess is the accuracy, with its 95% interval. among_5 is the top-5 accuracy. bits is the mean
        cross-entropy. most_frequent_first_guess is the accuracy of always predicting the most frequent masked
        token.
        """
        correct = int((self.ranks == 1).sum())
        low, high = head_predictions.wilson_interval(correct, len(self.ranks))
        most_frequent = Counter(self.tokens).most_common(1)[0][1]
        return {
            "first_guess": correct / len(self.ranks),
            "first_guess_low": low,
            "first_guess_high": high,
            f"among_{TOP_K}": float((self.ranks <= TOP_K).mean()),
            "bits": float(-self.logs.mean() / np.log(2)),
            "most_frequent_first_guess": most_frequent / len(self.ranks),
            "masks": len(self.ranks),
        }

    def frame(self) -> pd.DataFrame:
        """Return the table selected by ``show``; see `TABLES`."""
        if self.question.show == "measures":
            measures = self.measures
            return pd.DataFrame(
                {"measure": pd.Series([*measures], dtype=object), "value": [*measures.values()]}
            )
        columns: dict[str, Any] = {
            "line": self.lines,
            "position": self.positions,
            "token": pd.Series(self.tokens, dtype=object),
            "rank": self.ranks,
            "probability": np.exp(self.logs),
            "guess": pd.Series(self.guesses, dtype=object),
        }
        return pd.DataFrame(columns)
