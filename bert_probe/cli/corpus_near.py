"""The command that searches a store for the nearest contexts of a word."""

from __future__ import annotations

from typing import Any

import click

from bert_probe.cli.corpus_query import store_options
from bert_probe.cli.options import confirm, question_options, suggest_truncate_option
from bert_probe.corpus.search.contexts import NearestContexts, NearestContextsResult
from bert_probe.corpus.store import Store
from bert_probe.runtime.progress import terminal_bar


@click.command()
@click.option("--text", required=True, metavar="TEXT", help="Text that contains the word.")
@click.option("--truncate", is_flag=True, help="Truncate a text that is too long for the model.")
@click.option(
    "--model", metavar="ID_OR_FOLDER", help="Model to open instead of the one that the store names."
)
@click.option("--revision", metavar="REV", help="Branch, tag or commit of --model on the Hub.")
@click.option(
    "--yes", is_flag=True, help="Open the model named in the store without asking for confirmation."
)
@store_options
@question_options(NearestContexts)
def near(
    store: Store,
    arguments: dict[str, Any],
    text: str,
    truncate: bool,
    model: str | None,
    revision: str | None,
    yes: bool,
) -> NearestContextsResult:
    """The contexts in STORE whose vectors are nearest to that of a word in TEXT.

    The search is exact up to a million vectors. For more, the first search of a layer builds an index, which
    takes minutes and is saved in STORE/index; the JSON file next to the output states its recall.

    Models other than the built-in model are opened only after you agree, because the store may be untrusted.
    """
    model_label = store.named_model
    if model is None and model_label is not None and not yes:
        confirm("The store", store.manifest["model"]["model"], model_label)
    with suggest_truncate_option():
        trace = store.checkpoint(model, revision, trust=True).trace(text, truncate=truncate)
    with terminal_bar("Preparing", "vectors") as progress:
        return NearestContexts(**arguments).of(store, trace, progress)
