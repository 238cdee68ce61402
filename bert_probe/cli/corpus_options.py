"""What the commands that ask a store share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from bert_probe.cli.options import written_out
from bert_probe.corpus.store import open_corpus


def asking_a_store(command: Callable[..., Any]) -> Callable[..., Any]:
    """STORE, opened, and where the answer goes."""

    @click.argument("folder", metavar="STORE", type=click.Path(path_type=Path))
    @written_out
    @functools.wraps(command)
    def run(folder: Path, **given: Any) -> Any:
        return command(store=open_corpus(folder), **given)

    return run
