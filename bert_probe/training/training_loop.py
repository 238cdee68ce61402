"""Training loops: the transformers Trainer, and a loop that trains only the task head on frozen features."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from bert_probe.errors import UnavailableError
from bert_probe.model.forward import BATCH_TOKENS
from bert_probe.model.layers import apply_pooler
from bert_probe.model.outputs import OutputHead
from bert_probe.model.progress import Cancelled, Progress
from bert_probe.model.weights import QUIET
from bert_probe.training.objectives import IGNORE_INDEX, Objective, TrainingExample
from bert_probe.training.schedule import LengthBuckets, Schedule

EVALUATIONS = 6
"""Minimum number of evaluations in a training run, unless the run has fewer steps."""

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
        penalty: scikit-learn's C, the inverse of the L2 regularization strength, for a head on the sentence
            vector, which is fitted once for each C; None for training in steps.
    """

    step: int
    epoch: float
    loss: float
    held_out_loss: float
    measure: float
    seconds: float
    penalty: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; NaN and infinity become None."""
        values = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }
        penalty = values.pop("penalty")
        return values if penalty is None else values | {"C": penalty}


_STEP_KEYS = tuple(field.name for field in fields(EvaluationPoint) if field.name != "penalty")
LOG_KEYS = (_STEP_KEYS, (*_STEP_KEYS, "C"))
"""The possible keys of `EvaluationPoint.to_json`, in order."""

OnEvaluation = Callable[[EvaluationPoint], None]
"""Type of a callback that is called after each evaluation."""


def ignore_evaluation(evaluation: EvaluationPoint) -> None:
    """Do nothing; the default callback for evaluations."""


class TrainingLoop:
    """Handles progress, evaluation, the best checkpoint and early stopping after each training step.

    Attributes:
        history: all evaluations.
        best: the evaluation of the best checkpoint; None before the first evaluation.
        ended: reason why training ended early: `EARLY`, `STOPPED` or `DIVERGED`; "" if it did not.
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
        """Prepare the loop for a training run.

        Args:
            updated: trainable parameters by name.
            held_out: function that evaluates the held-out texts and returns loss and measure. Its parameter
                is a callback, which it calls regularly to report progress.
            steps: number of steps in all epochs.
            epochs: number of passes over the data.
            patience: number of consecutive evaluations without a better measure or a lower loss after which
                training ends.
            progress: called with the completed and the total amount of work.
            on_evaluation: called after each evaluation.
            before: amount of work that was reported before the first step.
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

    def evaluate_start(self) -> None:
        """Evaluate the initial weights, which remain the best unless training improves the measure."""
        held_out_loss, measure = self._held_out(lambda: self._report_progress(0))
        if math.isnan(held_out_loss):
            return
        evaluation = EvaluationPoint(0, 0.0, math.nan, held_out_loss, measure, 0.0)
        self.history.append(evaluation)
        self._keep(evaluation)
        self._lowest_loss = held_out_loss
        self._on_evaluation(evaluation)

    def _keep(self, evaluation: EvaluationPoint) -> None:
        """Store a copy of the current weights as the best weights."""
        self.best = evaluation
        for name, parameter in self._updated.items():
            copy = self._best_weights.setdefault(name, torch.empty_like(parameter, requires_grad=False))
            copy.copy_(parameter.detach())

    def step(self, done: int, loss: torch.Tensor) -> bool:
        """Process a completed step, and return whether training must end.

        Args:
            done: number of completed steps.
            loss: training loss of this step.
        """
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
            self._keep(evaluation)
        elif self._since_improvement == self._patience:
            self.ended = EARLY
        self._on_evaluation(evaluation)

    def _diverged(self, done: int) -> None:
        if self.best is None:
            raise UnavailableError(
                f"The loss is not finite after step {done:,}. Choose a lower learning rate."
            )
        self.ended = DIVERGED

    def restore_best(self) -> None:
        """Restore the weights of the best checkpoint."""
        with torch.no_grad():
            for name, parameter in self._updated.items():
                parameter.copy_(self._best_weights[name])


def _rank(evaluation: EvaluationPoint) -> tuple[float, ...]:
    """Return a sort key that is higher for a better evaluation: the measure, then the negative loss.

    NaN is the worst measure. Without held-out texts, the latest evaluation is the best.
    """
    if math.isnan(evaluation.held_out_loss):
        return (-math.inf, evaluation.step)
    return (-math.inf if math.isnan(evaluation.measure) else evaluation.measure, -evaluation.held_out_loss)


PredictFn = Callable[[], tuple[torch.Tensor, torch.Tensor]]
"""Type of a function that returns the logits and targets of a batch, one row per target."""


def make_evaluator(
    objective: Objective, full_model: Any, batches: Sequence[PredictFn]
) -> Callable[[Callable[[], None]], tuple[float, float]]:
    """Return a function that evaluates a model without dropout and returns its mean loss and measure.

    Both values are NaN if there are no held-out texts. The parameter of the returned function is a callback,
    which it calls before each batch.

    Args:
        objective: the training objective, which defines the loss and the measure.
        full_model: the model; it is in training mode after the evaluation.
        batches: a function for each held-out batch, which returns its logits and targets.
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


EVALUATION_BATCH = 1024
"""Number of texts per batch when the head is evaluated."""

ReadFn = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Type of a function that selects the vectors on which a head depends.

It takes the last hidden states (shape [text, token, hidden]), and two masks of shape [text, token]: the
attention mask, and the mask of the tokens that are neither padding nor the padding token of the config. It
returns a tensor of shape [text, token, hidden] or [text, 1, hidden].
"""


def _read_all(states: torch.Tensor, _mask: torch.Tensor, _words: torch.Tensor) -> torch.Tensor:
    return states


def _read_first(states: torch.Tensor, _mask: torch.Tensor, _words: torch.Tensor) -> torch.Tensor:
    return states[:, :1]


def _read_last(states: torch.Tensor, _mask: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    last = (torch.arange(words.shape[1], device=words.device) * words).argmax(dim=1)
    return states[torch.arange(len(states), device=states.device), last][:, None]


def _read_mean(states: torch.Tensor, mask: torch.Tensor, _words: torch.Tensor) -> torch.Tensor:
    weights = mask[..., None].to(states.dtype)
    return (states * weights).sum(dim=1, keepdim=True) / weights.sum(dim=1, keepdim=True)


@dataclass(frozen=True, eq=False)
class FrozenFeatures:
    """Encoder outputs for texts, reduced to the vectors on which the task head depends.

    Attributes:
        states: one tensor of shape [token, hidden] per text. If the head depends on only one vector per text,
            a single tensor of shape [text, 1, hidden].
        pooled: pooler outputs of shape [text, hidden]; None unless there is a pooler that cannot be run
            separately.
        targets: targets, one tensor per text.
    """

    states: list[torch.Tensor] | torch.Tensor
    pooled: torch.Tensor | None
    targets: list[torch.Tensor]


class LinearHead:
    """A task head, trained on vectors of the frozen encoder.

    The pooler is trained with the head if it can be run separately on the encoder's last hidden states, as in
    BERT and ALBERT; otherwise the pooler outputs are stored with the vectors.
    """

    def __init__(self, full_model: Any, objective: Objective) -> None:
        self._full_model, self._objective = full_model, objective
        self._head = OutputHead(objective.task, full_model)
        self._pooler: Any = getattr(full_model.base_model, "pooler", None)
        self._runs_pooler = False
        self._read_fn: ReadFn | None = None

    def frozen(self, examples: Sequence[TrainingExample], on_batch: Callable[[int], None]) -> FrozenFeatures:
        """Run the encoder and return the features for the task head.

        Args:
            examples: the encoded texts.
            on_batch: called with the number of texts in each finished batch.

        Raises:
            UnavailableError: the head classifies tokens and depends on more than each token's own vector, or
                depends on the tokens in a way that is not supported.
        """
        device = next(self._full_model.parameters()).device
        states = [torch.empty(0)] * len(examples)
        pooled, targets = list(states), list(states)
        for group in self._objective.groups(examples, BATCH_TOKENS):
            batch = self._objective.batch([examples[index] for index in group])
            targets_ = batch.pop("labels").to(device)
            inputs = {name: values.to(device) for name, values in batch.items()}
            lengths = torch.tensor([len(examples[index]) for index in group], device=device)
            mask = (torch.arange(inputs["input_ids"].shape[1], device=device) < lengths[:, None]).long()
            with torch.no_grad():
                outputs = self._full_model.base_model(**inputs)
                last, pooler_output = outputs.last_hidden_state, getattr(outputs, "pooler_output", None)
                words = mask * (inputs["input_ids"] != self._padding)
                if self._read_fn is None:
                    self._read_fn = self._find_read_fn(last, mask, words, pooler_output, targets_)
                features = self._read_fn(last, mask, words)
            for row, index in enumerate(group):
                is_target = targets_[row] != IGNORE_INDEX
                is_token = mask[row, : features.shape[1]].bool()
                # A clone is needed because a view would keep the whole batch in memory.
                states[index] = features[row][is_target if self._objective.of_tokens else is_token].clone()
                targets[index] = (
                    targets_[row][is_target].clone() if self._objective.of_tokens else targets_[row].clone()
                )
                if pooler_output is not None and not self._runs_pooler:
                    pooled[index] = pooler_output[row].clone()
            on_batch(len(group))
        has_pooled = self._pooler is not None and not self._runs_pooler
        has_single_vectors = not self._objective.of_tokens and self._read_fn is not _read_all
        return FrozenFeatures(
            torch.stack(states) if has_single_vectors and states else states,
            torch.stack(pooled) if has_pooled and pooled else None,
            targets,
        )

    @property
    def _padding(self) -> int:
        """Return the id of the padding token, which heads of decoders skip; -1 if there is none."""
        padding = self._full_model.config.pad_token_id
        return -1 if padding is None else int(padding)

    def _find_read_fn(
        self,
        states: torch.Tensor,
        mask: torch.Tensor,
        words: torch.Tensor,
        pooled: torch.Tensor | None,
        targets: torch.Tensor,
    ) -> ReadFn:
        """Return a function that selects the fewest vectors from which the head computes the same logits.

        As a side effect, determine whether the pooler can be run separately.
        """
        if self._pooler is not None and pooled is not None:
            try:
                self._runs_pooler = _almost_equal(apply_pooler(self._pooler, states), pooled)
            except (RuntimeError, TypeError, IndexError):  # the pooler needs other inputs
                self._runs_pooler = False
        logits = self._answer(states, mask, pooled, words)
        if self._objective.of_tokens:
            is_target = targets != IGNORE_INDEX
            from_targets = self._answer(
                states[is_target][None], torch.ones_like(mask[is_target][None]), pooled
            )
            if not _almost_equal(from_targets[0], logits[is_target]):
                raise UnavailableError(
                    f"The head of {type(self._full_model).__name__} depends on more than each token's own "
                    "vector, so the head cannot be trained separately. Train the last layers as well, for "
                    "example with top:1."
                )
            return _read_all
        mask_of_one = torch.ones_like(mask[:, :1])
        for read_fn in (_read_first, _read_mean, _read_last):
            if _almost_equal(self._answer(read_fn(states, mask, words), mask_of_one, pooled), logits):
                return read_fn
        if not _almost_equal(self._answer(states, mask, pooled), logits):
            raise UnavailableError(
                f"The head of {type(self._full_model).__name__} depends on the tokens of a text, so the head "
                "cannot be trained separately. Train the last layers as well, for example with top:1."
            )
        return _read_all

    def _answer(
        self,
        states: torch.Tensor,
        mask: torch.Tensor,
        pooled: torch.Tensor | None,
        words: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the logits. The tokens of `words`, or all tokens, are not the padding token."""
        if self._runs_pooler:
            pooled = apply_pooler(self._pooler, states)
        other = 0 if self._padding else 1
        ids = torch.full_like(mask, other)
        if words is not None:
            ids = torch.where(words.bool(), ids, self._padding)
        return self._head.answer({"input_ids": ids, "attention_mask": mask}, states, pooled)

    def predict(self, frozen: FrozenFeatures, indices: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits and targets for the selected texts, with one row per target."""
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
        """Train the head on the encoder's vectors for all epochs, or until `loop` ends the training early."""
        updated = [part for part in self._full_model.parameters() if part.requires_grad]
        optimizer, learning_rates = schedule.optimizer(updated)
        order = LengthBuckets([len(state) for state in frozen.states], schedule.batch, seed)
        self._full_model.train()
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
        """Return the evaluation batches as ranges of text indices."""
        return [
            range(start, min(start + EVALUATION_BATCH, count)) for start in range(0, count, EVALUATION_BATCH)
        ]


def _almost_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors are equal up to rounding errors in sums."""
    tolerance = 64 * torch.finfo(a.dtype).eps * max(1.0, float(b.abs().max()))
    return a.shape == b.shape and bool((a - b).abs().max() <= tolerance)


def train_model(
    full_model: Any,
    objective: Objective,
    examples: Sequence[TrainingExample],
    schedule: Schedule,
    seed: int,
    loop: TrainingLoop,
) -> None:
    """Train the parameters that require gradients for all epochs, or until `loop` ends the training early."""
    device = next(full_model.parameters()).device
    settings = TrainingArguments(
        output_dir=tempfile.gettempdir(),  # a required argument, although nothing is saved
        num_train_epochs=schedule.epochs,
        per_device_train_batch_size=schedule.batch,
        seed=seed % 2**32,
        max_grad_norm=1.0,
        use_cpu=device.type == "cpu",
        dataloader_pin_memory=False,
        remove_unused_columns=False,
        disable_tqdm=True,
        report_to="none",
        save_strategy="no",
        eval_strategy="no",
        logging_strategy="no",
    )
    cache = full_model.config.use_cache if hasattr(full_model.config, "use_cache") else None
    with QUIET:
        trainer = _ObjectiveTrainer(full_model, settings, objective, examples, schedule, loop)
        try:
            trainer.train()
        finally:
            trainer.accelerator.free_memory()
            if cache is not None:
                full_model.config.use_cache = cache


class _ObjectiveTrainer(Trainer):  # type: ignore[misc]
    """A transformers Trainer that uses the batches and the loss of an `Objective`."""

    def __init__(
        self,
        full_model: Any,
        settings: TrainingArguments,
        objective: Objective,
        examples: Sequence[TrainingExample],
        schedule: Schedule,
        loop: TrainingLoop,
    ) -> None:
        trainable = [parameter for parameter in full_model.parameters() if parameter.requires_grad]
        super().__init__(
            full_model,
            settings,
            train_dataset=list(examples),
            callbacks=[_ProgressCallback(self, loop)],
            optimizers=schedule.optimizer(trainable),
        )
        self.remove_callback(PrinterCallback)
        self.objective, self.schedule = objective, schedule
        self.last_loss = torch.zeros(())

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return a data loader whose batches contain texts of similar lengths."""
        order = self.objective.order(self.train_dataset, self.schedule.batch, self.args.seed)
        return DataLoader(self.train_dataset, batch_sampler=order, collate_fn=self.objective.batch)

    def compute_loss(
        self,
        model: Any,
        inputs: Mapping[str, torch.Tensor],
        return_outputs: bool = False,  # noqa: ARG002
        num_items_in_batch: Any = None,  # noqa: ARG002
    ) -> torch.Tensor:
        """Return the loss of a batch, as the training objective computes it."""
        self.last_loss = self.objective.loss(*self.objective.predict(model, inputs))
        return self.last_loss


class _ProgressCallback(TrainerCallback):  # type: ignore[misc]
    """Calls the training loop after each step."""

    def __init__(self, trainer: _ObjectiveTrainer, loop: TrainingLoop) -> None:
        self._trainer, self._loop = trainer, loop

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ARG002
        """Report the step, and stop the training if the loop has ended."""
        if self._loop.step(state.global_step, self._trainer.last_loss):
            control.should_training_stop = True
        return control
