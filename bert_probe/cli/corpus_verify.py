"""The command that verifies the digests of a store."""

from __future__ import annotations

from pathlib import Path

import click

from bert_probe.cli.options import print_bytes
from bert_probe.core import files
from bert_probe.corpus.verify import verify_corpus
from bert_probe.runtime import terminal
from bert_probe.runtime.progress import terminal_bar


@click.command()
@click.argument("folder", metavar="STORE", type=click.Path(path_type=Path))
@click.pass_context
def verify(context: click.Context, folder: Path) -> None:
    """Compare each file of STORE with its SHA-256 digest.

    Prints a row for each file that differs, and exits with status 1 if there are any.
    """
    with terminal_bar("Comparing", "B") as progress:
        verification = verify_corpus(folder, progress)
    if verification.differences:
        print_bytes(files.to_bytes(verification.frame(), "csv"))
    click.echo(f"bert-probe: {terminal.visible(verification.summary())}", err=True)
    if verification.differences:
        context.exit(1)
