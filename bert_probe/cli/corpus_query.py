"""The command that asks a store in SQL."""

from __future__ import annotations

import click

from bert_probe.cli.corpus_options import asking_a_store
from bert_probe.core.result import Result
from bert_probe.corpus.query import SqlQuery
from bert_probe.corpus.sql import DEFAULT_SECONDS
from bert_probe.corpus.store import Store


@click.command()
@asking_a_store
@click.argument("sql")
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=DEFAULT_SECONDS,
    show_default=True,
    help="The longest that it may take.",
)
def query(store: Store, sql: str, seconds: float) -> Result:
    """Answer SQL over the tables of STORE, by DuckDB.

    Nothing but these can be read, and nothing can be written. DESCRIBE rows tells the columns of a table,
    SHOW TABLES which there are.
    """
    return SqlQuery(sql).of(store, seconds)
