"""A training as it goes: what it reports, when it asks the held-out texts, the best so far, and its end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from bert_probe.errors import UnavailableError
from bert_probe.model.progress import Cancelled, Progress

EVALUATIONS = 6
"""Times that the held-out texts are asked, at least, if there are so many steps."""

EARLY, STOPPED, DIVERGED = "early", "stopped", "diverged"


@dataclass(frozen=True)
class EvaluationPoint:
    """How far the training is.

    Attributes:
        step: steps done; epoch: how often each text was seen.
        loss: mean over the steps since the last evaluation.
        held_out_loss, measure: on the held-out texts; NaN where there are none.
        seconds: since the first step.
    """

    step: int
    epoch: float
    loss: float
    held_out_loss: float
    measure: float
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """For JSON, which has no NaN."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }


Told = Callable[[EvaluationPoint], None]
"""Called after each evaluation."""


def unheard(evaluation: EvaluationPoint) -> None:
    """A `Told` for a training that nobody watches."""


class TrainingLoop:
    """Follows a training, step by step.

    Attributes:
        history: all evaluations.
        best: the one whose weights are kept; None before the first.
        ended: why it ended before its last step: "", `EARLY`, `STOPPED` or `DIVERGED`.
    """

    def __init__(
        self,
        updated: Mapping[str, torch.nn.Parameter],
        held_out: Callable[[Callable[[], None]], tuple[float, float]],
        steps: int,
        epochs: int,
        patience: int,
        report: Progress,
        told: Told,
        before: int = 0,
    ) -> None:
        """Begin.

        Args:
            updated: parameters that change.
            held_out: gives loss and measure; calls its argument now and then, as it goes.
            patience: evaluations in a row with neither a better measure nor a smaller loss than any before,
                after which it ends.
            before: what the report has counted already.
        """
        self.history: list[EvaluationPoint] = []
        self.best: EvaluationPoint | None = None
        self.ended = ""
        self._updated, self._held_out, self._patience = updated, held_out, patience
        self._steps, self._epochs = steps, epochs
        self._report, self._told, self._before = report, told, before
        times = max(EVALUATIONS, epochs)
        self._due = {math.ceil(steps * number / times) for number in range(1, times + 1)}
        self._losses: list[torch.Tensor] = []
        self._kept: dict[str, torch.Tensor] = {}
        self._least, self._without = math.inf, 0
        self._start = time.monotonic()

    def step(self, done: int, loss: torch.Tensor) -> bool:
        """After each step, of which so many are done; whether the training ends here."""
        self._losses.append(loss.detach())
        try:
            self._tell(done)
            if done in self._due:
                self._evaluate(done)
        except Cancelled:
            if self.best is None:
                raise
            self.ended = STOPPED
        return bool(self.ended)

    def _tell(self, done: int) -> None:
        self._report(self._before + done, self._before + self._steps)

    def _evaluate(self, done: int) -> None:
        held_out_loss, measure = self._held_out(lambda: self._tell(done))
        loss = float(torch.stack(self._losses).mean())
        self._losses.clear()
        seconds = time.monotonic() - self._start
        if not math.isfinite(loss):
            self._diverged(done)
            return
        found = EvaluationPoint(
            done, self._epochs * done / self._steps, loss, held_out_loss, measure, seconds
        )
        self.history.append(found)
        better = self.best is None or _rank(found) > _rank(self.best)
        hopeful = better or found.held_out_loss < self._least
        self._least = min(self._least, found.held_out_loss)
        self._without = 0 if hopeful else self._without + 1
        if better:
            self.best = found
            for name, part in self._updated.items():
                kept = self._kept.setdefault(name, torch.empty_like(part, requires_grad=False))
                kept.copy_(part.detach())
        elif self._without == self._patience:
            self.ended = EARLY
        self._told(found)

    def _diverged(self, done: int) -> None:
        if self.best is None:
            raise UnavailableError(
                f"After {done:,} steps the loss is no finite number any more. Choose a smaller learning rate."
            )
        self.ended = DIVERGED

    def settle(self) -> None:
        """Put the best weights back."""
        with torch.no_grad():
            for name, part in self._updated.items():
                part.copy_(self._kept[name])


def _rank(found: EvaluationPoint) -> tuple[float, ...]:
    """The larger the better: the measure, then the loss; what is no number is worst. Without held-out texts,
    which have no loss, the latest is best."""
    if math.isnan(found.held_out_loss):
        return (-math.inf, found.step)
    return (-math.inf if math.isnan(found.measure) else found.measure, -found.held_out_loss)
