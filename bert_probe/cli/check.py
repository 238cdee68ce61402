"""The command that lists what works with a model."""

from __future__ import annotations

import click

from bert_probe.analyses.weights.model_check import check as check_model
from bert_probe.cli.options import REVISION_HELP, output_options
from bert_probe.runtime.progress import terminal_bar


@click.command()
@click.argument("model", metavar="MODEL")
@click.option("--revision", metavar="REV", help=REVISION_HELP)
@click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "float16", "bfloat16", "float64"]),
    default="auto",
    show_default=True,
    help="Data type of the weights and the computation; auto is float32.",
)
@click.option(
    "--config-only", is_flag=True, help="Read only the config; weights are neither downloaded nor opened."
)
@output_options
def check(model: str, revision: str | None, dtype: str, config_only: bool) -> object:
    """Features that work with a MODEL, and those that do not, with the reason.

    MODEL is a Hub ID or a local folder. The config is read first; if it describes a supported model, the
    checkpoint is opened. Prints one row for each capability: yes, no, or unknown if it was not checked.
    """
    with terminal_bar("Downloading", "B") as progress:
        checked = check_model(model, revision, config_only=config_only, dtype=dtype, progress=progress)
    return checked.table()
