"""The command on texts in one batch."""

from __future__ import annotations

from typing import Any

import click

from bert_probe.analyses.vectors.padding import PaddingEffect, PaddingEffectResult
from bert_probe.cli.options import asking, common
from bert_probe.model.checkpoint import Checkpoint


@click.command()
@common
@asking(PaddingEffect)
@click.option("--text", "texts", multiple=True, required=True, metavar="TEXT", help="Two texts or more.")
def padding(
    checkpoint: Checkpoint, asked: dict[str, Any], texts: tuple[str, ...], truncate: bool
) -> PaddingEffectResult:
    """Texts as the model is given them in one batch, filled up to one length, or what that changes.

    With --show differences: how far vectors in the batch are from those of each text read by itself, and
    how far they would be without the attention mask.
    """
    return PaddingEffect(**asked).of(checkpoint.traces(texts, truncate))
