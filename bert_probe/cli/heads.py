"""Commands on heads: what each one does, which attends from a word to another, what is lost without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bert_probe.analyses.attention.find_heads import FindHeads, FindHeadsResult
from bert_probe.analyses.attention.head_means import HeadMeans, HeadMeansResult
from bert_probe.analyses.attention.heads import Heads, HeadsResult
from bert_probe.analyses.attribution.head_ablation import (
    SIMILARITIES,
    HeadAblation,
    HeadAblationResult,
    HeadAblationSweep,
    HeadAblationSweepResult,
)
from bert_probe.cli.options import as_named_option, asking, common, one_text, pair_option
from bert_probe.core.field_types_of_lists import HeadSet
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from bert_probe.runtime.progress import terminal_bar
from bert_probe.text.sentence_files import read_sentences


@click.command()
@common
@asking(HeadMeans)
@click.argument("text", required=False)
@pair_option
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Sentences in UTF-8, one a line, instead of TEXT: means over them, and 95 % intervals.",
)
@as_named_option
def heads(
    checkpoint: Checkpoint,
    asked: dict[str, Any],
    text: str | None,
    pair: str | None,
    file: Path | None,
    as_named: bool,
    truncate: bool,
) -> HeadsResult | HeadMeansResult:
    """What each head does on TEXT: entropy, distance, where its attention goes, a label.

    With --file the mean over its sentences, each counting the same, and _low and _high of a bootstrap.
    """
    if (file is None) == (text is None):
        raise SelectionError("Give a TEXT, or sentences with --file; one of the two.")
    if file is not None:
        if pair is not None:
            raise SelectionError("--pair goes with a TEXT; the sentences of --file have none. Leave one out.")
        sentences = read_sentences(file, as_named=as_named)
        with terminal_bar("Profiling", "sentences") as report:
            return HeadMeans(**asked).of(checkpoint, sentences, truncate, report)
    assert text is not None  # one of the two is
    drawn = [f"--{name}" for name in asked if name != "words"]
    if drawn:
        raise SelectionError(f"{drawn[0]} goes with --file: one TEXT has no mean. Leave it out.")
    return Heads(**asked).of(checkpoint.trace(text, pair, truncate))


@click.command()
@common
@one_text
@click.option("--query", "queries", multiple=True, required=True, metavar="WORD", help="Looks from here …")
@click.option("--key", "keys", multiple=True, required=True, metavar="WORD", help="… to here.")
def find(trace: Trace, queries: tuple[str, ...], keys: tuple[str, ...]) -> FindHeadsResult:
    """Heads that attend most from one word to another, best first.

    A word that occurs twice is named WORD:2. Several --query and --key pairs are averaged.
    """
    if len(queries) != len(keys):
        raise SelectionError(f"{len(queries)} --query and {len(keys)} --key are given. Give as many of each.")
    return FindHeads(tuple(zip(queries, keys, strict=True))).of(trace)


@click.command()
@common
@asking(HeadAblation, "heads")
@one_text
@click.option("--heads", "named", metavar="L.H,…", help="Switch these heads off together, e.g. 8.10,3.2.")
@click.option("--each", is_flag=True, help="Switch off each head in turn; largest effect first.")
@click.option("--tokens", is_flag=True, help="With --heads: the change of each token, a line for each.")
@click.option(
    "--similarity",
    type=click.Choice(SIMILARITIES),
    help="With --heads: cosine of every two tokens, with the heads, without them, or the difference.",
)
def ablate(
    trace: Trace,
    asked: dict[str, Any],
    named: str | None,
    each: bool,
    tokens: bool,
    similarity: str | None,
) -> HeadAblationResult | HeadAblationSweepResult:
    """What changes in the last layer when heads are switched off: 1 − cosine of its vectors."""
    if each == (named is not None):
        raise SelectionError("Name heads with --heads 8.10,3.2, or take --each in turn; one of the two.")
    if tokens and similarity is not None:
        raise SelectionError("Both --tokens and --similarity are given. Leave one of them out.")
    if "specials" in asked and similarity is None:
        raise SelectionError("--specials goes with --similarity. Leave it out.")
    if named is None:
        if tokens or similarity is not None:
            given = "--tokens" if tokens else "--similarity"
            raise SelectionError(
                f"{given} goes with --heads: --each has a line for every head. Leave one out."
            )
        with terminal_bar("Switching off", "heads") as report:
            return HeadAblationSweep(**asked).of(trace, report)
    show = "tokens" if tokens else similarity or "set"
    return HeadAblation(HeadSet().read("heads", named, trace), show=show, **asked).of(trace)
