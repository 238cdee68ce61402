"""Commands on checkpoints: what works with a model, and the conversion of pickled weights to safetensors."""

from __future__ import annotations

from pathlib import Path

import click

from bert_probe.analyses.weights.model_check import check as check_model
from bert_probe.cli.options import REVISION_HELP, OutputPath, dtype_option, output_options
from bert_probe.conversion.convert import convert as convert_model
from bert_probe.model.progress import Cancelled
from bert_probe.runtime.progress import cancel_on_interrupt, exit_on_sigterm, terminal_bar
from bert_probe.runtime.terminal import visible
from bert_probe.training.saving import find_leftovers, reserve_folder


@click.command()
@click.argument("model", metavar="MODEL")
@click.option("--out", type=OutputPath(), metavar="FOLDER", required=True, help="Folder of the new model.")
@click.option("--revision", metavar="REV", help=REVISION_HELP)
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    metavar="N",
    help="Time limit, in seconds.  [default: 2 minutes, plus 1 second for every 10 MB]",
)
@click.option("--force", is_flag=True, help="Overwrite a model that BERT Probe saved in the output folder.")
def convert(model: str, out: Path, revision: str | None, seconds: float | None, force: bool) -> None:
    """Convert the pickled weights of a MODEL (pytorch_model.bin) to safetensors, in a new folder.

    MODEL is a Hub ID or a local folder. A separate process without network access, with limited memory and
    time, reads the tensors with torch's restricted unpickler; code in the file is not run. Config, tokenizer
    and sentence-transformers modules are copied. bert_probe.json in the new folder lists the SHA-256 of each
    file before and after.
    """
    with exit_on_sigterm(), reserve_folder(out, force):
        for message in find_leftovers(out):
            click.echo(visible(message), err=True)
        with terminal_bar("Converting", "B") as bar, cancel_on_interrupt(bar) as progress:
            try:
                converted = convert_model(
                    model, out, revision, replaces=force, seconds=seconds, progress=progress
                )
            except Cancelled:
                raise click.Abort from None
    for file in converted.record["files"]:
        tied = f", {len(file['tied'])} tied" if file["tied"] else ""
        message = f"{file['source']} → {file['file']}: {file['tensors']:,} tensors{tied}."
        click.echo(visible(message), err=True)
    click.echo(visible(f"The model was saved in {out}. Open the model with --model {out}."), err=True)


@click.command()
@click.argument("model", metavar="MODEL")
@click.option("--revision", metavar="REV", help=REVISION_HELP)
@dtype_option
@click.option(
    "--config-only", is_flag=True, help="Read only the config; the weights are neither downloaded nor opened."
)
@output_options
def check(model: str, revision: str | None, dtype: str, config_only: bool) -> object:
    """List which features work with a MODEL, and why the other features do not.

    MODEL is a Hub ID or a local folder. The config is read first; if it describes a supported model, the
    checkpoint is opened. Prints one row for each capability: yes, no, or unknown if it was not checked.
    """
    with terminal_bar("Downloading", "B") as progress:
        checked = check_model(model, revision, config_only=config_only, dtype=dtype, progress=progress)
    return checked.table()
