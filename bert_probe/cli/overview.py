"""The command on what of a text is most worth a look."""

from __future__ import annotations

import click

from bert_probe.analyses.highlights.highlights import Highlights, HighlightsResult
from bert_probe.cli.options import common, pair_option
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.runtime.progress import terminal_bar


@click.command()
@common
@click.argument("text")
@click.argument("text_b", required=False)
@pair_option
def overview(
    checkpoint: Checkpoint, text: str, text_b: str | None, pair: str | None, truncate: bool
) -> HighlightsResult:
    """What of TEXT is most worth a look, the most unusual first, with a link to its view in the app.

    A percentile is the share of the sentences shipped with the package, read by the same model, that have a
    smaller number. With TEXT_B both texts are read by themselves, and told of too what they have in common.
    """
    if text_b is not None and pair is not None:
        raise SelectionError("Both TEXT_B and --pair are given. Leave one of them out.")
    trace = checkpoint.trace(text, pair, truncate)
    other = None if text_b is None else checkpoint.trace(text_b, truncate=truncate)
    with terminal_bar("Comparing", "shipped sentences") as report:
        return Highlights().of(trace, other, report=report)
