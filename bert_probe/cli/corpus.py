"""The subcommands of `corpus`, which build a store and query it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from bert_probe.cli.logs import open_log, reserve_log
from bert_probe.cli.options import (
    MODEL_HELP,
    REVISION_HELP,
    OutputPath,
    as_named_option,
    confirm,
    open_checkpoint,
    output_options,
    print_bytes,
    print_message,
    question_options,
    suggest_truncate_option,
)
from bert_probe.core import files
from bert_probe.core.result import Result
from bert_probe.corpus.attention_search import AttentionSearch
from bert_probe.corpus.build import (
    ShardLog,
    build_corpus,
    incomplete_note,
    reserved_store,
    verify_corpus,
)
from bert_probe.corpus.contexts import NearestContexts, NearestContextsResult
from bert_probe.corpus.heads import RANKINGS, HeadExamples, HeadHistograms, HeadStatistics
from bert_probe.corpus.health import CorpusHealth
from bert_probe.corpus.inputs import IngestConfig
from bert_probe.corpus.sql import DEFAULT_SECONDS, SqlQuery
from bert_probe.corpus.store import Store, open_corpus
from bert_probe.corpus.vector_files import read_vectors
from bert_probe.corpus.workers import SHARD_ROWS, RayRunner, ShardRunner, ThreadRunner
from bert_probe.errors import ProbeError, SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.runtime.terminal import terminal_bar, visible

_LOG_KEYS = [("seconds", "shard", "refusals", "records", "of")]  # see `build_corpus`


def store_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the output options and the argument STORE; open the store and pass it as ``store``."""

    @click.argument("folder", metavar="STORE", type=click.Path(path_type=Path))
    @output_options
    @functools.wraps(command)
    def run(folder: Path, **values: Any) -> Any:
        store = open_corpus(folder)
        print_incomplete(store)
        return command(store=store, **values)

    return run


def print_incomplete(store: Store) -> None:
    """Print a message if a store does not contain all records of its inputs."""
    if note := incomplete_note(store):
        print_message(note)


@click.command()
@store_options
@click.argument("sql")
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=DEFAULT_SECONDS,
    show_default=True,
    help="Time limit of the query, in seconds.",
)
def query(store: Store, sql: str, seconds: float) -> Result:
    """Run a SQL query over the tables of STORE with DuckDB.

    A query can read these tables only, and cannot write. SHOW TABLES lists the tables, and DESCRIBE rows
    lists the columns of the table named rows.
    """
    return SqlQuery(sql).of(store, seconds)


@click.command()
@store_options
@question_options(AttentionSearch)
def find(store: Store, arguments: dict[str, Any]) -> Result:
    """Find word pairs in STORE with the selected tags, such as DET and NOUN, sorted by a head's attention.

    A pair is included if, in this head, the first word attends most to the second word. The store must have
    been built with --keep neighbors.
    """
    return AttentionSearch(**arguments).of(store)


@click.command()
@store_options
@question_options(HeadStatistics)
@click.option(
    "--which",
    type=click.Choice(RANKINGS),
    help="Print the rows in which a measure of a head is nearest to the median, farthest from the median, "
    "lowest or highest.",
)
@question_options(HeadExamples, "head", "measure", "which")
def heads(store: Store, which: str | None, arguments: dict[str, Any]) -> Result:
    """Print statistics of each head over all rows of STORE, or example rows of one head.

    The statistics are means with confidence intervals, quantiles, minimum and maximum. With --which, prints
    the rows in which a measure of one head is nearest to the median, farthest from the median, lowest or
    highest.
    """
    with terminal_bar("Reading", "shards") as progress:
        if which is None:
            if not arguments.keys().isdisjoint(("top", "bin")):
                raise SelectionError(
                    "--top and --bin apply only to the rows of one head. Add --which, or omit both options."
                )
            return HeadStatistics(**arguments).of(store, progress)
        heads = arguments.pop("heads", None)
        if heads is None or len(heads) != 1 or "measure" not in arguments:
            raise SelectionError(
                "--which requires one head and one measure. Add --head, such as 3.1, and --measure."
            )
        return HeadExamples(heads[0], which=which, **arguments).of(store, progress)


@click.command()
@click.argument("file", metavar="VECTORS", type=click.Path(path_type=Path))
@click.option(
    "--model",
    metavar="ID_OR_FOLDER",
    help="Model that computed the vectors, used to calibrate the duplicate threshold.  [default: the "
    "built-in model for a store built with it, otherwise none]",
)
@click.option("--revision", metavar="REV", help=REVISION_HELP)
@output_options
@question_options(CorpusHealth)
def health(file: Path, model: str | None, revision: str | None, arguments: dict[str, Any]) -> Result:
    """Find duplicates, outliers and hubs among text vectors, which may come from any model.

    VECTORS is a .parquet file with the column vector, and possibly id, text and tokens_dropped; an .npz
    file with the array vectors, and possibly ids, texts and tokens_dropped; or a corpus store, whose sentence
    vectors (or the means of its token vectors) are used. No model is needed.
    """
    if revision is not None and model is None:
        raise SelectionError("--revision applies to --model. Add --model, or omit --revision.")
    with terminal_bar("Reading", "B") as progress:
        vectors = read_vectors(file, progress)
    if vectors.note:
        print_message(vectors.note)
    question = CorpusHealth(**arguments)
    checkpoint = None
    store = open_corpus(file) if file.is_dir() else None
    if store is not None:
        print_incomplete(store)
    if question.threshold is None and store is not None:
        # A model that the store names is opened only if the user has agreed by passing --model.
        if model is not None or (vectors.pooling is not None and store.named_model is None):
            checkpoint = store.checkpoint(model, revision)
    elif question.threshold is None and model is not None:
        checkpoint = open_checkpoint(model, revision, "float32")
    with terminal_bar("Comparing", "blocks") as progress:
        return question.of(vectors, checkpoint, progress)


@click.command()
@store_options
@question_options(HeadHistograms)
def histograms(store: Store, arguments: dict[str, Any]) -> Result:
    """Print the histogram of a measure over all rows of STORE, for each head."""
    return HeadHistograms(**arguments).of(store)


@click.command()
@click.argument("folder", metavar="STORE", type=click.Path(path_type=Path))
@click.pass_context
def verify(context: click.Context, folder: Path) -> None:
    """Compare each file of STORE with its SHA-256 digest.

    Prints a row for each file that differs, and exits with status 1 if there are any.
    """
    with terminal_bar("Comparing", "B") as progress:
        verification = verify_corpus(folder, progress)
    if verification.differences:
        print_bytes(files.to_bytes(verification.frame(), "csv"))
    click.echo(f"bert-probe: {visible(verification.summary())}", err=True)
    if verification.differences:
        context.exit(1)


@click.command()
@click.option("--text", required=True, metavar="TEXT", help="Text that contains the query word.")
@click.option("--truncate", is_flag=True, help="Truncate a text that is too long for the model.")
@click.option(
    "--model", metavar="ID_OR_FOLDER", help="Model to open instead of the model that the store names."
)
@click.option("--revision", metavar="REV", help="Branch, tag or commit of --model on the Hub.")
@click.option(
    "--yes", is_flag=True, help="Open the model named in the store without asking for confirmation."
)
@store_options
@question_options(NearestContexts)
def near(
    store: Store,
    arguments: dict[str, Any],
    text: str,
    truncate: bool,
    model: str | None,
    revision: str | None,
    yes: bool,
) -> NearestContextsResult:
    """Find the contexts in STORE whose vectors are nearest to the vector of a word in TEXT.

    The search is exact up to a million vectors. For more vectors, the first search of a layer builds an
    index, which takes minutes and is saved in STORE/index; the JSON file next to the output states its
    recall.

    Models other than the built-in model are opened only after you agree, because the store may be untrusted.
    """
    model_label = store.named_model
    if model is None and model_label is not None and not yes:
        confirm("The store", store.manifest["model"]["model"], model_label)
    with suggest_truncate_option():
        trace = store.checkpoint(model, revision, trust=True).trace(text, truncate=truncate)
    with terminal_bar("Preparing", "vectors") as progress:
        return NearestContexts(**arguments).of(store, trace, progress)


def _checkpoint_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the model to a command, and pass the opened model as `checkpoint`.

    The folder of the new store is reserved before the model is opened, which may take long.
    """

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
        with reserve_log(values["log"], out, True, _LOG_KEYS), reserved_store(out):
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
    help="Number of sentences per shard; if a run is interrupted, only the shards in progress are lost.",
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
    help="Log file, to which each shard appends a line of JSON.",
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
            exclude=[] if log is None else [log],
        )
    refused = f"; {store.refusals:,} rejected (see {store.folder / 'refusals'})" if store.refusals else ""
    summary = f"{store.folder} contains {store.rows:,} sentences with {store.tokens:,} tokens{refused}."
    click.echo(visible(summary), err=True)


@contextmanager
def _interruption_explained(out: Path) -> Iterator[None]:
    """Raise KeyboardInterrupt again with a message that states how many sentences are stored."""
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
        raise SelectionError(
            "--address and --num-gpus apply to Ray only. Add --on ray, or omit both options."
        )
    return ThreadRunner(workers)


@contextmanager
def _log_to(file: Path | None) -> Iterator[ShardLog]:
    """Yield a function that appends an event to a log file, with the seconds since the start of the run."""
    start = time.monotonic()
    with open_log(file, "a", _LOG_KEYS) as write:
        yield lambda event: write({"seconds": round(time.monotonic() - start, 3), **event})
