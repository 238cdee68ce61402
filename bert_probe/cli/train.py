"""The command that teaches a model a task."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from bert_probe.cli.logs import check_log, lines_of_json
from bert_probe.cli.options import OutputPath, as_named_option, asking, opened, print_bytes, reserving
from bert_probe.core import files
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import FILL_MASK, TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION, Checkpoint
from bert_probe.model.progress import Cancelled
from bert_probe.runtime import terminal
from bert_probe.runtime.interrupt import cancel_on_interrupt
from bert_probe.runtime.progress import terminal_bar
from bert_probe.text.labeled_texts import KINDS, read_labeled_texts
from bert_probe.text.sentence_files import is_table, read_sentences
from bert_probe.text.tagged_sentences import read_tagged_sentences
from bert_probe.training.models import TASKS
from bert_probe.training.saving import check_space, find_leftovers, reserve_folder
from bert_probe.training.train import Train
from bert_probe.training.training_loop import OnEvaluation

_PLACE = click.Path(path_type=Path)
_SPARE = 1.2
"""Times the weights that must be free on the disk: a folder also holds a tokenizer, and an adapter."""


def _opening(command: Callable[..., Any]) -> Callable[..., Any]:
    """Open the model that the options name, once it is plain that the new one can be written."""

    @click.option("--model", metavar="ID_OR_FOLDER", help="Hub id or local folder; else the built-in.")
    @click.option("--revision", metavar="REV", help="Branch, tag or commit on the hub.")
    @click.option("--dtype", type=click.Choice(["float32", "float64"]), default="float32", help="Of weights.")
    @click.option("--out", type=OutputPath(), metavar="FOLDER", required=True, help="The model.")
    @click.option("--force", is_flag=True, help="Replace a model that was saved here, and the log.")
    @functools.wraps(command)
    def run(model: str | None, revision: str | None, dtype: str, out: Path, force: bool, **given: Any) -> Any:
        logs = _logs(given["log"], out)
        with reserving(logs, force), reserve_folder(out, force):
            for log in logs:
                check_log(log)
            for sentence in find_leftovers(out):
                _say(sentence)
            return command(checkpoint=opened(model, revision, dtype), out=out, force=force, **given)

    return run


@click.command()
@click.argument("data", type=_PLACE)
@click.option("--task", type=click.Choice(TASKS), help="What is taught; else told by the ending of DATA.")
@click.option("--labels", "kind", type=click.Choice(KINDS), help="What the labels of a table are.")
@click.option("--held-out", metavar="FILE|SHARE", help="What is asked for, not taught.  [default: 0.2]")
@click.option("--log", type=OutputPath(), metavar="FILE", help="A line of JSON an evaluation.")
@_opening
@asking(Train)
@as_named_option
def train(
    checkpoint: Checkpoint,
    asked: dict[str, Any],
    out: Path,
    force: bool,
    data: Path,
    task: str | None,
    kind: str | None,
    held_out: str | None,
    log: Path | None,
    as_named: bool,
) -> None:
    """Teach a model a task on DATA, and save it in a folder that every command opens.

    DATA is a .csv, .tsv or .jsonl file with the columns text and label, or text_a, text_b and label; a .conll
    or .conllu file with a word and its label on each line; or a .txt file with a text on each line, in which
    words are masked. The loss and the score on what is held out go to standard output. Ctrl+C ends the
    training and keeps the best so far.
    """
    share, others = _share(held_out)
    question = Train(**asked | ({} if share is None else {"held_out": share}))
    read = partial(_reading(data, task, kind), as_named=as_named)
    plan = question.plan(checkpoint, read(data), None if others is None else read(others))
    check_space(out, int(_SPARE * plan.bytes))
    for sentence in (str(plan), *(f"Warning: {warning}" for warning in plan.warnings), *plan.notes):
        _say(sentence)
    with (
        _logging(log, force) as told,
        terminal_bar("Training", "steps") as bar,
        cancel_on_interrupt(bar) as report,
    ):
        try:
            taught = plan.run(report, told)
        except Cancelled:
            raise click.Abort from None
    taught.save_model(out, replace=force)
    for sentence in (*taught.notes[len(plan.notes) :], f"Saved in {out}."):
        _say(sentence)
    print_bytes(files.to_bytes(taught.table(), "csv"))


def _logs(log: Path | None, out: Path) -> list[Path]:
    """Return the log if it is a file to reserve, and not a pipe or a device.

    Raises:
        SelectionError: if it is in the folder of the model.
    """
    if log is None or (log.exists() and not log.is_file()):
        return []
    if Path(os.path.realpath(out)) in Path(os.path.realpath(log)).parents:
        raise SelectionError(
            f"The log {log} is in the folder of the model, {out}. Choose another place for it."
        )
    return [log]


def _reading(data: Path, task: str | None, kind: str | None) -> Callable[..., Any]:
    """How files are read for a task."""
    name = data.name.lower().removesuffix(".gz")
    told = (
        TEXT_CLASSIFICATION
        if is_table(name)
        else TOKEN_CLASSIFICATION
        if name.endswith((".conll", ".conllu"))
        else FILL_MASK
    )
    if kind is not None and (task or told) != TEXT_CLASSIFICATION:
        raise SelectionError(f"--labels is for {TEXT_CLASSIFICATION}. Leave it out.")
    if (task or told) == TEXT_CLASSIFICATION:
        return partial(read_labeled_texts, kind=kind)
    return read_tagged_sentences if (task or told) == TOKEN_CLASSIFICATION else read_sentences


def _share(given: str | None) -> tuple[float | None, Path | None]:
    """What --held-out means: a share, or a file."""
    if given is None:
        return None, None
    number = re.fullmatch(r"[+-]?[0-9]*\.?[0-9]+(e[+-]?[0-9]{1,3})?", given, re.IGNORECASE)
    return (float(given), None) if number and not Path(given).exists() else (None, Path(given))


def _say(sentence: str) -> None:
    """A line beside the table."""
    click.echo(terminal.visible(sentence), err=True)


@contextmanager
def _logging(file: Path | None, force: bool) -> Iterator[OnEvaluation]:
    """Writes each evaluation into a file, as it comes."""
    with lines_of_json(file, "w" if force else "x") as write:
        yield lambda evaluation: write(evaluation.to_json())
