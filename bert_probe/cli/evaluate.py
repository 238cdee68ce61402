"""The command on how well a trained head answers."""

from __future__ import annotations

from pathlib import Path

import click

from bert_probe.analyses.evaluation import SHOWS, Evaluate, Evaluation
from bert_probe.analyses.judging import TAGS, kind_of
from bert_probe.cli.options import naming_a_model, opened
from bert_probe.errors import SelectionError
from bert_probe.run.progress import terminal_bar
from bert_probe.text.labelled import read_labelled
from bert_probe.text.tagged import read_tagged


@click.command()
@naming_a_model
@click.option(
    "--what", type=click.Choice(list(SHOWS)), default="measures", help="Which table.  [default: measures]"
)
@click.option(
    "--training",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Rows from which the most frequent answer and a bag of words learn, to compare.",
)
@click.argument("places", nargs=-1, type=click.Path(path_type=Path), metavar="[FOLDER] DATA")
def evaluate(
    model: str | None,
    revision: str | None,
    dtype: str,
    what: str,
    training: Path | None,
    places: tuple[Path, ...],
    truncate: bool,
) -> Evaluation:
    """How well the trained head of the model in FOLDER answers the labelled texts of DATA.

    DATA is a table with a header, text,label or text_a,text_b,label, for a head that classifies texts;
    for one that labels tokens a CoNLL or CoNLL-U file. FOLDER may be a hub id too; --model says the same.
    """
    *folder, data = places or (None,)
    if data is None or len(folder) > 1:
        raise SelectionError("Give the FOLDER of a trained model and a file of DATA, in this order.")
    if bool(folder) == (model is not None):
        raise SelectionError("Name one model: its FOLDER before DATA, or --model.")
    checkpoint = opened(str(folder[0]) if folder else model, revision, dtype)
    kind = kind_of(checkpoint)
    rows, known = (
        None if file is None else read_tagged(file) if kind == TAGS else read_labelled(file, kind)
        for file in (data, training)
    )
    assert rows is not None
    with terminal_bar("Evaluating", "texts") as report:
        return Evaluate(what).of(checkpoint, rows, known, truncate, report)
