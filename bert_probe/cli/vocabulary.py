"""Commands on a model's vocabulary, and on how it cuts a text up."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import click

from bert_probe.analyses.vocabulary.fertility import Fertility, FertilityResult
from bert_probe.analyses.vocabulary.neighbors import Neighbors, NeighborsResult
from bert_probe.analyses.vocabulary.vocabulary import Vocabulary, VocabularyResult
from bert_probe.cli.options import asking, common, one_text
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace


@click.command()
@common
@asking(Vocabulary)
@asking(Neighbors, "token")
@click.option("--near", metavar="WORD|id:N", help="Neighbours of this piece by its input vector instead.")
def vocabulary(
    checkpoint: Checkpoint,
    asked: dict[str, Any],
    near: str | None,
    truncate: bool,  # noqa: ARG001
) -> VocabularyResult | NeighborsResult:
    """The pieces that the model knows, or those whose input vectors are nearest to one.

    See docs/methods.md, "Vocabulary", for the kinds. Regular expressions follow RE2 syntax.
    """
    foreign = asked.keys() & {field.name for field in fields(Vocabulary if near is not None else Neighbors)}
    if near is None:
        if foreign:
            raise SelectionError("--count goes with --near WORD. Add it, or leave it out.")
        return Vocabulary(**asked).of(checkpoint)
    if foreign:
        raise SelectionError(f"--near has no use for --{sorted(foreign)[0]}. Leave one of them out.")
    return Neighbors(near, **asked).of(checkpoint)


@click.command()
@common
@one_text
def fragmentation(trace: Trace) -> FertilityResult:
    """Into how many pieces of the vocabulary each word of TEXT is cut."""
    return Fertility().of(trace)
