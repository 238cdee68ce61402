"""Confirmation on the terminal before a model is opened that a file or a store names; it may be untrusted."""

from __future__ import annotations

import sys

import click

from bert_probe.errors import SelectionError
from bert_probe.model.sources import existing
from bert_probe.runtime import terminal

YES = click.option("--yes", is_flag=True, help="Open the models that the file names without confirmation.")


def confirm(origin: str, name: str, label: str) -> None:
    """Ask whether to open a model, and return if the user agrees.

    Args:
        origin: what names the model, such as "The file".
        name: the folder or Hub ID that will be opened.
        label: the same for display, with the revision.

    Raises:
        SelectionError: if standard input is not a terminal.
        click.Abort: if the user declines.
    """
    folder = existing(name)
    is_local = folder is not None and folder.is_dir()
    location = "a folder on this machine" if is_local else "which would be loaded from the Hub"
    message = terminal.visible(f"{origin} names the model {label}, {location}.")
    if sys.stdin is None or not sys.stdin.isatty():
        raise SelectionError(f"{message} Pass --yes to open it, or another model with --model.")
    click.confirm(f"{message} Open it?", abort=True, err=True)
