"""The command group `corpus`, which reads sentences once into a store and then queries the store."""

from __future__ import annotations

import click

from bert_probe.cli.lazy_commands import CommandGroup, LazyCommand

COMMANDS = {
    "run": ("corpus_run", "Read the sentences of INPUTs into a store of tokens, head measures and vectors."),
    "near": (
        "corpus_query",
        "The contexts in STORE whose vectors are nearest to that of a word in TEXT.",
    ),
    "query": ("corpus_query", "Run a SQL query over the tables of STORE with DuckDB."),
    "heads": ("corpus_query", "Statistics of each head over all rows of STORE, or example rows of one head."),
    "histograms": ("corpus_query", "The histogram of a measure over all rows of STORE, for each head."),
    "verify": ("corpus_query", "Compare each file of STORE with its SHA-256 digest."),
    "find": (
        "corpus_query",
        "Word pairs in STORE with given tags, such as DET and NOUN, that get the most attention from a head.",
    ),
}
"""Name of a command → its module and the first sentence of its help; see `main`."""


@click.group(cls=CommandGroup, commands=[LazyCommand(name, *source) for name, source in COMMANDS.items()])
def corpus() -> None:
    """Read many sentences once into a store of tables, and query it."""
