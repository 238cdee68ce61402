"""The command on how well a trained head answers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from bert_probe.analyses.outputs import evaluate_masks
from bert_probe.analyses.outputs.evaluate import TABLES, Evaluate, EvaluateResult
from bert_probe.analyses.outputs.evaluate_masks import EvaluateMasks, EvaluateMasksResult
from bert_probe.analyses.outputs.head_predictions import TAGS, label_type
from bert_probe.cli.options import as_named_option, naming_a_model, opened
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import FILL_MASK, TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION, Checkpoint
from bert_probe.runtime.progress import terminal_bar
from bert_probe.text.labeled_texts import read_labeled_texts
from bert_probe.text.sentence_files import read_sentences
from bert_probe.text.tagged_sentences import read_tagged_sentences


@click.command()
@naming_a_model
@click.option(
    "--what",
    type=click.Choice([*TABLES, "masks"]),
    default="measures",
    help="Which table.  [default: measures]",
)
@click.option(
    "--training",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Rows from which the most frequent answer and a bag of words learn, to compare.",
)
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Of which words are masked.  [default: 0]")
@click.argument("places", nargs=-1, type=click.Path(path_type=Path), metavar="[FOLDER] DATA")
@as_named_option
def evaluate(
    model: str | None,
    revision: str | None,
    dtype: str,
    what: str,
    training: Path | None,
    seed: int | None,
    places: tuple[Path, ...],
    as_named: bool,
    truncate: bool,
) -> EvaluateResult | EvaluateMasksResult:
    """How well the trained head of the model in FOLDER answers the texts of DATA.

    DATA is a table (.csv, .tsv or .jsonl) with a header, text,label or text_a,text_b,label, for a head that
    classifies texts; for one that labels tokens a CoNLL or CoNLL-U file; for one that fills masks a text a
    line, of which 15 % of the tokens are masked. FOLDER may be a hub id too; --model says the same.
    """
    *folder, data = places or (None,)
    if data is None or len(folder) > 1:
        raise SelectionError("Give the FOLDER of a trained model and a file of DATA, in this order.")
    if bool(folder) == (model is not None):
        raise SelectionError("Name one model: its FOLDER before DATA, or --model.")
    checkpoint = opened(str(folder[0]) if folder else model, revision, dtype)
    if FILL_MASK in checkpoint.outputs and not {TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION} & set(
        checkpoint.outputs
    ):
        return _of_masks(checkpoint, what, training, seed or 0, data, as_named, truncate)
    if what == "masks" or seed is not None:
        raise SelectionError(
            f"{checkpoint.description.name} has a head for labels, which masks nothing. Leave "
            "out --seed and --what masks."
        )
    kind = label_type(checkpoint)
    read = partial(
        read_tagged_sentences if kind == TAGS else partial(read_labeled_texts, kind=kind), as_named=as_named
    )
    rows, known = read(data), None if training is None else read(training)
    with terminal_bar("Evaluating", "texts") as progress:
        return Evaluate(what).of(checkpoint, rows, known, truncate, progress)


def _of_masks(
    checkpoint: Checkpoint,
    what: str,
    training: Path | None,
    seed: int,
    data: Path,
    as_named: bool,
    truncate: bool,
) -> EvaluateMasksResult:
    if what not in evaluate_masks.TABLES or training is not None:
        raise SelectionError(
            f"{checkpoint.description.name} has a head for masked words, for which there are --what "
            f"{' and '.join(evaluate_masks.TABLES)}, and no --training."
        )
    sentences = read_sentences(data, as_named=as_named)
    with terminal_bar("Evaluating", "texts") as progress:
        return EvaluateMasks(seed, what).of(checkpoint, sentences, truncate, progress)
