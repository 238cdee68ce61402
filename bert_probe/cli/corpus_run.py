"""The command that reads a corpus into a store."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from bert_probe.cli.logs import lines_of_json
from bert_probe.cli.options import OutputPath, as_named_option, asking, opened
from bert_probe.corpus.build import ShardLog, build_corpus, reserved_store
from bert_probe.corpus.chunks import SHARD_ROWS
from bert_probe.corpus.ingest import IngestConfig
from bert_probe.corpus.ray_workers import RayRunner
from bert_probe.corpus.store import Store, open_corpus
from bert_probe.corpus.workers import ShardRunner, ThreadRunner
from bert_probe.errors import ProbeError, SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.runtime import terminal
from bert_probe.runtime.interrupt import exit_on_sigterm
from bert_probe.runtime.progress import terminal_bar


def _opening(command: Callable[..., Any]) -> Callable[..., Any]:
    """Open the model that the options name, once the store is reserved."""

    @click.option("--model", metavar="ID_OR_FOLDER", help="Hub id or local folder; else the built-in.")
    @click.option("--revision", metavar="REV", help="Branch, tag or commit on the hub.")
    @click.option(
        "--dtype",
        type=click.Choice(["float32", "float16", "bfloat16", "float64"]),
        default="float32",
        help="What the model computes in.",
    )
    @functools.wraps(command)
    def run(model: str | None, revision: str | None, dtype: str, out: Path, **given: Any) -> Any:
        with exit_on_sigterm(), reserved_store(out):
            return command(checkpoint=opened(model, revision, dtype), out=out, **given)

    return run


@click.command()
@click.argument("inputs", metavar="INPUT...", nargs=-1, required=True)
@click.option("--out", type=OutputPath(), metavar="STORE", required=True, help="The folder of the store.")
@click.option("--text-column", "column", metavar="NAME", help="Of tables, JSON lines and Parquet.")
@click.option(
    "--shard-rows",
    type=click.IntRange(1),
    default=SHARD_ROWS,
    show_default=True,
    metavar="N",
    help="Rows that are written together: what is lost when a run is ended.",
)
@click.option(
    "--workers", type=click.IntRange(1, 64), default=1, show_default=True, metavar="N", help="Shards at once."
)
@click.option(
    "--on",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Who works: threads of this process, or processes of Ray.",
)
@click.option("--address", metavar="A", help="Of a cluster of Ray; else this machine alone.")
@click.option(
    "--num-gpus",
    type=click.FloatRange(0),
    metavar="F",
    help="Of each of Ray's workers, or a part of one; else one if there is any.",
)
@click.option("--truncate", is_flag=True, help="Cut sentences that are too long instead of refusing them.")
@click.option("--log", type=OutputPath(), metavar="FILE", help="A line of JSON a shard.")
@as_named_option
@_opening
@asking(IngestConfig)
def run(
    checkpoint: Checkpoint,
    asked: dict[str, Any],
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
    """Read the sentences of INPUTs into a store: tokens, measures of heads, vectors.

    INPUTs are files, folders and patterns: lines of text, CSV, JSON lines, Parquet, CoNLL-U; packed with gzip
    or zstd. What cannot be read goes to a table of refusals, and the rest goes on. A run that is ended goes
    on where it was when it is called again.
    """
    question = IngestConfig(truncate=truncate, **asked)
    with _logging(log) as told, _telling_how_to_go_on(out):
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
            on_shard=told,
        )
    click.echo(terminal.visible(_said(store)), err=True)


@contextmanager
def _telling_how_to_go_on(out: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        kept = ""
        with suppress(ProbeError):
            store = open_corpus(out)
            kept = f" {store.records:,} of {store.manifest['records']:,} sentences are in {out}."
        raise KeyboardInterrupt(f"Interrupted.{kept} The same command goes on.") from None


def _runner(on: str, workers: int, address: str | None, num_gpus: float | None) -> ShardRunner:
    if on == "ray":
        return RayRunner(address, workers, num_gpus)
    if address is not None or num_gpus is not None:
        raise SelectionError("--address and --num-gpus are of Ray. Add --on ray, or leave them out.")
    return ThreadRunner(workers)


def _said(store: Store) -> str:
    refused = f", {store.refusals:,} refused (see {store.folder / 'refusals'})" if store.refusals else ""
    return f"{store.folder} holds {store.rows:,} sentences, {store.tokens:,} tokens{refused}."


@contextmanager
def _logging(file: Path | None) -> Iterator[ShardLog]:
    """Writes what happens into a file, a line each, with seconds since the beginning."""
    begun = time.monotonic()
    with lines_of_json(file, "a") as write:
        yield lambda event: write({"seconds": round(time.monotonic() - begun, 3), **event})
