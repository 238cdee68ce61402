"""Commands on corpora: many sentences, read once into a store and asked from there."""

from __future__ import annotations

import click

from bert_probe.cli.lazy_commands import CommandGroup, LazyCommand

COMMANDS = {
    "run": ("corpus_run", "Read the sentences of INPUTs into a store: tokens, measures of heads, vectors."),
    "near": (
        "corpus_near",
        "The contexts in STORE that are nearest to a word of TEXT, by the cosine of their vectors.",
    ),
    "query": ("corpus_query", "Answer SQL over the tables of STORE, by DuckDB."),
    "heads": ("corpus_heads", "What each head does over all rows of STORE, or its typical rows."),
    "histograms": ("corpus_heads", "How a measure is spread over all rows of STORE, for every head."),
    "verify": ("corpus_verify", "Compare every file of STORE with its SHA-256."),
    "find": ("corpus_find", "Where in STORE a head looks from a word of one kind to one of another."),
}
"""Command → its module, and its first sentence; see `main`."""


@click.group(cls=CommandGroup, commands=[LazyCommand(name, *about) for name, about in COMMANDS.items()])
def corpus() -> None:
    """Read many sentences once into a store of tables, and ask it."""
