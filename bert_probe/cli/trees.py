"""The command on syntactic trees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bert_probe.analyses.probing.structural_probe import StructuralProbe, StructuralProbeResult
from bert_probe.cli.options import as_named_option, asking, common
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.runtime.progress import terminal_bar
from bert_probe.text.tagged_sentences import read_tagged_sentences


@click.command()
@common
@asking(StructuralProbe)
@click.argument("data", metavar="DATA.conllu", type=click.Path(path_type=Path))
@click.option(
    "--held-out", type=click.Path(path_type=Path), metavar="FILE", help="To measure on; else a fifth of DATA."
)
@as_named_option
def trees(
    checkpoint: Checkpoint,
    asked: dict[str, Any],
    data: Path,
    held_out: Path | None,
    as_named: bool,
    truncate: bool,
) -> StructuralProbeResult:
    """How well the syntactic trees of DATA can be read off each layer's vectors by a linear map.

    UUAS is the share of the edges that are found, beside that of joining each word with the next one.
    """
    first = read_tagged_sentences(data, as_named)
    second = None if held_out is None else read_tagged_sentences(held_out, as_named)
    with terminal_bar("Trees", "steps") as report:
        return StructuralProbe(**asked).of(checkpoint, first, second, truncate, report)
