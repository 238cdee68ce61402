"""Commands that attribute one number of the model's prediction to tokens, words or heads."""

from __future__ import annotations

from typing import Any

import click

from bert_probe.analyses.attribution.attribution import Attribution
from bert_probe.analyses.attribution.faithfulness import AttributionFaithfulness
from bert_probe.analyses.attribution.head_attribution import HeadAttribution
from bert_probe.analyses.outputs.sentence_similarity import SentenceSimilarity
from bert_probe.cli.options import checkpoint_options, pair_option, question_options
from bert_probe.cli.predict import first_task, traces_for
from bert_probe.core.result import Result
from bert_probe.model.checkpoint import SENTENCE_SIMILARITY, Checkpoint
from bert_probe.runtime.progress import terminal_bar


@click.command()
@checkpoint_options
@question_options(Attribution)
@click.argument("text")
@pair_option
def why(
    checkpoint: Checkpoint, arguments: dict[str, Any], text: str, pair: str | None, truncate: bool
) -> Result:
    """How much one number of the model's prediction for TEXT depends on each token or word.

    By default each token is left out in turn. For the similarity of two texts, the default is the
    contribution of each pair of tokens.
    """
    task = arguments.get("task") or first_task(checkpoint)
    if task == SENTENCE_SIMILARITY and not arguments.keys() - {"task"}:
        return SentenceSimilarity("contributions").of(*traces_for(checkpoint, task, text, pair, truncate))
    return _attribute(Attribution, checkpoint, arguments, text, pair, truncate)


@click.command()
@checkpoint_options
@question_options(AttributionFaithfulness)
@click.argument("text")
@pair_option
def faithfulness(
    checkpoint: Checkpoint, arguments: dict[str, Any], text: str, pair: str | None, truncate: bool
) -> Result:
    """How well each attribution method predicts the effect of removing words of TEXT on the prediction."""
    return _attribute(AttributionFaithfulness, checkpoint, arguments, text, pair, truncate)


@click.command("head-attribution")
@checkpoint_options
@question_options(HeadAttribution)
@click.argument("text")
@pair_option
def head_attribution(
    checkpoint: Checkpoint, arguments: dict[str, Any], text: str, pair: str | None, truncate: bool
) -> Result:
    """How one number of the model's prediction for TEXT changes without each head, or each layer's heads."""
    return _attribute(HeadAttribution, checkpoint, arguments, text, pair, truncate)


def _attribute(
    question: Any,
    checkpoint: Checkpoint,
    arguments: dict[str, Any],
    text: str,
    pair: str | None,
    truncate: bool,
) -> Result:
    task = arguments.get("task") or first_task(checkpoint)
    traces = traces_for(checkpoint, task, text, pair, truncate)
    with terminal_bar("Explaining", "parts") as progress:
        result: Result = question(**arguments).of(*traces, progress=progress)
    return result
