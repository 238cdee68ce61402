"""Commands that attribute one number of the model's answer to tokens, words or heads."""

from __future__ import annotations

from typing import Any

import click

from bert_probe.analyses.attribution.attribution import Attribution
from bert_probe.analyses.attribution.faithfulness import AttributionFaithfulness
from bert_probe.analyses.attribution.head_attribution import HeadAttribution
from bert_probe.analyses.outputs.sentence_similarity import SentenceSimilarity
from bert_probe.cli.options import asking, common, pair_option
from bert_probe.cli.predict import first_task, traces_for
from bert_probe.core.result import Result
from bert_probe.model.checkpoint import SENTENCE_SIMILARITY, Checkpoint
from bert_probe.runtime.progress import terminal_bar


@click.command()
@common
@asking(Attribution)
@click.argument("text")
@pair_option
def why(checkpoint: Checkpoint, asked: dict[str, Any], text: str, pair: str | None, truncate: bool) -> Result:
    """Which tokens or words one number of the model's answer for TEXT depends on.

    For the similarity of two texts the default is the contribution of each pair of tokens; for all other
    answers it is leaving out each token.
    """
    task = asked.get("task") or first_task(checkpoint)
    if task == SENTENCE_SIMILARITY and not asked.keys() - {"task"}:
        return SentenceSimilarity("contributions").of(*traces_for(checkpoint, task, text, pair, truncate))
    return _attribute(Attribution, checkpoint, asked, text, pair, truncate)


@click.command()
@common
@asking(AttributionFaithfulness)
@click.argument("text")
@pair_option
def faithfulness(
    checkpoint: Checkpoint, asked: dict[str, Any], text: str, pair: str | None, truncate: bool
) -> Result:
    """How well each attribution method predicts what removing words of TEXT does to the answer."""
    return _attribute(AttributionFaithfulness, checkpoint, asked, text, pair, truncate)


@click.command("head-attribution")
@common
@asking(HeadAttribution)
@click.argument("text")
@pair_option
def head_attribution(
    checkpoint: Checkpoint, asked: dict[str, Any], text: str, pair: str | None, truncate: bool
) -> Result:
    """How one number of the model's answer for TEXT changes without each head, or each layer's heads."""
    return _attribute(HeadAttribution, checkpoint, asked, text, pair, truncate)


def _attribute(
    question: Any, checkpoint: Checkpoint, asked: dict[str, Any], text: str, pair: str | None, truncate: bool
) -> Result:
    task = asked.get("task") or first_task(checkpoint)
    traces = traces_for(checkpoint, task, text, pair, truncate)
    with terminal_bar("Explaining", "parts") as progress:
        result: Result = question(**asked).of(*traces, progress=progress)
    return result
