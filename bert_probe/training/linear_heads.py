"""The head alone: the frozen encoder's vectors are computed once, and the head is taught on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from bert_probe.errors import UnavailableError
from bert_probe.model.forward import BATCH_TOKENS
from bert_probe.model.outputs import OutputHead
from bert_probe.training.objectives import UNTAUGHT, Objective, TrainingExample
from bert_probe.training.schedule import LengthBuckets, Schedule
from bert_probe.training.training_loop import TrainingLoop

_ASKED = 1024
"""Texts of which the head is asked at once."""

Reading = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From last hidden states [text, token, hidden] and their mask to as much of them as a head reads."""


def _all(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    return states


def _first(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    return states[:, :1]


def _mean(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    kept = mask[..., None].to(states.dtype)
    return (states * kept).sum(dim=1, keepdim=True) / kept.sum(dim=1, keepdim=True)


@dataclass(frozen=True, eq=False)
class FrozenFeatures:
    """What an encoder makes of texts, as much as the head reads.

    Attributes:
        states: of each text [token, hidden]; one tensor [text, 1, hidden] where the head reads one vector.
        pooled: [text, hidden], where the model has a pooler that cannot be run by itself.
        targets: of each text what is right.
    """

    states: list[torch.Tensor] | torch.Tensor
    pooled: torch.Tensor | None
    targets: list[torch.Tensor]


class LinearHead:
    """The head of a model, taught on the vectors that its encoder gives.

    A pooler between the two belongs to the head where it can be run by itself on what the encoder gives, as
    BERT's can; else what it gives is kept like the vectors.
    """

    def __init__(self, whole: Any, lesson: Objective) -> None:
        self._whole, self._lesson = whole, lesson
        self._head = OutputHead(lesson.task, whole)
        self._pooler: Any = getattr(whole.base_model, "pooler", None)
        self._runs_pooler = False
        self._reading: Reading | None = None

    def frozen(self, examples: Sequence[TrainingExample], told: Callable[[int], None]) -> FrozenFeatures:
        """What the encoder makes of texts; told how many more are done.

        Raises:
            UnavailableError: a head for tokens that looks at more than each by itself.
        """
        device = next(self._whole.parameters()).device
        states = [torch.empty(0)] * len(examples)
        pooled, targets = list(states), list(states)
        for group in self._lesson.groups(examples, BATCH_TOKENS):
            given = self._lesson.batch([examples[place] for place in group])
            right = given.pop("labels").to(device)
            inputs = {name: part.to(device) for name, part in given.items()}
            lengths = torch.tensor([len(examples[place]) for place in group], device=device)
            mask = (torch.arange(inputs["input_ids"].shape[1], device=device) < lengths[:, None]).long()
            with torch.no_grad():
                found = self._whole.base_model(**inputs)
                last, of_pooler = found.last_hidden_state, getattr(found, "pooler_output", None)
                if self._reading is None:
                    self._reading = self._looked(last, mask, of_pooler, right)
                read = self._reading(last, mask)
            for row, place in enumerate(group):
                taught = right[row] != UNTAUGHT
                whole = mask[row, : read.shape[1]].bool()
                # Copies: parts of a batch would hold all of it.
                states[place] = read[row][taught if self._lesson.of_tokens else whole].clone()
                targets[place] = right[row][taught].clone() if self._lesson.of_tokens else right[row].clone()
                if of_pooler is not None and not self._runs_pooler:
                    pooled[place] = of_pooler[row].clone()
            told(len(group))
        keeps_pooled = self._pooler is not None and not self._runs_pooler
        one_each = not self._lesson.of_tokens and self._reading is not _all
        return FrozenFeatures(
            torch.stack(states) if one_each and states else states,
            torch.stack(pooled) if keeps_pooled and pooled else None,
            targets,
        )

    def _looked(
        self, states: torch.Tensor, mask: torch.Tensor, pooled: torch.Tensor | None, right: torch.Tensor
    ) -> Reading:
        """The least from which the head says what it says of all; and whether the pooler runs by itself."""
        if self._pooler is not None and pooled is not None:
            try:
                self._runs_pooler = _same(self._pooler(states), pooled)
            except (RuntimeError, TypeError, IndexError):  # each family's pooler has a way of its own
                self._runs_pooler = False
        said = self._answer(states, mask, pooled)
        if self._lesson.of_tokens:
            taught = right != UNTAUGHT
            alone = self._answer(states[taught][None], torch.ones_like(mask[taught][None]), pooled)
            if not _same(alone[0], said[taught]):
                raise UnavailableError(
                    f"The head of {type(self._whole).__name__} looks at more than each token's vector. "
                    "Update the last layers too, as in top:1."
                )
            return _all
        one = torch.ones_like(mask[:, :1])
        for reading in (_first, _mean):
            if _same(self._answer(reading(states, mask), one, pooled), said):
                return reading
        return _all

    def _answer(self, states: torch.Tensor, mask: torch.Tensor, pooled: torch.Tensor | None) -> torch.Tensor:
        if self._runs_pooler:
            pooled = self._pooler(states)
        return self._head.answer(
            {"input_ids": torch.zeros_like(mask), "attention_mask": mask}, states, pooled
        )

    def answers(self, frozen: FrozenFeatures, places: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """What the head says of some texts, and what is right, a row for each thing that is taught."""
        targets = [frozen.targets[place] for place in places]
        if isinstance(frozen.states, torch.Tensor):
            states = frozen.states[places]
            mask = states.new_ones(states.shape[:2], dtype=torch.long)
        else:
            parts = [frozen.states[place] for place in places]
            parts = [torch.cat(parts)] if self._lesson.of_tokens else parts
            states = pad_sequence(parts, batch_first=True)
            lengths = torch.tensor([len(part) for part in parts])
            mask = (torch.arange(states.shape[1]) < lengths[:, None]).long().to(states.device)
        said = self._answer(states, mask, None if frozen.pooled is None else frozen.pooled[places])
        return (said[0], torch.cat(targets)) if self._lesson.of_tokens else (said, torch.stack(targets))

    def teach(self, frozen: FrozenFeatures, pace: Schedule, seed: int, course: TrainingLoop) -> None:
        """Steps over the vectors until the course ends."""
        updated = [part for part in self._whole.parameters() if part.requires_grad]
        optimizer, schedule = pace.optimizer(updated)
        order = LengthBuckets([len(state) for state in frozen.states], pace.batch, seed)
        self._whole.train()
        done = 0
        for _ in range(pace.epochs):
            for places in order:
                said, right = self.answers(frozen, places)
                loss = self._lesson.loss(said, right)
                loss.backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(updated, 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                done += 1
                if course.step(done, loss):
                    return

    def groups(self, count: int) -> list[range]:
        """Places of texts in groups of which the head is asked at once."""
        return [range(start, min(start + _ASKED, count)) for start in range(0, count, _ASKED)]


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal but for the order in which sums are made."""
    few = 64 * torch.finfo(one.dtype).eps * max(1.0, float(other.abs().max()))
    return one.shape == other.shape and bool((one - other).abs().max() <= few)
