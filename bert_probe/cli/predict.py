"""Commands that use a trained task head: predictions, lenses, attribution and evaluation."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import click

from bert_probe.analyses.attribution.attribution import Attribution
from bert_probe.analyses.attribution.faithfulness import AttributionFaithfulness
from bert_probe.analyses.attribution.head_attribution import HeadAttribution
from bert_probe.analyses.outputs import fill_mask
from bert_probe.analyses.outputs.evaluate import TABLES, Evaluate, EvaluateResult
from bert_probe.analyses.outputs.fill_mask import EvaluateMasks, EvaluateMasksResult, FillMask
from bert_probe.analyses.outputs.find_answer import FindAnswer
from bert_probe.analyses.outputs.head_predictions import TAGS, label_type
from bert_probe.analyses.outputs.lens import Lens, LensResult
from bert_probe.analyses.outputs.prediction import ClassifyText, LabelTokens, NextSentence, PredictionResult
from bert_probe.analyses.outputs.sentence_similarity import SentenceSimilarity
from bert_probe.analyses.outputs.tuned_lens import SUFFIX, TuneLens, TuneLensResult, lens_folder, save_lens
from bert_probe.cli.options import (
    as_named_option,
    checkpoint_options,
    model_options,
    open_checkpoint,
    own_extension,
    pair_option,
    print_message,
    question_options,
    save_or_rescue,
    text_options,
)
from bert_probe.core.question import option_name
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, TextError, UnavailableError
from bert_probe.model.checkpoint import (
    FILL_MASK,
    QUESTION_ANSWERING,
    SENTENCE_SIMILARITY,
    TASKS,
    TEXT_CLASSIFICATION,
    TOKEN_CLASSIFICATION,
    Checkpoint,
)
from bert_probe.model.outputs import no_task_message
from bert_probe.model.trace import Trace
from bert_probe.runtime.terminal import terminal_bar
from bert_probe.text.labeled_texts import read_labeled_texts
from bert_probe.text.sentence_files import read_sentences
from bert_probe.text.tagged_sentences import read_tagged_sentences

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
    "--task",
    type=click.Choice(TASKS),
    help="The task to predict.  [default: the model's first task]",
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
    """Print what the model's trained task head predicts for TEXT.

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
        raise SelectionError(f"{option_name(foreign[0])} does not apply to {task}. Omit this option.")
    result: PredictionResult = question(**arguments).of(*traces_for(checkpoint, task, text, pair, truncate))
    for note in result.notes:
        print_message(note)
    return result


def first_task(checkpoint: Checkpoint) -> str:
    """Return the default task of a checkpoint.

    Raises:
        UnavailableError: the checkpoint has no task head.
    """
    if not checkpoint.tasks:
        raise UnavailableError(no_task_message(checkpoint))
    return checkpoint.tasks[0]


def traces_for(
    checkpoint: Checkpoint, task: str, text: str, pair: str | None, truncate: bool
) -> tuple[Any, ...]:
    """Return the traces that a task needs: one trace, or one trace per text for sentence similarity.

    Raises:
        TextError: the task is sentence similarity, but `pair` is None.
    """
    if task != SentenceSimilarity.task:
        # Question answering splits a long context into windows, so truncating the trace loses nothing.
        truncate = truncate or (task == QUESTION_ANSWERING and pair is not None)
        return (checkpoint.trace(text, pair, truncate),)
    if pair is None:
        raise TextError("Sentence similarity requires two texts. Pass the second text with --pair.")
    return tuple(checkpoint.trace(sentence, truncate=truncate) for sentence in (text, pair))


@click.command()
@checkpoint_options
@question_options(Lens)
@text_options
def lens(trace: Trace, arguments: dict[str, Any]) -> LensResult:
    """Print what the task head predicts from each layer's vectors, at masks or at all tokens of TEXT.

    Layer 0 is the output of the embeddings; the last layer gives the model's prediction. The head was trained
    on the last layer only. A tuned lens first maps the vectors of each earlier layer to vectors of the last
    layer.
    """
    result = Lens(**arguments).of(trace)
    if result.tuned:
        print_message(result.tuned["verdict"])
    return result


@click.command("tune-lens")
@checkpoint_options
@question_options(TuneLens)
@click.argument("file", type=click.Path(path_type=Path))
@as_named_option
@own_extension(SUFFIX)
def tune_lens(
    checkpoint: Checkpoint, arguments: dict[str, Any], file: Path, as_named: bool, truncate: bool
) -> TuneLensResult:
    """Train a tuned lens on the lines of FILE (UTF-8) and print its losses.

    The lens is saved in the cache, or in the file of --out FILE.safetensors.
    """
    has_output = click.get_current_context().params["out"] is not None
    folder = None if has_output else lens_folder(checkpoint)  # before the training, because it can fail
    with terminal_bar("Training the lens", "steps") as progress:
        result = TuneLens(**arguments).of(
            checkpoint, read_sentences(file, as_named=as_named), truncate, progress
        )
    if folder is not None:
        # If the folder cannot be written, the lens is saved in a folder of the same name elsewhere.
        save_or_rescue(
            lambda path: print_message(f"The tuned lens was saved in {save_lens(result, path)}."), folder
        )
    print_message(result.verdict)
    return result


@click.command()
@checkpoint_options
@question_options(Attribution)
@click.argument("text")
@pair_option
def why(
    checkpoint: Checkpoint, arguments: dict[str, Any], text: str, pair: str | None, truncate: bool
) -> Result:
    """Measure how much one output value for TEXT depends on each token or word.

    By default each token is left out in turn. For the similarity of two texts, the default is the
    contribution of each pair of tokens.
    """
    task = arguments.get("task") or first_task(checkpoint)
    if task == SENTENCE_SIMILARITY and not arguments.keys() - {"task"}:
        return SentenceSimilarity("contributions").of(*traces_for(checkpoint, task, text, pair, truncate))
    return _attribute(Attribution, checkpoint, arguments, text, pair, truncate)


@click.command()
@checkpoint_options
@question_options(AttributionFaithfulness)
@click.argument("text")
@pair_option
def faithfulness(
    checkpoint: Checkpoint, arguments: dict[str, Any], text: str, pair: str | None, truncate: bool
) -> Result:
    """Measure how well each attribution method predicts the effect of removing words of TEXT."""
    return _attribute(AttributionFaithfulness, checkpoint, arguments, text, pair, truncate)


@click.command("head-attribution")
@checkpoint_options
@question_options(HeadAttribution)
@click.argument("text")
@pair_option
def head_attribution(
    checkpoint: Checkpoint, arguments: dict[str, Any], text: str, pair: str | None, truncate: bool
) -> Result:
    """Measure how one output value for TEXT changes when one head or all heads of a layer are ablated."""
    return _attribute(HeadAttribution, checkpoint, arguments, text, pair, truncate)


def _attribute(
    question: Any,
    checkpoint: Checkpoint,
    arguments: dict[str, Any],
    text: str,
    pair: str | None,
    truncate: bool,
) -> Result:
    task = arguments.get("task") or first_task(checkpoint)
    traces = traces_for(checkpoint, task, text, pair, truncate)
    with terminal_bar("Computing attributions", "steps") as progress:
        result: Result = question(**arguments).of(*traces, progress=progress)
    return result


@click.command()
@model_options
@click.option(
    "--show",
    "table",
    type=click.Choice([*TABLES, "masks"]),
    default="measures",
    help="Table to print.  [default: measures]",
)
@click.option(
    "--training",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Training data for the two baselines: the most frequent label, and a bag-of-words classifier.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    metavar="N",
    help="Random seed for the choice of masked tokens.  [default: 0]",
)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[FOLDER] DATA")
@as_named_option
def evaluate(
    model: str | None,
    revision: str | None,
    dtype: str,
    table: str,
    training: Path | None,
    seed: int | None,
    paths: tuple[Path, ...],
    as_named: bool,
    truncate: bool,
) -> EvaluateResult | EvaluateMasksResult:
    """Measure how well the trained task head of a model predicts the labels of DATA.

    FOLDER is the folder of a model or a Hub ID, and can also be passed with --model. The format of DATA
    depends on the head. Text classification needs a .csv, .tsv or .jsonl table with the columns text and
    label, or text_a, text_b and label. Token classification needs a CoNLL or CoNLL-U file. Masked-language
    modeling needs a file with one text per line, in which 15% of the tokens are masked.
    """
    *folder, data = paths or (None,)
    if data is None or len(folder) > 1:
        raise SelectionError("Pass the FOLDER of a trained model and a file of DATA, in this order.")
    if bool(folder) == (model is not None):
        raise SelectionError("Pass a single model: either its FOLDER before DATA, or --model.")
    checkpoint = open_checkpoint(str(folder[0]) if folder else model, revision, dtype)
    if FILL_MASK in checkpoint.outputs and not {TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION} & set(
        checkpoint.outputs
    ):
        return _evaluate_masks(checkpoint, table, training, seed or 0, data, as_named, truncate)
    if table == "masks" or seed is not None:
        raise SelectionError(
            f"{checkpoint.description.name} has a classification head, but --seed and --show masks apply "
            "only to masked-language models. Omit these options."
        )
    kind = label_type(checkpoint)
    read = partial(
        read_tagged_sentences if kind == TAGS else partial(read_labeled_texts, kind=kind), as_named=as_named
    )
    rows, training_rows = read(data), None if training is None else read(training)
    with terminal_bar("Evaluating", "texts") as progress:
        return Evaluate(table).of(checkpoint, rows, training_rows, truncate, progress)


def _evaluate_masks(
    checkpoint: Checkpoint,
    table: str,
    training: Path | None,
    seed: int,
    data: Path,
    as_named: bool,
    truncate: bool,
) -> EvaluateMasksResult:
    if table not in fill_mask.TABLES or training is not None:
        raise SelectionError(
            f"{checkpoint.description.name} has a masked-language-modeling head. Choose "
            f"--show {' or '.join(fill_mask.TABLES)}, and omit --training."
        )
    sentences = read_sentences(data, as_named=as_named)
    with terminal_bar("Evaluating", "texts") as progress:
        return EvaluateMasks(seed, table).of(checkpoint, sentences, truncate, progress)
