"""The command on a checkpoint's trained output heads."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import click

from bert_probe.analyses.outputs.classify_text import ClassifyText
from bert_probe.analyses.outputs.fill_mask import FillMask
from bert_probe.analyses.outputs.find_answer import FindAnswer
from bert_probe.analyses.outputs.label_tokens import LabelTokens
from bert_probe.analyses.outputs.next_sentence import NextSentence
from bert_probe.analyses.outputs.prediction import PredictionResult
from bert_probe.analyses.outputs.sentence_similarity import SentenceSimilarity
from bert_probe.cli.options import asking, common, pair_option
from bert_probe.core.question import option_name
from bert_probe.errors import SelectionError, TextError, UnavailableError
from bert_probe.model.checkpoint import QUESTION_ANSWERING, TASKS, Checkpoint
from bert_probe.runtime import terminal

_QUESTIONS: dict[str, Any] = {
    one.task: one
    for one in (FillMask, ClassifyText, LabelTokens, FindAnswer, NextSentence, SentenceSimilarity)
}


@click.command()
@common
@asking(FillMask)
@asking(LabelTokens)
@asking(FindAnswer, "top")
@asking(SentenceSimilarity)
@click.option(
    "--task", type=click.Choice(TASKS), help="What to ask.  [default: the first it was trained for]"
)
@click.argument("text")
@pair_option
def predict(
    checkpoint: Checkpoint,
    asked: dict[str, Any],
    task: str | None,
    text: str,
    pair: str | None,
    truncate: bool,
) -> PredictionResult:
    """What the model's trained head answers for TEXT.

    A word for each mask, a class, a label for each token, the part of --pair that answers TEXT, whether
    --pair goes on where TEXT ends, or how alike the two are.
    """
    task = task or first_task(checkpoint)
    question = _QUESTIONS[task]
    known = {field.name for field in fields(question)}
    foreign = [
        field for cls in _QUESTIONS.values() for field in fields(cls) if field.name in asked.keys() - known
    ]
    if foreign:
        raise SelectionError(f"{option_name(foreign[0])} has no meaning for {task}. Leave it out.")
    result: PredictionResult = question(**asked).of(*traces_for(checkpoint, task, text, pair, truncate))
    for note in result.notes:
        click.echo(f"bert-probe: {terminal.visible(note)}", err=True)
    return result


def first_task(checkpoint: Checkpoint) -> str:
    """What a checkpoint is asked where no task is named.

    Raises:
        UnavailableError: it was trained for none.
    """
    if not checkpoint.tasks:
        raise UnavailableError(
            f"{checkpoint.description.name} has no trained head: it is an encoder alone. Open one that "
            "was trained for a task."
        )
    return checkpoint.tasks[0]


def traces_for(
    checkpoint: Checkpoint, task: str, text: str, pair: str | None, truncate: bool
) -> tuple[Any, ...]:
    """The traces that a task is asked of: one, or two of texts that are read by themselves.

    Raises:
        TextError: the second text is missing.
    """
    if task != SentenceSimilarity.task:
        # The rest of a text that is cut is read in windows.
        cut = truncate or (task == QUESTION_ANSWERING and pair is not None)
        return (checkpoint.trace(text, pair, cut),)
    if pair is None:
        raise TextError("How alike two texts are is asked of two. Give the second with --pair.")
    return tuple(checkpoint.trace(one, truncate=truncate) for one in (text, pair))
