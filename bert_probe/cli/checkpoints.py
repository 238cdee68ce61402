"""Commands that check which features a model supports, convert pickled weights, and fine-tune models."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from bert_probe.analyses.weights.model_check import check as check_model
from bert_probe.cli.logs import open_log, reserve_log
from bert_probe.cli.options import (
    MODEL_HELP,
    REVISION_HELP,
    OutputPath,
    as_named_option,
    dtype_option,
    open_checkpoint,
    output_options,
    print_bytes,
    question_options,
    save_or_rescue,
)
from bert_probe.conversion.convert import convert as convert_model
from bert_probe.core import files
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import (
    FILL_MASK,
    SENTENCE_SIMILARITY,
    TEXT_CLASSIFICATION,
    TOKEN_CLASSIFICATION,
    Checkpoint,
)
from bert_probe.model.progress import Cancelled
from bert_probe.model.sources import existing
from bert_probe.runtime.terminal import cancel_on_interrupt, exit_on_sigterm, terminal_bar, visible
from bert_probe.text.labeled_texts import KINDS, read_labeled_texts
from bert_probe.text.sentence_files import read_sentences
from bert_probe.text.similarity_examples import SCORED, find_similarity_kind, read_similarity_examples
from bert_probe.text.tables import is_table
from bert_probe.text.tagged_sentences import read_tagged_sentences
from bert_probe.training.contrastive import AUTO
from bert_probe.training.models import TASKS
from bert_probe.training.saving import check_space, find_leftovers, reserve_folder
from bert_probe.training.train import Train
from bert_probe.training.training_loop import LOG_KEYS, OnEvaluation

_DISK_SPACE_FACTOR = 1.2
"""Required free disk space as a multiple of the size of the weights; the folder also contains the tokenizer
and an adapter."""


@click.command()
@click.argument("model", metavar="MODEL")
@click.option("--out", type=OutputPath(), metavar="FOLDER", required=True, help="Folder of the new model.")
@click.option("--revision", metavar="REV", help=REVISION_HELP)
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    metavar="N",
    help="Time limit, in seconds.  [default: 2 minutes, plus 1 second for every 10 MB]",
)
@click.option("--force", is_flag=True, help="Overwrite a model that BERT Probe saved in the output folder.")
def convert(model: str, out: Path, revision: str | None, seconds: float | None, force: bool) -> None:
    """Convert the pickled weights of a MODEL (pytorch_model.bin) to safetensors, in a new folder.

    MODEL is a Hub ID or a local folder. A separate process without network access, with limited memory and
    time, reads the tensors with torch's restricted unpickler; code in the file is not run. Config, tokenizer
    and sentence-transformers modules are copied. bert_probe.json in the new folder lists the SHA-256 of each
    file before and after the conversion.
    """
    with exit_on_sigterm(), reserve_folder(out, force):
        for message in find_leftovers(out):
            click.echo(visible(message), err=True)
        with terminal_bar("Converting", "B") as bar, cancel_on_interrupt(bar) as progress:
            try:
                converted = convert_model(
                    model, out, revision, replaces=force, seconds=seconds, progress=progress
                )
            except Cancelled:
                raise click.Abort from None
    for file in converted.record["files"]:
        tied = f", {len(file['tied'])} tied" if file["tied"] else ""
        message = f"{file['source']} → {file['file']}: {file['tensors']:,} tensors{tied}."
        click.echo(visible(message), err=True)
    click.echo(visible(f"The model was saved in {out}. Open the model with --model {out}."), err=True)


@click.command()
@click.argument("model", metavar="MODEL")
@click.option("--revision", metavar="REV", help=REVISION_HELP)
@dtype_option
@click.option(
    "--config-only", is_flag=True, help="Read only the config; the weights are neither downloaded nor opened."
)
@output_options
def check(model: str, revision: str | None, dtype: str, config_only: bool) -> object:
    """List which features work with a MODEL, and why the other features do not.

    MODEL is a Hub ID or a local folder. The config is read first; if it describes a supported model, the
    checkpoint is opened. Prints one row for each capability: yes, no, or unknown if it was not checked.
    """
    with terminal_bar("Downloading", "B") as progress:
        checked = check_model(model, revision, config_only=config_only, dtype=dtype, progress=progress)
    return checked.table()


def _checkpoint_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the model and the outputs; open the model after the outputs are reserved."""

    @click.option("--model", metavar="ID_OR_FOLDER", help=MODEL_HELP)
    @click.option("--revision", metavar="REV", help=REVISION_HELP)
    @click.option(
        "--dtype",
        type=click.Choice(["float32", "float64"]),
        default="float32",
        show_default=True,
        help="Data type of the weights and the computation.",
    )
    @click.option(
        "--out", type=OutputPath(), metavar="FOLDER", required=True, help="Folder to save the model in."
    )
    @click.option(
        "--force",
        is_flag=True,
        help="Overwrite a model that BERT Probe saved in the output folder, and its log.",
    )
    @functools.wraps(command)
    def run(
        model: str | None, revision: str | None, dtype: str, out: Path, force: bool, **values: Any
    ) -> Any:
        with reserve_log(values["log"], out, force, LOG_KEYS), reserve_folder(out, force):
            for message in find_leftovers(out):
                _print(message)
            return command(checkpoint=open_checkpoint(model, revision, dtype), out=out, force=force, **values)

    return run


@click.command()
@click.argument("data", type=click.Path(path_type=Path))
@click.option(
    "--task",
    type=click.Choice(TASKS),
    help="Task to train.  [default: inferred from the file extension and columns of DATA]",
)
@click.option(
    "--labels", "kind", type=click.Choice(KINDS), help="Type of the labels in a table.  [default: inferred]"
)
@click.option(
    "--held-out",
    metavar="FILE|SHARE",
    help="Fraction of DATA to hold out for evaluation, or a file with held-out examples.  [default: 0.2]",
)
@click.option(
    "--log",
    type=OutputPath(),
    metavar="FILE",
    help="Log file, to which each evaluation writes a line of JSON.",
)
@_checkpoint_options
@question_options(Train)
@as_named_option
def train(
    checkpoint: Checkpoint,
    arguments: dict[str, Any],
    out: Path,
    force: bool,
    data: Path,
    task: str | None,
    kind: str | None,
    held_out: str | None,
    log: Path | None,
    as_named: bool,
) -> None:
    """Fine-tune a model on DATA, and save it in a folder.

    The format of DATA determines the task. A .csv, .tsv or .jsonl file with the columns text and label, or
    text_a, text_b and label, trains a text classifier. The columns text_a, text_b and score, or anchor,
    positive and optionally negative, train sentence similarity, if the model declares its pooling. Without a
    pooling, text_a, text_b and score train a regression head. A .conll or .conllu file has a word and its
    label on each line. A .txt file has a text on each line, in which words are masked. When the training
    ends, prints a table with the loss and the held-out score of each evaluation. Ctrl+C, SIGTERM and a closed
    terminal stop the training and, after the first evaluation, save the best weights so far.
    """
    share, held_out_file = _parse_held_out(held_out)
    question = Train(**arguments | ({} if share is None else {"held_out": share}))
    read = partial(_reader(checkpoint, data, task, kind, question.loss), as_named=as_named)
    plan = question.plan(checkpoint, read(data), None if held_out_file is None else read(held_out_file))
    check_space(out, int(_DISK_SPACE_FACTOR * plan.bytes))
    for message in (str(plan), *(f"Warning: {warning}" for warning in plan.warnings), *plan.notes):
        _print(message)
    with (
        _log_to(log, force) as on_evaluation,
        terminal_bar("Training", "steps") as bar,
        cancel_on_interrupt(bar, ("SIGINT", "SIGTERM", "SIGHUP")) as progress,
    ):
        try:
            result = plan.run(progress, on_evaluation)
        except Cancelled:
            raise click.Abort from None
        # Here, so that no signal interrupts it.
        save_or_rescue(lambda folder: result.save_model(folder, replace=force), out)
    for message in (*result.notes[len(plan.notes) :], f"Saved in {out}."):
        _print(message)
    print_bytes(files.to_bytes(result.table(), "csv"))


def _reader(
    checkpoint: Checkpoint, data: Path, task: str | None, kind: str | None, loss: str
) -> Callable[..., Any]:
    """Return the function that reads data for a task.

    If the task is None, it is inferred from the name and the columns of the file. For scored pairs, it also
    depends on the loss and on whether the checkpoint has a pooling.
    """
    name = data.name.lower().removesuffix(".gz")
    if task is None and is_table(name):
        examples = find_similarity_kind(data) if kind is None else None
        # Without a pooling, a model can still learn the scores of pairs with a regression head.
        has_head = examples == SCORED and loss == AUTO and not checkpoint.has_pooling
        task = TEXT_CLASSIFICATION if examples is None or has_head else SENTENCE_SIMILARITY
    elif task is None:
        task = TOKEN_CLASSIFICATION if name.endswith((".conll", ".conllu")) else FILL_MASK
    if kind is not None and task != TEXT_CLASSIFICATION:
        raise SelectionError(f"--labels applies to {TEXT_CLASSIFICATION} only. Omit --labels.")
    if task == TEXT_CLASSIFICATION:
        return partial(read_labeled_texts, kind=kind)
    if task == SENTENCE_SIMILARITY:
        return read_similarity_examples
    return read_tagged_sentences if task == TOKEN_CLASSIFICATION else read_sentences


def _parse_held_out(text: str | None) -> tuple[float | None, Path | None]:
    """Parse the value of --held-out into (share, None) or (None, file)."""
    if text is None:
        return None, None
    is_number = re.fullmatch(r"[+-]?[0-9]*\.?[0-9]+(e[+-]?[0-9]{1,3})?", text, re.IGNORECASE)
    return (float(text), None) if is_number and existing(text) is None else (None, Path(text))


def _print(message: str) -> None:
    """Write a line to standard error, separate from the table on standard output."""
    click.echo(visible(message), err=True)


@contextmanager
def _log_to(file: Path | None, force: bool) -> Iterator[OnEvaluation]:
    """Yield a function that writes an evaluation to a log file as a line of JSON."""
    with open_log(file, "w" if force else "x", LOG_KEYS) as write:
        yield lambda evaluation: write(evaluation.to_json())
