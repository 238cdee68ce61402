"""The commands on head measures over all rows of a store."""

from __future__ import annotations

from typing import Any

import click

from bert_probe.cli.corpus_options import store_options
from bert_probe.cli.options import question_options
from bert_probe.core.result import Result
from bert_probe.corpus.heads import RANKINGS, HeadExamples, HeadHistograms, HeadStatistics
from bert_probe.corpus.store import Store
from bert_probe.errors import SelectionError
from bert_probe.runtime.progress import terminal_bar


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
                    "--top and --bin are for the rows of one head. Add --which, or leave both out."
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
