"""The commands that query a store: SQL, statistics of heads, histograms, search and verification."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from bert_probe.cli.options import (
    confirm,
    output_options,
    print_bytes,
    question_options,
    suggest_truncate_option,
)
from bert_probe.core import files
from bert_probe.core.result import Result
from bert_probe.corpus.attention_search import AttentionSearch
from bert_probe.corpus.heads import RANKINGS, HeadExamples, HeadHistograms, HeadStatistics
from bert_probe.corpus.search.contexts import NearestContexts, NearestContextsResult
from bert_probe.corpus.sql import DEFAULT_SECONDS, SqlQuery
from bert_probe.corpus.store import Store, open_corpus
from bert_probe.corpus.verify import verify_corpus
from bert_probe.errors import SelectionError
from bert_probe.runtime.progress import terminal_bar
from bert_probe.runtime.terminal import visible


def store_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument STORE, which is opened and passed as ``store``, and the output options."""

    @click.argument("folder", metavar="STORE", type=click.Path(path_type=Path))
    @output_options
    @functools.wraps(command)
    def run(folder: Path, **values: Any) -> Any:
        return command(store=open_corpus(folder), **values)

    return run


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

    A query can read these tables only, and cannot write. SHOW TABLES lists the tables, DESCRIBE rows the
    columns of the table rows.
    """
    return SqlQuery(sql).of(store, seconds)


@click.command()
@store_options
@question_options(AttentionSearch)
def find(store: Store, arguments: dict[str, Any]) -> Result:
    """Word pairs in STORE with given tags, such as DET and NOUN, that get the most attention from a head.

    A pair counts if the head's largest weight goes from one word to the other. The store must have been
    made with --keep neighbors.
    """
    return AttentionSearch(**arguments).of(store)


@click.command()
@store_options
@question_options(HeadStatistics)
@click.option(
    "--which",
    type=click.Choice(RANKINGS),
    help="Print the rows where one measure of one head is nearest to its median, farthest from it, lowest or "
    "highest.",
)
@question_options(HeadExamples, "head", "measure", "which")
def heads(store: Store, which: str | None, arguments: dict[str, Any]) -> Result:
    """Statistics of each head over all rows of STORE, or example rows of one head.

    The statistics are means with confidence intervals, quantiles, minimum and maximum. With --which, prints
    the rows that are most typical of a head, least typical, or extreme.
    """
    with terminal_bar("Reading", "shards") as progress:
        if which is None:
            if not arguments.keys().isdisjoint(("top", "bin")):
                raise SelectionError(
                    "--top and --bin apply only to the rows of one head. Add --which, or leave both out."
                )
            return HeadStatistics(**arguments).of(store, progress)
        heads = arguments.pop("heads", ())
        if len(heads) != 1 or "measure" not in arguments:
            raise SelectionError(
                "--which requires one head and one measure. Add --head, such as 3.1, and --measure."
            )
        return HeadExamples(heads[0], which=which, **arguments).of(store, progress)


@click.command()
@store_options
@question_options(HeadHistograms)
def histograms(store: Store, arguments: dict[str, Any]) -> Result:
    """The histogram of a measure over all rows of STORE, for each head."""
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
@click.option("--text", required=True, metavar="TEXT", help="Text that contains the word.")
@click.option("--truncate", is_flag=True, help="Truncate a text that is too long for the model.")
@click.option(
    "--model", metavar="ID_OR_FOLDER", help="Model to open instead of the one that the store names."
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
    """The contexts in STORE whose vectors are nearest to that of a word in TEXT.

    The search is exact up to a million vectors. For more, the first search of a layer builds an index, which
    takes minutes and is saved in STORE/index; the JSON file next to the output states its recall.

    Models other than the built-in model are opened only after you agree, because the store may be untrusted.
    """
    model_label = store.named_model
    if model is None and model_label is not None and not yes:
        confirm("The store", store.manifest["model"]["model"], model_label)
    with suggest_truncate_option():
        trace = store.checkpoint(model, revision, trust=True).trace(text, truncate=truncate)
    with terminal_bar("Preparing", "vectors") as progress:
        return NearestContexts(**arguments).of(store, trace, progress)
