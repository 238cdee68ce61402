"""Commands about the logit lens and the tuned lens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bert_probe.analyses.outputs.lens import Lens, LensResult
from bert_probe.analyses.outputs.tuned_lens import SUFFIX, TuneLens, TuneLensResult
from bert_probe.analyses.outputs.tuned_lens_files import save_lens
from bert_probe.cli.options import as_named_option, asking, common, one_text, writing
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Trace
from bert_probe.runtime import terminal
from bert_probe.runtime.progress import terminal_bar
from bert_probe.text.sentence_files import read_sentences


@click.command()
@common
@asking(Lens)
@one_text
def lens(trace: Trace, asked: dict[str, Any]) -> LensResult:
    """What the trained head predicts from each layer's vectors, at masks or at all tokens of TEXT.

    Layer 0 is the output of the embeddings; the last layer gives the model's answer. The head was trained on
    the last layer only. A tuned lens first maps the vectors of each other layer to those of the last one.
    """
    result = Lens(**asked).of(trace)
    if result.tuned:
        _notify(result.tuned["verdict"])
    return result


@click.command("tune-lens")
@common
@asking(TuneLens)
@click.argument("file", type=click.Path(path_type=Path))
@as_named_option
@writing(SUFFIX)
def tune_lens(
    checkpoint: Checkpoint, asked: dict[str, Any], file: Path, as_named: bool, truncate: bool
) -> TuneLensResult:
    """Train a tuned lens on the lines of FILE (UTF-8) and print its losses.

    It is saved in the cache, or with --out NAME.safetensors in that file.
    """
    with terminal_bar("Training", "parts") as progress:
        result = TuneLens(**asked).of(checkpoint, read_sentences(file, as_named=as_named), truncate, progress)
    if click.get_current_context().params["out"] is None:
        _notify(f"Saved in {save_lens(result, checkpoint)}.")
    _notify(result.verdict)
    return result


def _notify(sentence: str) -> None:
    click.echo(f"bert-probe: {terminal.visible(sentence)}", err=True)
