"""Training of the head only, on vectors of the frozen encoder that are computed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from bert_probe.errors import UnavailableError
from bert_probe.model.forward import BATCH_TOKENS
from bert_probe.model.outputs import OutputHead
from bert_probe.training.objectives import IGNORE_INDEX, Objective, TrainingExample
from bert_probe.training.schedule import LengthBuckets, Schedule
from bert_probe.training.training_loop import TrainingLoop

EVALUATION_BATCH = 1024
"""Number of texts per batch when the head is evaluated."""

ReadFn = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Function from last hidden states [text, token, hidden] and their mask to the vectors that a head depends
on, [text, token or 1, hidden].
"""


def _read_all(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    return states


def _read_first(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    return states[:, :1]


def _read_mean(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weights = mask[..., None].to(states.dtype)
    return (states * weights).sum(dim=1, keepdim=True) / weights.sum(dim=1, keepdim=True)


@dataclass(frozen=True, eq=False)
class FrozenFeatures:
    """Encoder outputs for texts, reduced to the vectors that the head depends on.

    Attributes:
        states: one tensor [token, hidden] per text; a single tensor [text, 1, hidden] if the head depends on
            one vector per text.
        pooled: pooler outputs [text, hidden] if there is a pooler that cannot be run separately.
        targets: targets, one tensor per text.
    """

    states: list[torch.Tensor] | torch.Tensor
    pooled: torch.Tensor | None
    targets: list[torch.Tensor]


class LinearHead:
    """The head of a model, trained on vectors of the frozen encoder.

    The pooler is part of the head if it can be run separately on the encoder's last hidden states, as in
    BERT; otherwise the pooler outputs are stored with the vectors.
    """

    def __init__(self, full_model: Any, objective: Objective) -> None:
        self._whole, self._objective = full_model, objective
        self._head = OutputHead(objective.task, full_model)
        self._pooler: Any = getattr(full_model.base_model, "pooler", None)
        self._runs_pooler = False
        self._reading: ReadFn | None = None

    def frozen(self, examples: Sequence[TrainingExample], on_batch: Callable[[int], None]) -> FrozenFeatures:
        """Run the encoder and return the features for the head.

        Args:
            on_batch: called with the number of texts in each finished batch.

        Raises:
            UnavailableError: the head labels tokens and depends on more than each token's own vector.
        """
        device = next(self._whole.parameters()).device
        states = [torch.empty(0)] * len(examples)
        pooled, targets = list(states), list(states)
        for group in self._objective.groups(examples, BATCH_TOKENS):
            batch = self._objective.batch([examples[index] for index in group])
            targets_ = batch.pop("labels").to(device)
            inputs = {name: values.to(device) for name, values in batch.items()}
            lengths = torch.tensor([len(examples[index]) for index in group], device=device)
            mask = (torch.arange(inputs["input_ids"].shape[1], device=device) < lengths[:, None]).long()
            with torch.no_grad():
                outputs = self._whole.base_model(**inputs)
                last, pooler_output = outputs.last_hidden_state, getattr(outputs, "pooler_output", None)
                if self._reading is None:
                    self._reading = self._find_read_fn(last, mask, pooler_output, targets_)
                features = self._reading(last, mask)
            for row, index in enumerate(group):
                is_target = targets_[row] != IGNORE_INDEX
                is_token = mask[row, : features.shape[1]].bool()
                # Clone: a view would keep the whole batch in memory.
                states[index] = features[row][is_target if self._objective.of_tokens else is_token].clone()
                targets[index] = (
                    targets_[row][is_target].clone() if self._objective.of_tokens else targets_[row].clone()
                )
                if pooler_output is not None and not self._runs_pooler:
                    pooled[index] = pooler_output[row].clone()
            on_batch(len(group))
        has_pooled = self._pooler is not None and not self._runs_pooler
        has_single_vectors = not self._objective.of_tokens and self._reading is not _read_all
        return FrozenFeatures(
            torch.stack(states) if has_single_vectors and states else states,
            torch.stack(pooled) if has_pooled and pooled else None,
            targets,
        )

    def _find_read_fn(
        self, states: torch.Tensor, mask: torch.Tensor, pooled: torch.Tensor | None, targets: torch.Tensor
    ) -> ReadFn:
        """Return the function that selects the fewest vectors with which the head gives the same logits.

        Also set whether the pooler can be run separately.
        """
        if self._pooler is not None and pooled is not None:
            try:
                self._runs_pooler = _almost_equal(self._pooler(states), pooled)
            except (RuntimeError, TypeError, IndexError):  # poolers of other families may take other inputs
                self._runs_pooler = False
        logits = self._answer(states, mask, pooled)
        if self._objective.of_tokens:
            is_target = targets != IGNORE_INDEX
            from_targets = self._answer(
                states[is_target][None], torch.ones_like(mask[is_target][None]), pooled
            )
            if not _almost_equal(from_targets[0], logits[is_target]):
                raise UnavailableError(
                    f"The head of {type(self._whole).__name__} depends on more than each token's own "
                    "vector, so "
                    "it cannot be trained separately. Update the last layers too, for example top:1."
                )
            return _read_all
        mask_of_one = torch.ones_like(mask[:, :1])
        for read_fn in (_read_first, _read_mean):
            if _almost_equal(self._answer(read_fn(states, mask), mask_of_one, pooled), logits):
                return read_fn
        return _read_all

    def _answer(self, states: torch.Tensor, mask: torch.Tensor, pooled: torch.Tensor | None) -> torch.Tensor:
        if self._runs_pooler:
            pooled = self._pooler(states)
        return self._head.answer(
            {"input_ids": torch.zeros_like(mask), "attention_mask": mask}, states, pooled
        )

    def predict(self, frozen: FrozenFeatures, indices: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits and targets of some texts, one row per target."""
        targets = [frozen.targets[index] for index in indices]
        if isinstance(frozen.states, torch.Tensor):
            states = frozen.states[indices]
            mask = states.new_ones(states.shape[:2], dtype=torch.long)
        else:
            parts = [frozen.states[index] for index in indices]
            parts = [torch.cat(parts)] if self._objective.of_tokens else parts
            states = pad_sequence(parts, batch_first=True)
            lengths = torch.tensor([len(part) for part in parts])
            mask = (torch.arange(states.shape[1]) < lengths[:, None]).long().to(states.device)
        logits = self._answer(states, mask, None if frozen.pooled is None else frozen.pooled[indices])
        return (
            (logits[0], torch.cat(targets)) if self._objective.of_tokens else (logits, torch.stack(targets))
        )

    def train(self, frozen: FrozenFeatures, schedule: Schedule, seed: int, loop: TrainingLoop) -> None:
        """Train on the vectors until the training loop ends."""
        updated = [part for part in self._whole.parameters() if part.requires_grad]
        optimizer, learning_rates = schedule.optimizer(updated)
        order = LengthBuckets([len(state) for state in frozen.states], schedule.batch, seed)
        self._whole.train()
        step = 0
        for _ in range(schedule.epochs):
            for indices in order:
                logits, targets = self.predict(frozen, indices)
                loss = self._objective.loss(logits, targets)
                loss.backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(updated, 1.0)
                optimizer.step()
                learning_rates.step()
                optimizer.zero_grad()
                step += 1
                if loop.step(step, loss):
                    return

    def groups(self, count: int) -> list[range]:
        """Return the evaluation batches, as ranges of text indices."""
        return [
            range(start, min(start + EVALUATION_BATCH, count)) for start in range(0, count, EVALUATION_BATCH)
        ]


def _almost_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors are equal up to rounding of sums."""
    tolerance = 64 * torch.finfo(a.dtype).eps * max(1.0, float(b.abs().max()))
    return a.shape == b.shape and bool((a - b).abs().max() <= tolerance)
