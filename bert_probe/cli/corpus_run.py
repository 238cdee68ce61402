"""The command that reads a corpus into a store."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from bert_probe.cli.options import (
    MODEL_HELP,
    REVISION_HELP,
    OutputPath,
    as_named_option,
    open_checkpoint,
    open_log,
    question_options,
)
from bert_probe.corpus.build import ShardLog, build_corpus, reserved_store
from bert_probe.corpus.inputs import IngestConfig
from bert_probe.corpus.ray_workers import RayRunner
from bert_probe.corpus.store import Store, open_corpus
from bert_probe.corpus.workers import SHARD_ROWS, ShardRunner, ThreadRunner
from bert_probe.errors import ProbeError, SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.runtime.interrupt import exit_on_sigterm
from bert_probe.runtime.progress import terminal_bar
from bert_probe.runtime.terminal import visible


def _checkpoint_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name the model; the model is opened after the store is reserved."""

    @click.option("--model", metavar="ID_OR_FOLDER", help=MODEL_HELP)
    @click.option("--revision", metavar="REV", help=REVISION_HELP)
    @click.option(
        "--dtype",
        type=click.Choice(["float32", "float16", "bfloat16", "float64"]),
        default="float32",
        show_default=True,
        help="Data type of the weights and the computation.",
    )
    @functools.wraps(command)
    def run(model: str | None, revision: str | None, dtype: str, out: Path, **values: Any) -> Any:
        with exit_on_sigterm(), reserved_store(out):
            return command(checkpoint=open_checkpoint(model, revision, dtype), out=out, **values)

    return run


@click.command()
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@click.option("--out", type=OutputPath(), metavar="STORE", required=True, help="Folder of the store.")
@click.option(
    "--text-column",
    "column",
    metavar="NAME",
    help="Name of the column or key that contains the text, for tables, JSON lines and Parquet.",
)
@click.option(
    "--shard-rows",
    type=click.IntRange(1),
    default=SHARD_ROWS,
    show_default=True,
    metavar="N",
    help="Number of sentences per shard; an interrupted run loses at most the shards in progress.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of shards that are processed in parallel.",
)
@click.option(
    "--on",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Type of worker: threads of this process, or Ray actors.",
)
@click.option("--address", metavar="A", help="Address of a Ray cluster.  [default: this machine only]")
@click.option(
    "--num-gpus",
    type=click.FloatRange(0),
    metavar="F",
    help="Number of GPUs per Ray worker; can be a fraction.  [default: 1 if available]",
)
@click.option(
    "--truncate",
    is_flag=True,
    help="Truncate sentences that are too long for the model instead of rejecting them.",
)
@click.option(
    "--log",
    type=OutputPath(),
    metavar="FILE",
    help="Log file, to which a line of JSON is appended for each shard.",
)
@as_named_option
@_checkpoint_options
@question_options(IngestConfig)
def run(
    checkpoint: Checkpoint,
    arguments: dict[str, Any],
    inputs: tuple[str, ...],
    out: Path,
    column: str | None,
    shard_rows: int,
    workers: int,
    on: str,
    address: str | None,
    num_gpus: float | None,
    truncate: bool,
    as_named: bool,
    log: Path | None,
) -> None:
    """Read the sentences of INPUTs into a store of tokens, head measures and vectors.

    INPUTs are files, folders and glob patterns. Formats are lines of text, CSV, JSON lines, Parquet and
    CoNLL-U, also compressed with gzip or zstd. Sentences that cannot be read are listed in the refusals
    table. The same command continues an interrupted run.
    """
    question = IngestConfig(truncate=truncate, **arguments)
    with _log_to(log) as on_shard, _interruption_explained(out):
        store = build_corpus(
            checkpoint,
            question,
            inputs,
            out,
            column=column,
            as_named=as_named,
            shard_rows=shard_rows,
            on=_runner(on, workers, address, num_gpus),
            watch=terminal_bar,
            on_shard=on_shard,
        )
    click.echo(visible(_summary(store)), err=True)


@contextmanager
def _interruption_explained(out: Path) -> Iterator[None]:
    """Add the number of stored sentences to the message of an interrupted run."""
    try:
        yield
    except KeyboardInterrupt:
        stored = ""
        with suppress(ProbeError):
            store = open_corpus(out)
            stored = f" {store.records:,} of {store.manifest['records']:,} sentences are in {out}."
        raise KeyboardInterrupt(f"Interrupted.{stored} Run the same command to continue.") from None


def _runner(on: str, workers: int, address: str | None, num_gpus: float | None) -> ShardRunner:
    if on == "ray":
        return RayRunner(address, workers, num_gpus)
    if address is not None or num_gpus is not None:
        raise SelectionError("--address and --num-gpus apply to Ray only. Add --on ray, or leave them out.")
    return ThreadRunner(workers)


def _summary(store: Store) -> str:
    refused = f", {store.refusals:,} rejected (see {store.folder / 'refusals'})" if store.refusals else ""
    return f"{store.folder} contains {store.rows:,} sentences, {store.tokens:,} tokens{refused}."


@contextmanager
def _log_to(file: Path | None) -> Iterator[ShardLog]:
    """Yield a function that appends an event to a log, with the seconds since the start."""
    start = time.monotonic()
    with open_log(file, "a") as write:
        yield lambda event: write({"seconds": round(time.monotonic() - start, 3), **event})
