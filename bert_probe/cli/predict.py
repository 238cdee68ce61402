"""The command that runs a trained output head."""

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
from bert_probe.cli.options import checkpoint_options, pair_option, print_message, question_options
from bert_probe.core.question import option_name
from bert_probe.errors import SelectionError, TextError, UnavailableError
from bert_probe.model.checkpoint import QUESTION_ANSWERING, TASKS, Checkpoint

_QUESTIONS: dict[str, Any] = {
    question.task: question
    for question in (FillMask, ClassifyText, LabelTokens, FindAnswer, NextSentence, SentenceSimilarity)
}


@click.command()
@checkpoint_options
@question_options(FillMask)
@question_options(LabelTokens)
@question_options(FindAnswer, "top")
@question_options(SentenceSimilarity)
@click.option(
    "--task", type=click.Choice(TASKS), help="Task of the head.  [default: the first task of the model]"
)
@click.argument("text")
@pair_option
def predict(
    checkpoint: Checkpoint,
    arguments: dict[str, Any],
    task: str | None,
    text: str,
    pair: str | None,
    truncate: bool,
) -> PredictionResult:
    """What the model's trained head predicts for TEXT.

    Depending on the task: words for each mask, classes, a label for each token, the span of --pair that
    answers TEXT, whether --pair follows TEXT, or the cosine similarity of both.
    """
    task = task or first_task(checkpoint)
    question = _QUESTIONS[task]
    names = {field.name for field in fields(question)}
    foreign = [
        field
        for cls in _QUESTIONS.values()
        for field in fields(cls)
        if field.name in arguments.keys() - names
    ]
    if foreign:
        raise SelectionError(f"{option_name(foreign[0])} does not apply to {task}. Leave it out.")
    result: PredictionResult = question(**arguments).of(*traces_for(checkpoint, task, text, pair, truncate))
    for note in result.notes:
        print_message(note)
    return result


def first_task(checkpoint: Checkpoint) -> str:
    """Return the default task of a checkpoint.

    Raises:
        UnavailableError: if the checkpoint has no trained head.
    """
    if not checkpoint.tasks:
        raise UnavailableError(
            f"{checkpoint.description.name} has no trained head. Open a model that was trained for a task."
        )
    return checkpoint.tasks[0]


def traces_for(
    checkpoint: Checkpoint, task: str, text: str, pair: str | None, truncate: bool
) -> tuple[Any, ...]:
    """Return the traces that a task needs: one, or for sentence similarity one for each text.

    Raises:
        TextError: if the second text is missing.
    """
    if task != SentenceSimilarity.task:
        # Question answering reads the truncated part of a context in further windows.
        truncate = truncate or (task == QUESTION_ANSWERING and pair is not None)
        return (checkpoint.trace(text, pair, truncate),)
    if pair is None:
        raise TextError("Sentence similarity requires two texts. Pass the second with --pair.")
    return tuple(checkpoint.trace(sentence, truncate=truncate) for sentence in (text, pair))
