"""The command on a model's parameters."""

from __future__ import annotations

import click

from bert_probe.analyses.parameters import ModelParameters, Parameters
from bert_probe.cli.options import common
from bert_probe.model.checkpoint import Checkpoint


@click.command()
@common
@click.option("--all-columns", is_flag=True, help="Also part, kind, share, and what a tensor is tied to.")
def parameters(checkpoint: Checkpoint, all_columns: bool, truncate: bool) -> ModelParameters:  # noqa: ARG001
    """Every parameter of the model: name, group, shape, count, type, bytes."""
    return Parameters("all" if all_columns else "main").of(checkpoint)
