"""The command on heads against a treebank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bert_probe.analyses.probing.relations import Relations, RelationsResult
from bert_probe.cli.options import as_named_option, asking, common
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.runtime.progress import terminal_bar
from bert_probe.text.tagged_sentences import read_tagged_sentences


@click.command()
@common
@asking(Relations)
@click.argument("chosen", metavar="DEV.conllu", type=click.Path(path_type=Path))
@click.argument("reported", metavar="TEST.conllu", type=click.Path(path_type=Path))
@click.option("--all", "every", is_flag=True, help="Every head and direction, not only the best one.")
@as_named_option
def relations(
    checkpoint: Checkpoint,
    asked: dict[str, Any],
    chosen: Path,
    reported: Path,
    every: bool,
    as_named: bool,
    truncate: bool,
) -> RelationsResult:
    """For each relation of a treebank the head that attends from a word to its syntactic head, or back.

    DEV chooses head, direction and offset; TEST is what the accuracies are of.
    """
    first, second = (read_tagged_sentences(file, as_named) for file in (chosen, reported))
    with terminal_bar("Relations", "sentences") as report:
        return Relations(show="all" if every else "best", **asked).of(
            checkpoint, first, second, truncate, report
        )
