"""Commands that print a model's parameters, attention and rollout, and find attention heads by word pairs."""

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
    TokenRollout,
    TokenRolloutResult,
)
from bert_probe.analyses.attention.find_heads import FindHeads, FindHeadsResult
from bert_probe.analyses.attention.measures import get_measure
from bert_probe.analyses.weights.parameters import ModelSizes, Parameters
from bert_probe.cli.options import (
    checkpoint_options,
    is_picture_requested,
    model_options,
    open_checkpoint,
    question_options,
    text_options,
)
from bert_probe.core.field_types_of_lists import Indices
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError
from bert_probe.model.config import PUBLISHED, open_config
from bert_probe.model.trace import Trace
from bert_probe.runtime.terminal import terminal_bar
from bert_probe.text.words import find_word
from bert_probe.views.head_view import create_selection
from bert_probe.views.page import Page
from bert_probe.views.selection import Selection


@click.command()
@checkpoint_options
@question_options(Attention, "layer", "head")
@text_options
@click.option(
    "--layer",
    default="last",
    metavar="N|last",
    help="Layer, counted from 1. With --layout long, also a list (N,…) or all.",
)
@click.option(
    "--head",
    default="mean",
    metavar="N|mean",
    help="Head, counted from 1, or mean for the mean over all heads. With --layout long, also a list (N,…) "
    "or all.",
)
@click.option(
    "--layout",
    type=click.Choice(["matrix", "long"]),
    default="matrix",
    show_default=True,
    help="Layout of the table: matrix, with a row and a column for each token, or long, with a row for "
    "each weight.",
)
@click.option(
    "--picture",
    type=click.Choice(["lines", "heatmap", "model"]),
    help="Type of figure for --out FILE.html, .svg or .png: lines between tokens, a heatmap, or all heads of "
    "all layers. For lines, --head can be a list (N,…).  [default: lines; heatmap with --renormalize]",
)
def attention(
    trace: Trace, arguments: dict[str, Any], layer: str, head: str, layout: str, picture: str | None
) -> AttentionResult | AttentionLongResult | Page:
    """Print the attention weights of a head, or their mean over a layer's heads."""
    if is_picture_requested():
        if layout == "long":
            raise SelectionError(
                "--layout long applies to tables only. Omit --layout, or write a table: --out FILE.csv."
            )
        picture = picture or ("heatmap" if arguments.get("renormalize") else "lines")
        if picture != "heatmap":
            return _page(trace, arguments, layer, head, picture)
    elif picture is not None:
        raise SelectionError(
            "--picture requires --out FILE.html, .svg or .png. Add --out, or omit --picture."
        )
    measure = get_measure(arguments.get("measure", "weights"))
    if "residual" in arguments and not measure.rolled:
        raise SelectionError(
            f"--residual applies to --measure rollout, not to {measure.name}. Omit --residual."
        )
    with terminal_bar(measure.label, "layer passes") as progress:
        if layout == "long":
            layers, heads = (
                Indices(LAYER).read("layer", layer, trace),
                Indices(HEAD).read("head", head, trace),
            )
            return AttentionLong(layers, heads, **arguments).of(trace, progress)
        question = Attention(LAYER.read("layer", layer, trace), HEAD.read("head", head, trace), **arguments)
        return question.of(trace, progress)


def _page(trace: Trace, arguments: dict[str, Any], layer: str, head: str, picture: str) -> Page:
    """Return the page of the head view (picture "lines") or of the model view (picture "model")."""
    if arguments.get("renormalize"):
        raise SelectionError(
            "--renormalize applies to the heatmap only. Add --picture heatmap, or omit --renormalize."
        )
    measure = get_measure(arguments.get("measure", "weights"))
    with terminal_bar(measure.label, "layer passes") as progress:
        slow_layers = [layer for layer in range(trace.layers) if measure.takes_long(trace, layer)]
        if slow_layers:
            AttentionLong(slow_layers, measure=measure.name).of(trace, progress)
    if picture == "model":
        selection = Selection(1, "mean", measure=measure.name, words=arguments.get("words", False))
    else:
        heads = Indices(HEAD).read("head", head, trace)
        selection = create_selection(
            trace,
            LAYER.read("layer", layer, trace),
            "mean" if heads == ("mean",) else range(trace.heads) if heads is None else heads,
            **arguments,
        )
    # Imported here because the module imports many analyses, which only figures need.
    from bert_probe.views import pictures

    return pictures.attention_page(picture, trace, selection)


@click.command()
@checkpoint_options
@question_options(TokenRollout)
@text_options
@click.option("--token", metavar="WORD", help="Token whose rollout is printed for each layer.")
@click.option(
    "--position",
    type=click.IntRange(0),
    metavar="N",
    help="Instead of --token: position in the input, from 0, of the token whose rollout is printed.",
)
def rollout(
    trace: Trace, arguments: dict[str, Any], token: str | None, position: int | None
) -> AttentionResult | TokenRolloutResult:
    """Print the attention rollout: how much of each token reaches every other token through all layers."""
    if token is not None and position is not None:
        raise SelectionError("--token and --position cannot be combined. Omit one of the two.")
    if token is None and position is None:
        shared = {name: value for name, value in arguments.items() if name in _ATTENTION_FIELDS}
        return Attention(measure="rollout", **shared).of(trace)
    if position is not None:
        return TokenRollout(position, **arguments).of(trace)
    unit = find_word(trace, str(token))
    count = len(unit.positions)
    if count > 1 and not arguments.get("words"):
        raise SelectionError(f"{unit} has {count} tokens. Add --words to merge the tokens of each word.")
    return TokenRollout(unit.position, **arguments).of(trace)


@click.command()
@checkpoint_options
@text_options
@click.option(
    "--query",
    "queries",
    multiple=True,
    required=True,
    metavar="WORD",
    help="Query word (the word that attends); can be repeated.",
)
@click.option(
    "--key",
    "keys",
    multiple=True,
    required=True,
    metavar="WORD",
    help="Key word (the word that is attended to); can be repeated.",
)
def find(trace: Trace, queries: tuple[str, ...], keys: tuple[str, ...]) -> FindHeadsResult:
    """Rank the heads by their attention from one word to another, averaged over the word pairs.

    WORD:2 is the second occurrence of a word. The first --query forms a pair with the first --key, and so on.
    """
    if len(queries) != len(keys):
        raise SelectionError(
            f"--query was passed {len(queries)} times and --key {len(keys)} times. Pass both options the "
            "same number of times."
        )
    return FindHeads(tuple(zip(queries, keys, strict=True))).of(trace)


_ATTENTION_FIELDS = {field.name for field in fields(Attention)}


@click.command()
@model_options
@click.option("--all-columns", is_flag=True, help="Also print the columns part, kind, share and tied_to.")
@click.option(
    "--config",
    "configs",
    multiple=True,
    metavar="FILE|NAME",
    help=f"Print the size of a model, computed from its config. Pass {', '.join(PUBLISHED)}, a "
    "config.json, a folder, or a Hub ID, with @REV for a revision; can be repeated.",
)
def parameters(
    model: str | None,
    revision: str | None,
    dtype: str,
    all_columns: bool,
    configs: tuple[str, ...],
    truncate: bool,  # noqa: ARG001 - all commands have this option
) -> Result:
    """List the parameters of a model: name, group, shape, count, data type and bytes.

    With --config, prints one row for each model instead: layers, heads, dimensions, parameters by part, and
    memory of the weights. No weights are read. --model adds a row for an opened model.
    """
    if not configs:
        return Parameters("all" if all_columns else "main").of(open_checkpoint(model, revision, dtype))
    if all_columns:
        raise SelectionError("--all-columns and --config cannot be combined. Omit one of the two.")
    with terminal_bar("Downloading", "B") as progress:
        models = [open_config(name, progress) for name in configs]
    return ModelSizes().of(*models, *([open_checkpoint(model, revision, dtype)] if model else []))
