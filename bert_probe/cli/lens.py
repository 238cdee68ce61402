"""Commands about the logit lens and the tuned lens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bert_probe.analyses.outputs.lens import Lens, LensResult
from bert_probe.analyses.outputs.tuned_lens import SUFFIX, TuneLens, TuneLensResult, save_lens
from bert_probe.cli.options import (
    as_named_option,
    checkpoint_options,
    own_extension,
    print_message,
    question_options,
    text_options,
)
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from bert_probe.runtime.progress import terminal_bar
from bert_probe.text.sentence_files import read_sentences


@click.command()
@checkpoint_options
@question_options(Lens)
@text_options
def lens(trace: Trace, arguments: dict[str, Any]) -> LensResult:
    """What the trained head predicts from each layer's vectors, at masks or at all tokens of TEXT.

    Layer 0 is the output of the embeddings; the last layer gives the model's prediction. The head was trained
    on the last layer only. A tuned lens first maps the vectors of each other layer to those of the last one.
    """
    result = Lens(**arguments).of(trace)
    if result.tuned:
        print_message(result.tuned["verdict"])
    return result


@click.command("tune-lens")
@checkpoint_options
@question_options(TuneLens)
@click.argument("file", type=click.Path(path_type=Path))
@as_named_option
@own_extension(SUFFIX)
def tune_lens(
    checkpoint: Checkpoint, arguments: dict[str, Any], file: Path, as_named: bool, truncate: bool
) -> TuneLensResult:
    """Train a tuned lens on the lines of FILE (UTF-8) and print its losses.

    The lens is saved in the cache, or in the file of --out FILE.safetensors.
    """
    with terminal_bar("Training", "parts") as progress:
        result = TuneLens(**arguments).of(
            checkpoint, read_sentences(file, as_named=as_named), truncate, progress
        )
    if click.get_current_context().params["out"] is None:
        print_message(f"Saved in {save_lens(result, checkpoint)}.")
    print_message(result.verdict)
    return result
