"""The command on what an answer depends on."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from bert_probe.analyses.attribution.attribution import METHOD, Attribution
from bert_probe.analyses.attribution.faithfulness import AttributionFaithfulness
from bert_probe.analyses.attribution.faithfulness_summary import FaithfulnessSummary
from bert_probe.analyses.attribution.head_attribution import HeadAttribution
from bert_probe.analyses.attribution.head_pruning import HeadPruning
from bert_probe.analyses.attribution.methods import methods
from bert_probe.analyses.attribution.similarity_attribution import METHOD as JACOBIANS
from bert_probe.analyses.attribution.similarity_attribution import SimilarityAttribution
from bert_probe.analyses.outputs.sentence_similarity import SentenceSimilarity
from bert_probe.cli.options import as_named_option, asking, common, pair_option
from bert_probe.cli.predict import first_task, traces_for
from bert_probe.core.question import Question, option_name
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import COMPARING, Checkpoint
from bert_probe.runtime.progress import terminal_bar
from bert_probe.text.sentence_files import read_sentences

_ALL = (
    Attribution,
    AttributionFaithfulness,
    HeadAttribution,
    SimilarityAttribution,
    FaithfulnessSummary,
    HeadPruning,
)


@click.command()
@common
@asking(Attribution, "method")
@asking(AttributionFaithfulness, "task", "target", "at", "words", "removal", "baseline")
@asking(HeadAttribution, "task", "target", "at")
@asking(SimilarityAttribution, "baseline")
@asking(HeadPruning, "seed")
@click.option("--method", type=click.Choice([*methods(), JACOBIANS]), help=METHOD)
@click.option("--check", is_flag=True, help="How well each method foretells what taking words away does.")
@click.option("--heads", is_flag=True, help="The change of the answer without each head.")
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Instead of TEXT: --check over texts in UTF-8, one a line; two of them with a tab between. With "
    "--heads: accuracy as heads are removed, the label and a tab before each text.",
)
@click.argument("text", required=False)
@pair_option
@as_named_option
def why(
    checkpoint: Checkpoint,
    asked: dict[str, Any],
    method: str | None,
    check: bool,
    heads: bool,
    file: Path | None,
    text: str | None,
    pair: str | None,
    as_named: bool,
    truncate: bool,
) -> Result:
    """Which tokens, words or heads one number of the model's answer for TEXT depends on.

    Of how alike two texts are the contribution of every two tokens, unless a method is named; of everything
    else what leaving out each token does.
    """
    result: Result
    given = [name for name, value in (("--method", method), ("--check", check), ("--heads", heads)) if value]
    if len(given) > 1:
        raise SelectionError(f"{given[0]} and {given[1]} are two questions. Leave one of them out.")
    if (file is None) == (text is None):
        raise SelectionError("Give a TEXT, or texts with --file; one of the two.")
    if file is not None:
        if method is not None or pair is not None:
            raise SelectionError("--file is read as a whole. Leave --method and --pair out.")
        question = _question(HeadPruning if heads else FaithfulnessSummary, asked)
        with terminal_bar("Explaining", "texts") as report:
            result = question.of(checkpoint, read_sentences(file, as_named=as_named), truncate, report)
        return result
    assert text is not None  # one of the two is
    task = asked.get("task") or first_task(checkpoint)
    traces = traces_for(checkpoint, task, text, pair, truncate)
    if task == COMPARING and not given and not asked.keys() - {"task"}:
        return SentenceSimilarity("contributions").of(*traces)
    if method == JACOBIANS:
        asked.pop("task", None)
        question = _question(SimilarityAttribution, asked)
    elif heads:
        question = _question(HeadAttribution, asked)
    elif check:
        question = _question(AttributionFaithfulness, asked)
    else:
        question = _question(Attribution, asked | ({"method": method} if method else {}))
    with terminal_bar("Explaining", "parts") as report:
        result = question.of(*traces, report=report)
    return result


def _question(cls: type[Question], asked: dict[str, Any]) -> Any:
    """The question, if it has all that was given."""
    known = {field.name for field in fields(cls)}
    named = {field.name: option_name(field) for other in _ALL for field in fields(other)}
    foreign = [named[name] for name in asked if name not in known]
    if foreign:
        raise SelectionError(f"{foreign[0]} has no meaning here. Leave it out; see bert-probe why --help.")
    return cls(**asked)
