"""The command that finds the contexts of a store nearest to a word."""

from __future__ import annotations

from typing import Any

import click

from bert_probe.cli.consent import confirm
from bert_probe.cli.corpus_options import asking_a_store
from bert_probe.cli.options import asking
from bert_probe.corpus.search.contexts import NearestContexts, NearestContextsResult
from bert_probe.corpus.store import Store
from bert_probe.runtime.progress import terminal_bar


@click.command()
@click.option("--text", required=True, metavar="TEXT", help="Where the word stands.")
@click.option("--truncate", is_flag=True, help="Cut a text that is too long.")
@click.option(
    "--model", metavar="ID_OR_FOLDER", help="Open this one instead of the model that the store names."
)
@click.option("--revision", metavar="REV", help="Branch, tag or commit of --model on the hub.")
@click.option("--yes", is_flag=True, help="Open the model that the store names, without asking.")
@asking_a_store
@asking(NearestContexts)
def near(
    store: Store,
    asked: dict[str, Any],
    text: str,
    truncate: bool,
    model: str | None,
    revision: str | None,
    yes: bool,
) -> NearestContextsResult:
    """The contexts in STORE that are nearest to a word of TEXT, by the cosine of their vectors.

    Up to a million vectors each of them is looked at. Beyond, the first search of a layer makes an index,
    which takes minutes and is kept in STORE/index; the JSON beside a file says how much of what is nearest it
    finds.

    A model that is not the built-in is opened only with your consent: a store may be a stranger's.
    """
    named = store.named_model
    if model is None and named is not None and not yes:
        confirm("The store", store.manifest["model"]["model"], named)
    trace = store.checkpoint(model, revision, trust=True).trace(text, truncate=truncate)
    with terminal_bar("Preparing", "vectors") as progress:
        return NearestContexts(**asked).of(store, trace, progress)
