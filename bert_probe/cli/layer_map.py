"""The command on where tokens lie at every layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bert_probe.analyses.vectors.token_map import CorpusTokenMap, TokenMap, TokenMapResult
from bert_probe.cli.options import as_named_option, asking, common, pair_option
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.runtime.progress import terminal_bar
from bert_probe.text.labeled_texts import read_labeled_texts
from bert_probe.text.sentence_files import read_sentences

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@common
@asking(TokenMap)
@click.argument("text", required=False)
@click.argument("text_b", required=False)
@pair_option
@click.option("--file", type=_FILE, metavar="FILE", help="Texts instead of TEXT: one a line, or of a table.")
@click.option("--column", metavar="NAME", help="Column of a .csv or .tsv file; else sentence or text.")
@click.option(
    "--labelled", type=_FILE, metavar="FILE", help="A table with text,label instead: labels are its parts."
)
@as_named_option
def map(  # noqa: A001 - what the command is called
    checkpoint: Checkpoint,
    asked: dict[str, Any],
    text: str | None,
    text_b: str | None,
    pair: str | None,
    file: Path | None,
    column: str | None,
    labelled: Path | None,
    as_named: bool,
    truncate: bool,
) -> TokenMapResult:
    """Where each token of TEXT, and of TEXT_B, lies at every layer, on one plane of principal components.

    Places are of the first two components of all layers together; a file says which share of the variance
    they hold.
    """
    if sum(given is not None for given in (text, file, labelled)) != 1:
        raise SelectionError("Give a TEXT, texts with --file, or a table with --labelled; one of these.")
    if column is not None and file is None:
        raise SelectionError("--column goes with --file. Leave it out.")
    if text is None:
        if pair is not None:
            raise SelectionError("--pair goes with a TEXT. Leave it out.")
        rows = (
            read_sentences(file or "", column, as_named)
            if labelled is None
            else read_labeled_texts(labelled, as_named=as_named)
        )
        with terminal_bar("Mapping", "texts") as report:
            return CorpusTokenMap(**asked).of(checkpoint, rows, truncate, report)
    if text_b is None:
        return TokenMap(**asked).of(checkpoint.trace(text, pair, truncate))
    if pair is not None:
        raise SelectionError("Both TEXT_B and --pair are given. Leave one of them out.")
    return TokenMap(**asked).of(*(checkpoint.trace(one, truncate=truncate) for one in (text, text_b)))
