"""Asking on the terminal before a model is opened that a file or a store names: these may be a stranger's."""

from __future__ import annotations

import sys

import click

from bert_probe.errors import SelectionError
from bert_probe.model.sources import existing
from bert_probe.runtime import terminal

YES = click.option("--yes", is_flag=True, help="Open the models that the file names, without asking.")


def confirm(origin: str, name: str, shown: str) -> None:
    """Ask whether to open a model; return if the answer is yes.

    Args:
        origin: what names the model, such as "The file".
        name: of the model, as it will be opened.
        shown: the same for people, with its revision.

    Raises:
        SelectionError: nobody can be asked, as standard input is not a terminal.
        click.Abort: the answer is no.
    """
    folder = existing(name)
    local = folder is not None and folder.is_dir()
    where = "a folder of this machine" if local else "which would be looked for on the hub"
    sentence = terminal.visible(f"{origin} names the model {shown}, {where}.")
    if sys.stdin is None or not sys.stdin.isatty():
        raise SelectionError(f"{sentence} Give --yes to open it, or --model.")
    click.confirm(f"{sentence} Open it?", abort=True, err=True)
