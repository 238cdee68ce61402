"""The training loop: progress, evaluation on held-out texts, best checkpoint, and early stopping."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from bert_probe.errors import UnavailableError
from bert_probe.model.progress import Cancelled, Progress
from bert_probe.training.objectives import Objective

EVALUATIONS = 6
"""Minimum number of evaluations in a training run that has at least as many steps."""

EARLY, STOPPED, DIVERGED = "early", "stopped", "diverged"


@dataclass(frozen=True)
class EvaluationPoint:
    """An evaluation during training.

    Attributes:
        step: number of completed steps.
        epoch: number of completed passes over the data; may be fractional.
        loss: mean training loss since the last evaluation.
        held_out_loss, measure: mean loss and measure on the held-out texts; NaN if there are none.
        seconds: time since the training loop was created.
    """

    step: int
    epoch: float
    loss: float
    held_out_loss: float
    measure: float
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON, with None for values that are not finite."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }


OnEvaluation = Callable[[EvaluationPoint], None]
"""Called after each evaluation."""


def ignore_evaluation(evaluation: EvaluationPoint) -> None:
    """Do nothing; the default callback for evaluations."""


class TrainingLoop:
    """Handles progress, evaluation, the best checkpoint and early stopping after each training step.

    Attributes:
        history: all evaluations.
        best: the evaluation of the best checkpoint; None before the first evaluation.
        ended: why the training ended early: "", `EARLY`, `STOPPED` or `DIVERGED`.
    """

    def __init__(
        self,
        updated: Mapping[str, torch.nn.Parameter],
        held_out: Callable[[Callable[[], None]], tuple[float, float]],
        steps: int,
        epochs: int,
        patience: int,
        progress: Progress,
        on_evaluation: OnEvaluation,
        before: int = 0,
    ) -> None:
        """Start a training.

        Args:
            updated: trainable parameters by name.
            held_out: function that evaluates the held-out texts and returns loss and measure; it calls its
                argument regularly, so that progress is reported.
            patience: consecutive evaluations without a better measure or a lower loss, after which training
                ends.
            progress: called with the completed and the total amount of work.
            on_evaluation: called after each evaluation.
            before: amount of work already reported before the first step.
        """
        self.history: list[EvaluationPoint] = []
        self.best: EvaluationPoint | None = None
        self.ended = ""
        self._updated, self._held_out, self._patience = updated, held_out, patience
        self._steps, self._epochs = steps, epochs
        self._progress, self._on_evaluation, self._before = progress, on_evaluation, before
        times = max(EVALUATIONS, epochs)
        self._due = {math.ceil(steps * number / times) for number in range(1, times + 1)}
        self._losses: list[torch.Tensor] = []
        self._best_weights: dict[str, torch.Tensor] = {}
        self._lowest_loss, self._since_improvement = math.inf, 0
        self._start = time.monotonic()

    def step(self, done: int, loss: torch.Tensor) -> bool:
        """Process a completed step, and return whether the training must end."""
        self._losses.append(loss.detach())
        try:
            self._report_progress(done)
            if done in self._due:
                self._evaluate(done)
        except Cancelled:
            if self.best is None:
                raise
            self.ended = STOPPED
        return bool(self.ended)

    def _report_progress(self, done: int) -> None:
        self._progress(self._before + done, self._before + self._steps)

    def _evaluate(self, done: int) -> None:
        held_out_loss, measure = self._held_out(lambda: self._report_progress(done))
        loss = float(torch.stack(self._losses).mean())
        self._losses.clear()
        seconds = time.monotonic() - self._start
        if not math.isfinite(loss):
            self._diverged(done)
            return
        evaluation = EvaluationPoint(
            done, self._epochs * done / self._steps, loss, held_out_loss, measure, seconds
        )
        self.history.append(evaluation)
        is_better = self.best is None or _rank(evaluation) > _rank(self.best)
        improves = is_better or evaluation.held_out_loss < self._lowest_loss
        self._lowest_loss = min(self._lowest_loss, evaluation.held_out_loss)
        self._since_improvement = 0 if improves else self._since_improvement + 1
        if is_better:
            self.best = evaluation
            for name, parameter in self._updated.items():
                copy = self._best_weights.setdefault(name, torch.empty_like(parameter, requires_grad=False))
                copy.copy_(parameter.detach())
        elif self._since_improvement == self._patience:
            self.ended = EARLY
        self._on_evaluation(evaluation)

    def _diverged(self, done: int) -> None:
        if self.best is None:
            raise UnavailableError(
                f"The loss is not finite after {done:,} steps. Choose a lower learning rate."
            )
        self.ended = DIVERGED

    def restore_best(self) -> None:
        """Restore the weights of the best checkpoint."""
        with torch.no_grad():
            for name, parameter in self._updated.items():
                parameter.copy_(self._best_weights[name])


def _rank(evaluation: EvaluationPoint) -> tuple[float, ...]:
    """Return a sort key, higher is better: the measure, then the negative held-out loss; NaN is worst.

    Without held-out texts the latest evaluation is best.
    """
    if math.isnan(evaluation.held_out_loss):
        return (-math.inf, evaluation.step)
    return (-math.inf if math.isnan(evaluation.measure) else evaluation.measure, -evaluation.held_out_loss)


PredictFn = Callable[[], tuple[torch.Tensor, torch.Tensor]]
"""Returns logits and targets of a batch, one row per target."""


def make_evaluator(
    objective: Objective, full_model: Any, batches: Sequence[PredictFn]
) -> Callable[[Callable[[], None]], tuple[float, float]]:
    """Return a function that evaluates the model without dropout and returns mean loss and measure.

    Both are NaN if there are no held-out texts. The function calls its argument before each batch.
    """

    def evaluate(on_batch: Callable[[], None]) -> tuple[float, float]:
        full_model.eval()
        losses, counts, predictions, all_targets = [], [], [], []
        with torch.no_grad():
            for predict in batches:
                on_batch()
                logits, targets = predict()
                losses.append(float(objective.loss(logits, targets)) if len(targets) else 0.0)
                counts.append(len(targets))
                predictions.append(objective.predictions(logits).cpu().numpy())
                all_targets.append(targets.cpu().numpy())
        full_model.train()
        if not sum(counts):
            return float("nan"), float("nan")
        measure = objective.score(np.concatenate(predictions), np.concatenate(all_targets))
        return float(np.average(losses, weights=counts)), measure

    return evaluate
