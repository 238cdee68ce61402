"""What the commands share: options, opening the model, printing the table, numbers as people count."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pandas as pd

from bert_probe.errors import ExportError, SelectionError
from bert_probe.model.loading import load
from bert_probe.results import files

Command = Callable[..., pd.DataFrame]


def common(command: Command) -> Callable[..., None]:
    """Options that every command takes: open the model first, write the table last."""

    @click.option("--model", metavar="ID_OR_FOLDER", help="Hub id or local folder; else the built-in.")
    @click.option("--revision", metavar="REV", help="Branch, tag or commit on the hub.")
    @click.option("--truncate", is_flag=True, help="Cut a text that is too long.")
    @click.option(
        "--out",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write to a .csv, .json, .npz or .parquet file.",
    )
    @functools.wraps(command)
    def run(
        model: str | None, revision: str | None, truncate: bool, out: Path | None, **given: object
    ) -> None:
        if out is not None:
            files.form_of(out)  # a wrong ending is refused before anything is computed
        frame = command(load(model, revision), truncate=truncate, **given)
        if out is not None:
            files.save(frame, out)
            return
        _print(files.to_bytes(frame, "csv"))

    return run


def _print(content: bytes) -> None:
    """Bytes to standard output: tokens may be any Unicode, whatever the terminal's own encoding."""
    if sys.stdout is None:
        raise ExportError("Standard output is closed. Give a file with --out.")
    try:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    except OSError as error:
        # Nothing more can be written, not even what is still buffered at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # whose reader has seen enough (| head)
            raise ExportError(f"Standard output cannot be written: {error.strerror}.") from None


pair_option = click.option("--pair", metavar="TEXT", help="A second text, in the same input.")
words_option = click.option("--words", is_flag=True, help="Merge the pieces of a word.")
residual_option = click.option(
    "--residual",
    type=click.FloatRange(0, 1),
    show_default="0.5",
    help="For rollout: the share that the residual connection carries.",
)
layer_option = click.option("--layer", default="last", metavar="N|last", help="Layer, counted from 1.")
layer_from_0_option = click.option(
    "--layer", default="last", metavar="N|last", help="Layer; 0 is the output of the embeddings."
)


def counted(given: str, what: str, first: int, count: int, word: str) -> int:
    """A number as people count, checked; "last" is the highest."""
    if given == word == "last":
        return count
    # Plain digits alone: int() would also read "1_0" or " 3".
    number = int(given) if re.fullmatch("[0-9]{1,9}", given) else -1
    if not first <= number <= count:
        raise SelectionError(
            f"There is no {what} {given}: this model has {what}s {first} to {count}. "
            f"Give one of them{' or ' + word if word else ''}."
        )
    return number
