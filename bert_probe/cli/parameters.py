"""The command that lists the parameters of a model."""

from __future__ import annotations

import click

from bert_probe.analyses.weights.parameters import ModelSizes, Parameters
from bert_probe.cli.options import model_options, open_checkpoint
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError
from bert_probe.model.config import PUBLISHED, open_config
from bert_probe.runtime.progress import terminal_bar


@click.command()
@model_options
@click.option("--all-columns", is_flag=True, help="Also print the columns part, kind, share and tied_to.")
@click.option(
    "--config",
    "configs",
    multiple=True,
    metavar="FILE|NAME",
    help=f"Print the size of a model from its config. Pass {', '.join(PUBLISHED)}, a config.json, a folder, "
    "or a Hub ID, with @REV for a revision; can be repeated.",
)
def parameters(
    model: str | None,
    revision: str | None,
    dtype: str,
    all_columns: bool,
    configs: tuple[str, ...],
    truncate: bool,  # noqa: ARG001 - all commands have this option
) -> Result:
    """The parameters of a model: name, group, shape, count, data type and bytes.

    With --config, prints one row for each model instead: layers, heads, dimensions, parameters by part, and
    memory of the weights. No weights are read. --model adds a row for an opened model.
    """
    if not configs:
        return Parameters("all" if all_columns else "main").of(open_checkpoint(model, revision, dtype))
    if all_columns:
        raise SelectionError("--all-columns and --config cannot be combined. Leave one of them out.")
    with terminal_bar("Downloading", "B") as progress:
        models = [open_config(name, progress) for name in configs]
    return ModelSizes().of(*models, *([open_checkpoint(model, revision, dtype)] if model else []))
