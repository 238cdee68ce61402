"""The commands on what heads do over all rows of a store."""

from __future__ import annotations

from typing import Any

import click

from bert_probe.cli.corpus_options import asking_a_store
from bert_probe.cli.options import asking
from bert_probe.core.result import Result
from bert_probe.corpus.head_rows import RANKINGS, HeadExamples
from bert_probe.corpus.head_summary import HeadStatistics
from bert_probe.corpus.histograms import HeadHistograms
from bert_probe.corpus.store import Store
from bert_probe.errors import SelectionError
from bert_probe.runtime.progress import terminal_bar


@click.command()
@asking_a_store
@asking(HeadStatistics)
@click.option(
    "--which",
    type=click.Choice(RANKINGS),
    help="Rows of one head by one measure: nearest to its median, farthest from it, lowest or highest.",
)
@asking(HeadExamples, "head", "measure", "which")
def heads(store: Store, which: str | None, asked: dict[str, Any]) -> Result:
    """What each head does over all rows of STORE, or its typical rows.

    Means with intervals, quantiles, the least and the most; with --which the rows that are the most typical
    of a head for a measure, or the least.
    """
    with terminal_bar("Reading", "shards") as progress:
        if which is None:
            if not asked.keys().isdisjoint(("top", "bin")):
                raise SelectionError(
                    "--top and --bin are for rows of a head. Add --which, or leave both out."
                )
            return HeadStatistics(**asked).of(store, progress)
        chosen = asked.pop("heads", ())
        if len(chosen) != 1 or "measure" not in asked:
            raise SelectionError(
                "--which is of one head and one measure. Add --head, such as 3.1, and --measure."
            )
        return HeadExamples(chosen[0], which=which, **asked).of(store, progress)


@click.command()
@asking_a_store
@asking(HeadHistograms)
def histograms(store: Store, asked: dict[str, Any]) -> Result:
    """How a measure is spread over all rows of STORE, for every head."""
    return HeadHistograms(**asked).of(store)
