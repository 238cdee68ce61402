"""Commands on texts side by side: similarity and its baseline, minimal pairs, words in context."""

from __future__ import annotations

from typing import Any

import click

from bert_probe.analyses.attention.attention import HEAD, LAYER
from bert_probe.analyses.attribution.activation_patching import ActivationPatching, ActivationPatchingResult
from bert_probe.analyses.comparison.minimal_pair import (
    MinimalPair,
    MinimalPairResult,
    MinimalPairRow,
    MinimalPairRowResult,
)
from bert_probe.analyses.vectors.similarity import Similarity, SimilarityResult
from bert_probe.analyses.vectors.similarity_baseline import SimilarityBaseline, SimilarityBaselineResult
from bert_probe.analyses.vectors.word_in_context import WordInContext, WordInContextResult
from bert_probe.cli.options import asking, common, pair_option, two_texts
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from bert_probe.runtime.progress import terminal_bar


@click.command()
@common
@asking(Similarity)
@click.argument("text_a")
@click.argument("text_b", required=False)
@pair_option
def similarity(
    checkpoint: Checkpoint,
    asked: dict[str, Any],
    text_a: str,
    text_b: str | None,
    pair: str | None,
    truncate: bool,
) -> SimilarityResult:
    """Cosine of every token of TEXT_A with every token of TEXT_B, or of TEXT_A with itself.

    With --pair both texts are read together, and tokens of the first compared with those of the second.
    """
    if text_b is None:
        return Similarity(**asked).of(checkpoint.trace(text_a, pair, truncate))
    if pair is not None:
        raise SelectionError("Both TEXT_B and --pair are given. Leave one of them out.")
    a, b = (checkpoint.trace(text, truncate=truncate) for text in (text_a, text_b))
    return Similarity(**asked).of(a, b)


@click.command()
@common
def baseline(checkpoint: Checkpoint, truncate: bool) -> SimilarityBaselineResult:  # noqa: ARG001
    """Cosine that unrelated tokens of the model reach, and one word in two sentences, at every layer."""
    return SimilarityBaseline().of(checkpoint)


@click.command()
@common
@asking(MinimalPair)
@two_texts
@click.option("--moved", is_flag=True, help="How far the vector of each token moved, layer by layer.")
@click.option("--row", metavar="WORD|N", help="Where this token of TEXT_A looks, and the same one of TEXT_B.")
@click.option("--layer", metavar="N|last", help="With --row: layer, counted from 1.  [default: last]")
@click.option("--head", metavar="N|mean", help="With --row: head, counted from 1.  [default: mean]")
def compare(
    a: Trace,
    b: Trace,
    asked: dict[str, Any],
    moved: bool,
    row: str | None,
    layer: str | None,
    head: str | None,
) -> MinimalPairResult | MinimalPairRowResult:
    """Heads whose attention differs between TEXT_A and TEXT_B, where these are the same; most changed first.

    Each text is read by itself. See docs/methods.md, "Minimal pairs", for the two measures.
    """
    if row is None:
        if layer is not None or head is not None:
            raise SelectionError("--layer and --head go with --row WORD. Add it, or leave them out.")
        return MinimalPair(show="moved" if moved else "heads", **asked).of(a, b)
    if moved or "by" in asked:
        raise SelectionError(f"--row has no use for {'--moved' if moved else '--by'}. Leave one of them out.")
    chosen: dict[str, Any] = {} if layer is None else {"layer": LAYER.read("layer", layer, a)}
    chosen |= {} if head is None else {"head": HEAD.read("head", head, a)}
    return MinimalPairRow(row, **chosen, **asked).of(a, b)


@click.command()
@common
@asking(ActivationPatching)
@click.argument("text_a")
@click.argument("text_b")
@click.option("--pair-a", metavar="TEXT", help="A second text, in the same input as TEXT_A.")
@click.option("--pair-b", metavar="TEXT", help="A second text, in the same input as TEXT_B.")
def patch(
    checkpoint: Checkpoint,
    asked: dict[str, Any],
    text_a: str,
    text_b: str,
    pair_a: str | None,
    pair_b: str | None,
    truncate: bool,
) -> ActivationPatchingResult:
    """How much of TEXT_A's answer comes back when a part of its pass is put into TEXT_B's.

    The answer is the likeliest of a trained head, or the cosine of the sentence vector with TEXT_A's. An
    answer in a text, or whether a text follows, is asked of two pairs: --pair-a and --pair-b. Recovered is 0
    where it stays TEXT_B's, and 1 where it becomes TEXT_A's own. Layer 0 is the output of the embeddings.
    """
    a, b = (checkpoint.trace(*one, truncate) for one in ((text_a, pair_a), (text_b, pair_b)))
    with terminal_bar("Patching", "parts") as report:
        return ActivationPatching(**asked).of(a, b, report)


@click.command()
@common
@asking(WordInContext)
@click.argument("words", nargs=-1, required=True, metavar="WORD...")
@click.option("--in", "texts", multiple=True, required=True, metavar="TEXT", help="Two texts or more.")
def context(
    checkpoint: Checkpoint,
    asked: dict[str, Any],
    words: tuple[str, ...],
    texts: tuple[str, ...],
    truncate: bool,
) -> WordInContextResult:
    """How alike WORD's vectors in several texts are, at every layer from 0.

    Give one WORD, or one for each text. A word that occurs twice in a text is named WORD:2. The texts count
    from 1.
    """
    return WordInContext(words, **asked).of(checkpoint.traces(texts, truncate))
