"""Teaching a checkpoint a task: what is asked, what it will take, and what comes of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Any

from bert_probe.analyses.vectors.pooling import own_files
from bert_probe.core.field_types import Flag, Number, Optional
from bert_probe.core.inputs import FileInput, Files
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.errors import SelectionError, memory_errors
from bert_probe.model.checkpoint import FILLING, Checkpoint
from bert_probe.model.memory import in_words, promised
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.training_history import TrainingHistory, seen
from bert_probe.training import trainer
from bert_probe.training.datasets import Dataset, SplitConfig, material
from bert_probe.training.evaluation import asked_of
from bert_probe.training.linear_heads import LinearHead
from bert_probe.training.lora import LoraAdapter, LoraModel
from bert_probe.training.memory_estimate import need
from bert_probe.training.models import has_head, opened, with_head, without_weights
from bert_probe.training.objectives import Objective
from bert_probe.training.schedule import Schedule, seeded, usual
from bert_probe.training.trainable_parameters import HEAD, LORA, UpdateScope, chosen, trainable
from bert_probe.training.training_loop import DIVERGED, EARLY, STOPPED, Told, TrainingLoop, unheard
from bert_probe.training.training_result import SHARE, TrainingResult

_REMEDY = "Use a smaller batch, cut texts after fewer tokens, update less, or close other programs."


@question("teach", command="train", is_analysis=False)
class Train(Question):
    """Update a checkpoint until it does a task on texts whose answers are known.

    The data say which task: `Labelled` texts, sentences with a tag for each word, or plain lines, in which
    words are masked. Two runs on one machine's processor give the same weights.

    Attributes:
        update: one of `UPDATES`, with the number of layers as in "top:2".
        epochs: how often each text is seen; rate: the highest learning rate; None for what is usual.
        batch: texts in a step.
        seed: of all that is drawn: what is held out, the order, new weights, dropout, masks.
        held_out: share of the data that is not taught but asked for, where no other data are given for that.
        max_tokens: longer texts are cut; None for the model's own limit.
        whole_words: of masked words, mask all pieces of one or none.
    """

    inputs = Files({"data": FileInput(), "held_out": FileInput("--held-out", is_required=False)})

    update: str = param(UpdateScope(), default=HEAD, about=f"What is updated.  [default: {HEAD}]")
    epochs: int | None = param(
        Optional(Number(1, 10_000)), default=None, about="How often each text is seen."
    )
    rate: float | None = param(
        Optional(Number(1e-8, 1, whole=False)), default=None, option="--lr", about="Highest learning rate."
    )
    batch: int = param(Number(1, 4096), default=16, about="Texts in a step.  [default: 16]")
    seed: int = param(Number(0, 2**32 - 1), default=0, about="Of all that is drawn.  [default: 0]")
    held_out: float = param(Number(0, 0.9, whole=False), default=SHARE, option="")
    max_tokens: int | None = param(
        Optional(Number(8)), default=None, about="Cut texts after so many tokens; else where the model ends."
    )
    whole_words: bool = param(Flag(), default=False, about="Mask all pieces of a word or none.")

    def plan(self, checkpoint: Checkpoint, data: Any, held_out: Any = None) -> TrainingPlan:
        """What it would take, with nothing computed yet but the texts' tokens.

        Args:
            data: from `read_labeled_texts` for text-classification, `read_tagged_sentences` for
                token-classification, `read_sentences` for fill-mask.
            held_out: of the same type; None holds out a share of the data.

        Raises:
            TextError: data that cannot be taught, with every line that is at fault.
            SelectionError, UnavailableError: what this model does not have.
        """
        checkpoint = checkpoint.now()
        cut = SplitConfig(self.held_out, self.seed, self.max_tokens)
        found = material(checkpoint, data, held_out, cut, self.whole_words)
        lesson = found.lesson
        if self.whole_words and lesson.task != FILLING:
            raise SelectionError(f"Whole words are for masked words, not for {lesson.task}. Leave them out.")
        pooling, left_out = own_files(checkpoint)
        sketch = without_weights(checkpoint, lesson.task, lesson.labels, lesson.problem)
        meant = usual(self.update)
        asked_for = replace(
            self, epochs=self.epochs or meant.epochs, rate=meant.rate if self.rate is None else self.rate
        )
        assert asked_for.epochs is not None  # both are given now
        assert asked_for.rate is not None
        training = self._training(found)
        # A head alone is taught on vectors, which need no padding.
        alone = _alone_taught(self.update, lesson)
        many = ceil(len(found.taught) / self.batch)
        batches = many if alone else len(lesson.order(found.taught, self.batch, self.seed))
        pace = Schedule(batches, asked_for.epochs, self.batch, asked_for.rate, meant.patience)
        return TrainingPlan(
            asked_for,
            checkpoint,
            found,
            pace,
            trainable(sketch, self.update),
            sum(part.numel() for part in sketch.parameters()),
            need(sketch, lesson, self.update, self.batch, [*found.taught, *found.held_out]),
            training,
            tuple(filter(None, [seen(checkpoint.before, training)])),
            (*found.notes, *_of_head(checkpoint, lesson), *left_out),
            pooling,
        )

    def _training(self, found: Dataset) -> TrainingHistory:
        """What is remembered of it."""
        other = found.about.get("held_out_sha256", "")
        share, seed = (0.0, 0) if other or not self.held_out else (self.held_out, self.seed)
        return TrainingHistory(found.about["sentences_sha256"], other, share, seed)

    def of(
        self,
        checkpoint: Checkpoint,
        data: Any,
        held_out: Any = None,
        report: Progress = no_progress,
        told: Told = unheard,
    ) -> TrainingResult:
        """Teach it; the checkpoint that is given stays as it is.

        Args:
            data, held_out: as in `plan`.
            report: told how much is done and how much there is. If it raises `Cancelled` once there was an
                evaluation, the best so far comes back; before that, it is let through.
            told: given each evaluation.

        Raises:
            TextError, SelectionError, UnavailableError: as `plan`; UnavailableError also where the loss is no
                finite number from the start.
            OutOfMemoryError: the machine is too small; before anything is computed, where that can be told.
        """
        return self.plan(checkpoint, data, held_out).carried_out(report, told)


@dataclass(frozen=True, eq=False)
class TrainingPlan:
    """A training before it begins.

    Attributes:
        question: with the epochs and the learning rate that are meant.
        material: texts as the model reads them, and what is right.
        pace: number of steps, and how large they are.
        trainable, parameters: numbers that are updated, and all.
        memory: bytes that it takes, an estimate.
        training: what is remembered of it in the model.
        warnings: why its measure may flatter; notes: what else a person should know, a sentence each.
        pooling: files by which texts become one vector each, as `TrainingResult` has them.
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
    pooling: Mapping[str, Any]

    def __str__(self) -> str:
        taught, held_out = len(self.material.taught), len(self.material.held_out)
        return (
            f"{taught:,} texts are taught and {held_out:,} held out. {self.trainable:,} of "
            f"{self.parameters:,} parameters are updated, in {self.pace.steps:,} steps of "
            f"{self.pace.batch} texts and about {in_words(self.memory)} of memory."
        )

    @property
    def bytes(self) -> int:
        """Of the weights that are saved."""
        return self.parameters * (8 if self.checkpoint.description.dtype == "float64" else 4)

    def carried_out(self, report: Progress = no_progress, told: Told = unheard) -> TrainingResult:
        """See `Train.of`."""
        lesson, update = self.material.lesson, self.question.update
        name = self.checkpoint.description.name
        with (
            _alone(report),
            promised(self.memory, "This training", _REMEDY),
            memory_errors(f"This training needs more memory than is free. {_REMEDY}"),
            seeded(self.question.seed),
        ):
            whole = with_head(self.checkpoint, lesson.task, lesson.labels, lesson.problem)
            adapter: LoraAdapter | None = None
            if update == LORA:
                narrow = LoraModel(whole)
                course = self._taught(whole, narrow.updated, report, told)
                whole, adapter = narrow.merged(lesson.task, name)
            else:
                whole.requires_grad_(False)
                updated = {one: part.requires_grad_() for one, part in chosen(whole, update).items()}
                course = self._taught(whole, updated, report, told)
            before = (*self.checkpoint.before, self.training)
            made = opened(whole, self.checkpoint.tokenizer, f"{name}, taught", before)
        assert course.best is not None  # or it would have been let through
        return TrainingResult(
            self.question,
            InputRecord(self.checkpoint.provenance(), (), self.material.about),
            lesson.task,
            lesson.labels,
            lesson.measure,
            tuple(course.history),
            course.best,
            course.ended,
            self.trainable,
            self.parameters,
            self.memory,
            self.warnings,
            (*self.notes, *_of_end(course, self.pace)),
            made,
            self.pooling,
            self.material.data,
            self.material.asked,
            adapter,
            self.material.files,
        )

    def _taught(self, whole: Any, updated: Any, report: Progress, told: Told) -> TrainingLoop:
        """Update parameters of a model, which then has the best of them."""
        material, lesson = self.material, self.material.lesson
        device = self.checkpoint.device
        if _alone_taught(self.question.update, lesson):
            alone = LinearHead(whole.eval(), lesson)
            texts = len(material.taught) + len(material.held_out)
            read = 0

            def more(count: int) -> None:
                nonlocal read
                read += count
                report(read, texts + self.pace.steps)

            report(0, texts + self.pace.steps)
            taught, held_out = (alone.frozen(part, more) for part in (material.taught, material.held_out))
            groups = [
                partial(alone.answers, held_out, places) for places in alone.groups(len(material.held_out))
            ]
            course = self._course(whole, updated, groups, report, told, texts)
            alone.teach(taught, self.pace, self.question.seed, course)
        else:
            groups = [
                partial(lesson.answers, whole, {name: part.to(device) for name, part in batch.items()})
                for batch in material.batches()
            ]
            course = self._course(whole, updated, groups, report, told, 0)
            trainer.teach(whole, lesson, material.taught, self.pace, self.question.seed, course)
        course.settle()
        return course

    def _course(
        self, whole: Any, updated: Any, groups: Sequence[Any], report: Progress, told: Told, before: int
    ) -> TrainingLoop:
        asked_for = asked_of(self.material.lesson, whole, groups)
        steps, epochs, patience = self.pace.steps, self.pace.epochs, self.pace.patience
        return TrainingLoop(updated, asked_for, steps, epochs, patience, report, told, before)


def _alone_taught(update: str, lesson: Objective) -> bool:
    """Whether the head is taught on vectors that are computed once; masks are drawn anew for each epoch."""
    return update == HEAD and lesson.task != FILLING


def _of_head(checkpoint: Checkpoint, lesson: Objective) -> list[str]:
    """What to know of a head that is there."""
    if not has_head(checkpoint, lesson.task, lesson.labels, lesson.problem):
        new = "has no head for masked words: a new one begins with nothing known, and takes many texts"
        return [f"{checkpoint.description.name} {new}."] if lesson.task == FILLING else []
    return [f"{checkpoint.description.name} has a head for this, which is taught on."]


def _of_end(course: TrainingLoop, pace: Schedule) -> list[str]:
    """What to know of a training that ended before its time."""
    if not course.ended:
        return []
    assert course.best is not None
    done = course.history[-1].step
    why = {
        EARLY: f"It ended early: no evaluation was better in the {pace.patience} after the best",
        STOPPED: "It was stopped",
        DIVERGED: "It ended as the loss became no finite number; choose a smaller learning rate",
    }[course.ended]
    return [f"{why}. It has the weights of step {course.best.step:,}; {done:,} of {pace.steps:,} were done."]


_turn = threading.Lock()


@contextmanager
def _alone(report: Progress) -> Iterator[None]:
    """One training at a time: they draw torch's random numbers, of which a process has one row."""
    while not _turn.acquire(timeout=0.3):
        report(0, 0)
    try:
        yield
    finally:
        _turn.release()
