"""Steps through the encoder, by `transformers.Trainer`."""

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


def teach(
    whole: Any,
    lesson: Objective,
    examples: Sequence[TrainingExample],
    pace: Schedule,
    seed: int,
    course: TrainingLoop,
) -> None:
    """Steps over texts until the course ends. What needs no gradient stays as it is."""
    device = next(whole.parameters()).device
    settings = TrainingArguments(
        output_dir=tempfile.gettempdir(),  # which is there, and stays as it is: nothing is saved
        num_train_epochs=pace.epochs,
        per_device_train_batch_size=pace.batch,
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
    cache = whole.config.use_cache if hasattr(whole.config, "use_cache") else None
    with QUIET:
        trainer = _ObjectiveTrainer(whole, settings, lesson, examples, pace, course)
        try:
            trainer.train()
        finally:
            trainer.accelerator.free_memory()
            if cache is not None:
                whole.config.use_cache = cache


class _ObjectiveTrainer(Trainer):  # type: ignore[misc]
    """transformers' loop, with a lesson's batches and loss."""

    def __init__(
        self,
        whole: Any,
        settings: TrainingArguments,
        lesson: Objective,
        examples: Sequence[TrainingExample],
        pace: Schedule,
        course: TrainingLoop,
    ) -> None:
        updated = [part for part in whole.parameters() if part.requires_grad]
        super().__init__(
            whole,
            settings,
            train_dataset=list(examples),
            callbacks=[_ProgressCallback(self, course)],
            optimizers=pace.optimizer(updated),
        )
        self.remove_callback(PrinterCallback)
        self.lesson, self.pace = lesson, pace
        self.last_loss = torch.zeros(())

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Batches of about one length."""
        order = self.lesson.order(self.train_dataset, self.pace.batch, self.args.seed)
        return DataLoader(self.train_dataset, batch_sampler=order, collate_fn=self.lesson.batch)

    def compute_loss(
        self,
        model: Any,
        inputs: Mapping[str, torch.Tensor],
        return_outputs: bool = False,  # noqa: ARG002
        num_items_in_batch: Any = None,  # noqa: ARG002
    ) -> torch.Tensor:
        """The lesson's."""
        self.last_loss = self.lesson.loss(*self.lesson.answers(model, inputs))
        return self.last_loss


class _ProgressCallback(TrainerCallback):  # type: ignore[misc]
    """Tells the course of each step."""

    def __init__(self, trainer: _ObjectiveTrainer, course: TrainingLoop) -> None:
        self._trainer, self._course = trainer, course

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ARG002
        """The step is done."""
        if self._course.step(state.global_step, self._trainer.last_loss):
            control.should_training_stop = True
        return control
