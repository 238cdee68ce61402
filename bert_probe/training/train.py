"""Fine-tuning: the `Train` question, the training plan, and its execution."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from bert_probe.core import extras
from bert_probe.core.field_types import Flag, Number, Optional
from bert_probe.core.inputs import FileInput, Files
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.errors import SelectionError, memory_errors
from bert_probe.model.checkpoint import FILL_MASK, Checkpoint
from bert_probe.model.forward import BATCH_TOKENS
from bert_probe.model.memory import format_bytes, reserved_memory
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.training_history import TrainingHistory, overlap_warning
from bert_probe.model.weights import QUIET
from bert_probe.training.datasets import Dataset, SplitConfig, build_dataset
from bert_probe.training.models import (
    ALL,
    HEAD,
    LORA,
    TOP,
    LoraAdapter,
    LoraModel,
    UpdateScope,
    count_trainable,
    has_head,
    lora_targets,
    select_parameters,
    to_checkpoint,
    with_head,
    without_weights,
)
from bert_probe.training.objectives import Objective, TrainingExample
from bert_probe.training.schedule import Schedule, default_settings, seeded
from bert_probe.training.training_loop import (
    DIVERGED,
    EARLY,
    STOPPED,
    LinearHead,
    OnEvaluation,
    TrainingLoop,
    ignore_evaluation,
    make_evaluator,
)
from bert_probe.training.training_result import DEFAULT_HELD_OUT, TrainingResult

_REMEDY = "Use a smaller batch, fewer tokens per text or fewer layers, or close other programs."


@question("train", is_analysis=False)
class Train(Question):
    """Fine-tune a checkpoint on labeled texts, tagged sentences, or plain lines.

    The type of the data determines the task: `LabeledTexts` for text classification, tagged sentences for
    token classification, plain lines for masked-language modeling. On the CPU of one machine, repeated runs
    give the same weights.

    Attributes:
        update: one of `UPDATES`; "top" is followed by the number of layers, as in "top:2".
        epochs: passes over the data; None for the default of the update scope.
        rate: peak learning rate; None for the default of the update scope.
        batch: number of texts per step.
        seed: random seed of the split, the order, new weights, dropout and masks.
        held_out: share of the data that is held out, if no held-out data are given.
        max_tokens: maximum number of tokens per text; longer texts are truncated. None for the model's limit.
        whole_words: whether masked-language modeling masks all tokens of a word or none.
    """

    inputs = Files({"data": FileInput(), "held_out": FileInput("--held-out", is_required=False)})

    update: str = param(UpdateScope(), default=HEAD, about=f"Parameters to update.  [default: {HEAD}]")
    epochs: int | None = param(Optional(Number(1, 10_000)), default=None, about="Passes over the data.")
    rate: float | None = param(
        Optional(Number(1e-8, 1, integer=False)), default=None, option="--lr", about="Peak learning rate."
    )
    batch: int = param(Number(1, 4096), default=16, about="Texts per step.  [default: 16]")
    seed: int = param(Number(0, 2**32 - 1), default=0, about="Random seed.  [default: 0]")
    held_out: float = param(Number(0, 0.9, integer=False), default=DEFAULT_HELD_OUT, option="")
    max_tokens: int | None = param(
        Optional(Number(8)), default=None, about="Truncate texts to this many tokens."
    )
    whole_words: bool = param(Flag(), default=False, about="Mask all tokens of a word or none.")

    def plan(self, checkpoint: Checkpoint, data: Any, held_out: Any = None) -> TrainingPlan:
        """Prepare the training: encode the texts, and estimate the number of steps and the memory.

        Args:
            data: from `read_labeled_texts` for text-classification, `read_tagged_sentences` for
                token-classification, `read_sentences` for fill-mask.
            held_out: held-out data of the same type. If None, a share of the data is held out.

        Raises:
            TextError: the data cannot be used for training; the message names all lines with errors.
            SelectionError, UnavailableError: the model does not support the task or the settings, or a
                package of the extra ``train`` is missing.
        """
        checkpoint = checkpoint.snapshot()
        config = SplitConfig(self.held_out, self.seed, self.max_tokens)
        dataset = build_dataset(checkpoint, data, held_out, config, self.whole_words)
        objective = dataset.lesson
        if self.whole_words and objective.task != FILL_MASK:
            raise SelectionError(
                f"whole_words applies to {FILL_MASK}, not to {objective.task}. Leave it out."
            )
        unsupported: object = checkpoint.sentence_model_error
        if checkpoint.sentence_model is not None and checkpoint.sentence_model.is_sparse:
            unsupported = "It is a SparseEncoder, whose masked-word head is not saved with this task."
        pooling_notes = (
            [f"sentence-transformers will not be able to use this model. {unsupported}"]
            if unsupported
            else []
        )
        meta_model = without_weights(checkpoint, objective.task, objective.labels, objective.problem)
        defaults = default_settings(self.update)
        resolved = replace(
            self,
            epochs=self.epochs or defaults.epochs,
            rate=defaults.rate if self.rate is None else self.rate,
        )
        assert resolved.epochs is not None  # `replace` has set the default
        assert resolved.rate is not None
        training = self._training(dataset)
        # A linear head is trained on vectors, which need no padding.
        has_linear_head = _trains_linear_head(self.update, objective)
        if not has_linear_head:
            extras.require("accelerate")
        if self.update == LORA:
            extras.require("peft")
        fixed_batches = ceil(len(dataset.training) / self.batch)
        batches = (
            fixed_batches
            if has_linear_head
            else len(objective.order(dataset.training, self.batch, self.seed))
        )
        schedule = Schedule(batches, resolved.epochs, self.batch, resolved.rate, defaults.patience)
        return TrainingPlan(
            resolved,
            checkpoint,
            dataset,
            schedule,
            count_trainable(meta_model, self.update),
            sum(parameter.numel() for parameter in meta_model.parameters()),
            estimate_memory(
                meta_model, objective, self.update, self.batch, [*dataset.training, *dataset.held_out]
            ),
            training,
            tuple(filter(None, [overlap_warning(checkpoint.training_history, training)])),
            (*dataset.notes, *_head_notes(checkpoint, objective), *pooling_notes),
        )

    def _training(self, dataset: Dataset) -> TrainingHistory:
        """Return the record of this training that is saved with the model."""
        held_out_digest = dataset.about.get("held_out_sha256", "")
        share, seed = (0.0, 0) if held_out_digest or not self.held_out else (self.held_out, self.seed)
        return TrainingHistory(dataset.about["sentences_sha256"], held_out_digest, share, seed)

    def of(
        self,
        checkpoint: Checkpoint,
        data: Any,
        held_out: Any = None,
        progress: Progress = no_progress,
        on_evaluation: OnEvaluation = ignore_evaluation,
    ) -> TrainingResult:
        """Train a copy of the checkpoint; the original checkpoint is not changed.

        Args:
            data, held_out: as in `plan`.
            progress: called with the completed and the total amount of work. If it raises `Cancelled`, the
                best checkpoint so far is returned; before the first evaluation, `Cancelled` is propagated.
            on_evaluation: called after each evaluation.

        Raises:
            TextError, SelectionError: as in `plan`.
            UnavailableError: as in `plan`, or the loss is not finite from the start.
            OutOfMemoryError: there is not enough memory; raised before the training starts if this can be
                estimated.
        """
        return self.plan(checkpoint, data, held_out).run(progress, on_evaluation)


@dataclass(frozen=True, eq=False)
class TrainingPlan:
    """A prepared training run: question, encoded texts, schedule, memory estimate and notes.

    Attributes:
        question: the question, with the defaults of epochs and learning rate filled in.
        material: encoded texts with targets.
        pace: the training schedule.
        trainable, parameters: number of updated and of all parameters.
        memory: estimated peak memory in bytes.
        training: the record of this training that is saved with the model.
        warnings: reasons why the held-out measure may be too optimistic, one sentence each.
        notes: other notes for the user, one sentence each.
    """

    question: Train
    checkpoint: Checkpoint
    material: Dataset
    pace: Schedule
    trainable: int
    parameters: int
    memory: int
    training: TrainingHistory
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        training, held_out = len(self.material.training), len(self.material.held_out)
        return (
            f"{training:,} texts for training, {held_out:,} held out. {self.trainable:,} of "
            f"{self.parameters:,} parameters are updated in {self.pace.steps:,} steps of "
            f"{self.pace.batch} texts. This needs about {format_bytes(self.memory)} of memory."
        )

    @property
    def bytes(self) -> int:
        """Size of the saved weights."""
        return self.parameters * (8 if self.checkpoint.description.dtype == "float64" else 4)

    def run(
        self, progress: Progress = no_progress, on_evaluation: OnEvaluation = ignore_evaluation
    ) -> TrainingResult:
        """Run the training; see `Train.of`."""
        objective, update = self.material.lesson, self.question.update
        name = self.checkpoint.description.name
        with (
            extras.explain_missing(),
            _one_at_a_time(progress),
            reserved_memory(self.memory, "This training", _REMEDY),
            memory_errors(f"This training does not fit in memory. {_REMEDY}"),
            seeded(self.question.seed),
        ):
            full_model = with_head(self.checkpoint, objective.task, objective.labels, objective.problem)
            adapter: LoraAdapter | None = None
            if update == LORA:
                lora = LoraModel(full_model)
                loop = self._train(full_model, lora.updated, progress, on_evaluation)
                full_model, adapter = lora.merged(objective.task, name)
            else:
                full_model.requires_grad_(False)
                updated = {
                    name_: parameter.requires_grad_()
                    for name_, parameter in select_parameters(full_model, update).items()
                }
                loop = self._train(full_model, updated, progress, on_evaluation)
            history = (*self.checkpoint.training_history, self.training)
            checkpoint = to_checkpoint(full_model, self.checkpoint.tokenizer, f"{name}, fine-tuned", history)
        sentence_model = self.checkpoint.sentence_model
        assert loop.best is not None  # `Cancelled` before the first evaluation is propagated
        return TrainingResult(
            self.question,
            InputRecord(self.checkpoint.provenance(), (), self.material.about),
            objective.task,
            objective.labels,
            objective.measure,
            tuple(loop.history),
            loop.best,
            loop.ended,
            self.trainable,
            self.parameters,
            self.memory,
            self.warnings,
            (*self.notes, *_end_notes(loop, self.pace)),
            checkpoint,
            None if sentence_model is None or sentence_model.is_sparse else sentence_model,
            self.material.data,
            self.material.asked,
            adapter,
            self.material.files,
        )

    def _train(
        self, full_model: Any, updated: Any, progress: Progress, on_evaluation: OnEvaluation
    ) -> TrainingLoop:
        """Train a model and restore its best checkpoint."""
        dataset, objective = self.material, self.material.lesson
        device = self.checkpoint.device
        if _trains_linear_head(self.question.update, objective):
            linear_head = LinearHead(full_model.eval(), objective)
            texts = len(dataset.training) + len(dataset.held_out)
            encoded = 0

            def on_batch(count: int) -> None:
                nonlocal encoded
                encoded += count
                progress(encoded, texts + self.pace.steps)

            progress(0, texts + self.pace.steps)
            training, held_out = (
                linear_head.frozen(examples, on_batch) for examples in (dataset.training, dataset.held_out)
            )
            groups = [
                partial(linear_head.predict, held_out, indices)
                for indices in linear_head.groups(len(dataset.held_out))
            ]
            loop = self._loop(full_model, updated, groups, progress, on_evaluation, texts)
            linear_head.train(training, self.pace, self.question.seed, loop)
        else:
            groups = [
                partial(
                    objective.predict,
                    full_model,
                    {name: examples.to(device) for name, examples in batch.items()},
                )
                for batch in dataset.batches()
            ]
            loop = self._loop(full_model, updated, groups, progress, on_evaluation, 0)
            train_model(full_model, objective, dataset.training, self.pace, self.question.seed, loop)
        loop.restore_best()
        return loop

    def _loop(
        self,
        full_model: Any,
        updated: Any,
        groups: Sequence[Any],
        progress: Progress,
        on_evaluation: OnEvaluation,
        before: int,
    ) -> TrainingLoop:
        evaluate = make_evaluator(self.material.lesson, full_model, groups)
        steps, epochs, patience = self.pace.steps, self.pace.epochs, self.pace.patience
        return TrainingLoop(updated, evaluate, steps, epochs, patience, progress, on_evaluation, before)


def _trains_linear_head(update: str, objective: Objective) -> bool:
    """Return whether only the head is trained, on vectors that are computed once.

    Masked-language modeling cannot reuse vectors, because it samples new masks in each epoch.
    """
    return update == HEAD and objective.task != FILL_MASK


def _head_notes(checkpoint: Checkpoint, objective: Objective) -> list[str]:
    """Return a note on whether training continues an existing head or starts with a new one."""
    if not has_head(checkpoint, objective.task, objective.labels, objective.problem):
        note = "has no head for masked words. Training a new head needs many texts"
        return [f"{checkpoint.description.name} {note}."] if objective.task == FILL_MASK else []
    return [f"{checkpoint.description.name} has a head for this task; training continues from it."]


def _end_notes(loop: TrainingLoop, schedule: Schedule) -> list[str]:
    """Return a note that explains why a training ended early, or an empty list."""
    if not loop.ended:
        return []
    assert loop.best is not None
    done = loop.history[-1].step
    reason = {
        EARLY: f"Early stopping: no improvement in {schedule.patience} evaluations",
        STOPPED: "The training was stopped",
        DIVERGED: "The training ended because the loss was not finite; choose a lower learning rate",
    }[loop.ended]
    return [
        f"{reason}. The weights are those of step {loop.best.step:,}; {done:,} of {schedule.steps:,} steps "
        "were done."
    ]


_turn = threading.Lock()


@contextmanager
def _one_at_a_time(progress: Progress) -> Iterator[None]:
    """Run one training at a time, because trainings use torch's global random generators."""
    while not _turn.acquire(timeout=0.3):
        progress(0, 0)
    try:
        yield
    finally:
        _turn.release()


_STATES, _INNER, _WEIGHTS = 14, 3, 3
"""Activations that a layer stores for its backward pass: multiples of the hidden size per token, of the inner
size per token, and of the number of attention weights.
"""
_ONCE_STATES, _ONCE_INNER = 10, 2
"""Activations of a layer without a backward pass, where one layer at a time is in memory. The values are
multiples of the hidden and of the inner size per token."""
_OTHER_LAYERS = 0.5
"""Size of the model's temporary activations, in multiples of the activations that one layer stores."""
_LORA_OUTPUTS = 3.5
"""Size of LoRA activations per token, in multiples of the output sizes of the adapted matrices."""
_CONSTANT = 40_000_000
"""Memory for the optimizer, batches and libraries, in bytes. With this constant, estimates for the built-in
model were 1.0 to 1.3 times the measured memory (texts of 10 and 128 tokens, batches of 16 and 32).
"""
_LOGITS = 4
"""Size of logits, exponentials and gradients per masked token, in multiples of the vocabulary size."""
_MASKED = 0.2
_COPIES = 4
"""Extra values stored per trainable parameter: gradient, two moments of AdamW, and the best checkpoint."""


def estimate_memory(
    full_model: Any, objective: Objective, update: str, batch: int, examples: Sequence[TrainingExample]
) -> int:
    """Estimate the peak memory of a training in bytes, in addition to the original checkpoint.

    The estimate includes weights, gradients, AdamW moments, the best checkpoint, and the activations of the
    largest batch.

    Args:
        full_model: the model, which may be on the meta device.
        examples: all examples, including held-out ones.
    """
    config, size = full_model.config, next(full_model.parameters()).element_size()
    parameters = sum(parameter.numel() for parameter in full_model.parameters())
    hidden, layers, heads = config.hidden_size, config.num_hidden_layers, config.num_attention_heads
    inner = getattr(config, "intermediate_size", None) or 4 * hidden
    longest = max(len(example) for example in examples)
    tokens = batch * longest
    if update == HEAD and objective.task != FILL_MASK:
        # Vectors for the head (at most one per token), and the activations of the encoder without gradients.
        stored = sum(len(example) for example in examples) if objective.of_tokens else len(examples)
        batch_tokens = min(BATCH_TOKENS, sum(len(example) for example in examples))
        activations = stored * hidden + batch_tokens * (_ONCE_STATES * hidden + _ONCE_INNER * inner)
    else:
        depth = int(update.partition(":")[2]) if update.startswith(TOP) else 1 if update == HEAD else layers
        per_layer = tokens * (_STATES * hidden + _INNER * inner + _WEIGHTS * heads * longest)
        activations = int((depth + _OTHER_LAYERS) * per_layer)
        if update == LORA:
            output_size = sum(parameter.out_features for parameter in lora_targets(full_model).values())
            activations += int(_LORA_OUTPUTS * tokens * output_size)
    if objective.task == FILL_MASK:
        activations += int(_MASKED * tokens) * config.vocab_size * _LOGITS
        # The tied embeddings have gradients both as input and as output embeddings.
        activations += config.vocab_size * hidden if update == ALL else 0
    estimate: int = _CONSTANT + size * (
        parameters + _COPIES * count_trainable(full_model, update) + activations
    )
    return estimate


def train_model(
    full_model: Any,
    objective: Objective,
    examples: Sequence[TrainingExample],
    schedule: Schedule,
    seed: int,
    loop: TrainingLoop,
) -> None:
    """Train on texts until the training loop ends. Only parameters that require gradients change."""
    device = next(full_model.parameters()).device
    settings = TrainingArguments(
        output_dir=tempfile.gettempdir(),  # required, but nothing is saved
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
