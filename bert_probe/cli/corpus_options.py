"""The argument and options that commands on a store share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from bert_probe.cli.options import output_options
from bert_probe.corpus.store import open_corpus


def store_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add STORE, which is passed opened as ``store``, and the options of the output."""

    @click.argument("folder", metavar="STORE", type=click.Path(path_type=Path))
    @output_options
    @functools.wraps(command)
    def run(folder: Path, **values: Any) -> Any:
        return command(store=open_corpus(folder), **values)

    return run
