"""Commands about attention: the weights of a head, rollout, and heads between two words."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import click

from bert_probe.analyses.attention.attention import (
    HEAD,
    LAYER,
    Attention,
    AttentionLong,
    AttentionLongResult,
    AttentionResult,
)
from bert_probe.analyses.attention.find_heads import FindHeads, FindHeadsResult
from bert_probe.analyses.attention.heads import Heads
from bert_probe.analyses.attention.measures import get_measure
from bert_probe.analyses.attention.token_rollout import TokenRollout, TokenRolloutResult
from bert_probe.cli.options import asking, common, one_text, picture_asked
from bert_probe.core.field_types_of_lists import Indices
from bert_probe.errors import SelectionError
from bert_probe.model.trace import Trace
from bert_probe.runtime.progress import terminal_bar
from bert_probe.text.words import find_word
from bert_probe.views import head_view, model_view
from bert_probe.views.asking import head_view_data
from bert_probe.views.page import Page


@click.command()
@common
@asking(Attention, "layer", "head")
@one_text
@click.option("--layer", default="last", metavar="N|last", help="Layer, from 1; in long form N,…|all.")
@click.option("--head", default="mean", metavar="N|mean", help="Head, from 1; in long form N,…|all.")
@click.option("--layout", type=click.Choice(["matrix", "long"]), default="matrix", show_default=True)
@click.option(
    "--picture",
    type=click.Choice(["lines", "heatmap", "model"]),
    help="With --out view.html, .svg or .png: lines from token to token, for which --head may be N,…; a "
    "heatmap; or all heads of all layers.  [default: lines; heatmap with --renormalise]",
)
def attention(
    trace: Trace, asked: dict[str, Any], layer: str, head: str, layout: str, picture: str | None
) -> AttentionResult | AttentionLongResult | Page:
    """Attention weights of a head, or averaged over a layer's heads."""
    if picture_asked():
        if layout == "long":
            raise SelectionError("--layout long is of tables. Leave it out, or give --out FILE.csv.")
        chosen = picture or ("heatmap" if asked.get("renormalise") else "lines")
        if chosen != "heatmap":
            return _page(trace, asked, layer, head, chosen)
    elif picture is not None:
        raise SelectionError(
            "--picture goes with --out view.html, .svg or .png. Add it, or leave --picture out."
        )
    drawn = asked.get("measure", "weights")
    if "residual" in asked and not get_measure(drawn).rolled:
        raise SelectionError(f"--residual is for --measure rollout, not {drawn}. Leave it out.")
    with terminal_bar(get_measure(drawn).label, "runs of a layer") as progress:
        if layout == "long":
            layers, heads = (
                Indices(LAYER).read("layer", layer, trace),
                Indices(HEAD).read("head", head, trace),
            )
            return AttentionLong(layers, heads, **asked).of(trace, progress)
        one = Attention(LAYER.read("layer", layer, trace), HEAD.read("head", head, trace), **asked)
        return one.of(trace, progress)


def _page(trace: Trace, asked: dict[str, Any], layer: str, head: str, chosen: str) -> Page:
    """The head view or the model view, which show what their questions have in common with `Attention`."""
    if asked.get("renormalise"):
        raise SelectionError("--renormalise is for the heatmap. Add --picture heatmap, or leave it out.")
    what = get_measure(asked.get("measure", "weights"))
    with terminal_bar(what.label, "runs of a layer") as progress:
        slow = [one for one in range(trace.layers) if what.takes_long(trace, one)]
        if slow:
            AttentionLong(slow, measure=what.name).of(trace, progress)
    words = asked.get("words", False)
    if chosen == "model":
        return model_view.page(trace, Heads(words).of(trace), words=words, measure=what.name)
    heads = Indices(HEAD).read("head", head, trace)
    drawn, shown = head_view_data(
        trace,
        LAYER.read("layer", layer, trace),
        "mean" if heads == ("mean",) else range(trace.heads) if heads is None else heads,
        **asked,
    )
    return head_view.page(drawn, shown)


@click.command()
@common
@asking(TokenRollout)
@one_text
@click.option("--token", metavar="WORD", help="Layer by layer, how far this one reaches.")
@click.option("--position", type=click.IntRange(0), metavar="N", help="The same for the token at a position.")
def rollout(
    trace: Trace, asked: dict[str, Any], token: str | None, position: int | None
) -> AttentionResult | TokenRolloutResult:
    """How much of each token reaches each other one through all layers of attention."""
    if token is not None and position is not None:
        raise SelectionError("Both --token and --position are given. Leave one of them out.")
    if token is None and position is None:
        shared = {name: value for name, value in asked.items() if name in _ATTENTION}
        return Attention(measure="rollout", **shared).of(trace)
    if position is not None:
        return TokenRollout(position, **asked).of(trace)
    unit = find_word(trace, str(token))
    count = len(unit.positions)
    if count > 1 and not asked.get("words"):
        raise SelectionError(f"{unit} is {count} tokens. Add --words to follow them as one.")
    return TokenRollout(unit.position, **asked).of(trace)


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


_ATTENTION = {field.name for field in fields(Attention)}
