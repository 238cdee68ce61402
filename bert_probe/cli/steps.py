"""The command on one attention weight, step by step."""

from __future__ import annotations

from typing import Any

import click

from bert_probe.analyses.attention.steps import HEAD, AttentionSteps, AttentionStepsResult
from bert_probe.cli.options import asking, common, one_text
from bert_probe.model.trace import Trace


@click.command()
@common
@asking(AttentionSteps, "head", "query")
@one_text
@click.option("--query", required=True, metavar="WORD|N", help="Token that looks: a word, or its position.")
@click.option("--head", required=True, metavar="N", help="Head, counted from 1.")
def steps(trace: Trace, asked: dict[str, Any], query: str, head: str) -> AttentionStepsResult:
    """From q and k to each weight of one token in one head, step by step.

    Positions count from 0, as in the table of tokens. A word that occurs twice is named WORD:2.
    """
    return AttentionSteps(head=HEAD.read("head", head, trace), query=query, **asked).of(trace)
