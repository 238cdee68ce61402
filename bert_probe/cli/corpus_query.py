"""The command that runs SQL on a store."""

from __future__ import annotations

import click

from bert_probe.cli.corpus_options import store_options
from bert_probe.core.result import Result
from bert_probe.corpus.sql import DEFAULT_SECONDS, SqlQuery
from bert_probe.corpus.store import Store


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
