"""The command that evaluates a trained head on labeled data."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from bert_probe.analyses.outputs import evaluate_masks
from bert_probe.analyses.outputs.evaluate import TABLES, Evaluate, EvaluateResult
from bert_probe.analyses.outputs.evaluate_masks import EvaluateMasks, EvaluateMasksResult
from bert_probe.analyses.outputs.head_predictions import TAGS, label_type
from bert_probe.cli.options import as_named_option, model_options, open_checkpoint
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import FILL_MASK, TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION, Checkpoint
from bert_probe.runtime.progress import terminal_bar
from bert_probe.text.labeled_texts import read_labeled_texts
from bert_probe.text.sentence_files import read_sentences
from bert_probe.text.tagged_sentences import read_tagged_sentences


@click.command()
@model_options
@click.option(
    "--what",
    "table",
    type=click.Choice([*TABLES, "masks"]),
    default="measures",
    help="Table to print.  [default: measures]",
)
@click.option(
    "--training",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Training data for the two baselines: most frequent label, and bag of words.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    metavar="N",
    help="Seed for the choice of the masked tokens.  [default: 0]",
)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[FOLDER] DATA")
@as_named_option
def evaluate(
    model: str | None,
    revision: str | None,
    dtype: str,
    table: str,
    training: Path | None,
    seed: int | None,
    paths: tuple[Path, ...],
    as_named: bool,
    truncate: bool,
) -> EvaluateResult | EvaluateMasksResult:
    """How well the trained head of a model predicts the labels of DATA.

    FOLDER is the folder of a model or a Hub ID, and can also be passed with --model. The format of DATA
    depends on the head: for text classification a .csv, .tsv or .jsonl table with the columns text and label,
    or text_a, text_b and label; for token classification a CoNLL or CoNLL-U file; for masked words a file
    with one text per line, in which 15 % of the tokens are masked.
    """
    *folder, data = paths or (None,)
    if data is None or len(folder) > 1:
        raise SelectionError("Pass the FOLDER of a trained model and a file of DATA, in this order.")
    if bool(folder) == (model is not None):
        raise SelectionError("Pass one model: either its FOLDER before DATA, or --model.")
    checkpoint = open_checkpoint(str(folder[0]) if folder else model, revision, dtype)
    if FILL_MASK in checkpoint.outputs and not {TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION} & set(
        checkpoint.outputs
    ):
        return _evaluate_masks(checkpoint, table, training, seed or 0, data, as_named, truncate)
    if table == "masks" or seed is not None:
        raise SelectionError(
            f"{checkpoint.description.name} has a head for labels. --seed and --what masks are for masked "
            "words. Leave them out."
        )
    kind = label_type(checkpoint)
    read = partial(
        read_tagged_sentences if kind == TAGS else partial(read_labeled_texts, kind=kind), as_named=as_named
    )
    rows, training_rows = read(data), None if training is None else read(training)
    with terminal_bar("Evaluating", "texts") as progress:
        return Evaluate(table).of(checkpoint, rows, training_rows, truncate, progress)


def _evaluate_masks(
    checkpoint: Checkpoint,
    table: str,
    training: Path | None,
    seed: int,
    data: Path,
    as_named: bool,
    truncate: bool,
) -> EvaluateMasksResult:
    if table not in evaluate_masks.TABLES or training is not None:
        raise SelectionError(
            f"{checkpoint.description.name} has a head for masked words. Choose --what "
            f"{' or '.join(evaluate_masks.TABLES)}, and leave out --training."
        )
    sentences = read_sentences(data, as_named=as_named)
    with terminal_bar("Evaluating", "texts") as progress:
        return EvaluateMasks(seed, table).of(checkpoint, sentences, truncate, progress)
