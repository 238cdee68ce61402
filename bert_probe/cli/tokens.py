"""The command that lists tokens, which usually loads only the tokenizer and not the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from bert_probe.analyses.vocabulary.tokens import Tokens, TokensResult, token_table
from bert_probe.cli.options import model_options, open_checkpoint, pair_option
from bert_probe.model.tokens_alone import encode_without_model
from bert_probe.runtime.progress import terminal_bar

if TYPE_CHECKING:
    import pandas as pd


@click.command()
@model_options
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
    """List the tokens of TEXT with their ID, segment, word and character offsets."""
    # Output files contain provenance, which requires the loaded model.
    if not (context.params["out"] or context.params["save_view"]):
        with terminal_bar("Downloading", "B") as progress:
            encoding = encode_without_model(model, revision, text, pair, progress)
        if encoding is not None:
            return token_table(encoding)
    return Tokens().of(open_checkpoint(model, revision, dtype).trace(text, pair, truncate))
