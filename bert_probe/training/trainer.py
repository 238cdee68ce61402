"""Train a model step by step with the transformers Trainer."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from bert_probe.model.weights import QUIET
from bert_probe.training.objectives import Objective, TrainingExample
from bert_probe.training.schedule import Schedule
from bert_probe.training.training_loop import TrainingLoop


def train_model(
    full_model: Any,
    objective: Objective,
    examples: Sequence[TrainingExample],
    schedule: Schedule,
    seed: int,
    loop: TrainingLoop,
) -> None:
    """Train a model until the training loop ends. Only parameters that require gradients change."""
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
        self._trainer, self._course = trainer, loop

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ARG002
        """Report the step, and stop the training if the loop has ended."""
        if self._course.step(state.global_step, self._trainer.last_loss):
            control.should_training_stop = True
        return control
