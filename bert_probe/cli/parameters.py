"""The command on a model's parameters."""

from __future__ import annotations

import click

from bert_probe.analyses.weights.model_sizes import ModelSizes
from bert_probe.analyses.weights.parameters import Parameters
from bert_probe.cli.options import naming_a_model, opened
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError
from bert_probe.model.config_alone import PUBLISHED, open_config
from bert_probe.runtime.progress import terminal_bar


@click.command()
@naming_a_model
@click.option("--all-columns", is_flag=True, help="Also part, kind, share, and what a tensor is tied to.")
@click.option(
    "--config",
    "configs",
    multiple=True,
    metavar="FILE|NAME",
    help=f"The size of a model by its config alone: {', '.join(PUBLISHED)}, a config.json, a folder, or a "
    "hub id, which may end in @REV. Give it again for another.",
)
def parameters(
    model: str | None,
    revision: str | None,
    dtype: str,
    all_columns: bool,
    configs: tuple[str, ...],
    truncate: bool,  # noqa: ARG001 - an option of all commands
) -> Result:
    """Every parameter of the model: name, group, shape, count, type, bytes.

    With --config instead a row for each model: layers, heads, dimensions, parameters by part, and the
    memory of the weights; no weights are read. --model then puts an opened model beside them.
    """
    if not configs:
        return Parameters("all" if all_columns else "main").of(opened(model, revision, dtype))
    if all_columns:
        raise SelectionError("--all-columns is for the tensors of one model. Leave it out, or --config.")
    with terminal_bar("Downloading", "B") as progress:
        found = [open_config(name, progress) for name in configs]
    return ModelSizes().of(*found, *([opened(model, revision, dtype)] if model else []))
