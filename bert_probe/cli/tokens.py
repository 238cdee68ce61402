"""The command on a text's tokens, which opens a model only where it must."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from bert_probe.analyses.vocabulary.tokens import Tokens, TokensResult, token_table
from bert_probe.cli.options import naming_a_model, opened, pair_option
from bert_probe.model.tokens_alone import encode_without_model
from bert_probe.runtime.progress import terminal_bar

if TYPE_CHECKING:
    import pandas as pd


@click.command()
@naming_a_model
@click.argument("text")
@pair_option
@click.pass_context
def tokens(
    context: click.Context,
    model: str | None,
    revision: str | None,
    dtype: str,
    text: str,
    pair: str | None,
    truncate: bool,
) -> TokensResult | pd.DataFrame:
    """Tokens of TEXT: id, segment, word, place in the text."""
    # A file says of which model they are, and on what it runs.
    if not (context.params["out"] or context.params["save_view"]):
        with terminal_bar("Downloading", "B") as progress:
            alone = encode_without_model(model, revision, text, pair, progress)
        if alone is not None:
            return token_table(alone)
    return Tokens().of(opened(model, revision, dtype).trace(text, pair, truncate))
