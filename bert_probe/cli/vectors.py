"""Commands on a text's vectors, and on how the first and the last of them are made."""

from __future__ import annotations

from typing import Any

import click

from bert_probe.analyses.vectors.embedding import Embedding, EmbeddingResult
from bert_probe.analyses.vectors.hidden_states import HiddenStates, HiddenStatesResult
from bert_probe.analyses.vectors.pooler import Pooler, PoolerResult
from bert_probe.cli.options import asking, common, one_text
from bert_probe.model.trace import Trace


@click.command()
@common
@asking(HiddenStates)
@one_text
def embeddings(trace: Trace, asked: dict[str, Any]) -> HiddenStatesResult:
    """Vectors of the tokens, of [CLS], or of the pooler."""
    return HiddenStates(**asked).of(trace)


@click.command()
@common
@asking(Embedding)
@one_text
def anatomy(trace: Trace, asked: dict[str, Any]) -> EmbeddingResult:
    """A token's input vector taken apart: word, position, segment, their sum, LayerNorm."""
    return Embedding(**asked).of(trace)


@click.command()
@common
@one_text
def pooler(trace: Trace) -> PoolerResult:
    """The pooler's output, step by step from [CLS], and the model's own."""
    return Pooler().of(trace)
