"""How well a masked-word head guesses: words of a reader's lines are masked, and held against its guesses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.outputs import scores
from bert_probe.analyses.outputs.fill_mask import mask_of
from bert_probe.analyses.outputs.lens_training import inputs_of, masked
from bert_probe.core.field_types import Choice, Number
from bert_probe.core.inputs import SentenceList
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import EmptyTextError, ShapeError, UnavailableError
from bert_probe.model.checkpoint import FILLING, Checkpoint
from bert_probe.model.encoding import ModelInputs
from bert_probe.model.forward import BATCH_TOKENS, batch, batches, forward
from bert_probe.model.outputs import OutputHead, output_of
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, read_only
from bert_probe.text.sentence_files import numbered

AMONG = 5
"""How many guesses a word is looked for among, beside the first."""
_AT_ONCE = 256
"""Masks whose scores, one for each word of the vocabulary, are held at a time."""

SHOWS: Mapping[str, str] = {
    "measures": "How often the masked token is guessed, and in how many bits it is told.",
    "masks": "Each masked token with its rank, its probability, and what is guessed first.",
}


@question("masked words of lines", command="evaluate")
class EvaluateMasks(Question):
    """How often masked tokens are guessed rightly (Devlin et al. 2019 mask 15 % in training).

    Of each line 15 % of the tokens, one at least, are replaced by the mask, all at once; special and unknown
    tokens stay.

    Attributes:
        seed: of which tokens are masked.
        show: which table; see `SHOWS`.
    """

    inputs = SentenceList()

    seed: int = param(Number(0), default=0, about="Of which tokens are masked.  [default: 0]")
    show: str = param(
        Choice(SHOWS), default="measures", option="--what", about="Which table.", display_only=True
    )

    def of(
        self,
        checkpoint: Checkpoint,
        sentences: Sequence[str],
        truncate: bool = False,
        report: Progress = no_progress,
    ) -> EvaluateMasksResult:
        """Mask, ask, and compare.

        Args:
            sentences: one an entry; blank ones do not count.
            truncate: cut lines that are too long instead of refusing them.
            report: told how many lines are done, and of how many.

        Raises:
            UnavailableError: no head for masked words, no mask, numbers that are not finite.
            EmptyTextError, TextError: no line, none with a word to mask, or some that cannot be read.
            OutOfMemoryError: the machine is too small.
        """
        checkpoint = checkpoint.now()
        output = output_of(checkpoint, FILLING)
        mask_of(checkpoint)
        lines = numbered(sentences, "line")
        given = inputs_of(checkpoint, lines, truncate)
        texts = _masked(checkpoint, given, self.seed)
        places = [
            np.flatnonzero(text.inputs["input_ids"] != one.inputs["input_ids"])
            for text, one in zip(texts, given, strict=True)
        ]
        if not sum(map(len, places)):
            raise EmptyTextError("No line has a word that can be masked. Give words that the model knows.")
        found: list[list[_Guess]] = [[] for _ in lines]
        done = 0
        report(done, len(lines))
        for group in batches([len(text) for text in texts], BATCH_TOKENS, checkpoint.pads):
            asked_of, right = [texts[index] for index in group], [given[index] for index in group]
            guesses = _asked(checkpoint, output, asked_of, right)
            for index in group:
                found[index] = [next(guesses) for _ in places[index]]
            done += len(group)
            report(done, len(lines))
        every = [guess for guesses in found for guess in guesses]
        rank, log, first = (np.array(values) for values in zip(*every, strict=True))
        counts = [len(own) for own in places]
        subject = InputRecord.of_sentences(
            checkpoint, [text for _, text in lines], sum(one.dropped for one in given)
        )
        return EvaluateMasksResult(
            self,
            subject,
            read_only(np.repeat([number for number, _ in lines], counts)),
            read_only(np.concatenate(places)),
            _tokens(
                checkpoint, [one.inputs["input_ids"][own] for one, own in zip(given, places, strict=True)]
            ),
            _tokens(checkpoint, [first]),
            read_only(rank),
            read_only(log),
        )


_Guess = tuple[int, float, int]
"""Rank of the masked token, its log probability in nats, and the token that is guessed first."""


def _masked(checkpoint: Checkpoint, texts: Sequence[ModelInputs], seed: int) -> list[ModelInputs]:
    tokenizer, random = checkpoint.tokenizer, np.random.default_rng(seed)
    return [masked(text, tokenizer.all_special_ids, tokenizer.mask_token_id, random) for text in texts]


def _asked(
    checkpoint: Checkpoint, output: OutputHead, texts: Sequence[ModelInputs], right: Sequence[ModelInputs]
) -> Iterator[_Guess]:
    """What the head says of each token of some texts that is not what is right, in their order."""
    given, _ = forward(checkpoint, texts)
    inputs = batch(checkpoint, texts)
    true = batch(checkpoint, right)["input_ids"]
    at = true != inputs["input_ids"]
    with torch.inference_mode(), checkpoint.running():
        states = given.last_hidden_state[at]
        for begin in range(0, len(states), _AT_ONCE):
            part = slice(begin, begin + _AT_ONCE)
            # Of these vectors alone: for all others the head, as large as the vocabulary, would cost most.
            own = {name: values[at][part][None] for name, values in inputs.items()}
            logits = output.answer(own, states[part][None], None)[0].double()
            if not torch.isfinite(logits).all():
                raise UnavailableError(
                    f"The head of {checkpoint.description.name} gives numbers that are not finite, so it "
                    "cannot be judged. Use float32, or train it with a lower learning rate."
                )
            score = logits.gather(1, true[at][part][:, None])
            ranks = (logits > score).sum(dim=1) + 1
            logs = (score - logits.logsumexp(dim=1, keepdim=True))[:, 0]
            yield from zip(ranks.tolist(), logs.tolist(), logits.argmax(dim=1).tolist(), strict=True)


def _tokens(checkpoint: Checkpoint, ids: Sequence[Array]) -> tuple[str, ...]:
    return tuple(checkpoint.tokenizer.convert_ids_to_tokens(np.concatenate(ids).tolist()))


@dataclass(frozen=True, eq=False, repr=False)
class EvaluateMasksResult(Result):
    """Guesses for masked tokens; all arrays are [mask].

    Attributes:
        lines: from 1, in which each was masked.
        positions: of each in its line's tokens, from 0.
        tokens: that were masked; guesses: that the head holds the likeliest.
        ranks: of the masked token among the vocabulary's, from 1.
        logs: of its probability, in nats, float64.
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
                f"{count} masks need as many lines, positions, guesses, ranks and probabilities."
            )

    @property
    def measures(self) -> Mapping[str, float]:
        """Name → value: shares with the interval of the first, bits of a masked token, and what one and the
        same guess for every mask would reach at best."""
        right = int((self.ranks == 1).sum())
        low, high = scores.interval(right, len(self.ranks))
        usual = Counter(self.tokens).most_common(1)[0][1]
        return {
            "first_guess": right / len(self.ranks),
            "first_guess_low": low,
            "first_guess_high": high,
            f"among_{AMONG}": float((self.ranks <= AMONG).mean()),
            "bits": float(-self.logs.mean() / np.log(2)),
            "most_frequent_first_guess": usual / len(self.ranks),
            "masks": len(self.ranks),
        }

    def frame(self) -> pd.DataFrame:
        """The table that the question asks for; see `SHOWS`."""
        if self.question.show == "measures":
            found = self.measures
            return pd.DataFrame({"measure": pd.Series([*found], dtype=object), "value": [*found.values()]})
        columns: dict[str, Any] = {
            "line": self.lines,
            "position": self.positions,
            "token": pd.Series(self.tokens, dtype=object),
            "rank": self.ranks,
            "probability": np.exp(self.logs),
            "guess": pd.Series(self.guesses, dtype=object),
        }
        return pd.DataFrame(columns)
