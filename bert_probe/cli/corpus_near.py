"""The command that finds the contexts of a store nearest to a word."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from bert_probe.cli.options import asking, written_out
from bert_probe.corpus.near import Near, NearContexts
from bert_probe.corpus.store import Store, open_store
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.run.progress import terminal_bar


def _opening(command: Callable[..., Any]) -> Callable[..., Any]:
    """STORE and its model, and where the answer goes."""

    @click.argument("folder", metavar="STORE", type=click.Path(path_type=Path))
    @written_out
    @functools.wraps(command)
    def run(folder: Path, **given: Any) -> Any:
        store = open_store(folder)
        return command(store=store, checkpoint=store.checkpoint(), **given)

    return run


@click.command()
@click.option("--text", required=True, metavar="TEXT", help="Where the word stands.")
@click.option("--truncate", is_flag=True, help="Cut a text that is too long.")
@_opening
@asking(Near)
def near(
    store: Store, checkpoint: Checkpoint, asked: dict[str, Any], text: str, truncate: bool
) -> NearContexts:
    """The contexts in STORE that are nearest to a word of TEXT, by the cosine of their vectors.

    Up to a million vectors each of them is looked at. Beyond, the first search of a layer makes an index,
    which takes minutes and is kept in STORE/index; the JSON beside a file says how much of what is nearest it
    finds.
    """
    trace = checkpoint.trace(text, truncate=truncate)
    with terminal_bar("Preparing", "vectors") as report:
        return Near(**asked).of(store, trace, report)
