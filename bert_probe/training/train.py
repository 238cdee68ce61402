"""Fine-tuning: the `Train` question, and the training plan and its execution."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Any

from bert_probe.core import extras
from bert_probe.core.field_types import Choice, Flag, Number, Optional
from bert_probe.core.inputs import FileInput, Files
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.errors import SelectionError, UnavailableError, memory_errors
from bert_probe.model.checkpoint import FILL_MASK, Checkpoint, TrainingHistory, overlap_warning
from bert_probe.model.checks import check_heads
from bert_probe.model.from_model import wrap
from bert_probe.model.outputs import OutputHead
from bert_probe.model.preflight import format_bytes, reserved_memory
from bert_probe.model.progress import Progress, no_progress
from bert_probe.text.labeled_texts import LabeledTexts
from bert_probe.text.similarity_examples import SimilarityExamples
from bert_probe.training.contrastive import (
    LOSSES,
    SentenceEmbedder,
    SimilarityObjective,
    sentence_embedder,
    trained_sentence_model,
)
from bert_probe.training.datasets import Dataset, SplitConfig, build_dataset
from bert_probe.training.models import (
    ALL,
    HEAD,
    LORA,
    LoraAdapter,
    LoraModel,
    UpdateScope,
    count_trainable,
    estimate_memory,
    frozen_activations,
    has_head,
    select_parameters,
    to_checkpoint,
    with_head,
    without_weights,
)
from bert_probe.training.objectives import Objective, TextObjective
from bert_probe.training.schedule import Schedule, default_settings, seeded
from bert_probe.training.sentence_classifier import (
    AUTO,
    CLS,
    HEADS,
    PENALTIES,
    SENTENCE,
    SentenceHead,
    copy_encoder,
    count_sentence_head,
    estimate_sentence_memory,
    fit_sentence_head,
    sentence_checkpoint,
    sentence_head_problem,
    with_sentence_head,
)
from bert_probe.training.training_loop import (
    DIVERGED,
    EARLY,
    STOPPED,
    LinearHead,
    OnEvaluation,
    TrainingLoop,
    ignore_evaluation,
    make_evaluator,
    train_model,
)
from bert_probe.training.training_result import DEFAULT_HELD_OUT, TrainingResult

_REMEDY = "Use a smaller batch, fewer tokens per text or fewer layers, or close other programs."


@question("train", is_analysis=False)
class Train(Question):
    """Fine-tune a checkpoint on labeled texts, tagged sentences, similarity examples, or lines of plain text.

    The type of the data determines the task: `LabeledTexts` for text classification, tagged sentences for
    token classification, `SimilarityExamples` for sentence similarity, lines of plain text for
    masked-language modeling. On the CPU of the same machine, repeated runs return the same weights.

    Attributes:
        update: one of `UPDATES`; "top" is followed by the number of layers, as in "top:2".
        epochs: number of passes over the data; None for the default of the update scope.
        rate: peak learning rate; None for the default of the update scope.
        batch: number of texts per step.
        seed: random seed for the split, the order of the examples, new weights, dropout and masks.
        held_out: share of the data to hold out if there are no separate held-out data.
        max_tokens: maximum number of tokens per text; longer texts are truncated. None for the model's limit.
        whole_words: whether masked-language modeling masks all tokens of a word or none.
        head: text-classification head, from `HEADS`. The head on the sentence vector has a single optimum for
            each strength of the L2 penalty, so it has no epochs, learning rate or batch size.
        loss: loss of similarity training, from `contrastive.LOSSES`.
    """

    inputs = Files({"data": FileInput(), "held_out": FileInput("--held-out", is_required=False)})

    update: str = param(UpdateScope(), default=HEAD, about=f"Parameters to train.  [default: {HEAD}]")
    epochs: int | None = param(
        Optional(Number(1, 10_000)), default=None, about="Number of epochs (passes over the data)."
    )
    rate: float | None = param(
        Optional(Number(1e-8, 1, integer=False)), default=None, option="--lr", about="Peak learning rate."
    )
    batch: int = param(Number(1, 4096), default=16, about="Batch size: texts per step.  [default: 16]")
    seed: int = param(Number(0, 2**32 - 1), default=0, about="Random seed.  [default: 0]")
    held_out: float = param(Number(0, 0.9, integer=False), default=DEFAULT_HELD_OUT, option="")
    max_tokens: int | None = param(
        Optional(Number(8)), default=None, about="Truncate texts to this many tokens."
    )
    whole_words: bool = param(
        Flag(), default=False, about="Whole-word masking: mask all tokens of a word together."
    )
    head: str = param(
        Choice(HEADS),
        default=AUTO,
        key="train_head",
        about="Input of the head for text classification: the model's own sentence vector, or the vector "
        "of [CLS].",
    )

    loss: str = param(
        Choice(LOSSES), default=AUTO, about="Loss function for training on similarity examples."
    )

    def plan(self, checkpoint: Checkpoint, data: Any, held_out: Any = None) -> TrainingPlan:
        """Prepare the training: encode the texts, and estimate the number of steps and the memory.

        Args:
            checkpoint: the checkpoint to train.
            data: the result of `read_labeled_texts` for text-classification, `read_tagged_sentences` for
                token-classification, `read_similarity_examples` for sentence-similarity, or `read_sentences`
                for fill-mask.
            held_out: held-out data of the same type. If None, a share of the data is held out.

        Raises:
            TextError: the data cannot be used for training; the message lists all lines with errors.
            SelectionError, UnavailableError: the model does not support the task or the settings, or a
                package of the extra ``train`` is missing.
        """
        if isinstance(data, SimilarityExamples) and self.update == HEAD:
            # Sentence-similarity models have no task head.
            return replace(self, update=ALL).plan(checkpoint, data, held_out)
        checkpoint = checkpoint.snapshot()
        head, head_notes = self._resolve_head(checkpoint, data)
        longest = self.max_tokens
        if head == SENTENCE and checkpoint.sentence_model is not None:
            limits = (longest, checkpoint.sentence_model.max_tokens)
            longest = min((limit for limit in limits if limit), default=None)
        config = SplitConfig(self.held_out, self.seed, longest)
        dataset = build_dataset(checkpoint, data, held_out, config, self.whole_words, self.loss)
        objective = dataset.objective
        if self.whole_words and objective.task != FILL_MASK:
            raise SelectionError(
                f"whole_words applies to {FILL_MASK}, not to {objective.task}. Omit whole_words."
            )
        unsupported: object = checkpoint.sentence_model_error
        if checkpoint.sentence_model is not None and checkpoint.sentence_model.is_sparse:
            unsupported = (
                "The checkpoint is a SparseEncoder, whose masked-language-modeling head is not "
                "saved with this task."
            )
        pooling_notes = (
            [f"sentence-transformers will not be able to use this model. {unsupported}"]
            if unsupported
            else []
        )
        training = self._training(dataset)
        warnings = tuple(filter(None, [overlap_warning(checkpoint.training_history, training)]))
        notes = (*dataset.notes, *head_notes)
        if head == SENTENCE:
            return self._sentence_plan(checkpoint, dataset, training, warnings, notes)
        meta_model = (
            SentenceEmbedder(checkpoint.model, objective.config)
            if isinstance(objective, SimilarityObjective)
            else without_weights(checkpoint, objective.task, objective.labels, objective.problem)
        )
        defaults = default_settings(self.update)
        resolved = replace(
            self,
            epochs=self.epochs or defaults.epochs,
            rate=defaults.rate if self.rate is None else self.rate,
        )
        assert resolved.epochs is not None  # not None, because `replace` above has filled in the default
        assert resolved.rate is not None
        # A linear head is trained on precomputed vectors, which need no padding.
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
            warnings,
            (*notes, *_head_notes(checkpoint, objective), *pooling_notes),
        )

    def _resolve_head(self, checkpoint: Checkpoint, data: Any) -> tuple[str, list[str]]:
        """Return the head to train, `SENTENCE` or `CLS`, and notes on this choice.

        Raises:
            SelectionError: the head on the sentence vector is requested but not supported.
        """
        problem = sentence_head_problem(checkpoint, data)
        if self.head == SENTENCE and problem:
            raise SelectionError(
                f"{checkpoint.description.name} does not support a head on its sentence vector: {problem}. "
                f"Pass --head {CLS}."
            )
        if self.head == SENTENCE and self.update != HEAD:
            raise SelectionError(
                f"The head on the sentence vector requires --update {HEAD}, not --update {self.update}. Pass "
                f"--update {HEAD}, or --head {CLS}."
            )
        if self.head == CLS or self.update != HEAD or not isinstance(data, LabeledTexts):
            is_choice = self.head == CLS and self.update == HEAD and not problem
            return CLS, [_CLS_NOTE] if is_choice else []
        if problem:
            note = f"The head does not read the sentence vector of {checkpoint.description.name}, because"
            return CLS, [f"{note} {problem}."] if checkpoint.has_pooling else []
        if self.epochs is None and self.rate is None:
            return SENTENCE, []
        if self.head == SENTENCE:
            raise SelectionError(
                "The head on the sentence vector is fitted with scikit-learn, which has no epochs or "
                f"learning rate. Omit these options, or pass --head {CLS}."
            )
        return CLS, [f"Epochs and the learning rate apply to --head {CLS} only. {_CLS_NOTE}"]

    def _sentence_plan(
        self,
        checkpoint: Checkpoint,
        dataset: Dataset,
        training: TrainingHistory,
        warnings: tuple[str, ...],
        notes: tuple[str, ...],
    ) -> TrainingPlan:
        """Return the plan for training a head on the sentence vector."""
        count = count_sentence_head(checkpoint, len(dataset.objective.labels))
        examples = [*dataset.training, *dataset.held_out]
        batch_memory = frozen_activations(checkpoint.model.config, examples)
        batch_memory *= 8 if checkpoint.description.dtype == "float64" else 4
        fits = len(PENALTIES) if dataset.held_out else 1
        return TrainingPlan(
            self,
            checkpoint,
            dataset,
            Schedule(fits, 1, self.batch, 0.0, 0),
            count.trainable,
            count.parameters,
            estimate_sentence_memory(checkpoint, examples, batch_memory),
            training,
            warnings,
            notes,
            SENTENCE,
        )

    def _training(self, dataset: Dataset) -> TrainingHistory:
        """Return the record of this training run, which is saved with the model."""
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
            checkpoint: the checkpoint to train.
            data, held_out: as in `plan`.
            progress: called with the completed and the total amount of work. If the callback raises
                `Cancelled`, the best checkpoint so far is returned, or before the first evaluation, the
                exception propagates.
            on_evaluation: called after each evaluation.

        Raises:
            TextError, SelectionError: as in `plan`.
            UnavailableError: as in `plan`, or the loss is not finite from the start.
            OutOfMemoryError: there is not enough memory; if possible, raised before the training starts.
        """
        return self.plan(checkpoint, data, held_out).run(progress, on_evaluation)


@dataclass(frozen=True, eq=False)
class TrainingPlan:
    """A prepared training run: question, encoded texts, schedule, memory estimate and notes.

    Attributes:
        question: the question, with the default number of epochs and learning rate filled in.
        material: encoded texts with targets.
        pace: the training schedule.
        trainable, parameters: number of trainable and of all parameters.
        memory: estimated peak memory in bytes.
        training: the record of this training run, which is saved with the model.
        warnings: reasons why the held-out measure may be overly optimistic, one sentence each.
        notes: other notes for the user, one sentence each.
        head: text-classification head, `SENTENCE` or `CLS`.
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
    head: str = CLS

    def __str__(self) -> str:
        training, held_out = len(self.material.training), len(self.material.held_out)
        texts = f"{training:,} texts are used for training, and {held_out:,} are held out."
        memory = f"Training needs about {format_bytes(self.memory)} of memory."
        if self.head == SENTENCE:
            return (
                f"{texts} A linear head with {self.trainable:,} parameters is fitted to the model's own "
                f"sentence vectors, for {self.pace.steps} strengths of the L2 penalty. {memory}"
            )
        return (
            f"{texts} {self.trainable:,} of "
            f"{self.parameters:,} parameters are updated in {self.pace.steps:,} steps of "
            f"{self.pace.batch} texts. {memory}"
        )

    @property
    def bytes(self) -> int:
        """Size of the saved weights."""
        return self.parameters * (8 if self.checkpoint.description.dtype == "float64" else 4)

    def run(
        self, progress: Progress = no_progress, on_evaluation: OnEvaluation = ignore_evaluation
    ) -> TrainingResult:
        """Run the training; see `Train.of`."""
        objective, update = self.material.objective, self.question.update
        name = self.checkpoint.description.name
        history = (*self.checkpoint.training_history, self.training)
        adapter: LoraAdapter | None = None
        run: TrainingLoop | SentenceHead
        with (
            extras.explain_missing(),
            _one_at_a_time(progress),
            reserved_memory(self.memory, "This training", _REMEDY),
            memory_errors(f"This training does not fit in memory. {_REMEDY}"),
            seeded(self.question.seed),
        ):
            if self.head == SENTENCE:
                assert isinstance(objective, TextObjective)
                examples = self.material.training, self.material.held_out
                run = fit_sentence_head(self.checkpoint, objective, *examples, progress, on_evaluation)
                checkpoint = with_sentence_head(self.checkpoint, run, objective, history)
            else:
                is_similarity = isinstance(objective, SimilarityObjective)
                full_model = (
                    sentence_embedder(copy_encoder(self.checkpoint), objective.config)
                    if isinstance(objective, SimilarityObjective)
                    else with_head(self.checkpoint, objective.task, objective.labels, objective.problem)
                )
                if not is_similarity:
                    _check_head(full_model.eval(), self.checkpoint, objective.task, self.material.data)
                if update == LORA:
                    lora = LoraModel(full_model)
                    run = self._train(full_model, lora.updated, progress, on_evaluation)
                    full_model, adapter = lora.merged(objective.task, name)
                else:
                    full_model.requires_grad_(False)
                    updated = {
                        name_: parameter.requires_grad_()
                        for name_, parameter in select_parameters(full_model, update).items()
                    }
                    run = self._train(full_model, updated, progress, on_evaluation)
                checkpoint = (
                    embedder_checkpoint(self.checkpoint, full_model, history)
                    if is_similarity
                    else to_checkpoint(full_model, self.checkpoint.tokenizer, f"{name}, fine-tuned", history)
                )
        sentence_model = checkpoint.sentence_model or self.checkpoint.sentence_model
        assert run.best is not None  # not None, because `Cancelled` propagates before the first evaluation
        return TrainingResult(
            self.question,
            InputRecord(self.checkpoint.provenance(), (), self.material.about),
            objective.task,
            objective.labels,
            objective.measure,
            tuple(run.history),
            run.best,
            run.ended,
            self.trainable,
            self.parameters,
            self.memory,
            self.warnings,
            (*self.notes, *_end_notes(run, self.pace)),
            checkpoint,
            None if sentence_model is None or sentence_model.is_sparse else sentence_model,
            self.material.data,
            self.material.held_out_rows,
            adapter,
            self.material.files,
        )

    def _train(
        self, full_model: Any, updated: Any, progress: Progress, on_evaluation: OnEvaluation
    ) -> TrainingLoop:
        """Train a model and restore its best checkpoint."""
        dataset, objective = self.material, self.material.objective
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
            if isinstance(objective, SimilarityObjective):
                loop.evaluate_start()
            train_model(full_model, objective, dataset.training, self.pace, self.question.seed, loop)
            # The Trainer has reference cycles. They keep the optimizer in memory, which is twice the size of
            # the trained parameters.
            gc.collect()
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
        evaluate = make_evaluator(self.material.objective, full_model, groups)
        steps, epochs, patience = self.pace.steps, self.pace.epochs, self.pace.patience
        return TrainingLoop(updated, evaluate, steps, epochs, patience, progress, on_evaluation, before)


def _check_head(full_model: Any, original: Checkpoint, task: str, data: Any) -> None:
    """Raise an error if the trained head could not be used, for example because it reads padding.

    Raises:
        UnavailableError: the output of the head does not depend only on the vectors of the encoder.
    """
    wrapped = wrap(full_model, original.tokenizer)
    if task not in wrapped.outputs:
        _, reasons = check_heads(wrapped, [OutputHead(task, full_model)])
        can_use_vector = not sentence_head_problem(original, data)
        remedy = f"Pass --update {HEAD} --head {SENTENCE}, or choose" if can_use_vector else "Choose"
        raise UnavailableError(
            f"{type(full_model).__name__} cannot be trained. {' '.join(reasons)} {remedy} another model."
        )


def _trains_linear_head(update: str, objective: Objective) -> bool:
    """Return whether only the task head is trained, on vectors that are computed once.

    Masked-language modeling cannot reuse vectors, because new masks are sampled in each epoch.
    """
    return update == HEAD and objective.task != FILL_MASK


def embedder_checkpoint(
    original: Checkpoint, embedder: SentenceEmbedder, history: Sequence[TrainingHistory]
) -> Checkpoint:
    """Return a trained sentence-similarity model as a checkpoint with its trained pooling modules."""
    assert original.sentence_model is not None
    model = trained_sentence_model(original.sentence_model, embedder)
    return sentence_checkpoint(replace(original, sentence_model=model), embedder.encoder, history)


def _head_notes(checkpoint: Checkpoint, objective: Objective) -> list[str]:
    """Return a note on whether training continues from the model's task head or starts from a new one.

    Return no note if the model has no head for the task, unless the task is fill-mask.
    """
    name, task = checkpoint.description.name, objective.task
    if has_head(checkpoint, task, objective.labels, objective.problem):
        return [f"{name} has a head for this task. Training continues from this head."]
    if task == FILL_MASK:
        return [f"{name} has no masked-language-modeling head. Training a new head needs many texts."]
    if task in checkpoint.outputs:
        return [
            f"The {task} head of {name} has other labels, predicts another type of labels, or reads the "
            "sentence vector, so a new head is trained."
        ]
    return []


def _end_notes(loop: TrainingLoop | SentenceHead, schedule: Schedule) -> list[str]:
    """Return notes on the end of a training run, such as the reason for which it ended early."""
    if isinstance(loop, SentenceHead):
        stopped = (
            [f"The training was stopped. Evaluated values of C: {len(loop.history)}."] if loop.ended else []
        )
        return [*stopped, *loop.notes]
    assert loop.best is not None
    if not loop.best.step:
        return [
            "No evaluation was better than the evaluation of the original weights, so the model keeps "
            "the original weights."
        ]
    if not loop.ended:
        return []
    done = loop.history[-1].step
    reason = {
        EARLY: f"Early stopping: no improvement (patience {schedule.patience})",
        STOPPED: "The training was stopped",
        DIVERGED: "The training ended because the loss was not finite; choose a lower learning rate",
    }[loop.ended]
    return [
        f"{reason}. The model has the weights of step {loop.best.step:,}; {done:,} of {schedule.steps:,} "
        "steps were completed."
    ]


_CLS_NOTE = (
    f"--head {CLS} trains the head of the transformers class, so that transformers alone can open the "
    "model. On three datasets with the built-in model, this head was 3 to 8 percentage points less "
    f"accurate than the default, --head {SENTENCE}."
)

_training_lock = threading.Lock()


@contextmanager
def _one_at_a_time(progress: Progress) -> Iterator[None]:
    """Serialize training runs, because they use torch's global random generators."""
    while not _training_lock.acquire(timeout=0.3):
        progress(0, 0)
    try:
        yield
    finally:
        _training_lock.release()
