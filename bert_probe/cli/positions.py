"""The command on what a model has for positions."""

from __future__ import annotations

from typing import Any

import click

from bert_probe.analyses.weights.positions import Positions, PositionsResult
from bert_probe.cli.options import asking, common
from bert_probe.model.checkpoint import Checkpoint


@click.command()
@common
@asking(Positions)
def positions(checkpoint: Checkpoint, asked: dict[str, Any], truncate: bool) -> PositionsResult:  # noqa: ARG001
    """How the model knows where a token stands: what it learned for each position.

    Beside it the sinusoids of Vaswani et al. 2017, which BERT does not use; rotary models have frequencies
    instead, others a bias by distance.
    """
    return Positions(**asked).of(checkpoint)
