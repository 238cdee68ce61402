"""The command on what a trained head makes of each layer, plainly or through a tuned lens."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from bert_probe.analyses.outputs.lens import Lens
from bert_probe.analyses.outputs.tuned_lens import ENDING, TuneLens
from bert_probe.analyses.outputs.tuned_lens_files import keep
from bert_probe.cli.options import as_named_option, asking, common, pair_option, writing
from bert_probe.core.question import Question, option_name
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.runtime import terminal
from bert_probe.runtime.progress import terminal_bar
from bert_probe.text.sentence_files import read_sentences


@click.command()
@common
@asking(Lens)
@asking(TuneLens)
@click.option(
    "--tune",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Instead of TEXT: train a tuned lens on lines in UTF-8, and print its losses. "
    "--out NAME.safetensors says where it is kept.",
)
@click.argument("text", required=False)
@pair_option
@as_named_option
@writing(ENDING)
def lens(
    checkpoint: Checkpoint,
    asked: dict[str, Any],
    tune: Path | None,
    text: str | None,
    pair: str | None,
    as_named: bool,
    truncate: bool,
) -> Result:
    """What the model's trained head makes of each layer's vectors, at the masks of TEXT or all tokens.

    Layer 0 is the output of the embeddings; the last layer is the model's answer. The head was trained on
    the last layer alone. A tuned lens puts each other layer into the last one's terms first.
    """
    if (tune is None) == (text is None):
        raise SelectionError("Give a TEXT, or lines with --tune; one of the two.")
    _check(asked, TuneLens if text is None else Lens)
    if text is not None:
        found = Lens(**asked).of(checkpoint.trace(text, pair, truncate))
        if found.tuned:
            _tell(found.tuned["verdict"])
        return found
    if pair is not None:
        raise SelectionError("--tune reads a file. Leave --pair out.")
    assert tune is not None  # one of the two is
    with terminal_bar("Training", "parts") as report:
        tuned = TuneLens(**asked).of(checkpoint, read_sentences(tune, as_named=as_named), truncate, report)
    if click.get_current_context().params["out"] is None:
        _tell(f"Kept in {keep(tuned, checkpoint)}.")
    _tell(tuned.verdict)
    return tuned


def _tell(sentence: str) -> None:
    click.echo(f"bert-probe: {terminal.visible(sentence)}", err=True)


def _check(asked: dict[str, Any], cls: type[Question]) -> None:
    """Refuse what goes with the other question alone."""
    known = {field.name for field in fields(cls)}
    foreign = [
        field for other in (Lens, TuneLens) for field in fields(other) if field.name in asked.keys() - known
    ]
    if foreign:
        raise SelectionError(f"{option_name(foreign[0])} has no meaning here. Leave it out.")
