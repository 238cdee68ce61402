"""The command on what each layer knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bert_probe.analyses.probing.probe import Probe, ProbeResult
from bert_probe.cli.options import as_named_option, asking, common
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.runtime.progress import terminal_bar
from bert_probe.text.labeled_texts import LabeledTexts, read_labeled_texts
from bert_probe.text.sentence_files import is_table
from bert_probe.text.tagged_sentences import TaggedSentence, read_tagged_sentences


@click.command()
@common
@asking(Probe)
@click.argument("data", type=click.Path(path_type=Path))
@click.option(
    "--held-out", type=click.Path(path_type=Path), metavar="FILE", help="To measure on; else a fifth of DATA."
)
@as_named_option
def probe(
    checkpoint: Checkpoint,
    asked: dict[str, Any],
    data: Path,
    held_out: Path | None,
    as_named: bool,
    truncate: bool,
) -> ProbeResult:
    """How well the labels of DATA can be read off each layer's vectors by a linear map.

    DATA is CoNLL (a word and its tag on each line, a blank line between sentences) or CoNLL-U; or for
    labels of whole texts a .csv, .tsv or .jsonl file with the columns text and label, or text_a, text_b and
    label.
    """
    first = _read(data, as_named)
    second = None if held_out is None else _read(held_out, as_named)
    with terminal_bar("Probing", "steps") as report:
        return Probe(**asked).of(checkpoint, first, second, truncate, report)


def _read(file: Path, as_named: bool) -> tuple[TaggedSentence, ...] | LabeledTexts:
    if is_table(file.name):
        return read_labeled_texts(file, as_named=as_named)
    return read_tagged_sentences(file, as_named)
