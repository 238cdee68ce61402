"""The command line: tables on standard output, or in a file.

Layers and heads count from 1 here; layer 0 is the output of the embeddings. Bad input is one line on
standard error and exit status 2.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import click
import pandas as pd
from click.exceptions import NoArgsIsHelpError

from bert_probe.analyses.ablation import Replacement, ablate, each_head
from bert_probe.analyses.head_means import profile_sentences, read_sentences
from bert_probe.analyses.heads import find_heads, head_profiles
from bert_probe.analyses.pooling import POOLINGS, Pooling
from bert_probe.analyses.sentences import sentence_vectors
from bert_probe.cli import attention, pairs, parameters, steps, vectors
from bert_probe.cli.app import app as start_app
from bert_probe.cli.options import (
    common,
    counted,
    pair_option,
    words_option,
)
from bert_probe.errors import ProbeError, SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.results import sentence_tables, tables
from bert_probe.text.sentence_files import sentences_from_file
from bert_probe.text.words import find_word


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def app() -> None:
    """Open a transformer encoder and see what it does with your text.

    Tables go to standard output as CSV, or to a file with --out.
    """


@app.command()
@click.argument("text", required=False)
@pair_option
@click.option(
    "--file",
    "lines",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Sentences in UTF-8, one a line, instead of TEXT: means over them, and 95 % intervals.",
)
@words_option
@common
def heads(
    checkpoint: Checkpoint,
    text: str | None,
    pair: str | None,
    lines: Path | None,
    words: bool,
    truncate: bool,
) -> pd.DataFrame:
    """What each head does on TEXT: entropy, distance, where its attention goes, a label.

    With --file the mean over its sentences, each counting the same, and _low and _high of a bootstrap.
    """
    if lines is None and text is not None:
        trace = checkpoint.trace(text, pair, truncate)
        return tables.heads_table(head_profiles(trace, words), trace)
    if lines is None or text is not None:
        raise SelectionError("Give a TEXT, or sentences with --file; one of the two.")
    if pair is not None:
        raise SelectionError("--pair goes with a TEXT; the sentences of --file have none. Leave one out.")
    try:
        content = lines.read_bytes()
    except OSError as error:
        raise SelectionError(f"{lines} cannot be read: {error.strerror}. Give another file.") from None
    means = profile_sentences(checkpoint, read_sentences(content), words, truncate=truncate)
    return tables.profile_means_table(means, checkpoint)


@app.command()
@click.argument("text")
@pair_option
@click.option("--query", "queries", multiple=True, required=True, metavar="WORD", help="Looks from here …")
@click.option("--key", "keys", multiple=True, required=True, metavar="WORD", help="… to here.")
@common
def find(
    checkpoint: Checkpoint,
    text: str,
    pair: str | None,
    queries: tuple[str, ...],
    keys: tuple[str, ...],
    truncate: bool,
) -> pd.DataFrame:
    """Heads that attend most from one word to another, best first.

    A word that occurs twice is named WORD:2. Several --query and --key pairs are averaged.
    """
    if len(queries) != len(keys):
        raise SelectionError(f"{len(queries)} --query and {len(keys)} --key are given. Give as many of each.")
    trace = checkpoint.trace(text, pair, truncate)
    pairs = [
        (find_word(trace, query), find_word(trace, key)) for query, key in zip(queries, keys, strict=True)
    ]
    return tables.found_table(find_heads(trace, pairs), trace, pairs)


@app.command("ablate")
@click.argument("text")
@pair_option
@click.option("--heads", "named", metavar="L.H,…", help="Switch these heads off together, e.g. 8.10,3.2.")
@click.option("--each", is_flag=True, help="Switch off each head in turn; largest effect first.")
@click.option("--tokens", is_flag=True, help="With --heads: the change of each token, a line for each.")
@click.option("--replacement", type=click.Choice(["zero", "mean"]), default="zero", show_default=True)
@common
def ablate_command(
    checkpoint: Checkpoint,
    text: str,
    pair: str | None,
    named: str | None,
    each: bool,
    tokens: bool,
    replacement: Replacement,
    truncate: bool,
) -> pd.DataFrame:
    """What changes in the last layer when heads are switched off: 1 − cosine of its vectors."""
    if each == (named is not None):
        raise SelectionError("Name heads with --heads 8.10,3.2, or take --each in turn; one of the two.")
    if tokens and each:
        raise SelectionError("--tokens goes with --heads: --each has a line for every head. Leave one out.")
    sets = each_head(checkpoint) if named is None else [_named_heads(named, checkpoint)]
    encoding = checkpoint.encode(text, pair, truncate)
    results = ablate(checkpoint, encoding, sets, replacement)
    if tokens:
        return tables.ablation_tokens_table(next(results), checkpoint, encoding, replacement)
    return tables.ablation_table(results, checkpoint, encoding, replacement)


@app.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--pooling",
    type=click.Choice(list(POOLINGS)),
    default="mean",
    show_default=True,
    help="How a sentence's tokens become one vector; model: as the checkpoint was made to be used.",
)
@click.option("--column", metavar="NAME", help="Column of a .csv or .tsv file; else sentence or text.")
@common
def sentences(
    checkpoint: Checkpoint, file: Path, pooling: Pooling, column: str | None, truncate: bool
) -> pd.DataFrame:
    """Cosine of every two sentences of FILE: one a line, or a column of a table."""
    read = sentences_from_file(file, column)
    return sentence_tables.sentences_table(sentence_vectors(checkpoint, read, pooling, truncate=truncate))


for _command in (
    start_app,
    vectors.tokens,
    attention.attention,
    attention.rollout,
    steps.steps,
    vectors.embeddings,
    vectors.anatomy,
    vectors.pooler,
    parameters.parameters,
    pairs.similarity,
    pairs.baseline,
    pairs.compare,
    pairs.context,
):
    app.add_command(_command)


def _named_heads(named: str, checkpoint: Checkpoint) -> tuple[tuple[int, int], ...]:
    about = checkpoint.description
    heads = []
    for name in named.split(","):
        layer, dot, head = name.strip().partition(".")
        if not dot:
            raise SelectionError(f"{name!r} names no head. Write layer.head, for example 8.10.")
        heads.append(
            (
                counted(layer, "layer", 1, about.layers, "") - 1,
                counted(head, "head", 1, about.heads, "") - 1,
            )
        )
    return tuple(dict.fromkeys(heads))


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a command; every failure that a person can mend is one line and status 2."""
    try:
        app.main(args=arguments, prog_name="bert-probe", standalone_mode=False)
    except ProbeError as error:
        _fail(str(error))
    except NoArgsIsHelpError as error:
        sys.stdout.write(f"{error.format_message()}\n")
    except click.NoSuchOption as error:
        _fail(f"{_sentence(error)} Put -- before a text that begins with a dash, or see bert-probe --help.")
    except click.ClickException as error:
        _fail(f"{_sentence(error)} See bert-probe --help.")
    except click.Abort:
        _fail("Interrupted.")
    sys.exit(0)


def _sentence(error: click.ClickException) -> str:
    message = error.format_message()
    return message if message.endswith((".", "?", "!")) else f"{message}."


def _fail(message: str) -> NoReturn:
    sys.stderr.write(f"bert-probe: {' '.join(message.split())}\n")
    sys.exit(2)
