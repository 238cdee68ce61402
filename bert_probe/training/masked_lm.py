"""Words that were masked, to be guessed: BERT's own task (Devlin et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from bert_probe.errors import TextError, UnavailableError
from bert_probe.model.checkpoint import FILLING, Checkpoint
from bert_probe.model.encoding import ModelInputs
from bert_probe.model.outputs import OutputHead
from bert_probe.text.sentence_files import numbered
from bert_probe.text.validation import ValidationErrors
from bert_probe.training.objectives import UNTAUGHT, Objective, TrainingExample

SHARE = 0.15
"""Of a text's tokens, those that are to be guessed; one at least."""
MASKED, OTHER = 0.8, 0.1
"""Of these, the share that becomes the mask, and the share that becomes any token; the rest stay."""


class MaskedLmObjective(Objective):
    """Masked words; which ones is drawn anew each time that a text is taught, and once for what is held out.

    The target of an example is the index of each token's word, -1 for special tokens.

    Args:
        whole_words: mask all pieces of a word or none.
    """

    task = FILLING

    def __init__(self, checkpoint: Checkpoint, seed: int, whole_words: bool) -> None:
        mask = checkpoint.tokenizer.mask_token_id
        if mask is None:
            raise UnavailableError(
                f"The tokenizer of {checkpoint.description.name} has no mask token, so nothing can be "
                "masked. Choose another model."
            )
        self.measure = "first guess"
        self.padding, self.pads = checkpoint.padding, checkpoint.pads
        self._mask, self._whole_words = mask, whole_words
        self._vocabulary = len(checkpoint.tokenizer)
        self._random = torch.Generator().manual_seed(seed)

    def examples(
        self, checkpoint: Checkpoint, data: Sequence[str], longest: int | None
    ) -> list[TrainingExample]:
        """Each line encoded."""
        found, faults = [], ValidationErrors("The data")
        for line, text in numbered(data, "text"):
            try:
                encoding = checkpoint.encoder.encode(text, truncate=True, max_tokens=longest)
            except TextError as error:
                faults.add(line, str(error))
                continue
            words = np.array(
                [-1 if token.special or token.word is None else token.word for token in encoding.tokens]
            )
            found.append(TrainingExample(ModelInputs(encoding.inputs, encoding.dropped), words, line))
        faults.check()
        return found

    def usual(
        self, taught: Sequence[TrainingExample], held_out: Sequence[TrainingExample]
    ) -> tuple[int, float]:
        """The most frequent token of what is taught, and the share of what is held out that it is: about as
        often it would be right, were it the guess for every one."""
        known, asked = (
            np.concatenate([np.asarray(one.inputs.inputs["input_ids"])[one.target >= 0] for one in part])
            for part in (taught, held_out)
        )
        most = int(np.bincount(known).argmax())
        return most, float((asked == most).mean())

    def batch(self, examples: Sequence[TrainingExample]) -> dict[str, torch.Tensor]:
        """With tokens masked, and what these were."""
        given = super().batch(examples)
        ids, chosen = given["input_ids"], given["labels"] != UNTAUGHT
        given["labels"][chosen] = ids[chosen]
        dice = torch.rand(int(chosen.sum()), generator=self._random)
        others = torch.randint(self._vocabulary, dice.shape, generator=self._random)
        masked = torch.where(dice < MASKED, torch.full_like(others, self._mask), ids[chosen])
        ids[chosen] = torch.where((dice >= MASKED) & (dice < MASKED + OTHER), others, masked)
        return given

    def right(self, examples: Sequence[TrainingExample], length: int) -> torch.Tensor:
        """0 at what is to be guessed, `UNTAUGHT` elsewhere: [text, token]."""
        rows = torch.full((len(examples), length), UNTAUGHT)
        for row, example in zip(rows, examples, strict=True):
            row[self._drawn(example.target)] = 0
        return rows

    def _drawn(self, words: Any) -> torch.Tensor:
        """Positions of a text's tokens that are to be guessed."""
        places = torch.from_numpy(np.flatnonzero(words >= 0))
        count = max(1, round(SHARE * len(places)))
        order = places[torch.randperm(len(places), generator=self._random)]
        if not self._whole_words:
            return order[:count]
        taken: list[int] = []
        for place in order.tolist():
            if len(taken) >= count:
                break
            if place not in taken:
                taken += np.flatnonzero(words == words[place]).tolist()
        return torch.tensor(taken, dtype=torch.long)

    def answers(self, whole: Any, given: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the tokens that are to be guessed alone, [token, word]: for all others the head, as large as the
        vocabulary, would cost more than the encoder."""
        asked = given["labels"] != UNTAUGHT
        inputs = {name: values for name, values in given.items() if name != "labels"}
        states = whole.base_model(**inputs).last_hidden_state[asked][None]
        of_head = {name: values[asked][None] for name, values in inputs.items()}
        return OutputHead(FILLING, whole).answer(of_head, states, None)[0], given["labels"][asked]
