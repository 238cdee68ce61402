"""The command on many sentences: how alike they are, or where they lie on a plane."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bert_probe.analyses.vectors.layouts import METHODS
from bert_probe.analyses.vectors.sentence_map import SentenceMap, SentenceMapResult
from bert_probe.analyses.vectors.sentences import Sentences, SentencesResult
from bert_probe.cli.options import as_named_option, asking, common
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.runtime.progress import terminal_bar
from bert_probe.text.sentence_files import read_sentences


@click.command()
@common
@asking(Sentences)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--column", metavar="NAME", help="Column of a .csv or .tsv file; else sentence or text.")
@click.option("--vectors", is_flag=True, help="The vector of each sentence instead.")
@click.option("--nearest", type=click.IntRange(1), metavar="N", help="The N most alike pairs instead.")
@click.option("--map", "method", type=click.Choice(list(METHODS)), help="Places on a plane instead.")
@as_named_option
def sentences(
    checkpoint: Checkpoint,
    asked: dict[str, Any],
    file: Path,
    column: str | None,
    vectors: bool,
    nearest: int | None,
    method: str | None,
    as_named: bool,
    truncate: bool,
) -> SentencesResult | SentenceMapResult:
    """Cosine of every two sentences of FILE: one a line, or a column of a table."""
    wanted = {"--vectors": vectors, "--nearest": nearest is not None, "--map": method is not None}
    given = [option for option, is_given in wanted.items() if is_given]
    if len(given) > 1:
        raise SelectionError(f"{' and '.join(given)} are given, which are different tables. Ask for one.")
    if method is not None and "order" in asked:
        raise SelectionError("--order is for the tables of sentences; a map has none. Leave it out.")
    read = read_sentences(file, column, as_named)
    with terminal_bar("Sentences", "sentences") as report:
        if method is not None:
            return SentenceMap(method, **asked).of(checkpoint, read, truncate, report)
        if nearest is not None:
            return Sentences(show="nearest", count=nearest, **asked).of(checkpoint, read, truncate, report)
        show = "vectors" if vectors else "cosines"
        return Sentences(show=show, **asked).of(checkpoint, read, truncate, report)
